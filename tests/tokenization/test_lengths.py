"""Percentiles and shares of lengths, against numpy on the plain list."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpulm.tokenization.lengths import PERCENTILES, Lengths


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200))
def test_as_numpy_has_it(lengths: list[int]):
    found = Lengths(Counter(lengths))
    for percent in PERCENTILES:
        assert found.percentile(percent) == np.percentile(lengths, percent, method="inverted_cdf")
    assert found.documents == len(lengths) and found.longest == max(lengths)
    for tokens in (0, 7, 40):
        assert found.share_over(tokens) == np.mean(np.array(lengths) > tokens)
    assert found.cumulative() == [(length, int(np.sum(np.array(lengths) <= length))) for length in sorted(set(lengths))]


def test_as_json():
    found = Lengths({1: 1, 200: 3}).as_json((128, 512))
    assert found == {
        "percentiles": {"5": 1, "25": 1, "50": 200, "75": 200, "95": 200, "99": 200, "max": 200},
        "share_over": {"128": 0.75, "512": 0.0},
    }
