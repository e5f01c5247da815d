"""The order in which training visits rows: an endless stream of epochs, each with every row once.

An epoch permutes the blocks, divides them into windows of about `WINDOW_ROWS` rows, and permutes the rows of each window. So
blocks are read whole, and two rows of one batch hardly ever share another batch: only rows of the same block are certain to
be in one window again, and there they spread over all its batches.

Everything is a function of (seed, sample number), so that any position in the stream is found directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tpulm.dataset.random_streams import RandomStream, StreamPurpose

WINDOW_ROWS = 16_384  # 4 MB of rows of 128 tokens, 17 MB of 512: many batches, little memory


class Blocks(NamedTuple):
    """The blocks of all arrays of rows, in array order."""

    array: np.ndarray  # int32 [blocks]
    first_row: np.ndarray  # int64 [blocks], counted through all arrays
    num_rows: np.ndarray  # int32 [blocks]
    array_first_row: np.ndarray  # int64 [arrays]


class RowLocations(NamedTuple):
    """Where N rows are."""

    block: np.ndarray  # int64 [N]
    offset: np.ndarray  # int64 [N], within the block


class _Epoch(NamedTuple):
    blocks: np.ndarray  # int64 [blocks], permuted
    cuts: np.ndarray  # int64 [W + 1], indices of the windows' first blocks, and the end
    ends: np.ndarray  # int64 [W], cumulative rows of the windows


def list_blocks(array_rows: Sequence[int], block_rows: int) -> Blocks:
    """The blocks of arrays with these numbers of rows; the last block of an array may be short."""
    rows = np.asarray(array_rows, np.int64)
    counts = -(-rows // block_rows)
    array = np.repeat(np.arange(rows.size), counts)
    number = np.arange(array.size) - np.repeat(np.cumsum(counts) - counts, counts)
    array_first_row = np.cumsum(rows) - rows
    num_rows = np.minimum(block_rows, rows[array] - number * block_rows)
    return Blocks(
        array.astype(np.int32), array_first_row[array] + number * block_rows, num_rows.astype(np.int32), array_first_row
    )


class Order:
    """The stream of samples. `versions` has the number of blocks of each of D versions; epoch e visits version e mod D."""

    def __init__(self, blocks: Blocks, seed: int, *, versions: Sequence[int] | None = None, window_rows: int = WINDOW_ROWS):
        self._blocks = blocks
        self._seed = seed
        self._window_rows = window_rows
        ends = np.cumsum([blocks.num_rows.size] if versions is None else versions)
        self._first_blocks = np.concatenate([[0], ends])
        rows = np.concatenate([[0], np.cumsum(blocks.num_rows, dtype=np.int64)])[ends]
        self._ends = rows  # int64 [D], cumulative rows of the versions
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)  # a batch may span two
        self._window = lru_cache(maxsize=16)(self._draw_window)

    def locations(self, first: int, last: int) -> RowLocations:
        """Where samples [first, last) are."""
        result: list[RowLocations] = []
        sample = first
        while sample < last:
            number, place = self._find(sample)
            epoch = self._epoch(number)
            index = int(np.searchsorted(epoch.ends, place, "right"))
            window = self._window(number, index)
            begin = place - (int(epoch.ends[index - 1]) if index else 0)
            end = min(window.block.size, begin + last - sample)
            result.append(RowLocations(window.block[begin:end], window.offset[begin:end]))
            sample += end - begin
        return RowLocations(*(np.concatenate(field) for field in zip(*result, strict=True)))

    def rows(self, first: int, last: int) -> np.ndarray:
        """The rows of samples [first, last), counted through all arrays; int64."""
        locations = self.locations(first, last)
        return self._blocks.first_row[locations.block] + locations.offset

    def _find(self, sample: int) -> tuple[int, int]:
        """The epoch of a sample, and its position in the epoch."""
        cycle, place = divmod(sample, int(self._ends[-1]))
        version = int(np.searchsorted(self._ends, place, "right"))
        return cycle * self._ends.size + version, place - (int(self._ends[version - 1]) if version else 0)

    def _draw_epoch(self, number: int) -> _Epoch:
        first, last = self._first_blocks[number % self._ends.size :][:2].tolist()
        count = last - first
        blocks = first + RandomStream(self._seed, StreamPurpose.BLOCK_ORDER, number).permutation(count)
        ends = np.cumsum(self._blocks.num_rows[blocks], dtype=np.int64)
        windows = min(count, max(1, round(int(ends[-1]) / self._window_rows)))
        cuts = np.arange(windows + 1) * count // windows
        return _Epoch(blocks, cuts, ends[cuts[1:] - 1])

    def _draw_window(self, epoch: int, number: int) -> RowLocations:
        drawn = self._epoch(epoch)
        blocks = drawn.blocks[drawn.cuts[number] : drawn.cuts[number + 1]]
        counts = self._blocks.num_rows[blocks]
        before = np.cumsum(counts) - counts
        order = RandomStream(self._seed, StreamPurpose.ROW_SHUFFLE, epoch, number).permutation(int(counts.sum()))
        return RowLocations(np.repeat(blocks, counts)[order], (np.arange(order.size) - np.repeat(before, counts))[order])
