"""How models are computed to be used: in float32, and padded so that few shapes are compiled."""

from __future__ import annotations

from typing import Final

import jax.numpy as jnp

from tpulm.nn.transformer import Execution

EXECUTION: Final = Execution(dtype=jnp.float32, remat="none", unroll=False)  # a loop over layers compiles fastest
_LENGTH_MULTIPLE: Final = 32


def rounded(length: int) -> int:
    """The length that a row is padded to."""
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def power_of_two(count: int, *, least: int) -> int:
    """The next power of two."""
    return max(least, 1 << (count - 1).bit_length())
