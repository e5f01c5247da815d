"""The ids of many strings as arrays."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np


class Encoded(NamedTuple):
    """The ids of N strings one after another: `ids` uint32 [T], and how many each has: `lengths` int32 [N]."""

    ids: np.ndarray
    lengths: np.ndarray


NOTHING: Final = Encoded(np.zeros(0, np.uint32), np.zeros(0, np.int32))


def joined(parts: list[Encoded]) -> Encoded:
    return Encoded(np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts]))


def gather(encoded: Encoded, places: np.ndarray) -> Encoded:
    """The strings at `places`, int64 [M]."""
    lengths = encoded.lengths[places]
    starts = (np.cumsum(encoded.lengths, dtype=np.int64) - encoded.lengths)[places]
    ends = np.cumsum(lengths, dtype=np.int64)
    source = np.repeat(starts - ends + lengths, lengths)
    source += np.arange(len(source))
    return Encoded(encoded.ids[source], lengths)
