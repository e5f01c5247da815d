"""All attempts of a run as one history over steps, hours, tokens, FLOPs and dollars; and charts of it."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.errors import StorageError
from tpulm.pages import Axis
from tpulm.train.metrics import Attempt, MetricsRecord, read_attempts, union

Scale = Callable[[int], float]  # from a step to its place on the x axis


class Point(NamedTuple):
    step: int
    value: float


@dataclass(frozen=True)
class History:
    """All attempts of one work folder; of a step done by two of them, the later record counts."""

    attempts: tuple[Attempt, ...]
    at_end: MetricsRecord | None = None  # the evaluation after training, which no attempt logs
    saved: int = 0  # the step of the newest checkpoint, which may be later than what was logged
    save_times: tuple[float, ...] = ()  # of the checkpoints that are there, in seconds since 1970

    @classmethod
    def read(
        cls, workdir: PurePath, results: Mapping[str, dict[str, Any]], attempts: Sequence[Attempt] | None = None
    ) -> History:
        """`results` are those of the folder, by name, and `attempts` too, if they were read before."""
        attempts, result = read_attempts(workdir) if attempts is None else attempts, results.get("evaluation")
        at_end = None if result is None else MetricsRecord("evaluation", result["step"], result)
        steps = storage.committed_steps(workdir / "checkpoints")
        times = tuple(time for step in steps if (time := _save_time(workdir / "checkpoints" / str(step))) is not None)
        of_steps = tuple(attempt for attempt in attempts if attempt.records or attempt.start)
        return cls(of_steps, at_end, max(steps, default=0), times)

    @cached_property
    def records(self) -> tuple[MetricsRecord, ...]:
        return tuple(union([*self.attempts, *([] if self.at_end is None else [Attempt(0, {}, (self.at_end,))])]))

    @property
    def last_step(self) -> int:
        return max((self.saved, *(record.step for record in self.records)))

    def curve(self, kind: str, name: str) -> tuple[Point, ...]:
        """The finite values of a score, by step."""
        of_kind = (record for record in self.records if record.kind == kind)
        points = (Point(record.step, record.values[name]) for record in of_kind if name in record.values)
        return tuple(point for point in points if math.isfinite(point.value))

    def newest(self, kind: str) -> MetricsRecord | None:
        return max((record for record in self.records if record.kind == kind), key=lambda record: record.step, default=None)

    def beginning_of(self, attempt: Attempt) -> int:
        """The step from which an attempt continued."""
        first = attempt.records[0].step if attempt.records else 0
        return int(attempt.start.get("first_step", first))

    def end_of(self, attempt: Attempt) -> int:
        """The last step of an attempt: the last that it logged, or saved, as the next attempt began there."""
        later = self.attempts[self.attempts.index(attempt) + 1 :]
        saved = self.beginning_of(later[0]) if later else self.saved
        return max((self.beginning_of(attempt), saved, *(record.step for record in attempt.records)))

    @property
    def machine(self) -> list[tuple[str, str]]:
        """(name, value) from the newest attempt that has them: devices and versions."""
        start = next((attempt.start for attempt in reversed(self.attempts) if "versions" in attempt.start), None)
        return [] if start is None else [("devices", start["device"]), *start["versions"].items()]

    def time_of(self, attempt: Attempt) -> float | None:
        """When the attempt began to train, in seconds since 1970; None if unknown."""
        return attempt.start.get("time", attempt.records[0].values.get("time") if attempt.records else None)

    def seconds_of(self, attempt: Attempt) -> float | None:
        """From the beginning of an attempt to the last that it logged or saved; None if unknown."""
        began, later = self.time_of(attempt), self.attempts[self.attempts.index(attempt) + 1 :]
        if began is None:
            return None
        until = (self.time_of(later[0]) if later else None) or math.inf
        known = [record.values["time"] for record in attempt.records if "time" in record.values]
        known += [time for time in self.save_times if began < time < until]
        return max(0.0, max(known) - began) if known else None

    def time(self, step: int) -> float:
        """When a step was done, in seconds since 1970; interpolated between records."""
        steps, times = self._times
        return float(np.interp(step, steps, times)) if len(steps) else math.nan

    def hours(self, step: int) -> float:
        """Hours since the first attempt began, including pauses between attempts."""
        return (self.time(step) - self._times[1][0]) / 3600 if len(self._times[0]) else math.nan

    def total(self, unit: str, step: int) -> float:
        """ "tokens" (of text) or "flops" up to a step; NaN if the run has not recorded them."""
        starts, each = self._pieces
        if not starts or any(unit not in one for one in each):
            return math.nan
        ends = [*starts[1:], step]
        return sum(
            one[unit] * (min(end, step) - start) for one, start, end in zip(each, starts, ends, strict=True) if start < step
        )

    @cached_property
    def _times(self) -> tuple[np.ndarray, np.ndarray]:
        known = {record.step: record.values["time"] for record in self.records if "time" in record.values}
        if self.attempts and (began := self.time_of(self.attempts[0])) is not None:
            known[self.beginning_of(self.attempts[0])] = began
        steps = sorted(known)
        return np.array(steps, float), np.maximum.accumulate(np.array([known[step] for step in steps], float))

    @cached_property
    def _pieces(self) -> tuple[list[int], list[Mapping[str, float]]]:
        """First steps, and the amounts per step from there on; an attempt replaces what others did beyond its beginning."""
        starts, each = list[int](), list[Mapping[str, float]]()
        for attempt in self.attempts:
            if not attempt.start:
                continue
            cut = bisect_right(starts, self.beginning_of(attempt) - 1)
            starts[cut:], each[cut:] = [self.beginning_of(attempt)], [attempt.start.get("per_step", {})]
        return starts, each


def _save_time(checkpoint: PurePath) -> float | None:
    """When Orbax had written it, in seconds since 1970; None if it does not say."""
    try:
        nanoseconds = storage.read_json(checkpoint / "_CHECKPOINT_METADATA").get("commit_timestamp_nsecs")
    except StorageError:  # damaged, or removed just now
        return None
    return nanoseconds and nanoseconds / 1e9


class View(NamedTuple):
    """One drawing of a chart."""

    x: Axis
    lines: dict[str, list[tuple[float, float]]]  # by label
    marks: list[tuple[float, str]]


class Chart(NamedTuple):
    title: str
    note: str
    y: Axis
    views: dict[str, View]  # by x axis, such as "steps"


def chart(
    title: str,
    curves: Mapping[str, tuple[Sequence[Point], Mapping[str, Scale]]],
    *,
    note: str = "",
    marks: Sequence[tuple[int, str]] = (),
    shares: bool = False,
) -> Chart | None:
    """Lines by label, each with its scales by name; None if there is nothing to draw. `marks` are (step, text)."""
    curves = {label: (thin(points), scales) for label, (points, scales) in curves.items() if len(points)}
    if not curves:
        return None
    values = [point.value for points, _ in curves.values() for point in points]
    views = dict[str, View]()
    names = dict.fromkeys(name for _, scales in curves.values() for name in scales)
    for name in names:
        lines = {
            label: [(place, point.value) for point in points if math.isfinite(place := scales[name](point.step))]
            for label, (points, scales) in curves.items()
            if name in scales
        }
        lines = {label: points for label, points in lines.items() if points}
        if not lines:
            continue
        scale = next(scales[name] for _, scales in curves.values() if name in scales)
        places = [x for points in lines.values() for x, _ in points]
        end = max(places) or 1.0
        shown = [(place, text) for step, text in marks if 0 < (place := scale(step)) <= end]
        views[name] = View(_axis(0.0, end, tight=True), lines, shown)
    low, high = (0.0, max(values)) if shares else (min(values), max(values))
    upright = _axis(low, high, shares=shares)
    return Chart(title, note, Axis(upright.end, upright.begin, upright.ticks), views) if views else None


def _axis(low: float, high: float, *, tight: bool = False, shares: bool = False) -> Axis:
    """An axis with ticks at round values; it ends at the highest value if `tight`, else at a tick."""
    marks = ticks(low, high, 5 if tight else 4)
    end = high if tight else marks[-1]
    texts = [f"{100 * value:g}%" if shares else short(value) for value in marks]
    return Axis(
        marks[0],
        end,
        [(value, text) for value, text in zip(marks, texts, strict=True) if value <= end * (1 + 1e-9) or not tight],
    )


def thin(points: Sequence[Point], most: int = 300) -> tuple[Point, ...]:
    """At most `most` points: the first and last unchanged, those between averaged in equal groups."""
    if len(points) <= most:
        return tuple(points)
    inner, shares = points[1:-1], most - 2
    bounds = [round(i * len(inner) / shares) for i in range(shares + 1)]
    groups = [inner[a:b] for a, b in itertools.pairwise(bounds)]
    means = [Point(group[len(group) // 2].step, sum(p.value for p in group) / len(group)) for group in groups]
    return (points[0], *means, points[-1])


def ticks(low: float, high: float, marks: int) -> tuple[float, ...]:
    """About `marks` round values that cover `low` to `high`, spaced 1, 2 or 5 times a power of ten."""
    rough = (high - low) / marks or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(i * step for i in range(first, max(last, first + 1) + 1))


def short(value: float) -> str:
    """1200000 -> "1.2M", 2500 -> "2,500", 0.30000000000000004 -> "0.3"."""
    value = float(f"{value:.6g}")  # as it is shown, or 999,999.9 would be 1000k
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:,.6g}" if abs(value) < 1e3 else f"{value:,.0f}"
