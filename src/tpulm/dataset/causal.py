"""Causal rows: documents joined by the token that ends a text, cut into rows wherever a row is full.

The law. The documents of a part lie on one tape: [SEP] document [SEP] document [SEP] … document [SEP]. The tokenizer's [SEP]
ends a text, and stands before the first one too, so that every text has one on both sides, as GPT-2's end-of-text token does;
[CLS] is not used. A row is L slots of the tape. The next row begins with the last slot of this one, once more: that token was
predicted here and has to be seen there, so each token of the tape but the very first is predicted in exactly one row. That
costs one slot in L. Nothing is dropped, and only a part's last row has padding.
"""

from __future__ import annotations

import numpy as np

from tpulm.dataset.rows import Layout, Tokens


def lay_causal(tokens: Tokens, *, sequence_length: int) -> Layout:
    """The rows of a part, in the order of its text."""
    step = sequence_length - 1
    ends = np.concatenate([[0], tokens.document_ends]) + np.arange(1, tokens.document_ends.size + 2)  # on the tape, after [SEP]
    starts = np.concatenate([[0], ends[:-1]])
    row_starts = np.arange(max(1, -(-(int(ends[-1]) - 1) // step))) * step
    row_ends = np.minimum(row_starts + sequence_length, ends[-1])

    # A piece is what a row holds of one document with its [SEP]; number 0 is the [SEP] before the first.
    first = np.searchsorted(ends, row_starts, "right")
    pieces = np.searchsorted(ends, row_ends, "left") - first + 1
    row = np.repeat(np.arange(row_starts.size), pieces)
    number = np.repeat(first - (np.cumsum(pieces) - pieces), pieces) + np.arange(row.size)
    begin = np.maximum(starts[number], row_starts[row])
    end = np.minimum(ends[number], row_ends[row])
    closes = end == ends[number]
    return Layout(
        row_starts.size,
        row,
        column=begin - row_starts[row],
        start=begin - number,  # of the slots before it, `number` are [SEP]s
        length=end - begin - closes,
        opens=np.zeros(row.size, bool),
        closes=closes,
    )
