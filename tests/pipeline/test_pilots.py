"""Pilots of a run: what they have in common with it, that they are kept, and where they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from command_line import invoke
from toy_runs import run_file, write_corpus
from tpulm import storage
from tpulm.config import PhaseConfig, load, phases_of
from tpulm.errors import ConfigError
from tpulm.pipeline import pilots
from tpulm.pipeline.pilots import PilotResult, Rung, forecast, in_small
from tpulm.progress import SILENT
from tpulm.report import run as report, write
from tpulm.report.history import History
from tpulm.special_tokens import SpecialTokens
from tpulm.train.metrics import MetricsRecord

RUN = """
extends = "laptop-lm"
corpus = {{sources = ["{}"], holdout_fraction = 0.1}}
tokenizer = {{vocab_size = 66, algorithm = "wordpiece"}}
data.sequence_length = 32
train.steps = 400
model = {{num_layers = 2, hidden_size = 32, intermediate_size = 64, max_positions = 32}}
"""


def test_a_run_in_small():
    """A pilot of full width has the run's own model; a tenth of it is warm-up, as the run's is longer than that."""
    run = load("modern-base")
    same = in_small(run, Rung(1.0, run.train.steps // 100, run.train.batch_size))
    assert same.model == run.model and same.train.optimizer.learning_rate == run.train.optimizer.learning_rate
    assert same.train.optimizer.warmup_steps == 125 and not same.track.to
    half = in_small(run, Rung(0.5, 1_000, run.train.batch_size // 4))
    assert (half.model.hidden_size, half.model.num_heads, half.model.num_layers) == (384, 6, 11)
    rate = run.train.optimizer.learning_rate * 2**0.5 / 2
    assert half.train.optimizer.learning_rate == pytest.approx(rate)
    narrow = [in_small(load("laptop-bert"), Rung(width, 1_000, 32)).model for width in (0.5, 0.25, 0.125)]  # it has two heads
    assert [(model.hidden_size, model.num_heads) for model in narrow] == [(64, 1), (32, 1), (16, 1)]
    assert narrow[1].initializer_range == pytest.approx(2 * load("laptop-bert").model.initializer_range)
    phases = tuple(PhaseConfig(share=0.5, batch_size=size) for size in (None, 64))
    two = in_small(run.model_copy(update={"phases": phases}), Rung(1.0, 10, run.train.batch_size // 4))
    assert [one.config.train.batch_size for one in phases_of(two)] == [run.train.batch_size // 4, 16]
    assert in_small(load("laptop-lm"), Rung(0.5, 100, 16)).train.optimizer.learning_rate == 7e-3  # Muon's: as it is
    decaying = load("modern-base", ["train.steps=1600", "train.optimizer.warmup_steps=10", "train.optimizer.decay_steps=1590"])
    brief = in_small(decaying, Rung(1.0, 100, 256)).train.optimizer
    assert (brief.warmup_steps, brief.decay_steps) == (10, 90)  # no more than its steps


def test_where_pilots_cannot_tell(tmp_path: Path):
    (tmp_path / "run.toml").write_text(run_file(str(write_corpus(tmp_path / "text.gz")), steps=1_000))
    for run, changes, message in (
        (tmp_path / "run.toml", ["train.steps=100"], "just run it"),
        (tmp_path / "run.toml", ["train.start_from=a/model"], "train.start_from"),
        (tmp_path / "run.toml", ["corpus.holdout_fraction=0.001"], "too little to predict"),
        ("electra-small", [], "ELECTRA"),
    ):
        with pytest.raises(ConfigError, match=message):
            forecast(load(run, changes), tmp_path / message, seconds=60)


# Real pilots: parameters, millions of tokens, loss. A masked model of Korean reviews that had hardly begun to learn, and a
# causal one of English.
STEEP = {(610_624, 0.301): 7.106, (610_624, 0.441): 6.914, (610_624, 0.722): 6.527, (610_624, 1.205): 5.980}
STEEP |= {(610_624, 2.008): 5.399, (586_048, 0.722): 6.713, (586_048, 2.008): 5.531}
FLAT = {(1_328_256, 0.189): 4.159, (1_328_256, 0.319): 3.901, (1_328_256, 0.512): 3.706}
FLAT |= {(1_328_256, 0.047): 5.102}  # made up: on the plateau
FLAT |= {(362_816, 0.319): 4.099, (362_816, 0.512): 3.901, (362_816, 0.819): 3.743, (362_816, 1.28): 3.616}


def test_steep_pilots_alone_tell_nothing_and_others_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    counts = SimpleNamespace(train=SimpleNamespace(counts=SimpleNamespace(tokens=4_000_000)))
    data = cast("Any", SimpleNamespace(datasets=[counts]))
    monkeypatch.setattr(pilots, "_size", lambda *_: pilots._Size(1_328_256, 5e6, 1e12))
    monkeypatch.setattr(pilots, "_of_this_architecture", lambda config: [])

    def predict(losses: dict[tuple[int, float], float], unigrams: float) -> pilots.Forecast:
        outcomes = [PilotResult("", size, 1e6 * tokens, loss, unigrams, True, 5.0) for (size, tokens), loss in losses.items()]
        learned = pilots._learned(outcomes, of=len(outcomes))
        return pilots._predicted(load("laptop-lm"), data, outcomes, learned, pilots._Timing((), 1e9))

    made = predict(FLAT, 5.519)
    monkeypatch.setattr(pilots, "forecast", lambda *_, **__: made)
    told = invoke("plan", "laptop-lm", "--set", "corpus.sources=a", "--pilot", "1m", "--workdir", tmp_path, code=0).stdout
    for loss in (made.loss, *(loss for _, loss in made.alternatives)):
        assert f"{loss:.3f}" in told and f" {loss * 5.0 / 3.706:.3f}" in told  # the largest pilot has 5 bits a character
    assert told.count("left out") == 1
    with pytest.raises(ConfigError, match="4 of 7 pilots"):
        predict(STEEP, 7.392)
    monkeypatch.setattr(pilots, "_LEAST_GAIN", 0.0)
    with pytest.raises(ConfigError, match="steep"):
        predict(STEEP, 7.392)


def test_pilots_end_once_too_few_can_learn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def train(config: Any, workdir: Path, data: Any, rung: pilots.Rung, *_: Any) -> PilotResult:
        trained.append(rung)
        return PilotResult(rung.name, 1_000, rung.steps * 1e3, 5.9, 6.0, False, 5.0)

    trained: list[pilots.Rung] = []
    rungs = tuple(pilots.Rung(width, round(800 * length), 16) for width, length in pilots._OWN_MODEL)
    monkeypatch.setattr(pilots, "prepare_data", lambda *_, **__: None)
    monkeypatch.setattr(pilots, "_check_text", lambda data: None)
    monkeypatch.setattr(pilots._Timing, "read", lambda *_: pilots._Timing(rungs, 1e9))
    monkeypatch.setattr(pilots, "_train", train)
    with pytest.raises(ConfigError, match="4 of 7 pilots"):
        forecast(load("laptop-lm", ["corpus.sources=a"]), tmp_path, seconds=60)
    assert [rung.steps for rung in trained] == [50, 100, 200, 400]


def text(fingerprint: str) -> Any:
    return SimpleNamespace(datasets=[SimpleNamespace(fingerprint=fingerprint)])


def test_pilots_of_other_settings_or_text_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And all of them together take the time that was given, also where a narrow model's step takes almost as long."""

    def pace(config: Any, workdir: Path, data: Any, width: float) -> pilots._Pace:
        timed.append((config.train.optimizer.learning_rate, width))
        return pilots._Pace(0.1 + 0.02 * width, 1.0)

    timed: list[tuple[float, float]] = []
    sizes = pilots._Size(parameters=1_000_000, tokens=1e6, flops=1e12)
    monkeypatch.setattr(pilots, "_size", lambda *_: sizes)
    monkeypatch.setattr(pilots, "_pace", pace)
    config, data = load("laptop-lm", ["train.steps=100_000"]), text("one")
    outcome = tmp_path / "pilots" / "a-pilot.json"
    first = pilots._Timing.read(config, tmp_path, data, 600, 0.25, SILENT)
    taken = sum(
        1.0 + rung.steps * (0.1 + 0.02 * rung.width) * rung.batch_size / config.train.batch_size for rung in first.rungs
    )
    assert taken == pytest.approx(600, rel=0.01)
    outcome.write_text("{}")
    assert pilots._Timing.read(config, tmp_path, data, 600, 0.25, SILENT) == first and outcome.exists()
    other = load("laptop-lm", ["train.steps=100_000", "train.optimizer.learning_rate=1e-3"])
    pilots._Timing.read(other, tmp_path, data, 600, 0.25, SILENT)
    assert not outcome.exists()
    outcome.write_text("{}")
    pilots._Timing.read(other, tmp_path, text("another"), 600, 0.25, SILENT)
    assert not outcome.exists()
    assert max(timed.count(one) for one in timed) == 2  # each width once for settings and text


def test_models_wider_than_one_that_does_not_fit_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def pace(config: Any, workdir: Path, data: Any, width: float) -> pilots._Pace:
        timed.append(width)
        return pilots._Pace(1_000.0 * width**3, 1.0)

    timed: list[float] = []
    monkeypatch.setattr(pilots, "_pace", pace)
    monkeypatch.setattr(pilots, "_size", lambda *_: pilots._Size(parameters=1_000, tokens=1e6, flops=1e12))
    chosen = pilots._Timing.read(load("modern-base"), tmp_path, text("one"), 600, 0.25, SILENT)
    assert max(rung.width for rung in chosen.rungs) == 0.25 and max(timed) == 0.5
    assert max(rung.steps for rung in chosen.rungs if rung.width == 0.25) >= pilots._LEAST_STEPS
    with pytest.raises(ConfigError, match="8 s are too short"):
        pilots._Timing.read(load("modern-base"), tmp_path, text("one"), 8, 0.25, SILENT)


PHASES = ["phases=[{share=0.5, batch_size=30}, {share=0.5}]", "train.batch_size=60"]
WIDE = ["data.sequence_length=512", "model.max_positions=512"]


@pytest.mark.parametrize(
    ("name", "changes", "devices", "divisions", "at_once"),
    [
        ("modern-base", [], 1, [1, 2, 4, 8, 16, 32], 4),
        ("bert-base", [], 1, [1, 2, 4, 8, 16, 32], 8),  # rows of 128, then of 512
        ("laptop-lm", [], 1, [1, 2], None),
        ("laptop-lm", [*WIDE, *PHASES], 1, [1, 2, 3, 5, 6], 6),
        ("laptop-lm", [*WIDE, "train.batch_size=250"], 1, [1, 2, 5, 10, 25], 5),
        ("laptop-lm", [*WIDE, "train.batch_size=7"], 1, [1], None),
        ("laptop-lm", [*WIDE, "train.batch_size=48"], 8, [1, 2, 3, 6], 6),
        ("laptop-lm", [*WIDE, "train.batch_size=40"], 8, [1, 5], 5),
    ],
)
def test_rows_divide_over_phases_and_devices_and_are_few_enough_for_a_laptop(
    monkeypatch: pytest.MonkeyPatch, name: str, changes: list[str], devices: int, divisions: list[int], at_once: int | None
):
    monkeypatch.setattr("jax.device_count", lambda: devices)
    config = load(name, changes)
    assert pilots._divisions(config) == divisions
    assert in_small(config, Rung(0.5, 100, config.train.batch_size)).hardware.microbatch_size == at_once
    for by in divisions:
        small = in_small(config, Rung(0.5, 100, config.train.batch_size // by))
        for phase in phases_of(small):
            rows, once = phase.config.train.batch_size, small.hardware.microbatch_size
            assert rows % devices == 0 and (once is None or rows // devices % once == 0)


def test_a_run_for_more_devices_than_there_are_has_a_size():
    counts = SimpleNamespace(train=SimpleNamespace(text_fraction=1.0))
    data: Any = SimpleNamespace(
        datasets=[counts], tokenizer=SimpleNamespace(vocab_size=2_000, special=SpecialTokens(0, 1, 2, 3, 4))
    )
    run = load("lm-ja-1b")
    assert run.hardware.fsdp > 1
    assert pilots._size(run, data).tokens == run.train.steps * run.train.batch_size * run.data.sequence_length


def test_a_report_shows_the_outcome_beside_the_forecast():
    run = load("bert-mini")
    scores = {"loss": 5.5, "mlm_loss": 4.5, "step": run.train.steps}  # with next-sentence prediction
    made: dict[str, Any] = {"loss": 4.4, "low": 4.0, "high": 5.0}
    [[_, before]] = report._forecast_rows(run, made, None)
    [[_, after]] = report._forecast_rows(run, made, cast("Any", SimpleNamespace(scores=scores)))
    assert after == f"{before}; it is 4.500"
    [[_, meanwhile]] = report._forecast_rows(run, made, cast("Any", SimpleNamespace(scores={**scores, "step": 10})))
    assert meanwhile == before
    history = History((), MetricsRecord("evaluation", run.train.steps, scores))
    assert report._forecast_chart(run, made, history) is None
    made |= {"tokens": 1e6, "parameters": 9, "curve": [(1e5, 6.0), (1e6, 4.4)]}
    made["pilots"] = [{"tokens": 1e5, "loss": 6.1, "parameters": size, "learned": size > 4} for size in (9, 5, 4)]
    drawn = report._forecast_chart(run, made, history)
    assert drawn is not None
    tenth, end = run.train.steps / 10, run.train.steps
    assert drawn.views["steps"].lines == {
        "forecast": [(tenth, 6.0), (end, 4.4)],
        "interval": [(end, 4.0), (end, 5.0)],
        "pilots of this model": [(tenth, 6.1)],
        "narrower pilots": [(tenth, 6.1)],
        "this run": [(end, 4.5)],
    }


@pytest.mark.slow  # compiles seven programs
def test_pilots_are_kept_and_their_forecast_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    limits = {"_LEAST_STEPS": 10, "_LEAST_HELD_OUT": 100, "_LEAST_TEXT": 1_000, "_FEWER_TOKENS": 1e9, "_LEAST_GAIN": 0.0}
    limits["_WIDEST"] = float("inf")
    for name, value in limits.items():
        monkeypatch.setattr(pilots, name, value)
    pace = pilots._Pace(step=0.05, fixed=0.0)  # which gives pilots of some hundred steps
    monkeypatch.setattr(pilots, "_pace", lambda *_: pace)
    steps = np.random.default_rng(0).choice([7, 11], (1_000, 20)).cumsum(axis=1)
    lines = [" ".join(f"w{number % 40}" for number in line) for line in steps]
    (tmp_path / "text.txt").write_text("\n".join(lines))  # after each word come two others
    (tmp_path / "run.toml").write_text(RUN.format(tmp_path / "text.txt"))
    command = ["plan", str(tmp_path / "run.toml"), "--pilot", "40s", "-w", str(tmp_path / "w"), "--json"]
    made = json.loads(invoke(*command, code=0).stdout)
    assert len(made["pilots"]) == 7 and made["low"] < made["loss"] < made["high"]
    assert {one["parameters"] for one in made["pilots"]} > {made["parameters"]}
    kept = {path.name: path.read_bytes() for path in (tmp_path / "w" / "pilots").glob("*.json")}
    assert json.loads(invoke(*command).stdout) == made  # nothing is trained again
    assert kept == {path.name: path.read_bytes() for path in (tmp_path / "w" / "pilots").glob("*.json")}
    page = storage.read_bytes(write(tmp_path / "w")).decode()
    assert f"{made['loss']:.3f} nats" in page and "pilots of this model" in page
