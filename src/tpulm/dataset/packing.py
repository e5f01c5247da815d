"""Packed rows: several documents a row, each `[CLS] … [SEP]`, for short documents the cheapest kind to train on.

Documents are laid one after another. One that does not fit the rest of the row is cut there, and goes on in the next row after
another [CLS]. A rest too small to be worth a cut (under `SMALLEST_CUT` slots, of which two are [CLS] and [SEP]) stays [PAD];
so does what the last row of a part does not need.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from tpulm.dataset.rows import Layout, Tokens

SMALLEST_CUT = 8


def lay_packed(tokens: Tokens, *, sequence_length: int) -> Layout:
    """The rows of a part, in the order of its text."""
    ends = tokens.document_ends
    starts = np.concatenate([[0], ends[:-1]])
    slot_ends = ends + 2 * np.arange(1, ends.size + 1)  # documents with their two marks, on one long tape

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
    return Layout(num_rows, row, column, start, length, opens=np.ones(row.size, bool), closes=np.ones(row.size, bool))


def _walk(slot_ends: list[int], sequence_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each row its first document, how much of that the rows before hold, and how many tokens of its last are cut off here.

    The one loop over rows: where a row begins depends on the row before.
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
