"""Charts: round marks, and long lines thinned to their means."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tpulm.report.history import Point, thin, ticks


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


def test_long_lines_are_thinned_to_their_means():
    points = tuple(Point(step, float(step % 2)) for step in range(10_001))
    found = thin(points)
    assert len(found) == 300
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert all(abs(point.value - 0.5) < 0.05 for point in found[1:-1])
    assert [point.step for point in found] == sorted({point.step for point in found})
    assert thin(points[:5]) == points[:5]
