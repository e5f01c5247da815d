"""Several runs on one page: their losses by steps, hours, tokens, FLOPs and dollars, and the settings that differ."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple

from tpulm import pages
from tpulm.cloud.control import Control
from tpulm.cloud.job import Job
from tpulm.config import RunConfig, flatten
from tpulm.config.schema import is_table
from tpulm.readable import duration, utc
from tpulm.report.history import Chart, History, Scale, chart
from tpulm.workfolder import open_run, read_results

_SCORES = {"loss": "{:.4f}", "accuracy": "{:.2%}", "bits_per_character": "{:.4f}", "detection_auc": "{:.4f}"}


class _Run(NamedTuple):
    label: str
    config: RunConfig
    history: History
    job: Job | None
    scores: Mapping[str, Any]  # the newest on held-out text


def render(workdirs: Sequence[PurePath]) -> str:
    """The HTML page about these runs. Raises ConfigError if one of them is not a work folder."""
    runs = list[_Run]()
    for workdir, label in zip(workdirs, _labels(workdirs), strict=True):
        history = History.read(workdir, read_results(workdir))
        newest = history.newest("evaluation")
        runs.append(_Run(label, open_run(workdir), history, Control(workdir).find(), newest.values if newest else {}))
    scores = [name for name in _SCORES if any(name in run.scores for run in runs)]
    return pages.render(
        "report_comparison.html",
        labels=[run.label for run in runs],
        written=utc(time.time()),
        header=("run", "steps", "time", "tokens", *(f"held-out {name.replace('_', ' ')}" for name in scores)),
        rows=[_row(run, scores) for run in runs],
        charts=_charts(runs),
        settings=_settings(runs),
    )


def _labels(workdirs: Sequence[PurePath]) -> list[str]:
    """The folders' last names, or as much of their paths as tells them apart."""
    for length in range(1, max(len(path.parts) for path in workdirs) + 1):
        labels = ["/".join(path.parts[-length:]) for path in workdirs]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{number}: {path.name}" for number, path in enumerate(workdirs, start=1)]


def _row(run: _Run, scores: Sequence[str]) -> tuple[str, ...]:
    step = run.history.last_step
    hours, tokens = run.history.hours(step), run.history.total("tokens", step)
    return (
        run.label,
        f"{step:,} of {run.config.train.steps:,}",
        duration(3600 * hours) if math.isfinite(hours) else "",
        f"{tokens / 1e6:,.1f}M" if math.isfinite(tokens) else "",
        *(_SCORES[name].format(run.scores[name]) if name in run.scores else "" for name in scores),
    )


def _scales(run: _Run) -> dict[str, Scale]:
    totals = {"tokens": partial(run.history.total, "tokens"), "FLOPs": partial(run.history.total, "flops")}
    dollars = {} if run.job is None else {"dollars": partial(_dollars, run)}
    return {"steps": float, "hours": run.history.hours, **totals, **dollars}


def _dollars(run: _Run, step: int) -> float:
    """What the TPU VMs had cost when this step was done."""
    assert run.job is not None
    at, job = run.history.time(step), run.job
    spans = [(one.zone, one.ready_at, one.ended_at) for one in job.attempts]
    spans += [(node.zone, node.ready_at, at) for node in job.nodes]
    return sum(job.price(zone) * max(0.0, min(at, end) - ready) / 3600 for zone, ready, end in spans if ready is not None)


def _charts(runs: Sequence[_Run]) -> list[Chart]:
    names = [
        ("Loss on held-out text", "evaluation", "loss", False),
        ("Accuracy on held-out tokens", "evaluation", "accuracy", True),
        ("Training loss", "train", "loss", False),
        ("Detector AUC", "evaluation", "detection_auc", False),
    ]
    drawn = [
        chart(title, {run.label: (run.history.curve(kind, name), _scales(run)) for run in runs}, shares=shares)
        for title, kind, name, shares in names
    ]
    return [one for one in drawn if one is not None]


def _settings(runs: Sequence[_Run]) -> list[tuple[str, ...]]:
    """Settings that differ between runs, except paths of texts: the name, and the value of each run."""
    own = [
        dict(_leaves(run.config.model_dump(mode="json", exclude={"name": True, "description": True, "corpus": {"sources"}})))
        for run in runs
    ]
    rows = {name: [json.dumps(one.get(name), ensure_ascii=False) for one in own] for name in sorted(set().union(*own))}
    return [(name, *values) for name, values in rows.items() if len(set(values)) > 1]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`flatten`, into lists of tables, too: "phases[0].share"."""
    for name, value in flatten(values, prefix):
        if isinstance(value, list) and all(map(is_table, value)):  # none in []
            for index, one in enumerate(value):
                yield from _leaves(one, f"{name}[{index}]")
        else:
            yield name, value
