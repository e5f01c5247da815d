"""Texts and pairs of texts as rows of token ids, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, and rows as batches.

Batches have a few fixed lengths, so that only a few programs are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpulm.tokenization import Aligned, Tokenization

_TEXTS_AT_ONCE = 8_192
_BATCHES_SORTED_TOGETHER = 50
_SHORTEST = 8
_SHARES = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)  # of max_length


class Rows(NamedTuple):
    """N rows of their own lengths, one after another."""

    ids: np.ndarray  # int32 [T]
    starts: np.ndarray  # int64 [N + 1]; row i is ids[starts[i]:starts[i + 1]]
    whole_lengths: np.ndarray  # int64 [N], tokens before rows were cut
    spans: np.ndarray | None = None  # int64 [T, 2]: the characters of its text that a token comes from, where asked for

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]"""
        return np.diff(self.starts)

    @property
    def cut(self) -> int:
        """Rows that lost tokens."""
        return int(np.count_nonzero(self.whole_lengths > self.lengths))

    def padded(self, indices: np.ndarray, *, rows: int, length: int, pad: int) -> np.ndarray:
        """int32 [rows, length]: the rows of `indices`, and rows of nothing but padding after them."""
        table = np.full((rows, length), pad, np.int32)
        for place, index in zip(table, indices, strict=False):
            row = self.ids[self.starts[index] : self.starts[index + 1]]
            place[: len(row)] = row
        return table


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of equal number, each followed by the others' of its number."""
    lengths = np.stack([part.lengths for part in parts], axis=1)
    ends = np.cumsum(lengths.reshape(-1)).reshape(lengths.shape)
    ids = np.empty(ends[-1, -1] if len(ends) else 0, np.int32)
    for part, begins in zip(parts, (ends - lengths).T, strict=True):
        ids[np.repeat(begins - part.starts[:-1], part.lengths) + np.arange(len(part.ids))] = part.ids
    starts = np.concatenate([np.zeros(1, np.int64), ends[:, -1]])
    return Rows(ids, starts, np.sum([part.whole_lengths for part in parts], axis=0))


def encode_rows(
    tokenization: Tokenization, texts: Sequence[str], pairs: Sequence[str] | None, *, max_length: int, offsets: bool = False
) -> Rows:
    """`max_length` is in tokens, special ones included. Of a pair the longer text is cut first, as `truncation=True` of
    transformers does. The name of a special token within a text is plain text."""
    parts = [
        _encode(
            tokenization,
            list(texts[start : start + _TEXTS_AT_ONCE]),
            None if pairs is None else list(pairs[start : start + _TEXTS_AT_ONCE]),
            max_length,
            offsets,
        )
        for start in range(0, len(texts), _TEXTS_AT_ONCE)
    ]
    lengths = np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])
    ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)])
    whole_lengths = np.concatenate([np.zeros(0, np.int64), *(part.whole_lengths for part in parts)])
    spans = np.concatenate([np.zeros((0, 2), np.int64), *(part.spans for part in parts if part.spans is not None)])
    return Rows(ids, np.cumsum(lengths), whole_lengths, spans if offsets else None)


def _encode(tokenization: Tokenization, texts: list[str], pairs: list[str] | None, max_length: int, offsets: bool) -> Rows:
    encode = tokenization.encode_with_offsets if offsets else tokenization.encode
    special, first = tokenization.special, encode(texts)
    second = None if pairs is None else encode(pairs)
    room = max_length - (2 if second is None else 3)
    a = first.lengths.astype(np.int64)
    if second is None:
        b = kept_b = np.zeros_like(a)
        kept_a = np.minimum(a, room)
    else:
        b = second.lengths.astype(np.int64)
        kept_a, kept_b = kept_lengths(a, b, room)
    frame = np.int64(2 if second is None else 3)
    starts = np.concatenate([[0], np.cumsum(kept_a + kept_b + frame)])
    ids = np.empty(starts[-1], np.int32)
    spans = np.zeros((len(ids), 2), np.int64) if offsets else None
    from_a = np.concatenate([[0], np.cumsum(a)])
    from_b = np.concatenate([[0], np.cumsum(b)])
    for row, begin in enumerate(starts[:-1]):
        middle = begin + 1 + kept_a[row]
        ids[begin] = special.cls
        ids[begin + 1 : middle] = first.ids[from_a[row] : from_a[row] + kept_a[row]]
        ids[middle] = special.sep
        if spans is not None and isinstance(first, Aligned):
            spans[begin + 1 : middle] = first.spans[from_a[row] : from_a[row] + kept_a[row]]
        if second is not None:
            end = middle + 1 + kept_b[row]
            ids[middle + 1 : end] = second.ids[from_b[row] : from_b[row] + kept_b[row]]
            ids[end] = special.sep
            if spans is not None and isinstance(second, Aligned):
                spans[middle + 1 : end] = second.spans[from_b[row] : from_b[row] + kept_b[row]]
    return Rows(ids, starts, a + b + frame, spans)


def kept_lengths(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each pair's texts stay, so that both together are at most `room`: the longer one is cut first, and
    where both have to be, each gets half (the odd token goes to the longer, or to the second of two equal ones)."""
    shorter, longer = np.minimum(a, b), np.maximum(a, b)
    fits, half = a + b <= room, room // 2
    kept_shorter = np.where(fits, shorter, np.minimum(shorter, half))
    kept_longer = np.where(fits, longer, room - kept_shorter)
    return np.where(a > b, kept_longer, kept_shorter), np.where(a > b, kept_shorter, kept_longer)


class Batch(NamedTuple):
    indices: np.ndarray  # int64 [at most B]; the last batch of an epoch may be short
    length: int  # to which its rows are padded


def fixed_lengths(max_length: int) -> tuple[int, ...]:
    """At most eight: `max_length` and shares of it (3/4, 1/2, 3/8, … 1/16) in multiples of 8, the shortest first.

    On film reviews a fifth fewer positions than with halves alone (docs/experiments.md).
    """
    found = {-(-int(max_length * share) // 8) * 8 for share in _SHARES if max_length * share >= _SHORTEST}
    return tuple(sorted({length for length in found if length < max_length} | {max_length}))


def epoch_batches(
    row_lengths: np.ndarray,
    lengths: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    group_by_length: bool,
) -> list[Batch]:
    """Every row once, in an order that is a function of (seed, epoch) and the rows' lengths.

    With `group_by_length`, rows are shuffled, sorted by length within every 50 batches, and the batches are shuffled: what is
    padded shrinks, and a batch still is a random sample but for its length.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(row_lengths))
    if group_by_length:
        together = _BATCHES_SORTED_TOGETHER * batch_size
        order = np.concatenate(
            [
                part[np.argsort(-row_lengths[part], kind="stable")]
                for part in (order[start : start + together] for start in range(0, len(order), together))
            ]
        )
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    if group_by_length:
        batches = [batches[number] for number in random.permutation(len(batches))]
    return [Batch(indices, length_for(int(row_lengths[indices].max()), lengths)) for indices in batches]


def ordered_batches(row_lengths: np.ndarray, lengths: Sequence[int], *, batch_size: int) -> list[Batch]:
    """Every row once, longest first: for scores and predictions, which do not depend on the batch."""
    order = np.argsort(-row_lengths, kind="stable")
    cut = (order[start : start + batch_size] for start in range(0, len(order), batch_size))
    return [Batch(indices, length_for(int(row_lengths[indices].max()), lengths)) for indices in cut]


def length_for(longest: int, lengths: Sequence[int]) -> int:
    """The least of the fixed `lengths` (in ascending order) that holds `longest` tokens."""
    return next(length for length in lengths if length >= longest)
