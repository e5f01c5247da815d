"""Segments, token types and positions as the ids tell them."""

import jax.numpy as jnp
import numpy as np

from tpulm.objectives.rows import encoder_input
from tpulm.special_tokens import SpecialTokens

PAD, UNK, CLS, SEP, MASK = SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)


def test_segments_rows():
    rows = jnp.asarray(
        [
            [CLS, 7, 8, SEP, 9, 9, SEP, PAD, PAD],
            [CLS, 7, 8, 9, 9, 9, 9, 9, SEP],
            [CLS, SEP, 9, SEP, PAD, PAD, PAD, PAD, PAD],
            [PAD] * 9,
        ],
        jnp.int32,
    )
    tokens = encoder_input(rows, row_kind="segments", special=SPECIAL)
    np.testing.assert_array_equal(tokens.types, [[0, 0, 0, 0, 1, 1, 1, 0, 0], [0] * 9, [0, 0, 1, 1, 0, 0, 0, 0, 0], [0] * 9])
    np.testing.assert_array_equal(
        tokens.segments, [[0, 0, 0, 0, 0, 0, 0, -1, -1], [0] * 9, [0, 0, 0, 0, -1, -1, -1, -1, -1], [-1] * 9]
    )
    assert tokens.positions is None


def test_packed_rows():
    rows = jnp.asarray(
        [
            [CLS, 7, 8, SEP, CLS, 9, SEP, CLS, 5],
            [CLS, 7, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
            [PAD] * 9,
        ],
        jnp.int32,
    )
    tokens = encoder_input(rows, row_kind="packed", special=SPECIAL)
    np.testing.assert_array_equal(tokens.segments, [[0, 0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, -1, -1, -1, -1, -1, -1], [-1] * 9])
    assert tokens.positions is not None
    np.testing.assert_array_equal(tokens.positions, [[0, 1, 2, 3, 0, 1, 2, 0, 1], [0, 1, 2, 0, 0, 0, 0, 0, 0], [0] * 9])
    assert not np.asarray(tokens.types).any()


def test_causal_rows():
    rows = jnp.asarray(
        [
            [7, 8, SEP, 9, 9, SEP, SEP, 5, 6],
            [SEP, 7, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
            [PAD] * 9,
        ],
        jnp.int32,
    )
    tokens = encoder_input(rows, row_kind="causal", special=SPECIAL)
    np.testing.assert_array_equal(tokens.segments, [[0, 0, 1, 1, 1, 2, 3, 3, 3], [1, 1, 2, -1, -1, -1, -1, -1, -1], [-1] * 9])
    assert tokens.positions is not None
    np.testing.assert_array_equal(tokens.positions, [[0, 1, 0, 1, 2, 0, 0, 1, 2], [0, 1, 0, 0, 0, 0, 0, 0, 0], [0] * 9])
    assert tokens.types is None
