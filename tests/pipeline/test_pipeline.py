"""The whole path on a toy corpus, as a library: every stage, twice, and what must be refused."""

from __future__ import annotations

import gzip
import json
import math
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
from IPython.core.formatters import HTMLFormatter
from tokenizers import Tokenizer

from command_line import invoke
from toy_runs import DATA, SIZES, TOKENS, WORDS, Notes, toy_config, write_corpus
from tpulm import accelerators, dataset, pipeline, storage, tokenization, workfolder
from tpulm.config import RunConfig, SourceConfig, TokenizerConfig
from tpulm.convert.huggingface import is_pretrained_here
from tpulm.errors import CheckpointError, ConfigError, DataError, Stopped, WorkFolderMismatch
from tpulm.pipeline import preparation
from tpulm.progress import SILENT, Progress
from tpulm.train import program as train_program
from tpulm.train.metrics import read_metrics

Run = tuple[RunConfig, Path, pipeline.Summary]


def test_the_summary_and_the_folder_agree(toy_run: Run) -> None:
    config, workdir, summary = toy_run
    assert summary.steps == 6
    assert summary.stages == dict.fromkeys(("corpus", "tokenizer", "dataset", "train", "evaluate", "export"), "done")
    assert summary.train_loss == [r for r in read_metrics(workdir) if r.kind == "train"][-1].values["loss"]
    assert summary.eval_loss == json.loads((workdir / "results" / "evaluation.json").read_text())["loss"]
    assert workfolder.open_run(workdir) == config
    assert not (workdir / "corpus" / "pieces").exists()  # the spill is gone once the rows exist
    card = (Path(summary.export) / "README.md").read_text()
    assert "toy" in card and f"{100 * summary.eval_accuracy:.2f}%" in card
    assert is_pretrained_here(summary.export) and is_pretrained_here(workdir)
    assert "<iframe" in (HTMLFormatter()(summary) or "")  # as a notebook shows it


def test_what_no_text_mends_is_said_before_the_text_is_read(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt")
    for hardware, message in (({"fsdp": 3}, "fsdp 3 x tensor 1"), ({"microbatch_size": 3}, "microbatch_size 3")):
        with pytest.raises(ConfigError, match=message):
            pipeline.run(toy_config(corpus, hardware=hardware), tmp_path / "w")
        assert not (tmp_path / "w" / "corpus").exists() and not (tmp_path / "w" / "tokenizer").exists()


def test_running_again_does_nothing_and_says_so(toy_run: Run) -> None:
    """On another layout of devices, too; the last one leaves the shared run as it was."""
    config, workdir, summary = toy_run
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file() and path.name != "run.json"}
    for hardware in (config.hardware.model_copy(update={"data": 1}), config.hardware):
        again = pipeline.run(config.model_copy(update={"hardware": hardware}), workdir)
        assert again.nothing_to_do and {**vars(again), "stages": {}} == {**vars(summary), "stages": {}}
    after = {path: path.stat().st_mtime_ns for path in before}
    assert {path.name for path in before if before[path] != after[path]} <= {".lock"}


def test_stages_hand_on_what_they_have_read(toy_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a run, and the same run again, opens what several stages need; worker processes open it for themselves."""
    opened, open_file = Counter[Path](), Path.open

    def counted(path: Path, *args: Any, **kwargs: Any) -> Any:
        opened[path] += 1
        return open_file(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", counted)
    expected = {
        "results/train.json": (0, 2),  # the first host checks it as it takes the folder; then each host reads it
        "dataset/manifest.json": (1, 1),
        "dataset/train/manifest.json": (1, 1),
        "dataset/holdout/manifest.json": (1, 1),
        "tokenizer/tokenizer.json": (2, 1),  # once to be copied into the export
        "tokenizer/manifest.json": (1, 2),  # what it was made from is compared before it is loaded, and its checksums then
        "corpus/manifest.json": (1, 1),
    }
    config = toy_run[0].model_copy(update={"train": toy_run[0].train.model_copy(update={"evaluate_every_steps": 2})})
    pipeline.run(config, tmp_path)
    first = opened.copy()
    assert pipeline.run(config, tmp_path).nothing_to_do
    found = {name: (first[tmp_path / name], opened[tmp_path / name] - first[tmp_path / name]) for name in expected}
    assert found == expected


@pytest.mark.slow
def test_a_causal_run_scores_every_token_and_its_export_continues_texts(tmp_path: Path) -> None:
    import tpulm

    config = toy_config(
        write_corpus(tmp_path / "corpus.txt.gz"),
        data=DATA | {"rows": "causal"},
        model=SIZES | {"architecture": "decoder", "norm_position": "pre"},
    )
    summary = pipeline.run(config, tmp_path / "w")
    scores = json.loads((tmp_path / "w" / "results" / "evaluation.json").read_text())
    counts = dataset.summarize(tmp_path / "w", "holdout").counts
    bits = scores["loss"] / math.log(2) * (counts.tokens + counts.documents) / counts.characters
    assert scores["bits_per_character"] == summary.bits_per_character == pytest.approx(bits)
    entropy, baseline = unigrams_of_next_tokens(tmp_path / "w" / "dataset", vocab_size=60)
    assert scores["unigram_entropy"] == pytest.approx(entropy, rel=1e-6)
    assert scores["baseline_accuracy"] == summary.eval_baseline_accuracy == pytest.approx(baseline, rel=1e-6)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert "text-generation" in (Path(summary.export) / "README.md").read_text()
    model = tpulm.load_model(tmp_path / "w")
    (found,) = tpulm.generate(model, "the cat", max_tokens=5, seed=1)
    assert len(found.token_ids) == 5 or found.ending == "end of text"
    with pytest.raises(ConfigError, match="causal"):
        tpulm.fill_mask(model, "the [MASK]")


def unigrams_of_next_tokens(folder: Path, vocab_size: int) -> tuple[float, float]:
    """From the rows as Zarr has them: cross-entropy of add-one smoothed unigrams, accuracy of the commonest."""

    def next_tokens(split: str) -> np.ndarray:
        paths = sorted((folder / split).glob("part-*/tokens.zarr"))
        opened = [tensorstore.open({"driver": "zarr3", "kvstore": f"file://{path}"}).result() for path in paths]
        rows = np.concatenate([array.read().result() for array in opened])
        following = rows[:, 1:].ravel()
        return following[following != 0]  # [PAD]

    trained, held_out = next_tokens("train"), next_tokens("holdout")
    counts = np.array([np.sum(trained == token) for token in range(vocab_size)])
    logarithms = [math.log((counts[token] + 1) / (len(trained) + vocab_size)) for token in held_out]
    return -sum(logarithms) / len(logarithms), float(np.mean(held_out == counts.argmax()))


def test_masked_scores_are_compared_with_ordinary_tokens_of_training(toy_run: Run) -> None:
    """WORDS are all as likely, so that the loss of their shares is nearly that of a fair draw among them and the full stop."""
    _, workdir, summary = toy_run
    train = dataset.load_split(workdir / "dataset" / "train")
    counts, tokens = dataset.token_counts(train, max_tokens=10_000_000), train.counts.tokens
    special = train.rows.special
    assert counts[special.sep] > 0 == counts[special.cls] == counts[special.pad]
    counts[special.sep] = 0  # which is never masked
    assert counts.sum() == tokens
    small = dataset.token_counts(train, max_tokens=1_000)
    assert 900 < small.sum() < 1_300
    shares = counts[counts > 0] / tokens
    assert summary.eval_scores["unigram_entropy"] == pytest.approx(float(-(shares @ np.log(shares))), rel=0.05)
    assert summary.text_fraction == 1 - train.padding_fraction < 1
    assert summary.losses_differ == "training's is the mean of up to 2 steps; training has dropout"


def test_without_enough_text_a_run_says_so_and_leaves_a_typed_record(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sources = \["):
        pipeline.run(RunConfig(), tmp_path / "none")
    texts = {"empty": ("", r"empty\.txt"), "once": ("the cat sat on the mat\nthe cat sat on the mat\n", "--workdir")}
    for name, (text, message) in texts.items():
        workdir, source = tmp_path / name, tmp_path / f"{name}.txt"
        source.write_text(text)
        with pytest.raises(DataError, match=message):
            pipeline.run(toy_config(source), workdir)
        (record,) = [json.loads(path.read_text()) for path in (workdir / "failures").iterdir()]
        assert (record["kind"], record["exit_code"]) == ("DataError", 3) and not (workdir / "tokenizer").exists()


def test_a_loop_of_ones_own(toy_run: Run, tmp_path: Path) -> None:
    config, _, summary = toy_run
    losses = [metrics["loss"] for _, _, metrics in pipeline.training_steps(config, tmp_path / "own")]
    assert len(losses) == 6
    assert losses[-1] == pytest.approx(summary.train_loss, abs=1e-6)  # means since the last multiple of log_every_steps, too


def test_what_the_settings_name_is_looked_for_first_and_can_be_corrected(tmp_path: Path) -> None:
    """And then binds the folder."""
    corpus = write_corpus(tmp_path / "corpus.txt.gz", documents=40)
    config = toy_config(corpus)
    for group, setting, message in (
        ("tokenizer", {"path": "gone/vocab.txt"}, r"gone/vocab\.txt"),
        ("tokenizer", {"path": "/"}, r"tokenizer\.path / "),
        ("train", {"start_from": "gone"}, r"train\.start_from gone"),
        ("corpus", {"sources": (SourceConfig(path="gone.txt"),)}, r"gone\.txt"),
    ):
        wrong = config.model_copy(update={group: getattr(config, group).model_copy(update=setting)})
        with pytest.raises(ConfigError, match=message), workfolder.working_in(wrong, tmp_path / "w") as folder:
            preparation.prepare_corpus(wrong, folder.path)
        assert not (tmp_path / "w" / "corpus" / "manifest.json").exists()
    with workfolder.working_in(config, tmp_path / "w") as folder:
        preparation.prepare_corpus(config, folder.path)
    write_corpus(corpus, documents=41)
    with pytest.raises(WorkFolderMismatch, match=r"corpus\.txt\.gz"):
        pipeline.run(config, tmp_path / "w")


def prepared(config: RunConfig, workdir: Path, progress: Progress = SILENT) -> dataset.DatasetManifest:
    with workfolder.working_in(config, workdir) as folder:
        return preparation.prepare_data(config, folder.path, progress=progress).datasets[0]


def test_a_given_tokenizer_is_read_before_the_text_and_must_fit_it(tmp_path: Path) -> None:
    corpus, vocabulary, w, notes = write_corpus(tmp_path / "corpus.txt.gz"), tmp_path / "vocab.txt", tmp_path / "w", Notes()
    config = toy_config(corpus, tokenizer={"path": str(vocabulary)})
    vocabulary.write_text("[PAD]\n[UNK]\ncat\n")
    with pytest.raises(DataError, match=r"cls .*mask"):
        prepared(config, w)
    assert not (w / "corpus").exists()
    vocabulary.write_text("\n".join([*TOKENS[: 5 + len(WORDS) // 2], "."]))
    with pytest.raises(ConfigError, match=r"^\d\d\.\d% of .*tokenizer\.allow_unknown = true"):
        prepared(config, w)
    assert not (w / "dataset").exists()
    made = prepared(toy_config(corpus, tokenizer={"path": str(vocabulary), "allow_unknown": True}), w, notes)
    assert [note for note in notes.notes if "of the text's characters are unknown" in note]
    words = gzip.decompress(corpus.read_bytes()).decode().replace(".", " .").split()
    unknown = sum(len(word) for word in words if word in WORDS[len(WORDS) // 2 :]) / sum(map(len, words))
    assert made.train.counts.unknown_fraction == pytest.approx(unknown, abs=0.01)
    vocabulary.write_text("\n".join([*TOKENS, "."]))
    counts = prepared(config, tmp_path / "whole").train.counts
    assert counts.unknown_tokens == 0 < counts.tokens


def test_a_tokenizer_that_does_not_normalize_as_the_corpus_was_is_noted(tmp_path: Path) -> None:
    """One trained here does; one of an older version in the work folder, or one given, goes on with a note."""
    corpus = write_corpus(tmp_path / "corpus.txt.gz")
    config, folder = toy_config(corpus), tmp_path / "w" / "tokenizer"
    values = config.corpus.model_dump() | {"cleaning": {"unicode_form": "NFKC", "max_repeats": 3}}
    config = toy_config(corpus, corpus=values)
    assert preparation_notes(config, tmp_path / "w") == []
    made, manifest = tokenization.load(folder), tokenization.load_manifest(folder)
    assert manifest is not None
    specification = json.loads(made.canonical_json)
    specification["normalizer"] = specification["normalizer"]["normalizers"][-1]  # BERT's alone
    older = tokenization.Tokenization(Tokenizer.from_str(json.dumps(specification)), made.special)
    tokenization.save(older, folder, inputs=manifest.inputs)
    for made_of_it in ("dataset", "corpus"):
        shutil.rmtree(tmp_path / "w" / made_of_it)
    (note,) = preparation_notes(config, tmp_path / "w")
    assert "corpus.cleaning" in note and "in a new work folder" in note
    assert tokenization.load(folder).fingerprint == older.fingerprint
    given = TokenizerConfig(path=str(folder / "vocab.txt"))
    assert len(preparation_notes(config.model_copy(update={"tokenizer": given}), tmp_path / "w2")) == 1


def preparation_notes(config: RunConfig, folder: Path) -> list[str]:
    prepared(config, folder, found := Notes())
    return [note for note in found.notes if "does not normalize" in note]


def copied(toy_run: Run, folder: Path, *without: str) -> Path:
    """The toy_run work folder once more, without some of its results."""
    shutil.copytree(toy_run[1], folder)
    for name in without:
        shutil.rmtree(folder / name)
    return folder


def trained(config: RunConfig, workdir: Path, progress: Progress = SILENT) -> dict[str, int]:
    """Train; the checksum of every array of the last checkpoint, but for what the next line of the log is made of."""
    with workfolder.working_in(config, workdir, progress=progress) as folder:
        steps = pipeline.train(config, folder.path, progress=progress)["steps"]
    found = json.loads((workdir / "checkpoints" / str(steps) / "objects.json").read_text())["arrays"]
    return {name: value for name, value in found.items() if not name.startswith(".window")}


@pytest.mark.slow
def test_a_run_whose_end_moves_is_as_if_it_had_been_planned_so(toy_run: Run, tmp_path: Path) -> None:
    """Bit for bit; though it logs, evaluates and saves at other steps from there on, too."""
    made = ("checkpoints", "results", "export")  # the dataset is that of other training settings, which it has nothing of

    def config(steps: int, **changes: Any) -> RunConfig:
        values, optimizer = toy_run[0].model_dump(), {"schedule": "wsd", "warmup_steps": 2, "decay_steps": 4}
        train = {**values["train"], "steps": steps, "optimizer": optimizer, **changes}
        return RunConfig.model_validate({**values, "train": train})

    at_once = trained(config(12), copied(toy_run, tmp_path / "a", *made))
    workdir = copied(toy_run, tmp_path / "b", *made)
    with pytest.raises(Stopped):
        trained(config(10), workdir, Notes(6))
    other = {"log_every_steps": 5, "evaluate_every_steps": 4, "evaluation_rows": 16, "checkpoint": {"every_steps": 5}}
    assert trained(config(12, **other), workdir) == at_once
    steps = [record.step for record in read_metrics(workdir) if record.kind == "train"]
    assert steps == sorted({2, 4, 6, 10, 12})


@pytest.mark.slow
def test_a_run_computes_to_its_end_as_it_began(toy_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, workdir = toy_run[0], copied(toy_run, tmp_path / "w", "checkpoints", "results", "export")

    def dtype() -> str:
        return json.loads((workdir / "results" / "train.json").read_text())["compute_dtype"]

    monkeypatch.setattr(accelerators, "cpu_multiplies_bfloat16", lambda: True)
    with pytest.raises(Stopped):
        trained(config, workdir, Notes(3))
    monkeypatch.setattr(accelerators, "cpu_multiplies_bfloat16", lambda: False)  # the next machine
    trained(config, workdir)
    assert dtype() == "bfloat16"

    shutil.rmtree(workdir / "results")
    monkeypatch.setattr(train_program, "recorded_compute_dtype", lambda folder: "float32")
    with pytest.raises(CheckpointError, match="compute_dtype"):
        trained(config, workdir)


def test_the_dtype_is_that_of_the_newest_readable_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "cpu_multiplies_bfloat16", lambda: True)
    recorded: list[tuple[dict[int, Any], str]] = [
        ({}, "bfloat16"),
        ({6: {"compute_dtype": "bfloat16"}, 12: {"compute_dtype": "float32"}}, "float32"),
        ({6: {"compute_dtype": "float32"}, 12: None}, "float32"),  # the newest is damaged
        ({12: {}}, "float32"),  # an older version's, which computed in float32 on a CPU
    ]
    for number, (checkpoints, dtype) in enumerate(recorded):
        for step, metadata in checkpoints.items():
            content = "{" if metadata is None else json.dumps(metadata)
            storage.write_atomic(tmp_path / f"{number}/checkpoints/{step}/metadata/metadata", content)
        assert train_program.recorded_compute_dtype(tmp_path / str(number)) == dtype


def test_a_run_is_looked_at_while_another_process_holds_it(toy_run: Run, tmp_path: Path) -> None:
    import tpulm
    from tpulm.nn.params import named_leaves

    config, _, summary = toy_run
    exported = named_leaves(tpulm.load_model(toy_run[1]).params)
    workdir = copied(toy_run, tmp_path / "w", "results", "export")
    before, told = set(workdir.rglob("*")), Notes()
    longer = config.model_copy(update={"train": config.train.model_copy(update={"steps": 1_000})})
    with storage.held(workdir):
        scores = pipeline.evaluate_read_only(longer, workdir, progress=told)
        model = pipeline.current_model(workdir, preferred=("",), progress=told)
    assert scores["step"] == 6 and scores["loss"] == pytest.approx(summary.eval_loss, rel=1e-5)
    assert any("checkpoint 6 of 1,000" in note for note in told.notes)
    shutil.copytree(toy_run[1] / "export", workdir / "export")
    with pytest.raises(ConfigError, match="checkpoint 6"):  # of which that export is not, as far as anybody knows
        tpulm.load_model(workdir)
    tpulm.load_model(workdir / "export")
    shutil.rmtree(workdir / "export")
    found = named_leaves(model.params)
    assert found.keys() == exported.keys() and all((found[name] == exported[name]).all() for name in exported)
    newest = workdir / "checkpoints" / "6" / "state"
    (newest / "manifest.ocdbt").write_bytes(b"")
    assert pipeline.evaluate_read_only(longer, workdir, progress=told)["step"] == 3
    assert any("manifest.ocdbt has 0 bytes" in note for note in told.notes)
    shutil.rmtree(newest)  # as if it were being removed just now
    assert pipeline.evaluate_read_only(longer, workdir)["step"] == 3
    assert before >= set(workdir.rglob("*")) - {workdir / ".lock"}
    shutil.rmtree(workdir / "checkpoints")
    with pytest.raises(ConfigError, match="'tpulm train'"):
        pipeline.current_model(workdir, preferred=("",))


def test_text_of_ones_own_is_scored(toy_run: Run, tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = [" ".join(rng.choices([*WORDS, "Zürich"], k=rng.randint(4, 30))) for _ in range(60)]
    (tmp_path / "a.txt").write_text("\n".join(texts[:40]) + "\n\n", "cp1252")
    lines = "\n".join(json.dumps({"content": f"  {text}  "}) for text in texts[40:])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.replace("\\u00fc", "ü").encode("cp1252")))
    before = sorted(toy_run[1].rglob("*"))
    files = ["--on", str(tmp_path / "a.txt"), "--on", str(tmp_path / "b.jsonl.gz")]
    options = ("--text-field", "content", "--encoding", "cp1252", "--json")
    scores = json.loads(invoke("evaluate", toy_run[1], *files, *options, code=0).stdout)
    made = tokenization.load(toy_run[1] / "tokenizer")
    ids = [token for text in texts for token in made.encode_one(text)[1:-1]]
    characters = sum(map(len, texts))
    assert (scores["documents"], scores["characters"], scores["tokens"]) == (60, characters, len(ids))
    assert scores["unknown_tokens"] == ids.count(made.special.unknown) == " ".join(texts).split().count("Zürich")
    assert scores["bits_per_character"] == pytest.approx(scores["loss"] / math.log(2) * len(ids) / characters)
    assert scores["loss"] == pytest.approx(toy_run[2].eval_loss, abs=0.3)  # words drawn alike
    assert sorted(toy_run[1].rglob("*")) == before
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty\.txt"):
        pipeline.evaluate_read_only(toy_run[0], toy_run[1], on=[SourceConfig(path=str(tmp_path / "empty.txt"))])


def test_another_name_makes_the_card_again_and_nothing_else(toy_run: Run, tmp_path: Path) -> None:
    workdir = copied(toy_run, tmp_path / "w")
    stages = pipeline.run(toy_run[0].model_copy(update={"name": "renamed"}), workdir).stages
    assert {name for name, state in stages.items() if state != "skipped"} == {"export"}
    assert "renamed" in (workdir / "export" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("model", [{}, {"architecture": "decoder", "norm_position": "pre"}], ids=["bert", "decoder"])
def test_rows_too_short_for_samples_end_in_an_export_all_the_same(tmp_path: Path, model: dict[str, Any]):
    """Pieces of words that are read again without their neighbours may be more tokens than the model has positions."""
    config = toy_config(
        write_corpus(tmp_path / "corpus.txt.gz"),
        tokenizer={"vocab_size": 50},
        data={"sequence_length": 8, "rows": "causal" if model else "packed", "part_bytes": 10_000},
        model={"num_layers": 1, "hidden_size": 8, "num_heads": 1, "intermediate_size": 8, "max_positions": 8, **model},
    )
    assert Path(pipeline.run(config, tmp_path / "w").export).is_dir()
