"""Random numbers of the dataset, the same in every release of NumPy.

Only the raw bits of PCG64 and SeedSequence are used, which NumPy promises never to change (NEP 19); the methods of
`Generator`, which may change, are not.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class StreamPurpose(IntEnum):
    """What a random stream is for; two purposes never share a stream. The numbers are part of the dataset's format."""

    LAYOUT = 0
    ROW_ORDER = 1
    BLOCK_ORDER = 2
    INSPECTION = 3
    ROW_SHUFFLE = 4  # within a window of an epoch
    DOCUMENT_ORDER = 5


class RandomStream:
    """One random stream, identified by seed, purpose and numbers (of the part, of the epoch, …)."""

    def __init__(self, seed: int, purpose: StreamPurpose, *numbers: int):
        self._bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(int(purpose), *numbers)))

    def uniform(self, *shape: int) -> np.ndarray:
        """Uniform float64 in [0, 1), of 53 random bits each."""
        count = int(np.prod(shape))
        return ((self._bits.random_raw(count) >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def permutation(self, count: int) -> np.ndarray:
        """A random permutation of 0, …, `count` - 1; int64 [count]."""
        return np.argsort(self._bits.random_raw(count), kind="stable")
