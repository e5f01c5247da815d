"""Texts and pairs of texts as rows of token ids, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` (RoBERTa: `[SEP] [SEP]` between
the two; causal models: [SEP] in place of [CLS]), and rows as batches.

Batches have a few fixed lengths, so that few programs are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpulm.tokenization import Aligned, Encoded, Tokenization

_TEXTS_AT_ONCE = 8_192
MOST_OF_A_QUESTION = 64  # tokens
_BATCHES_SORTED_TOGETHER = 50
_SHORTEST = 8
_SHARES = (1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)  # of max_length


class Rows(NamedTuple):
    """N rows of various lengths, one after another."""

    ids: np.ndarray  # int32 [T]
    starts: np.ndarray  # int64 [N + 1]; row i is ids[starts[i]:starts[i + 1]]
    whole_lengths: np.ndarray  # int64 [N], tokens before truncation
    spans: np.ndarray | None = None  # int64 [T, 2]: the characters of its text that a token comes from, if asked for
    of: np.ndarray | None = None  # int64 [N], ascending: each row's example, if examples have several

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]"""
        return np.diff(self.starts)

    @property
    def num_examples(self) -> int:
        return len(self) if self.of is None else int(self.of[-1]) + 1

    @property
    def cut(self) -> int:
        """How many examples were truncated."""
        cut = np.flatnonzero(self.whole_lengths > self.lengths)
        return len(cut) if self.of is None else len(np.unique(self.of[cut]))

    def padded(self, indices: np.ndarray, *, rows: int, length: int, pad: int) -> np.ndarray:
        """int32 [rows, length]: the rows at `indices`, followed by rows of only padding."""
        table = np.full((rows, length), pad, np.int32)
        for place, index in zip(table, indices, strict=False):
            row = self.ids[self.starts[index] : self.starts[index + 1]]
            place[: len(row)] = row
        return table


def joined(parts: Sequence[Rows]) -> Rows:
    """Row i of all parts joined, for each i; the parts have equally many rows."""
    lengths = np.stack([part.lengths for part in parts], axis=1)
    ends = np.cumsum(lengths.reshape(-1)).reshape(lengths.shape)
    ids = np.empty(ends[-1, -1] if len(ends) else 0, np.int32)
    for part, begins in zip(parts, (ends - lengths).T, strict=True):
        ids[np.repeat(begins - part.starts[:-1], part.lengths) + np.arange(len(part.ids))] = part.ids
    starts = np.concatenate([np.zeros(1, np.int64), ends[:, -1]])
    return Rows(ids, starts, np.sum([part.whole_lengths for part in parts], axis=0))


class Groups(NamedTuple):
    """Rows grouped by example, with the interface of `Rows`; an example has G rows at most."""

    rows: Rows
    starts: np.ndarray  # int64 [N + 1]; example i has the rows from starts[i] to starts[i + 1]

    @classmethod
    def from_rows(cls, rows: Rows) -> Groups:
        assert rows.of is not None
        return cls(rows, np.searchsorted(rows.of, np.arange(rows.of[-1] + 2)))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def most(self) -> int:
        """G"""
        return int(np.diff(self.starts).max())

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N]: the length of each example's longest row."""
        return np.maximum.reduceat(self.rows.lengths, self.starts[:-1])

    def padded(self, indices: np.ndarray, *, rows: int, length: int, pad: int) -> np.ndarray:
        """int32 [rows, G, length]; missing rows are padding."""
        table = np.full((rows, self.most, length), pad, np.int32)
        for place, index in zip(table, indices, strict=False):
            own = np.arange(int(self.starts[index]), int(self.starts[index + 1]))
            place[: len(own)] = self.rows.padded(own, rows=len(own), length=length, pad=pad)
        return table


def encode_rows(
    tokenization: Tokenization, texts: Sequence[str], pairs: Sequence[str] | None, *, max_length: int, offsets: bool = False
) -> Rows:
    """Rows of at most `max_length` tokens, special ones included. Of a pair the longer text is truncated first, like
    `truncation=True` of transformers; what is kept of a text is its beginning, or its end where the tokenizer says so. Within a
    text the names of [CLS], [SEP] and so on are plain text; tokens that were added to the vocabulary are read."""
    tokenization = tokenization.reading_added
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
    encoded = [encode(part) for part in (texts, pairs) if part is not None]
    lengths = [part.lengths.astype(np.int64) for part in encoded]
    framing = 2 if pairs is None else 2 + tokenization.separators
    room = max_length - framing
    kept = [np.minimum(lengths[0], room)] if pairs is None else truncated_lengths(lengths[0], lengths[1], room)
    places = [_places(*both, from_end=tokenization.keeps_end) for both in zip(lengths, kept, strict=True)]
    return _framed(tokenization, list(zip(encoded, places, strict=True)), np.sum(lengths, axis=0) + framing, offsets=offsets)


def _places(lengths: np.ndarray, num_kept: np.ndarray, *, from_end: bool = False) -> np.ndarray:
    """int64 [N, 2]: where the first, or last, `num_kept` tokens of each text begin and end; the texts follow one another."""
    begins = np.cumsum(lengths) - (num_kept if from_end else lengths)
    return np.stack([begins, begins + num_kept], axis=1)


def _framed(
    tokenization: Tokenization,
    parts: Sequence[tuple[Encoded | Aligned, np.ndarray]],
    whole_lengths: np.ndarray,
    *,
    offsets: bool,
    of: np.ndarray | None = None,
) -> Rows:
    """Rows `[CLS] … [SEP] … [SEP]`: row i takes from each part the tokens between its two places, int64 [N, 2]."""
    begin_id, between = tokenization.begins, tokenization.separators - 1 if len(parts) > 1 else 0
    starts = np.concatenate([[0], np.cumsum(1 + between + sum(places[:, 1] - places[:, 0] + 1 for _, places in parts))])
    ids = np.full(starts[-1], tokenization.special.sep, np.int32)
    spans = np.zeros((len(ids), 2), np.int64) if offsets else None
    for row, at in enumerate(starts[:-1].tolist()):
        ids[at] = begin_id
        for number, (tokens, places) in enumerate(parts):
            begin, end = places[row].tolist()
            at += between if number else 0
            last = at + 1 + end - begin
            ids[at + 1 : last] = tokens.ids[begin:end]
            if spans is not None and isinstance(tokens, Aligned):
                spans[at + 1 : last] = tokens.spans[begin:end]
            at = last
    return Rows(ids, starts, whole_lengths, spans, of)


def length_of_question(max_length: int) -> int:
    """How many tokens a question keeps in rows of `max_length`: at most 64 (BERT's max_query_length), and half of the row."""
    return min(MOST_OF_A_QUESTION, (max_length - 3) // 2)


def window_rows(
    tokenization: Tokenization, questions: Sequence[str], contexts: Sequence[str], *, max_length: int, stride: int
) -> Rows:
    """Rows `[CLS] question [SEP] window [SEP]`, as many as cover the whole context. A window begins with the last `stride`
    tokens of the previous one, as in transformers' tokenizers, or with half a window, if that is less.

    A question keeps `length_of_question` tokens. The spans are the context's.
    """
    tokenization, framing = tokenization.reading_added, 2 + tokenization.separators
    distinct = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
    asked, encoded = tokenization.encode(list(questions)), tokenization.encode_with_offsets(list(distinct))
    lengths = asked.lengths.astype(np.int64)
    num_kept = np.minimum(lengths, length_of_question(max_length))
    ends = np.cumsum(encoded.lengths, dtype=np.int64)
    of, windows = list[int](), list[tuple[int, int]]()
    for number, context in enumerate(contexts):
        end, room = int(ends[distinct[context]]), max_length - framing - int(num_kept[number])
        at = end - int(encoded.lengths[distinct[context]])
        while True:
            of.append(number)
            windows.append((at, min(at + room, end)))
            if at + room >= end:
                break
            at += room - min(stride, room // 2)
    rows_of = np.array(of, np.int64)
    places = np.array(windows, np.int64).reshape(-1, 2)
    whole = lengths[rows_of] + places[:, 1] - places[:, 0] + framing
    parts = [(asked, _places(lengths, num_kept)[rows_of]), (encoded, places)]
    return _framed(tokenization, parts, whole, offsets=True, of=rows_of)


def touching(spans: np.ndarray, begin: int, end: int) -> np.ndarray:
    """The indices of the tokens that come from any of the characters [begin, end)."""
    return np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > begin))


def truncated_lengths(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each pair's texts to keep, at most `room` together: the longer one is truncated first; if both must
    be, each gets half (an odd token goes to the longer, or to the second of two equal ones)."""
    shorter, longer = np.minimum(a, b), np.maximum(a, b)
    fits, half = a + b <= room, room // 2
    kept_shorter = np.where(fits, shorter, np.minimum(shorter, half))
    kept_longer = np.where(fits, longer, room - kept_shorter)
    return np.where(a > b, kept_longer, kept_shorter), np.where(a > b, kept_shorter, kept_longer)


class PaddedBatch(NamedTuple):
    indices: np.ndarray  # int64 [at most B]; the last batch of an epoch may be short
    length: int  # to which its rows are padded


def fixed_lengths(max_length: int) -> tuple[int, ...]:
    """At most ten lengths, ascending: `max_length` and fractions of it (7/8, 3/4, 5/8, 1/2, 3/8, … 1/16) in multiples of 8.

    Random batches of film reviews then compute 13 % more positions than if each length had a program (docs/experiments.md).
    """
    lengths = {-(-int(max_length * share) // 8) * 8 for share in _SHARES if max_length * share >= _SHORTEST}
    return tuple(sorted({length for length in lengths if length < max_length} | {max_length}))


def epoch_batches(
    row_lengths: np.ndarray, lengths: Sequence[int], *, batch_size: int, seed: int, epoch: int, group_by_length: bool
) -> list[PaddedBatch]:
    """Every row once, in an order that is a function of (seed, epoch) and the row lengths.

    With `group_by_length`, rows are shuffled, sorted by length within every 50 batches, and the batches are shuffled: there is
    less padding, and a batch is still a random sample except for its length.
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
    return [PaddedBatch(indices, length_for(int(row_lengths[indices].max()), lengths)) for indices in batches]


def ordered_batches(row_lengths: np.ndarray, lengths: Sequence[int], *, batch_size: int) -> list[PaddedBatch]:
    """Every row once, longest first: for scores and predictions, which do not depend on the batch."""
    order = np.argsort(-row_lengths, kind="stable")
    cut = (order[start : start + batch_size] for start in range(0, len(order), batch_size))
    return [PaddedBatch(indices, length_for(int(row_lengths[indices].max()), lengths)) for indices in cut]


def length_for(longest: int, lengths: Sequence[int]) -> int:
    """The smallest of the fixed `lengths` (ascending) that holds `longest` tokens."""
    return next(length for length in lengths if length >= longest)
