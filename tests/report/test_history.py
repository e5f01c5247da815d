"""Charts: round marks, long lines thinned to their means, and the curves of several attempts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tpulm.report.history import History, Point, chart, short, thin, ticks
from tpulm.train.metrics import Attempt, MetricsRecord


@given(
    st.floats(-1e6, 1e6, allow_nan=False), st.floats(0, 1e6, allow_nan=False).filter(lambda width: width == 0 or width > 1e-3)
)
def test_ticks_are_round_and_cover(low, width):
    found = ticks(low, low + width, 5)
    step = found[1] - found[0]
    leading = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(leading - digit) for digit in (1, 2, 5, 10)) < 1e-6
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= low + width - 1e-6 * step
    assert 2 <= len(found) <= 8


def test_numbers_are_short_after_rounding():
    values = (0.1 + 0.2, 2_500, 9_999.999, 999_999.9, 1_200_000)
    assert [short(value) for value in values] == ["0.3", "2,500", "10k", "1M", "1.2M"]


def test_long_lines_are_thinned_to_their_means():
    points = tuple(Point(step, float(step % 2)) for step in range(10_001))
    found = thin(points)
    assert len(found) == 300
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert all(abs(point.value - 0.5) < 0.05 for point in found[1:-1])
    assert [point.step for point in found] == sorted({point.step for point in found})
    assert thin(points[:5]) == points[:5]


def attempt(number: int, start: dict[str, Any], *logged: tuple[int, float, float]) -> Attempt:
    """With these steps, times and losses in its log."""
    return Attempt(
        number, start, tuple(MetricsRecord("train", step, {"loss": loss, "time": time}) for step, time, loss in logged)
    )


def test_history_over_attempts_that_repeat_steps() -> None:
    """The second attempt went on from step 4 with rows of twice as much text; the hour between them shows."""
    first = {"time": 0.0, "first_step": 0, "per_step": {"tokens": 10, "flops": 100}}
    second = {"time": 3660.0, "first_step": 4, "per_step": {"tokens": 20, "flops": 200}}
    history = History((attempt(1, first, (2, 20, 9), (6, 60, 8)), attempt(2, second, (6, 3680, 7), (8, 3700, 6))))
    assert [tuple(point) for point in history.curve("train", "loss")] == [(2, 9), (6, 7), (8, 6)]
    assert history.total("tokens", 3) == 30 and history.total("tokens", 8) == 4 * 10 + 4 * 20
    assert history.total("flops", 4) == 400 and history.hours(8) == pytest.approx(3700 / 3600)
    loss = history.curve("train", "loss")
    drawn = chart("Loss", {"a": (loss, {"steps": float, "hours": history.hours})}, marks=[(4, "here")])
    assert drawn is not None and drawn.views["steps"].marks == [(4.0, "here")]
    assert drawn.views["steps"].lines == {"a": [(2.0, 9), (6.0, 7), (8.0, 6)]}
    assert drawn.y.end <= 6 and drawn.y.begin >= 9
    assert chart("Nothing", {"a": ((), {"steps": float})}) is None
    assert History(()).last_step == 0 and chart("One", {"a": (loss[:1], {"steps": float})}) is not None


def test_an_attempt_ends_where_it_saved() -> None:
    """Stopped at step 370, after the last log at 350; then killed at 420, when 400 was saved; then stopped at 430, unlogged."""
    logged = {0: (300, 350), 370: (400, 420), 400: ()}
    attempts = tuple(
        attempt(number, {"first_step": first, "time": float(first)}, *((step, step, 1) for step in steps))
        for number, (first, steps) in enumerate(logged.items(), start=1)
    )
    history = History(attempts, saved=430)
    assert [history.end_of(one) for one in attempts] == [370, 420, 430] and history.last_step == 430


def test_an_attempt_lasts_until_it_logged_or_saved() -> None:
    """Logged until 60 seconds, saved at 70 and 90; then killed before it logged or saved; then one save at 230, unlogged."""
    attempts = (attempt(1, {"time": 0.5}, (30, 30, 1), (60, 60, 1)), attempt(2, {"time": 100.0}), attempt(3, {"time": 200.0}))
    history = History(attempts, save_times=(70.0, 90.0, 230.0))
    assert [history.seconds_of(one) for one in attempts] == [89.5, None, 30.0]
