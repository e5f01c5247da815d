"""W/report/index.html: the current state of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tpulm import pages, storage
from tpulm.cloud import status as cloud
from tpulm.cloud.control import Control
from tpulm.cloud.job import Job
from tpulm.config import RunConfig, list_recipes, load, phases_of
from tpulm.convert.model_card import CardFacts, data_rows, score_rows
from tpulm.progress import SILENT, Progress
from tpulm.readable import dollars, duration, utc
from tpulm.report import finetuning
from tpulm.report.facts import RunData, changed, gather
from tpulm.report.history import Chart, History, Point, chart
from tpulm.train.health import judge, loss_formula, token_loss, verdict
from tpulm.workfolder import FORECAST, is_of, read_result, write_result

PAGE = PurePath("report/index.html")
_SECONDS_BETWEEN = 20.0  # between two pages written during training
_UNSHOWN = ("name", "description", "language", "recipe", "corpus.sources")  # what a run is called, and paths of texts
Rows = list[tuple[str, ...]]


class Reporter:
    """Writes the page during a run, at most every 20 seconds. A failure to write it is noted once, and stops only the page."""

    def __init__(self, workdir: PurePath, progress: Progress = SILENT, data: RunData | None = None):
        self._workdir, self._progress, self._data = workdir, progress, data
        self._next, self._failed = 0.0, False

    def __call__(self, *, last: bool = False) -> None:
        if self._failed or (time.monotonic() < self._next and not last):
            return
        try:
            write(self._workdir, data=self._data)
        except Exception as error:  # the training matters more
            self._failed = True
            self._progress.note(f"{self._workdir / PAGE} could not be written: {type(error).__name__}: {error}")
        self._next = time.monotonic() + _SECONDS_BETWEEN


def write(workdir: PurePath, page: PurePath | None = None, *, data: RunData | None = None) -> PurePath:
    """Write the page of a run or a fine-tuning, by default W/report/index.html; return its path. `data`: a run's, if known."""
    page = page or workdir / PAGE
    storage.write_atomic(page, page_of(workdir, data=data))
    if page == workdir / PAGE and read_result(workdir, "report") is not None:  # or a run would take the page for damaged
        write_result(workdir, "report", {}, product=page.parent)
    return page


def page_of(workdir: PurePath, *, with_samples: bool = True, data: RunData | None = None) -> str:
    """HTML of a run or a fine-tuning, `with_samples` of its texts or without. Raises ConfigError if `workdir` is neither."""
    if finetuning.is_finetuning(workdir):
        return finetuning.render(workdir, with_samples=with_samples)
    return render(workdir, data or RunData.read(workdir), with_samples=with_samples)


def render(workdir: PurePath, data: RunData, *, with_samples: bool) -> str:
    config, results, now = data.config, data.results, time.time()
    history, trained = History.read(workdir, results), results.get("train", {})
    step = trained.get("steps", history.last_step)
    facts = gather(data, history, step=step)
    job = Control(workdir).find()
    speed = cloud.speed_of((one.step, one.values) for one in history.records if one.kind == "train")
    cost = None if job is None else cloud.cost_of(cloud.read_status(workdir, None, speed), workdir, now=now)
    forecast = storage.read_json(workdir / FORECAST) if storage.exists(workdir / FORECAST) else {}
    forecast = forecast if is_of(config, forecast.get("settings", {})) else {}  # by 'tpulm plan --pilot', of this very run
    headline, tone = _headline(config, workdir, history, step, done=(done := "export" in results))
    dtype = trained.get("compute_dtype")
    return pages.render(
        "report.html",
        name=config.name,
        description=config.description,
        headline=headline,
        tone=tone,
        under_way=not done and storage.holder(workdir) is not None,
        written=utc(now),
        summary=[*_summary(config, history, facts, speed, cost), *_forecast_rows(config, forecast, facts)],
        charts=_charts(config, history, job),
        forecast=_forecast_chart(config, forecast, history),
        scores=score_rows(facts) if facts else [],
        scored_at=facts.scores.get("step") if facts else None,
        samples=results.get("samples", {}) if with_samples else {},
        data=[
            *([("language", config.language)] if facts and config.language else []),
            *([("vocabulary", f"{facts.vocab_size:,}"), *data_rows(facts)] if facts else []),
        ],
        attempts=_attempt_rows(history),
        vms=[
            (
                str(one.attempt),
                one.node,
                one.zone,
                one.ending or "running",
                f"{one.steps:,}",
                f"{one.hours:.2f}",
                dollars(one.dollars),
            )
            for one in (cost.attempts if cost else ())
        ],
        changed=changed_settings(config),
        recipe=config.recipe,
        machine=[*history.machine, *([("computed in", dtype)] if dtype else [])],
    )


# -- the parts of the page ----------------------------------------------------------------------------------------------


def _headline(config: RunConfig, workdir: PurePath, history: History, step: int, *, done: bool) -> tuple[str, str]:
    """The verdict in a sentence, and its tone: "good", "bad", or "" if nothing is known yet."""
    steps, health = config.train.steps, ""
    if (newest := history.newest("evaluation")) is not None:
        health = newest.values.get("health") or verdict(judge(newest.step, newest.values), newest.step)
    tone = "" if not health else "good" if health.startswith("all right") else "bad"
    if done:
        state = f"Done after {step:,} steps."
    elif storage.holder(workdir) is not None:
        state = f"Under way: step {step:,} of {steps:,}."
    else:
        state = f"Stopped at step {step:,} of {steps:,}; run the same command to continue."
        failures = storage.list_folder(workdir / "failures") if storage.is_folder(workdir / "failures") else []
        last = storage.read_json(max(failures, key=lambda path: path.name)) if failures else None
        if last and last["time"] >= _last_work(workdir, history):
            state = f"Stopped at step {step:,} of {steps:,}: {last['message']}"
            tone = "bad" if last["kind"] != "Stopped" else tone
    return f"{state} {health[:1].upper()}{health[1:]}".rstrip(), tone


def _last_work(workdir: PurePath, history: History) -> float:
    """When something was last done in the folder, as far as it is known, in seconds since 1970."""
    manifests = (storage.info(workdir / stage / "manifest.json") for stage in ("corpus", "tokenizer", "dataset"))
    prepared = max((manifest.modified_ns / 1e9 for manifest in manifests if manifest), default=0.0)
    begun = (history.time_of(attempt) or 0.0 for attempt in history.attempts)
    return max(prepared, *begun, *(record.values.get("time", 0.0) for record in history.records))


def _summary(
    config: RunConfig, history: History, facts: CardFacts | None, speed: cloud.Speed | None, cost: cloud.Cost | None
) -> Rows:
    """The most important facts: (name, value)."""
    step, steps = history.last_step, config.train.steps
    hours = history.hours(step)
    rows: Rows = [("Steps", f"{step:,} of {steps:,} ({step / steps:.0%})")]
    if hours == hours and step:
        rows.append(("Time since it began", duration(3600 * hours)))
    if speed is not None and step < steps:
        rows.append(("To go, at this speed", duration((steps - step) * speed.seconds_per_step)))
    if facts is not None and (scores := facts.scores):
        baseline = f"(always the commonest token: {scores['baseline_accuracy']:.1%})"
        rows.append(("Held-out loss", f"{scores['loss']:.3f} nats"))
        rows.append(("Held-out accuracy", f"{scores['accuracy']:.1%} {baseline}"))
    if cost is not None:
        rows.append(("Cost so far", f"{'at least ' if cost.at_least else ''}{dollars(cost.dollars)}"))
        if cost.dollars_at_end is not None:
            rows.append(("Cost at the end", f"about {dollars(cost.dollars_at_end)}"))
    return rows


def _forecast_rows(config: RunConfig, forecast: Mapping[str, Any], facts: CardFacts | None) -> Rows:
    """What the pilots said of the run, and what became of it."""
    if not forecast:
        return []
    said = f"{forecast['loss']:.3f} nats ({forecast['low']:.3f} to {forecast['high']:.3f})"
    scores = facts.scores if facts is not None else {}
    ended = scores.get("step") == config.train.steps
    return [("Token loss that pilots forecast", f"{said}; it is {token_loss(scores):.3f}" if ended else said)]


def _forecast_chart(config: RunConfig, forecast: Mapping[str, Any], history: History) -> Chart | None:
    """The run's model by the law of its pilots, the pilots that count, and the run itself; tokens as steps of the run."""
    if "curve" not in forecast:
        return None
    counted = sorted((one["tokens"], one["loss"], one["parameters"]) for one in forecast["pilots"] if one["learned"])
    of_tokens = {
        "forecast": forecast["curve"],
        "interval": [(forecast["tokens"], forecast[end]) for end in ("low", "high")],
        "pilots of this model": [one[:2] for one in counted if one[2] == forecast["parameters"]],
        "narrower pilots": [one[:2] for one in counted if one[2] != forecast["parameters"]],
    }
    steps = config.train.steps / forecast["tokens"]
    lines = {label: tuple(Point(round(tokens * steps), loss) for tokens, loss in some) for label, some in of_tokens.items()}
    lines["this run"] = history.curve("evaluation", "mlm_loss") or history.curve("evaluation", "loss")
    note = "Nats a held-out token, of runs that end there. Before its end a run learns at a higher rate, and is above."
    return chart("Forecast by pilots", {label: (points, {"steps": float}) for label, points in lines.items()}, note=note)


def _charts(config: RunConfig, history: History, job: Job | None) -> list[Chart]:
    scales = {"steps": float, "hours": history.hours}
    marks = _marks(config, history, job)

    def draw(title: str, lines: Mapping[str, Sequence[Point]], *, shares: bool = False, note: str = "") -> Chart | None:
        curves = {label: (points, scales) for label, points in lines.items()}
        return chart(title, curves, shares=shares, note=note, marks=marks)

    of = history.curve
    charts = [
        draw(
            "Loss",
            {
                "training": of("train", "loss"),
                "held-out": of("evaluation", "loss"),
                "unigrams": () if loss_formula(config) else of("evaluation", "unigram_entropy"),
            },
            note=loss_formula(config) or "Nats. Unigrams: knowing how frequent each token is, and nothing else.",
        ),
        draw(
            "Accuracy on held-out tokens",
            {"model": of("evaluation", "accuracy"), "always the commonest": of("evaluation", "baseline_accuracy")},
            shares=True,
        ),
        draw("Detector AUC", {"held-out": of("evaluation", "detection_auc")}, note="0.5 is chance."),
        draw("Learning rate", {"learning rate": of("train", "learning_rate")}),
        draw("Tokens of text per second", {"tokens": of("train", "tokens_per_second")}),
        draw("MFU", {"of the peak": of("train", "mfu")}, shares=True, note="FLOP/s of text, as a share of the devices' peak."),
    ]
    return [one for one in charts if one is not None]


def _marks(config: RunConfig, history: History, job: Job | None) -> list[tuple[int, str]]:
    """(step, event): a later attempt, with the end of the previous one if known, or a phase."""
    phases = {phase.first_step: phase.number for phase in phases_of(config)}
    marks, ended = list[tuple[int, str]](), job.attempts if job else ()
    for before, attempt in zip(history.attempts, history.attempts[1:], strict=False):
        step, began = history.beginning_of(attempt), history.time_of(attempt)
        last = max((record.step for record in before.records), default=0)
        if step in phases and last == step:
            marks.append((step, f"phase {phases[step]}"))
            continue
        causes = [one.ending for one in ended if began is not None and one.ended_at <= began]
        marks.append((step, f"attempt {attempt.number}" + (f" ({causes[-1]})" if causes else "")))
    return marks


def _attempt_rows(history: History) -> Rows:
    """Number, start, first step, last step, duration, seconds of compiling."""
    rows: Rows = []
    for attempt in history.attempts:
        began, seconds = history.time_of(attempt), history.seconds_of(attempt)
        compiling = attempt.start.get("compile_seconds")
        rows.append(
            (
                str(attempt.number),
                "" if began is None else utc(began),
                f"{history.beginning_of(attempt):,}",
                f"{history.end_of(attempt):,}",
                "–" if seconds is None else duration(seconds),
                "" if compiling is None else f"{compiling:.1f} s",
            )
        )
    return rows


def changed_settings(config: RunConfig) -> Rows:
    """(setting, value in the recipe, value here); without a recipe of this version, what differs from the defaults."""
    base = load(config.recipe) if config.recipe in list_recipes() else RunConfig()
    return [*changed(base.model_dump(mode="json"), config.model_dump(mode="json"), without=_UNSHOWN)]
