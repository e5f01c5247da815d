"""Rows `[CLS] A [SEP] B [SEP]` from sentences, as BERT and ELECTRA build them.

A row takes whole sentences of one document, in order, until their length reaches a target. The target is the room of the row,
or for `short_fraction` of the rows a length drawn uniformly from 2 to that room. The room is L - 3 tokens, or L - 2 without B.
What is left over begins the next row.

Without next_sentence, A and B are two halves, divided as in ELECTRA: A takes sentences while it stays under half of the
target, and with probability one half the sentence that crosses it; A has at least one. B gets the rest; if there is none, or
for `single_segment_fraction` of the rows, the row is `[CLS] A [SEP]`.
Source: google-research/electra, build_pretraining_dataset.py, ExampleBuilder.

With next_sentence, A is a random number of the row's sentences, from one to all but one. Half of the rows continue with the
real continuation (label 0). The others, and those of a single sentence, take B from another document, from a random sentence
on, until the target is reached (label 1); the real continuation is put back and begins the next row. If a part holds only one
document, B comes from the same document. Source: google-research/bert, create_pretraining_data.py,
create_instances_from_document.

All departures from the originals:
- Nothing is truncated away. Where the originals cut a row that became too long (BERT at random ends of the longer segment),
  the sentence is cut at the end of the row and its rest begins the next row. With next_sentence a sentence longer than half of
  the room is first cut into equal pieces, which then count as sentences, so that A always leaves room for B.
- Rows never span documents. (ELECTRA's do if its corpus has no blank lines.)
- After B has begun, A takes no more sentences; in ELECTRA a later short sentence can still join A, out of order.
- The target is drawn for each row (BERT: once per document); short targets start from 2 (BERT) instead of ELECTRA's 5 - 3.
- The other document is drawn from the same part, which is a random sample of the corpus, and is never the same document.
- One pass over the corpus: BERT's ten differently masked copies are unnecessary when masks are drawn during training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpulm.dataset.layouts import RowLayout, TokenizedDocuments
from tpulm.dataset.random_streams import RandomStream


class _Rows(NamedTuple):
    """Rows as token ranges, in any order. A is [start, middle), B is [second, end); no B where second = end."""

    start: np.ndarray
    middle: np.ndarray
    second: np.ndarray
    end: np.ndarray
    random_next: np.ndarray


def lay_segments(
    tokens: TokenizedDocuments,
    *,
    sequence_length: int,
    short_fraction: float,
    single_segment_fraction: float,
    next_sentence: bool,
    draws: RandomStream,
) -> RowLayout:
    """The layout of a part's rows, in the order of its text."""
    if next_sentence:
        rows = _next_sentence_rows(tokens, sequence_length - 3, short_fraction, draws)
    else:
        rows = _two_halves(tokens, sequence_length - 3, short_fraction, single_segment_fraction, draws)
    order = np.argsort(rows.start, kind="stable")
    rows = _Rows(*(field[order] for field in rows))
    return _layout(rows, next_sentence)


def _two_halves(
    tokens: TokenizedDocuments, room: int, short_fraction: float, single_fraction: float, draws: RandomStream
) -> _Rows:
    """ELECTRA's rows. All documents advance together, one row per turn, so that the work is vectorized."""
    ends = tokens.sentence_ends
    position, limit = _starts(tokens.document_ends), tokens.document_ends
    turns: list[np.ndarray] = []
    while position.size:
        coin = draws.uniform(4, position.size)
        sentence_end = ends[np.searchsorted(ends, position, "right")]
        alone = (coin[0] < single_fraction) | (sentence_end > position + room)
        roof = position + room + alone
        target = np.where(coin[1] < short_fraction, 2 + np.floor(coin[2] * (room - 1)), room + alone).astype(np.int64)
        end = np.minimum(_reaching(ends, position + target), np.minimum(roof, limit))
        turns.append(np.stack([position, end, target // 2, coin[3] < 0.5, alone]))
        going_on = end < limit
        position, limit = end[going_on], limit[going_on]
    start, end, half, takes_crossing, alone = np.concatenate(turns, axis=1)
    first = np.searchsorted(ends, start, "right")
    below = np.searchsorted(ends, start + half, "left")  # the sentences before this one end below the half
    last_of_a = np.where(below == first, first, below - 1 + takes_crossing)
    middle = np.where(alone, end, np.minimum(ends[np.minimum(last_of_a, ends.size - 1)], end))
    return _Rows(start, middle, middle, end, np.zeros(start.size, bool))


def _next_sentence_rows(tokens: TokenizedDocuments, room: int, short_fraction: float, draws: RandomStream) -> _Rows:
    """BERT's rows; as above, all documents advance together."""
    ends = _cut_long(tokens.sentence_ends, room // 2)
    document_ends = tokens.document_ends
    document_starts = _starts(document_ends)
    num_documents = document_ends.size
    first_pieces = np.searchsorted(ends, document_starts, "right")
    piece_counts = np.diff(np.append(first_pieces, ends.size))
    position, document = document_starts, np.arange(num_documents)
    turns: list[np.ndarray] = []
    while position.size:
        coin = draws.uniform(6, position.size)
        limit = document_ends[document]
        target = np.where(coin[0] < short_fraction, 2 + np.floor(coin[1] * (room - 1)), room).astype(np.int64)
        first = np.searchsorted(ends, position, "right")
        reached = np.minimum(_reaching(ends, position + target), limit)
        count = np.searchsorted(ends, reached, "left") - first + 1
        taken = 1 + np.floor(coin[2] * (count - 1)).astype(np.int64)
        middle = ends[first + taken - 1]
        is_random = (count == 1) | (coin[3] < 0.5)

        step = 1 + np.floor(coin[4] * max(1, num_documents - 1)).astype(np.int64)
        other = (document + step) % num_documents
        piece = first_pieces[other] + np.floor(coin[5] * piece_counts[other]).astype(np.int64)
        other_start = np.where(piece == 0, 0, ends[piece - 1])
        length = np.maximum(1, target - (middle - position))
        other_end = np.minimum(_reaching(ends, other_start + length), document_ends[other])

        second = np.where(is_random, other_start, middle)
        end = np.minimum(np.where(is_random, other_end, reached), second + room - (middle - position))
        turns.append(np.stack([position, middle, second, end, is_random]))
        position = np.where(is_random, middle, end)
        going_on = position < limit
        position, document = position[going_on], document[going_on]
    start, middle, second, end, is_random = np.concatenate(turns, axis=1)
    return _Rows(start, middle, second, end, is_random.astype(bool))


def _layout(rows: _Rows, next_sentence: bool) -> RowLayout:
    """The layout of these rows: two runs per row, or one where there is no B."""
    number = np.arange(rows.start.size)
    length_a, length_b = rows.middle - rows.start, rows.end - rows.second
    runs = np.stack(
        [
            np.stack([number, np.ones_like(number), rows.start, length_a, np.ones_like(number)]),
            np.stack([number, 2 + length_a, rows.second, length_b, np.zeros_like(number)]),
        ],
        axis=2,
    ).reshape(5, -1)
    row, column, start, length, opens = runs[:, runs[3] > 0]
    closes, random_next = np.ones(row.size, bool), rows.random_next if next_sentence else None
    return RowLayout(number.size, row, column, start, length, opens.astype(bool), closes, random_next)


def _cut_long(ends: np.ndarray, longest: int) -> np.ndarray:
    """The sentence ends, with sentences longer than `longest` cut into as few equal pieces as possible."""
    starts = _starts(ends)
    lengths = ends - starts
    pieces = -(-lengths // longest)
    sentence = np.repeat(np.arange(ends.size), pieces)
    number = np.arange(sentence.size) - np.repeat(np.cumsum(pieces) - pieces, pieces) + 1
    return starts[sentence] + number * lengths[sentence] // pieces[sentence]


def _reaching(ends: np.ndarray, position: np.ndarray) -> np.ndarray:
    """The first sentence end at or after each position, or the last sentence end."""
    return ends[np.minimum(np.searchsorted(ends, position, "left"), ends.size - 1)]


def _starts(ends: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], ends[:-1]]) if ends.size else ends
