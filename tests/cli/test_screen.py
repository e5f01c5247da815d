"""Tables and lists at 80 columns, with and without colour."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from tpulm import tokenization
from tpulm.cli import app, dataset, reference, run, terminal
from tpulm.config import TokenizerConfig, list_recipes
from tpulm.errors import ConfigError
from tpulm.train.metrics import MetricsLog


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines on a terminal of 80 columns without colour, none of which is too long."""
    text = io.StringIO()
    console = Console(file=text, width=80, highlight=False, no_color=True)
    for module in (reference, run, dataset, terminal):
        if hasattr(module, "console"):
            monkeypatch.setattr(module, "console", console)

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


def test_settings_are_found_by_name_and_by_meaning(shown: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]):
    reference.settings("warmup_steps", as_json=True)
    lines = shown()
    place = lines.index("train.optimizer.warmup_steps")
    assert lines[place + 1] == "    whole number ≥ 0 or none; default none"
    (found,) = json.loads(capsys.readouterr().out)["settings"]
    assert (found["name"], found["default"]) == ("train.optimizer.warmup_steps", "none")
    reference.settings("jaccard")
    assert "corpus.near_duplicates" in shown()


def test_all_settings_fit(shown: Callable[[], list[str]]):
    reference.settings()
    lines = shown()
    assert {"name", "corpus.sources.path", "train.steps", "layer_decay", "budget"} <= set(lines)
    assert not any("|" in line or "Annotated" in line or "\\" in line for line in lines)


def test_a_near_miss_is_suggested():
    with pytest.raises(ConfigError, match=r"no setting has 'warmpu' in its name or meaning\. Did you mean 'warmup'"):
        reference.settings("warmpu")


@pytest.mark.parametrize("losses", [[7.6, 5.83, 5.79, 5.1], [3.0, 3.0], [2.0]])
def test_the_axis_of_the_loss_shows_the_change(shown: Callable[[], list[str]], tmp_path: Path, losses: list[float]):
    with MetricsLog(tmp_path, first_step=0) as log:
        for step, loss in enumerate(losses, start=1):
            log.write("train", step, {"loss": loss})
    run.show_curve(tmp_path)
    bars = [line.count("█") for line in shown()[2:]]
    if len(losses) == 4:
        assert shown()[1].split() == ["step", "loss", "5.1", "7.6"]
        assert bars[0] > 50 and bars[1] > 10 and bars[3] == 0
        assert bars == sorted(bars, reverse=True)


def test_masks_are_seen_without_colour(shown: Callable[[], list[str]]):
    made = tokenization.train([["red old tree"] * 9], TokenizerConfig(vocab_size=22, min_frequency=1, algorithm="wordpiece"))
    row = np.array(made.encode_one("red old tree"))
    dataset.console.print(dataset._readable(made, row, {1}))
    text = "".join(shown())
    first = made.token(row[1])
    assert f"⟦{first}⟧" in text and text.count("⟦") == 1 and "[CLS]" in text


def test_libraries_keep_quiet_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch):
    environment = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    monkeypatch.setattr(app.os, "environ", environment)
    monkeypatch.setattr(app.warnings, "simplefilter", lambda action: None)
    app._quieten_libraries()
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "0" and environment["TPU_STDERR_LOG_LEVEL"] == "2"
