"""What commands show: tables and lists at 80 columns, the summary of a run, texts while they are generated."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from toy_runs import SIZES, toy_config
from tpulm import tokenization, workfolder
from tpulm.cli import dataset, reference, run, terminal, use
from tpulm.config import TokenizerConfig, list_recipes
from tpulm.dataset import sample_rows
from tpulm.errors import ConfigError, WorkFolderMismatch
from tpulm.pipeline import Summary, preparation
from tpulm.predict.generate import GenerationChunk


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines on a terminal of 80 columns without colour, none of which is too long."""
    text = io.StringIO()
    console = Console(file=text, width=80, highlight=False, no_color=True)
    monkeypatch.setattr(terminal, "console", console)
    monkeypatch.setattr(terminal, "results", console)

    def lines() -> list[str]:
        found = [line.rstrip() for line in text.getvalue().splitlines()]
        assert max(map(cell_len, found)) <= 80
        return found

    return lines


def test_a_line_for_each_recipe(shown: Callable[[], list[str]]):
    reference.recipes()
    rows = {line.split()[0]: line for line in shown()[2:] if line and line.split()[0] in list_recipes()}
    assert set(rows) == set(list_recipes())
    assert not [row for row in rows.values() if "?" in row]
    assert rows["bert-base"].split() == ["bert-base", "bert", "12", "x", "768", "54.5", "h", "$436"]


def test_settings_are_found_by_name_and_by_meaning(
    shown: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(terminal, "_wants_json", True)
    reference.settings(["warmup_steps"])
    lines = shown()
    assert lines[lines.index("train.optimizer.warmup_steps") + 1] == "    whole number ≥ 0 or none; default none"
    (found,) = json.loads(capsys.readouterr().out)["settings"]
    assert (found["name"], found["default"]) == ("train.optimizer.warmup_steps", "none")
    reference.settings(["jaccard", "near"])
    assert "corpus.near_duplicates" in shown()
    for typed, meant in (("warmpu", "warmup"), ("train.stepss", "train.steps")):
        with pytest.raises(ConfigError, match=f"'{meant}'"):
            reference.settings([typed])


def test_all_settings_fit(shown: Callable[[], list[str]]):
    reference.settings()
    lines = shown()
    assert {"name", "corpus.sources.path", "train.steps", "layer_decay", "budget"} <= set(lines)
    assert not any("|" in line or "Annotated" in line or "\\" in line for line in lines)


def test_masks_are_seen_without_colour(shown: Callable[[], list[str]]):
    made = tokenization.train([["red old tree"] * 9], TokenizerConfig(vocab_size=22, algorithm="wordpiece"))
    row = np.array(made.encode_one("red old tree"))
    terminal.show(dataset._readable(made, row, {1}))
    text = "".join(shown())
    first = made.token(row[1])
    assert f"⟦{first}⟧" in text and text.count("⟦") == 1 and "[CLS]" in text


def test_masks_are_those_of_the_run_s_own_law(tmp_path: Path):
    """Whole words: each character is one to the tokenizer, which knows nothing of others; MeCab does."""
    pytest.importorskip("fugashi")
    sentences = ["吾輩は猫である。", "名前はまだ無い。", "どこで生れたか見当がつかぬ。", "猫は名前が無い。", "吾輩はまだ見た。"]
    rng, text = random.Random(0), tmp_path / "text.txt"
    text.write_text("\n".join("".join(rng.choices(sentences, k=rng.randint(1, 4))) for _ in range(120)))
    config = toy_config(
        text,
        tokenizer={"vocab_size": 51, "split_cjk": True},
        data={"sequence_length": 48, "rows": "segments", "word_boundaries": "mecab"},
        model=SIZES | {"max_positions": 48},
        train={"steps": 3, "batch_size": 8, "objective": {"whole_words": True, "mask_fraction": 0.3}},
    )
    with workfolder.working_in(config, tmp_path / "w") as folder:
        preparation.prepare_data(config, folder.path)
    made, rows = tokenization.load(tmp_path / "w" / "tokenizer"), sample_rows(tmp_path / "w", "train", count=12)
    hidden = list[int]()  # of the two characters of 吾輩, wherever they stand
    for row, masked in zip(rows, dataset._masked(config, made, rows, 0), strict=True):
        shown = [made.token(index) for index in row.tokens.tolist()]
        hidden += [len({i, i + 1} & masked) for i, pair in enumerate(itertools.pairwise(shown)) if pair == ("吾", "輩")]
    assert 2 in hidden and 1 not in hidden
    other = config.model_copy(update={"data": config.data.model_copy(update={"word_boundaries": "none"})})
    with pytest.raises(WorkFolderMismatch, match=r"data\.word_boundaries"), workfolder.working_in(other, tmp_path / "w"):
        pass


SCORES = {"mlm_loss": 6.8840, "detection_loss": 0.4243, "detection_auc": 0.6067, "detection_recall": 0.0}
ELECTRA = Summary(
    name="el",
    workdir="w",
    steps=200,
    parameters=1_528_961,
    train_loss=32.3340,
    eval_loss=28.1008,
    eval_accuracy=0.1918,
    eval_baseline_accuracy=0.0816,
    train_scores={"mlm_loss": 6.8085, "detection_loss": 0.5105},
    eval_scores=SCORES | {"replaced_fraction": 0.149},
    loss_is="generator + 50 x detector",
    losses_differ="training masks 25% of the tokens, held-out text 15%",
    bits_per_character=4.7170,
    tokens_per_second=3403.2,
    text_fraction=0.978,
    mfu=0.32,
    unknown_fraction=0.0006,
    health="outside after 200 steps",
    export="w/export",
    stages={"train": "done"},
)


def rows(summary: Summary, capsys: pytest.CaptureFixture[str]) -> list[str]:
    terminal.begin(as_json=False)  # whatever a test before this one asked for
    run.show_summary(summary)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_baseline_of_nothing_is_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    for changes, ratio in (
        ({}, " (2.4 times better)"),
        ({"eval_baseline_accuracy": ELECTRA.eval_accuracy}, " (no better)"),
        ({"eval_baseline_accuracy": 2 * ELECTRA.eval_accuracy}, " (no better)"),
        ({"eval_baseline_accuracy": 0.0}, ""),
        ({"eval_accuracy": 0.0}, ""),
    ):
        summary = replace(ELECTRA, **changes)
        assert f"… always the commonest token {summary.eval_baseline_accuracy:.4f}{ratio}" in rows(summary, capsys)


def test_of_electra_each_figure_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = rows(ELECTRA, capsys)
    assert {
        "training loss 32.3340 (generator 6.8085, detector 0.5105)",
        "held-out loss 28.1008 (generator 6.8840, detector 0.4243)",
        "… both are generator + 50 x detector",
        "generator accuracy 0.1918",
        "detector AUC 0.6067 (0.5 is chance)",
        "detector recall 0.0000 of the 14.9% of tokens replaced",
        "unknown characters 0.06%",
        "speed 3,403 tokens/s (98% of slots), MFU 32%",
    } <= {*shown}
    assert f"… differ because {ELECTRA.losses_differ}" in " ".join(shown)


def test_what_does_not_apply_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"mlm_loss": 6.0, "loss": 6.0}
    plain = replace(ELECTRA, train_scores=scores, eval_scores=scores, loss_is="", losses_differ="", unknown_fraction=0.0)
    shown = rows(plain, capsys)
    assert "training loss 32.3340" in shown and "held-out accuracy 0.1918" in shown
    assert not any(line.startswith(("… both", "… differ", "detector", "unknown")) for line in shown)


PIECES = [
    GenerationChunk(0, " cat", 7, None),
    GenerationChunk(1, " fox", 8, None),
    GenerationChunk(0, " sat", 9, None),
    GenerationChunk(1, "", None, "end of text"),
    GenerationChunk(0, " [bold]:smile:[/] on a very long mat " + "indeed " * 6, 10, "max_tokens"),
    GenerationChunk(2, " dog", 11, "max_tokens"),
]


def test_texts_follow_each_other_and_stay_as_they_are(monkeypatch: pytest.MonkeyPatch):
    """One after another, though they are made by turns."""
    written, notes = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "results", Console(file=written, width=40))
    monkeypatch.setattr(terminal, "console", Console(file=notes, width=40))

    def pieces() -> Iterator[GenerationChunk]:
        for number, piece in enumerate(PIECES):
            yield piece
            if number == 2:
                assert written.getvalue() == "the cat sat", "each piece is written as it comes"

    assert list(use._shown(["the", "a", "one"], pieces())) == PIECES
    mat = " [bold]:smile:[/] on a very long mat " + "indeed " * 6
    assert written.getvalue() == f"the cat sat{mat}\n\na fox\n\none dog\n"
    assert notes.getvalue() == "(max_tokens)\n(end of text)\n(max_tokens)\n"


@pytest.mark.parametrize("width", [40, 80])
def test_a_message_breaks_between_words(monkeypatch: pytest.MonkeyPatch, width: int):
    """What a terminal shows of it: no line but that of a longer path is wider than the terminal, none ends within a word."""
    words = ["train.steps", "of", *["the", "학습"] * 20, "/a/path/" + "x" * 100, "again"]
    for write, terminal_width in ((terminal.print_error, width), (terminal.say_note, width), (terminal.print_error, 0)):
        text = io.StringIO()
        screen = terminal.Screen(file=text, width=width, highlight=False, no_color=True, force_terminal=terminal_width > 0)
        monkeypatch.setattr(terminal, "console", screen)
        write(" ".join(words))
        lines = re.sub(r"\x1b[^m]*m", "", text.getvalue()).splitlines()
        assert " ".join(lines).split()[1:] == words and (len(lines) == 1) == (not terminal_width)
        assert not terminal_width or all(cell_len(line) <= width or "xxx" in line for line in lines)
