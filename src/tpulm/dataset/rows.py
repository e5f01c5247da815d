"""Rows of token ids, filled from runs of corpus tokens.

Every kind of row is the same thing here: runs of corpus tokens, some opened by [CLS], some closed by [SEP], and [PAD] after the
last. Which run goes where is a `Layout`, made by segments.py, packing.py or causal.py; this file turns layouts into arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_SLOTS_AT_ONCE = 1 << 20  # bounds the index arrays below, and keeps them in the processor's cache


class Tokens(NamedTuple):
    """The tokenized documents of one part, one after another. S sentences, D documents, T tokens; nothing is empty."""

    ids: np.ndarray  # uint16 or uint32 [T]
    sentence_ends: np.ndarray  # int64 [S], rising; every document end is one
    document_ends: np.ndarray  # int64 [D], rising
    word_start: np.ndarray | None = None  # int8 [T]: 1 where an analyser's word begins


class Layout(NamedTuple):
    """Where R runs of tokens go in N rows, ordered by row and column."""

    num_rows: int
    row: np.ndarray  # int64 [R]
    column: np.ndarray  # int64 [R] of the run's first token
    start: np.ndarray  # int64 [R] of the run's first token among the part's tokens
    length: np.ndarray  # int64 [R], 0 for a [SEP] alone
    opens: np.ndarray  # bool [R]: a [CLS] stands before the run
    closes: np.ndarray  # bool [R]: a [SEP] stands after the run
    random_next: np.ndarray | None = None  # bool [N]: the second segment is from another document


EMPTY = Layout(0, *(np.empty(0, np.int64) for _ in range(4)), opens=np.empty(0, bool), closes=np.empty(0, bool))


class Marks(NamedTuple):
    """The ids that rows add to the text."""

    pad: int
    cls: int
    sep: int


def shuffle(documents: Tokens, order: np.ndarray) -> Tokens:
    """Documents that count as one sentence each, in another order; int64 [D]."""
    ends = documents.document_ends
    lengths = np.diff(ends, prepend=0)
    begins, lengths = (ends - lengths)[order], lengths[order]
    ends = np.cumsum(lengths)
    chosen = np.arange(documents.ids.size) + np.repeat(begins - (ends - lengths), lengths)
    word_start = None if documents.word_start is None else documents.word_start[chosen]
    return Tokens(documents.ids[chosen], ends, ends, word_start)


def reorder(layout: Layout, order: np.ndarray) -> Layout:
    """The layout with row `order[i]` at place i; int64 [N]."""
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    row = place[layout.row]
    sort = np.argsort(row, kind="stable")
    random_next = None if layout.random_next is None else layout.random_next[order]
    return Layout(layout.num_rows, row[sort], *(field[sort] for field in layout[2:7]), random_next=random_next)


def fill(layout: Layout, first: int, last: int, tokens: np.ndarray, sequence_length: int, marks: Marks) -> np.ndarray:
    """Rows [first, last) of the layout as an array [last - first, L] of the tokens' dtype."""
    rows = np.full((last - first, sequence_length), marks.pad, tokens.dtype)
    step = max(1, _SLOTS_AT_ONCE // sequence_length)
    for begin in range(first, last, step):
        end = min(begin + step, last)
        runs = slice(*np.searchsorted(layout.row, (begin, end)))
        place = (layout.row[runs] - begin) * sequence_length + layout.column[runs]
        length = layout.length[runs]
        before = np.cumsum(length) - length
        counter = np.arange(int(length.sum()))
        flat = rows[begin - first : end - first].reshape(-1)
        flat[counter + np.repeat(place - before, length)] = tokens[counter + np.repeat(layout.start[runs] - before, length)]
        flat[place[layout.opens[runs]] - 1] = marks.cls
        flat[(place + length)[layout.closes[runs]]] = marks.sep
    return rows
