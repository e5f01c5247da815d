"""The order in which training visits rows: an endless stream of epochs, each a permutation of the blocks.

Everything is a function of (seed, number of the sample), so that any place in the stream is found without going there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tpulm.dataset.draws import Draws, Purpose


class Blocks(NamedTuple):
    """The blocks of all parts, in the order of parts. K blocks."""

    part: np.ndarray  # int32 [K]
    first_row: np.ndarray  # int64 [K], counted through all parts
    num_rows: np.ndarray  # int32 [K]
    part_first_row: np.ndarray  # int64 [parts]


class Run(NamedTuple):
    """Consecutive samples that lie in one block: `num_rows` rows from row `offset` of it on."""

    block: int
    offset: int
    num_rows: int


class _Epoch(NamedTuple):
    blocks: np.ndarray  # int64 [K]
    ends: np.ndarray  # int64 [K], samples up to and with each block


def list_blocks(part_rows: Sequence[int], block_rows: int) -> Blocks:
    """The blocks of parts with so many rows; the last block of a part may be short."""
    rows = np.asarray(part_rows, np.int64)
    counts = -(-rows // block_rows)
    part = np.repeat(np.arange(rows.size), counts)
    number = np.arange(part.size) - np.repeat(np.cumsum(counts) - counts, counts)
    part_first_row = np.cumsum(rows) - rows
    num_rows = np.minimum(block_rows, rows[part] - number * block_rows)
    return Blocks(part.astype(np.int32), part_first_row[part] + number * block_rows, num_rows.astype(np.int32), part_first_row)


class Order:
    """Sample s is sample s mod N of epoch s div N, N the number of rows; each epoch permutes the blocks anew."""

    def __init__(self, blocks: Blocks, seed: int):
        self._blocks = blocks
        self._seed = seed
        self.num_rows = int(blocks.num_rows.sum(dtype=np.int64))
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)  # a batch may span two

    def runs(self, first: int, last: int) -> list[Run]:
        """Samples [first, last) as runs."""
        runs = []
        sample = first
        while sample < last:
            number, place = divmod(sample, self.num_rows)
            epoch = self._epoch(number)
            index = int(np.searchsorted(epoch.ends, place, "right"))
            block = int(epoch.blocks[index])
            remaining = int(epoch.ends[index]) - place
            count = min(remaining, last - sample)
            runs.append(Run(block, int(self._blocks.num_rows[block]) - remaining, count))
            sample += count
        return runs

    def _draw_epoch(self, number: int) -> _Epoch:
        blocks = Draws(self._seed, Purpose.BLOCK_ORDER, number).permutation(self._blocks.part.size)
        return _Epoch(blocks, np.cumsum(self._blocks.num_rows[blocks], dtype=np.int64))
