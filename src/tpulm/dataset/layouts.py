"""Rows of token ids, filled from runs of corpus tokens.

Rows of every kind consist of runs of corpus tokens, some with a [CLS] before, some with a [SEP] after, and [PAD] at the end. A
`RowLayout` says which run goes where: `lay_packed` and `lay_causal` here and `segments.lay_segments` make layouts, `fill` turns
them into arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from tpulm.special_tokens import SpecialTokens

SMALLEST_CUT = 8
_SLOTS_AT_ONCE = 1 << 20  # bounds the index arrays below, so that they fit the processor's cache


class TokenizedDocuments(NamedTuple):
    """The tokenized documents of one part, concatenated. S sentences, D documents, T tokens; none is empty."""

    ids: np.ndarray  # uint16 or uint32 [T]
    sentence_ends: np.ndarray  # int64 [S], ascending; every document end is one
    document_ends: np.ndarray  # int64 [D], ascending
    word_start: np.ndarray | None = None  # int8 [T]: 1 where an analyser's word begins


class RowLayout(NamedTuple):
    """Where R runs of tokens go in N rows, ordered by row and column."""

    num_rows: int
    row: np.ndarray  # int64 [R]
    column: np.ndarray  # int64 [R] of the run's first token
    start: np.ndarray  # int64 [R] of the run's first token among the part's tokens
    length: np.ndarray  # int64 [R], 0 for a [SEP] alone
    opens: np.ndarray  # bool [R]: a [CLS] precedes the run
    closes: np.ndarray  # bool [R]: a [SEP] follows the run
    random_next: np.ndarray | None = None  # bool [N]: the second segment is from another document


EMPTY = RowLayout(0, *(np.empty(0, np.int64) for _ in range(4)), opens=np.empty(0, bool), closes=np.empty(0, bool))


def shuffle(documents: TokenizedDocuments, order: np.ndarray) -> TokenizedDocuments:
    """The documents in this order (int64 [D]); each counts as one sentence."""
    ends = documents.document_ends
    lengths = np.diff(ends, prepend=0)
    begins, lengths = (ends - lengths)[order], lengths[order]
    ends = np.cumsum(lengths)
    chosen = np.arange(documents.ids.size) + np.repeat(begins - (ends - lengths), lengths)
    word_start = None if documents.word_start is None else documents.word_start[chosen]
    return TokenizedDocuments(documents.ids[chosen], ends, ends, word_start)


def reorder(layout: RowLayout, order: np.ndarray) -> RowLayout:
    """The layout with row `order[i]` as row i; `order` is int64 [N]."""
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    row = place[layout.row]
    sort = np.argsort(row, kind="stable")
    random_next = None if layout.random_next is None else layout.random_next[order]
    return RowLayout(layout.num_rows, row[sort], *(field[sort] for field in layout[2:7]), random_next=random_next)


def fill(
    layout: RowLayout, first: int, last: int, tokens: np.ndarray, sequence_length: int, special: SpecialTokens
) -> np.ndarray:
    """Rows [first, last) of the layout as an array [last - first, L] of the tokens' dtype."""
    rows = np.full((last - first, sequence_length), special.pad, tokens.dtype)
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
        flat[place[layout.opens[runs]] - 1] = special.cls
        flat[(place + length)[layout.closes[runs]]] = special.sep
    return rows


def lay_packed(tokens: TokenizedDocuments, *, sequence_length: int) -> RowLayout:
    """Packed rows: several documents per row, each `[CLS] … [SEP]`; for short documents the cheapest kind to train on.

    Documents are packed one after another. One that does not fit the rest of the row is cut there and continues in the next
    row after another [CLS]. A rest too small to be worth a cut (under `SMALLEST_CUT` slots, of which two are [CLS] and [SEP])
    is padding, as is the unused end of a part's last row.
    """
    ends = tokens.document_ends
    starts = np.concatenate([[0], ends[:-1]])
    slot_ends = ends + 2 * np.arange(1, ends.size + 1)  # documents with their [CLS] and [SEP], concatenated

    first_documents, first_offsets, cuts = _walk(slot_ends.tolist(), sequence_length)
    num_rows = first_documents.size
    whole = np.diff(np.append(first_documents, ends.size))  # documents that end in the row
    runs = whole + (cuts > 0)
    before = np.cumsum(runs) - runs

    row = np.repeat(np.arange(num_rows), runs)
    in_row = np.arange(row.size) - np.repeat(before, runs)
    document = first_documents[row] + in_row
    start = starts[document] + np.where(in_row == 0, first_offsets[row], 0)
    is_cut = (in_row == runs[row] - 1) & (cuts[row] > 0)
    length = np.where(is_cut, cuts[row], ends[document] - start)
    slots = np.cumsum(length + 2) - (length + 2)
    column = 1 + slots - slots[before][row]
    return RowLayout(num_rows, row, column, start, length, opens=np.ones(row.size, bool), closes=np.ones(row.size, bool))


def _walk(slot_ends: list[int], sequence_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each row: its first document, that document's tokens in earlier rows, and its tokens of a document cut at its end.

    A Python loop, since each row begins where the previous one ends.
    """
    documents, offsets, cuts = [], [], []
    document, offset, num_documents = 0, 0, len(slot_ends)
    while document < num_documents:
        documents.append(document)
        offsets.append(offset)
        begin = (slot_ends[document - 1] if document else 0) + offset
        following = bisect_right(slot_ends, begin + sequence_length, document)
        used = slot_ends[following - 1] - begin if following > document else 0
        cut = sequence_length - used - 2
        if following == num_documents or cut + 2 < SMALLEST_CUT:
            cut = 0
        offset = cut + (offset if following == document else 0)
        cuts.append(cut)
        document = following
    return np.array(documents, np.int64), np.array(offsets, np.int64), np.array(cuts, np.int64)


def lay_causal(tokens: TokenizedDocuments, *, sequence_length: int) -> RowLayout:
    """Causal rows: documents joined by the end-of-text token, cut wherever a row is full.

    A row is L slots of the tape [SEP] document [SEP] document [SEP] … document [SEP] of a part's documents, and the next row
    repeats its last slot: docs/design/causal-rows.md says why.
    """
    step = sequence_length - 1
    ends = np.concatenate([[0], tokens.document_ends]) + np.arange(1, tokens.document_ends.size + 2)  # after each [SEP]
    starts = np.concatenate([[0], ends[:-1]])
    row_starts = np.arange(max(1, -(-(int(ends[-1]) - 1) // step))) * step
    row_ends = np.minimum(row_starts + sequence_length, ends[-1])

    # A piece is a row's share of one document with its [SEP]; document number 0 is the [SEP] before the first.
    first = np.searchsorted(ends, row_starts, "right")
    pieces = np.searchsorted(ends, row_ends, "left") - first + 1
    row = np.repeat(np.arange(row_starts.size), pieces)
    number = np.repeat(first - (np.cumsum(pieces) - pieces), pieces) + np.arange(row.size)
    begin = np.maximum(starts[number], row_starts[row])
    end = np.minimum(ends[number], row_ends[row])
    closes = end == ends[number]
    return RowLayout(
        row_starts.size,
        row,
        column=begin - row_starts[row],
        start=begin - number,  # of the slots before it, `number` are [SEP]s
        length=end - begin - closes,
        opens=np.zeros(row.size, bool),
        closes=closes,
    )
