"""Training batches as a function of the number of rows before them: no state to save, and any position is found directly.

Also what a model is scored on and against: held-out rows, each once and in order, and the token frequencies of training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence

import numpy as np

from tpulm.dataset.blocks import BlockReader
from tpulm.dataset.manifest import READ_ROWS, SplitManifest
from tpulm.dataset.order import WINDOW_ROWS, Order, RowLocations
from tpulm.errors import ConfigError, DataError

_READ_THREADS = 2
_PREFETCHED_BATCHES = 16
_FOREVER = 1 << 62


class Batches:
    """This host's share of the endless stream of batches of one split.

    The cursor counts rows: the batch at cursor c is samples [c, c + B) of an endless stream of epochs (`order.Order`), and may
    span two epochs. The cursor of this dataset's first sample is `first_cursor`, since other rows may come before it.

    Host h of H gets the h-th of H equal slices of each batch, so that the hosts' slices, joined, are the same for any H. As
    rows are shuffled over many blocks, each host reads nearly all of the blocks, up to H times the rows that it delivers
    (`read_amplification`). At 2 bytes a token that is little: 20 MB/s a host for 77,000 rows of 128 tokens a second in all.

    `columns` are those to read besides the tokens, where the dataset has them. `of_tokens` are columns that it may lack, such
    as where words begin: tables by token id [V], by name.
    """

    def __init__(
        self,
        split: SplitManifest,
        *,
        batch_size: int,
        seed: int,
        first_cursor: int = 0,
        host_index: int = 0,
        num_hosts: int = 1,
        columns: Collection[str] = (),
        of_tokens: Mapping[str, np.ndarray] | None = None,
    ):
        if batch_size < 1 or batch_size % num_hosts:
            raise ConfigError(f"batch_size {batch_size} is not a multiple of {num_hosts}, the number of hosts")
        if not 0 <= host_index < num_hosts:
            raise ConfigError(f"host_index {host_index} is not below num_hosts {num_hosts}")
        if not split.counts.rows:
            raise DataError("no rows", location=split.folder)
        self.batch_size, self.sequence_length = batch_size, split.rows.sequence_length
        self._first_cursor = first_cursor
        self._share = batch_size // num_hosts
        self._host_index = host_index
        keep_rows = 4 * WINDOW_ROWS + (_PREFETCHED_BATCHES + _READ_THREADS) * batch_size  # the windows around batches in flight
        self._reader = BlockReader(split, keep_rows=keep_rows, columns=columns)
        self._order = Order(self._reader.blocks, seed, versions=self._reader.versions)
        self._of_tokens = dict(of_tokens or {})

    @property
    def read_amplification(self) -> float:
        """Rows read over rows delivered, so far."""
        return self._reader.rows_read / max(1, self._reader.rows_delivered)

    def batch(self, cursor: int) -> dict[str, np.ndarray]:
        """This host's rows: {"tokens": [B/H, L] as stored, of `columns` those that the dataset has (next_sentence: int8 [B/H],
        word_start: int8 [B/H, L]), and the columns of `of_tokens`}.
        """
        return with_columns(self._reader.rows(self._locations(cursor)), self._of_tokens)

    def read_ahead(self, cursor: int) -> None:
        """Start reading for the batch one window ahead of this one."""
        self._reader.start(self._locations(cursor + -(-WINDOW_ROWS // self.batch_size) * self.batch_size))

    def row_indices(self, cursor: int) -> np.ndarray:
        """The rows of the dataset, counted through its parts, in the batch of all hosts; int64 [B]."""
        first = cursor - self._first_cursor
        return self._order.rows(first, first + self.batch_size)

    def iterate(
        self, start_cursor: int, *, skipped: Sequence[tuple[int, int]] = ()
    ) -> Generator[tuple[int, dict[str, np.ndarray]], None, None]:
        """(cursor, batch) from `start_cursor` on, without end, prefetched by threads; closing the iterator stops them.

        `skipped` holds cursor ranges [first, last) to leave out, each of whole batches of this stream.
        """
        import grain  # here, because it imports JAX: 1.6 s, which only training should pay

        windows = _windows(skipped, start_cursor)

        def at_step(step: int) -> tuple[int, dict[str, np.ndarray]]:
            cursor = start_cursor + step * self.batch_size
            for first, last in windows:
                if cursor >= first:
                    cursor += last - first
            self.read_ahead(cursor)
            return cursor, self.batch(cursor)

        options = grain.ReadOptions(num_threads=_READ_THREADS, prefetch_buffer_size=_PREFETCHED_BATCHES)
        iterator = iter(grain.MapDataset.range(_FOREVER).map(at_step).to_iter_dataset(options))
        try:
            yield from iterator
        finally:
            iterator.close()

    def _locations(self, cursor: int) -> RowLocations:
        """Where this host's rows are."""
        first = cursor - self._first_cursor + self._host_index * self._share
        return self._order.locations(first, first + self._share)


def with_columns(rows: dict[str, np.ndarray], of_tokens: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows, with missing columns [B, L] looked up by token id in the tables [V] of `of_tokens`."""
    return {name: table[rows["tokens"]] for name, table in of_tokens.items() if name not in rows} | rows


def _windows(skipped: Sequence[tuple[int, int]], start_cursor: int) -> list[tuple[int, int]]:
    """The ranges at or after the start, in order and without overlaps."""
    windows: list[tuple[int, int]] = []
    reached = start_cursor
    for first, last in sorted(skipped):
        first = max(first, reached)
        if first < last:
            windows.append((first, last))
            reached = last
    return windows


def evaluation_batches(
    split: SplitManifest,
    *,
    batch_size: int,
    max_rows: int | None = None,
    host_index: int = 0,
    num_hosts: int = 1,
    columns: Collection[str] = (),
) -> Iterator[dict[str, np.ndarray]]:
    """This host's slices of batches of `batch_size` rows over the first `max_rows` rows (all, if None): the tokens, and of
    `columns` those that the dataset has.

    Parts and their rows are random samples already, so the first rows are one too. The last batch is padded with rows of only
    [PAD] (and next_sentence 0), which carry no weight; every host gets the same number of batches.
    """
    if batch_size < 1 or batch_size % num_hosts:
        raise ConfigError(f"batch_size {batch_size} does not divide among {num_hosts} hosts; choose a multiple of {num_hosts}")
    num_rows = split.counts.rows if max_rows is None else min(max_rows, split.counts.rows)
    if not num_rows:
        raise DataError("no rows", location=split.folder)
    share = batch_size // num_hosts
    reader = BlockReader(split, keep_rows=2 * READ_ROWS + share, columns=columns)
    for first in range(0, num_rows, batch_size):
        begin = min(first + host_index * share, num_rows)
        batch = reader.rows(reader.locations(begin, min(begin + share, num_rows)))
        yield {name: _filled(rows, share, split.rows.special.pad if name == "tokens" else 0) for name, rows in batch.items()}


def token_counts(split: SplitManifest, *, max_tokens: int) -> np.ndarray:
    """How often each token occurs where a model may have to predict it, int64 [V], in the split's first rows.

    These are a random sample, of `max_tokens` tokens or slightly more. In causal rows the next tokens count; in others all
    tokens but [CLS] and [PAD], which no objective predicts.
    """
    rows = split.rows
    max_rows = math.ceil(max_tokens / (rows.sequence_length * max(1e-3, split.text_fraction)))
    counts = np.zeros(rows.vocab_size, np.int64)
    for batch in evaluation_batches(split, batch_size=1024, max_rows=max_rows):
        tokens = batch["tokens"][:, 1:] if rows.kind == "causal" else batch["tokens"]
        counts += np.bincount(tokens.ravel(), minlength=rows.vocab_size)
    counts[[rows.special.pad, rows.special.cls]] = 0
    return counts


def _filled(rows: np.ndarray, count: int, value: int) -> np.ndarray:
    return np.pad(rows, [(0, count - len(rows)), *[(0, 0)] * (rows.ndim - 1)], constant_values=value)
