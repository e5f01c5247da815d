"""Whose a work folder is: what may change in it, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toy_runs import Notes
from tpulm import storage, workfolder
from tpulm.config import RunConfig
from tpulm.errors import ConfigError, InUse, WorkFolderMismatch

PREPARED = CORPUS, TOKENIZER, DATASET = tuple(f"{name}/manifest.json" for name in ("corpus", "tokenizer", "dataset"))


def settings(**groups: Any) -> RunConfig:
    return RunConfig.model_validate({"corpus": {"sources": ["a.jsonl"]}, **groups})


def begun(folder: Path, config: RunConfig, *made: str, checkpoint: int | None = None) -> Path:
    """A work folder in which these results were made."""
    workfolder.begin(config, folder)
    for name in (*made, *([] if checkpoint is None else [f"checkpoints/{checkpoint}/objects.json"])):
        storage.make_folder((folder / name).parent)
        (folder / name).write_text('{"objects": {}}')
    return folder


def refusal(config: RunConfig, folder: Path) -> list[str]:
    """The lines of the refusal; none where the configuration is taken, and written down."""
    before = workfolder.open_run(folder)
    try:
        workfolder.begin(config, folder)
    except WorkFolderMismatch as error:
        assert workfolder.open_run(folder) == before
        return str(error).splitlines()[1:]
    assert workfolder.open_run(folder) == config
    return []


def test_a_folder_in_which_nothing_was_made_takes_other_settings(tmp_path: Path) -> None:
    w = begun(tmp_path, settings(), "corpus/pieces/000000.spill", "metrics/0001.jsonl", "failures/x.json")
    other = settings(corpus={"sources": [{"path": "b.jsonl", "text_field": "content"}]}, train={"steps": 7})
    assert not refusal(other, w)
    assert not (w / "metrics").exists()  # of steps with other settings


@pytest.mark.parametrize(
    ("made", "free", "bound"),
    [
        ((CORPUS,), ["tokenizer", "data", "model", "train"], {"corpus": "corpus"}),
        ((CORPUS, TOKENIZER), ["data", "train"], {"tokenizer": "tokenizer", "corpus": "corpus, tokenizer"}),
        (PREPARED, ["model", "train"], {"data": "corpus, dataset", "tokenizer": "corpus, tokenizer, dataset"}),
        (
            (*PREPARED, "checkpoints/5/x"),
            [],
            {"model": "checkpoints", "train": "checkpoints", "data": "corpus, dataset, checkpoints"},
        ),
    ],
)
def test_what_was_made_binds_settings(tmp_path: Path, made: tuple[str, ...], free: list[str], bound: dict[str, str]) -> None:
    changed: dict[str, Any] = {
        "corpus": {"sources": ["a.jsonl"], "holdout_fraction": 0.5},
        "tokenizer": {"vocab_size": 99},
        "data": {"sequence_length": 64},
        "model": {"num_layers": 3},
        "train": {"seed": 5},
    }
    for group, parts in bound.items():
        *_, advice = refusal(settings(**{group: changed[group]}), begun(tmp_path / f"bound-{group}", settings(), *made))
        assert f"or delete {parts} in this one" in advice
    for group in free:
        assert not refusal(settings(**{group: changed[group]}), begun(tmp_path / f"free-{group}", settings(), *made))


def test_a_tokenizer_from_elsewhere_binds_nothing_of_the_corpus(tmp_path: Path) -> None:
    given = {"tokenizer": {"path": "vocab.txt"}}
    w = begun(tmp_path, settings(**given), TOKENIZER)
    assert not refusal(settings(corpus={"sources": [{"path": "a.jsonl", "text_field": "content"}]}, **given), w)
    assert refusal(settings(tokenizer={"path": "other.txt"}), w)


def test_a_change_is_a_line_and_never_a_dump(tmp_path: Path) -> None:
    w = begun(tmp_path, settings(), CORPUS)
    assert refusal(settings(corpus={"sources": [{"path": "a.jsonl", "text_field": "content"}]}), w) == [
        '  corpus.sources[0].text_field: "text" -> "content"',
        "Set it back, use another --workdir, or delete corpus in this one to make them again.",
    ]
    long = "/a/long/way/to/a/folder/of/texts/in/which/there/are/many/"
    two = settings(corpus={"sources": [f"{long}first.txt", "b.txt"], "max_documents": 3})
    assert refusal(two, w)[:3] == [
        "  corpus.max_documents: (none) -> 3",
        '  corpus.sources[0].path: "a.jsonl" -> "/a/long/way/to/a/folder/of/texts/in/which/there/are/many/f…',
        '  corpus.sources[1]: (none) -> {"path": "b.txt", "format": "auto", "documents": "line", "t…',
    ]
    other = begun(tmp_path / "other", two, CORPUS)
    assert refusal(settings(corpus={"sources": [f"{long}second.txt", "b.txt"], "max_documents": 3}), other)[0] == (
        '  corpus.sources[0].path: …/are/many/first.txt" -> …/are/many/second.txt"'
    )
    many = {"sources": [{"path": f"{number}.txt", "weight": 2.0, "encoding": "cp949"} for number in range(9)]}
    lines = refusal(settings(corpus=many), w)
    assert len(lines) == 12 and lines[10] == "  and 1 more" and max(map(len, lines[:11])) < 128


def test_what_does_not_change_the_result_may_change_at_any_time(tmp_path: Path) -> None:
    w = begun(tmp_path, settings(), CORPUS, DATASET, checkpoint=5)
    train = {"log_every_steps": 7, "evaluate_every_steps": 3, "evaluation_rows": 9, "checkpoint": {"every_steps": 2}}
    now = settings(name="other", description="other", language="ko", hardware={"tensor": 2}, train=train)
    notes = Notes()
    workfolder.begin(now, w, notes)
    assert workfolder.open_run(w) == now
    assert "train.log_every_steps: 100 -> 7" in notes.notes[0] and 'language: (none) -> "ko"' in notes.notes[0]


def schedule(steps: int, name: str = "constant", warmup: int | None = 2, decay: int | None = None, **more: Any) -> RunConfig:
    optimizer = {"schedule": name, "warmup_steps": warmup, "decay_steps": decay}
    return settings(train={"steps": steps, "optimizer": optimizer}, **more)


HALVES = [{"share": 0.5}, {"share": 0.5}]


@pytest.mark.parametrize(
    ("before", "newest", "now", "said"),
    [
        (schedule(20), 20, schedule(40), None),
        (schedule(20), 10, schedule(9), "Checkpoint 10 is already there."),
        (schedule(20, warmup=None), 20, schedule(40, warmup=None), "not 2: keep it with --set train.optimizer.warmup_steps=2."),
        (schedule(200_000, warmup=None), 9, schedule(400_000, warmup=None), None),  # 10,000 both
        (schedule(20, "wsd", decay=5), 15, schedule(40, "wsd", decay=5), None),
        (schedule(20, "wsd", decay=5), 16, schedule(40, "wsd", decay=5), "beyond step 15, from which on the learning rate"),
        (schedule(20, "wsd", decay=5), 15, schedule(20, "wsd", decay=6), "beyond step 14,"),
        (schedule(20, "wsd"), 18, schedule(40, "wsd"), None),  # the last tenth: of 20 and of 40
        (schedule(20, "rsqrt"), 20, schedule(40, "rsqrt"), None),
        (schedule(20, "linear"), 5, schedule(40, "linear"), "was planned for 20 steps (train.optimizer.schedule is 'linear')"),
        (schedule(20), 5, schedule(40, "linear"), ""),  # another schedule, which needs no more words
        (schedule(20, phases=HALVES), 5, schedule(40, phases=HALVES), "The phases are shares of train.steps."),
    ],
)
def test_the_end_of_a_run_moves_where_the_learning_rates_so_far_stay_the_same(
    tmp_path: Path, before: RunConfig, newest: int, now: RunConfig, said: str | None
) -> None:
    lines = refusal(now, begun(tmp_path, before, DATASET, checkpoint=newest))
    assert (not lines) if said is None else said in "\n".join(lines) and lines[-1].startswith("Set it back")


def test_a_run_whose_end_moves_loses_the_results_of_the_old_end(tmp_path: Path) -> None:
    w = begun(tmp_path, schedule(20), DATASET, checkpoint=20)
    workfolder.write_result(w, "train", {"steps": 20})
    workfolder.begin(schedule(20), w)
    assert workfolder.read_result(w, "train")
    workfolder.begin(schedule(40), w)
    assert workfolder.read_result(w, "train") is None


def test_a_folder_that_another_process_holds_keeps_its_settings(tmp_path: Path) -> None:
    w = begun(tmp_path, settings())
    with storage.held(w), pytest.raises(InUse), workfolder.working_in(settings(train={"steps": 7}), w):
        pass
    assert workfolder.open_run(w) == settings()


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """A folder into which an import has begun."""
    storage.write_json(tmp_path / "dataset" / "inputs.json", {"imported": "bert"})
    return tmp_path


def test_an_import_that_failed_leaves_the_folder_free(imported: Path) -> None:
    workfolder.begin(settings(), imported)  # text to read
    assert not workfolder.is_imported(imported)
    with workfolder.importing_into(imported):
        pass


def test_labels_of_imported_rows_are_read_by_objectives_that_have_the_head(imported: Path) -> None:
    """BERT must say that it learns from them; an ELECTRA and an encoder's next tokens leave them unread."""
    rows = {"sequence_length": 128, "kind": "segments", "columns": ["tokens", "next_sentence"]}
    storage.write_json(imported / "dataset" / "manifest.json", {"train": {"rows": rows}})
    for architecture, objective in (("electra", None), ("bert", "clm")):
        changes: dict[str, Any] = {"model": {"architecture": architecture}, "train": {"objective": {"name": objective}}}
        workfolder.begin(RunConfig.model_validate(changes), imported)
    with pytest.raises(ConfigError, match=r"--set data\.next_sentence=true"):
        workfolder.begin(RunConfig(), imported)
    workfolder.begin(RunConfig.model_validate({"data": {"next_sentence": True}}), imported)
