"""The whole path on a toy corpus, as a library: every stage, twice, and what must be refused."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from tpulm import dataset, pipeline, preparation, workfolder
from tpulm.config import RunConfig
from tpulm.errors import ConfigError, DataError, StorageError, WorkFolderMismatch
from tpulm.train.metrics import read_metrics

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "dogs",
    "ran",
    "home",
    "to",
    "eat",
    "their",
    "red",
    "food",
    "and",
    "birds",
    "sang",
    "over",
    "old",
    "trees",
    "by",
    "still",
    "water",
]


def write_corpus(path: Path, documents: int = 400) -> Path:
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(4, 30))) + "." for _ in range(documents)]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return path


def toy_config(corpus: Path, **changes: Any) -> RunConfig:
    base: dict[str, Any] = {
        "name": "toy",
        "corpus": {"sources": [str(corpus)], "holdout_fraction": 0.1},
        "tokenizer": {"vocab_size": 60},
        "data": {"sequence_length": 32, "rows": "packed", "part_bytes": 10_000},
        "model": {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 32},
        "train": {"steps": 6, "batch_size": 8, "log_every_steps": 2, "checkpoint": {"every_steps": 3}},
        "hardware": {"data": 8},
    }
    return RunConfig.model_validate({**base, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path, pipeline.Summary]:
    folder = tmp_path_factory.mktemp("run")
    config = toy_config(write_corpus(folder / "corpus.txt.gz"))
    return config, folder / "w", pipeline.run(config, folder / "w")


def test_the_summary_and_the_folder_agree(finished: tuple[RunConfig, Path, pipeline.Summary]) -> None:
    config, workdir, summary = finished
    assert summary.steps == 6
    assert set(summary.stages.values()) == {"done"}
    assert summary.train_loss == [r for r in read_metrics(workdir) if r.kind == "train"][-1].values["loss"]
    assert summary.eval_loss == json.loads((workdir / "results" / "evaluation.json").read_text())["loss"]
    assert 0.0 <= summary.eval_baseline_accuracy <= 1.0
    assert workfolder.open_run(workdir) == config
    assert not (workdir / "corpus" / "pieces").exists()  # the spill is gone once the rows exist
    card = (Path(summary.export) / "README.md").read_text()
    assert "toy" in card
    assert f"{100 * summary.eval_accuracy:.2f} %" in card


def test_running_again_does_nothing_and_says_so(finished: tuple[RunConfig, Path, pipeline.Summary]) -> None:
    config, workdir, summary = finished
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file() and path.name != "run.json"}
    again = pipeline.run(config, workdir)
    assert again.nothing_to_do
    assert {**vars(again), "stages": {}} == {**vars(summary), "stages": {}}
    after = {path: path.stat().st_mtime_ns for path in before}
    assert {path.name for path in before if before[path] != after[path]} <= {".lock"}


def test_the_export_loads_and_answers(finished: tuple[RunConfig, Path, pipeline.Summary]) -> None:
    import tpulm

    model = tpulm.load_model(finished[1])
    (answers,) = tpulm.fill_mask(model, "the cat sat on a [MASK]", top=3)
    assert len(answers) == 3
    assert sum(answer.score for answer in answers) <= 1.0 + 1e-6


def test_a_causal_run_scores_every_token_and_its_export_continues_texts(tmp_path: Path) -> None:
    import tpulm

    config = toy_config(
        write_corpus(tmp_path / "corpus.txt.gz"),
        data={"sequence_length": 32, "rows": "causal", "part_bytes": 10_000},
        model={
            "architecture": "decoder",
            "norm_position": "pre",
            "num_layers": 1,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 64,
            "max_positions": 32,
        },
    )
    summary = pipeline.run(config, tmp_path / "w")
    scores = json.loads((tmp_path / "w" / "results" / "evaluation.json").read_text())
    counts = dataset.summarize(tmp_path / "w", "holdout").counts
    bits = scores["loss"] / math.log(2) * (counts.tokens + counts.documents) / counts.characters
    assert scores["bits_per_character"] == summary.bits_per_character == pytest.approx(bits)
    assert 0.0 < scores["unigram_entropy"] < math.log(60)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert "text-generation" in (Path(summary.export) / "README.md").read_text()
    model = tpulm.load_model(tmp_path / "w")
    (found,) = tpulm.generate(model, "the cat", max_tokens=5, seed=1)
    assert len(found.token_ids) == 5 or found.ending == "end of text"
    with pytest.raises(ConfigError, match="causal language model"):
        tpulm.fill_mask(model, "the [MASK]")


def test_another_configuration_is_refused_with_what_differs(finished: tuple[RunConfig, Path, pipeline.Summary]) -> None:
    config, workdir, _ = finished
    other = config.model_copy(update={"train": config.train.model_copy(update={"steps": 7})})
    with pytest.raises(WorkFolderMismatch, match=r"train\.steps: 6 -> 7"):
        pipeline.run(other, workdir)


def test_another_layout_is_the_same_run(finished: tuple[RunConfig, Path, pipeline.Summary]) -> None:
    config, workdir, _ = finished
    other = config.model_copy(update={"hardware": config.hardware.model_copy(update={"data": 1})})
    assert pipeline.run(other, workdir).nothing_to_do


def test_a_changed_corpus_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt.gz")
    config = toy_config(corpus)
    with workfolder.working_in(config, tmp_path / "w") as folder:
        preparation.prepare_dataset(config, folder.path)
    write_corpus(corpus, documents=401)
    with pytest.raises(WorkFolderMismatch, match=r"corpus\.txt\.gz"):
        pipeline.run(config, tmp_path / "w")


def test_a_run_without_text_says_how_to_name_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sources = \["):
        pipeline.run(RunConfig(), tmp_path / "w")


def test_failures_leave_a_typed_record(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError):
        pipeline.run(toy_config(tmp_path / "empty.txt"), tmp_path / "w")
    (record,) = [json.loads(path.read_text()) for path in (tmp_path / "w" / "failures").iterdir()]
    assert (record["kind"], record["exit_code"]) == ("DataError", 3)


def test_two_processes_cannot_share_a_work_folder(finished: tuple[RunConfig, Path, pipeline.Summary]) -> None:
    from tpulm import storage

    config, workdir, _ = finished
    with storage.held(workdir), pytest.raises(StorageError, match="in use by another tpulm process"):
        pipeline.run(config, workdir)


def test_a_loop_of_ones_own(finished: tuple[RunConfig, Path, pipeline.Summary], tmp_path: Path) -> None:
    config, _, summary = finished
    losses = [metrics["loss"] for _, _, metrics in pipeline.training_steps(config, tmp_path / "own")]
    assert len(losses) == 6
    assert losses[-1] == pytest.approx(summary.train_loss, abs=1e-6)  # means since the last multiple of log_every_steps, too


@pytest.mark.parametrize("vocab_size", [3, 5000])
def test_a_vocabulary_the_corpus_does_not_allow(tmp_path: Path, vocab_size: int) -> None:
    config = toy_config(write_corpus(tmp_path / "corpus.txt.gz"), tokenizer={"vocab_size": vocab_size})
    with pytest.raises(ConfigError, match="vocab_size"):
        pipeline.run(config, tmp_path / "w")


def test_a_wrong_path_can_be_corrected_in_the_same_work_folder(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt.gz")
    wrong = toy_config(tmp_path / "corpse.txt.gz")
    with pytest.raises(ConfigError, match="there is no file or folder"), workfolder.working_in(wrong, tmp_path / "w") as folder:
        preparation.prepare_dataset(wrong, folder.path)
    with workfolder.working_in(toy_config(corpus), tmp_path / "w") as folder:
        preparation.prepare_corpus(toy_config(corpus), folder.path)


@pytest.mark.parametrize(
    ("group", "setting", "message"),
    [
        ("tokenizer", {"path": "gone/vocab.txt"}, r"tokenizer\.path gone/vocab\.txt is not there"),
        ("tokenizer", {"path": "/"}, r"tokenizer\.path / is a folder; name the vocab\.txt"),
        ("train", {"start_from": "gone"}, r"train\.start_from gone is not there"),
    ],
)
def test_what_the_settings_name_is_looked_for_first(tmp_path: Path, group: str, setting: dict[str, str], message: str) -> None:
    config = toy_config(write_corpus(tmp_path / "corpus.txt.gz"))
    config = config.model_copy(update={group: getattr(config, group).model_copy(update=setting)})
    with pytest.raises(ConfigError, match=message), workfolder.working_in(config, tmp_path / "w") as folder:
        preparation.prepare_corpus(config, folder.path)
    assert not (tmp_path / "w" / "corpus").exists()


def test_a_given_tokenizer_is_read_before_the_text(tmp_path: Path) -> None:
    corpus, vocabulary = write_corpus(tmp_path / "corpus.txt.gz"), tmp_path / "vocab.txt"
    config = toy_config(corpus, tokenizer={"path": str(vocabulary)})
    vocabulary.write_text("[PAD]\n[UNK]\ncat\n")
    with workfolder.working_in(config, tmp_path / "w") as folder:
        with pytest.raises(DataError, match=r"has none for: cls .*mask"):
            preparation.prepare_dataset(config, folder.path)
        assert not (tmp_path / "w" / "corpus").exists()
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]))
        made = preparation.prepare_dataset(config, folder.path)
    assert made.train.counts.unknown_tokens == 0 < made.train.counts.tokens
