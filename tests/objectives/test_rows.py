"""Segments, token types and positions as the ids tell them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.objectives.rows import encoder_input
from tpulm.special_tokens import SpecialTokens

PAD, UNK, CLS, SEP, MASK = SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
ROWS: dict[str, list[list[int]]] = {
    "segments": [[CLS, 7, 8, SEP, 9, 9, SEP], [CLS, 7, 8, 9, 9, 9, 9, 9, SEP], [CLS, SEP, 9, SEP], []],
    "packed": [[CLS, 7, 8, SEP, CLS, 9, SEP, CLS, 5], [CLS, 7, SEP], []],
    "causal": [[7, 8, SEP, 9, 9, SEP, SEP, 5, 6], [SEP, 7, SEP], []],
}
NONE = [0] * 9  # of a row of padding
EXPECTED: dict[str, dict[str, Any]] = {
    "segments": {
        "segments": [[0] * 7, [0] * 9, [0] * 4, []],
        "types": [[0, 0, 0, 0, 1, 1, 1, 0, 0], NONE, [0, 0, 1, 1, 0, 0, 0, 0, 0], NONE],
        "positions": None,
    },
    "packed": {
        "segments": [[0, 0, 0, 0, 1, 1, 1, 2, 2], [0] * 3, []],
        "types": [NONE] * 3,
        "positions": [[0, 1, 2, 3, 0, 1, 2, 0, 1], [0, 1, 2, 0, 0, 0, 0, 0, 0], NONE],
    },
    "causal": {
        "segments": [[0, 0, 1, 1, 1, 2, 3, 3, 3], [1, 1, 2], []],
        "types": None,
        "positions": [[0, 1, 0, 1, 2, 0, 0, 1, 2], [0, 1, 0, 0, 0, 0, 0, 0, 0], NONE],
    },
}


@pytest.mark.parametrize("kind", ROWS)
def test_what_a_row_says(kind: Any):
    rows = jnp.asarray([row + [PAD] * (9 - len(row)) for row in ROWS[kind]], jnp.int32)
    found, expected = encoder_input(rows, row_kind=kind, special=SPECIAL), EXPECTED[kind]
    np.testing.assert_array_equal(found.segments, [row + [-1] * (9 - len(row)) for row in expected["segments"]])
    for name in ("types", "positions"):
        value = getattr(found, name)
        assert (value is None) == (expected[name] is None)
        np.testing.assert_array_equal(0 if value is None else value, expected[name] or 0)
