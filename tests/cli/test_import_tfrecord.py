"""From TFRecords to a trained and exported model, by the commands; there is no text anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Done, invoke
from toy_runs import write_records

RUN_FILE = """
extends = "bert-tiny"
name = "imported"
data.sequence_length = 32
model = {num_layers = 1, hidden_size = 32, num_heads = 2, intermediate_size = 64}
train = {steps = 4, batch_size = 8, log_every_steps = 2, checkpoint.every_steps = 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path)
    (tmp_path / "run.toml").write_text(RUN_FILE)
    return tmp_path


@pytest.mark.slow
def test_a_model_is_trained_from_records(folder: Path) -> None:
    def import_into(workdir: str, code: int = 0) -> Done:
        names = ("bert.tfrecord-*", "--vocab", "vocab.txt", "--format", "bert", "--to", workdir, "--lowercase", "--json")
        return invoke("dataset", "import-tfrecord", *names, code=code)

    def said(*arguments: str) -> str:
        return invoke(*arguments, "run.toml", "-w", "w", code=2).stderr

    counts = json.loads(import_into("w").stdout)
    assert counts["train"]["rows"] + counts["holdout"]["rows"] + counts["train"]["duplicates"] == 300
    assert invoke("dataset", "inspect", "w", "--rows", 2, code=0).stdout.count("train row") == 2

    longer = said("run", "--set", "data.sequence_length=64")
    assert "data.sequence_length = 32 (not 64)" in longer and "--set data.sequence_length=32" in longer
    packed = said("run", "--set", "data.rows=packed", "--set", "data.next_sentence=false")
    assert "--set data.rows=segments --set data.next_sentence=true" in packed
    assert "corpus.sources would not be read" in said("train", "--set", "corpus.sources=['a.txt']")
    assert not (folder / "w" / "run.json").exists(), "a refused run leaves the folder as it was"

    assert json.loads(invoke("train", "run.toml", "--workdir", "w", "--json", code=0).stdout)["steps"] == 4
    summary = json.loads(invoke("run", "run.toml", "--workdir", "w", "--json", code=0).stdout)
    assert summary["stages"] == {"dataset": "skipped", "train": "skipped", "evaluate": "done", "export": "done"}
    assert 0 < summary["bits_per_character"] < 20
    card = (folder / "w" / "export" / "README.md").read_text()
    assert "BERT's create_pretraining_data.py read" in card and "other cuts of the same text" in card
    assert "corpus" not in card and "tokenizer.vocab_size" not in card

    import_into("w")  # nothing to do, and nothing spoiled
    (folder / "prepared" / "corpus").mkdir(parents=True)
    (folder / "prepared" / "corpus" / "manifest.json").write_text("{}")
    assert "holds corpus, and no imported dataset" in import_into("prepared", code=2).stderr


def test_electras_records_and_mistakes(folder: Path) -> None:
    def import_tfrecord(*patterns: str, kind: str = "electra", to: str = "w-electra", code: int = 0) -> Done:
        options = ("--vocab", "vocab.txt", "--format", kind, "--to", to)
        return invoke("dataset", "import-tfrecord", *patterns, *options, code=code)

    mistaken = import_tfrecord("electra.tfrecord-*", kind="bert", to="w-bert", code=3).stderr
    assert "electra.tfrecord-0-of-3, record 1 (byte 0)" in mistaken and "--format electra" in mistaken
    done = import_tfrecord("electra.tfrecord-*")
    assert "--cased" in done.stderr
    assert "rows" in done.stdout and "documents" not in done.stdout and "bytes" not in done.stdout  # which records do not know
    normalizer = json.loads((folder / "w-electra" / "tokenizer" / "tokenizer.json").read_text())["normalizer"]
    assert normalizer["lowercase"] and normalizer["strip_accents"]
    assert "Next: tpulm run laptop-electra --workdir w-electra --set data.sequence_length=32 --set data.rows" in done.stderr
    (folder / "electra.tfrecord-1-of-3").rename(folder / "other")
    for pattern in ("electra.*", "."):
        refused = import_tfrecord(pattern, code=3).stderr
        assert "1 of the shards are missing: " in refused and "electra.tfrecord-1-of-3. Bring" in refused
    part = import_tfrecord(*(f"electra.tfrecord-{number}-of-3" for number in (0, 2)), to="part")
    assert "incomplete set is imported, without electra.tfrecord-1-of-3" in part.stderr
    (folder / "other").rename(folder / "electra.tfrecord-1-of-3")
    assert "matches no file" in import_tfrecord("elektra.tfrecord-*", code=2).stderr
    (folder / "w-electra" / "dataset" / "manifest.json").unlink()
    assert "is not finished; run the same" in invoke("run", "run.toml", "-w", "w-electra", code=2).stderr
