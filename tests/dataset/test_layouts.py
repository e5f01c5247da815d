"""All kinds of rows hold every token of every document once, in order, whatever the lengths."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tpulm.dataset.layouts import SMALLEST_CUT, RowLayout, TokenizedDocuments, fill, lay_causal, lay_packed, reorder
from tpulm.dataset.random_streams import RandomStream, StreamPurpose
from tpulm.dataset.segments import lay_segments
from tpulm.special_tokens import SpecialTokens

MARKS = SpecialTokens(pad=0, unknown=3, cls=1, sep=2, mask=4)
FIRST_ID = 3


class Sample(NamedTuple):
    tokens: TokenizedDocuments
    sequence_length: int
    seed: int


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Documents of a few sentences, with lengths crowded around what a row holds."""
    sequence_length = draw(st.integers(8, 24))
    near = st.integers(sequence_length - 5, sequence_length + 2)
    sentence = st.one_of(st.integers(1, 4), near, st.integers(1, 3 * sequence_length))
    documents = draw(st.lists(st.lists(sentence, min_size=1, max_size=6), min_size=1, max_size=8))
    return Sample(tokens_of(documents), sequence_length, draw(st.integers(0, 1000)))


def tokens_of(documents: list[list[int]]) -> TokenizedDocuments:
    """Documents given by the lengths of their sentences; ids count up, so each token is recognizable."""
    sentence_ends = np.cumsum([length for document in documents for length in document])
    document_ends = np.cumsum([sum(document) for document in documents])
    return TokenizedDocuments(np.arange(FIRST_ID, FIRST_ID + document_ends[-1], dtype=np.uint32), sentence_ends, document_ends)


def segments(sample: Sample, *, short: float = 0.3, single: float = 0.2, next_sentence: bool = False) -> RowLayout:
    fractions = {"short_fraction": short, "single_segment_fraction": single}
    given: dict[str, Any] = {"sequence_length": sample.sequence_length, "next_sentence": next_sentence, **fractions}
    return lay_segments(sample.tokens, **given, draws=RandomStream(sample.seed, StreamPurpose.LAYOUT, 0))


def rows_of(layout: RowLayout, sample: Sample) -> np.ndarray:
    return fill(layout, 0, layout.num_rows, sample.tokens.ids, sample.sequence_length, MARKS)


def pieces(row: np.ndarray) -> list[list[int]]:
    """The content between [SEP]s, after checking the row's grammar."""
    ids = row.tolist()
    content = ids[: ids.index(MARKS.pad)] if MARKS.pad in ids else ids
    assert not any(ids[len(content) :]), "padding only at the end"
    assert content[0] == MARKS.cls and content[-1] == MARKS.sep
    found = [[]]
    for token in content:
        if token == MARKS.sep:
            found.append([])
        elif token != MARKS.cls:
            found[-1].append(token)
        else:
            assert not found[-1], "[CLS] only begins a piece"
    assert not found[-1] and all(found[:-1]), "no empty piece"
    return found[:-1]


def document_of(sample: Sample, token: int) -> int:
    return int(np.searchsorted(sample.tokens.document_ends, token - FIRST_ID, "right"))


@given(samples())
def test_segments_hold_every_token_once_in_order(sample: Sample) -> None:
    rows = [pieces(row) for row in rows_of(segments(sample), sample)]
    assert [token for row in rows for piece in row for token in piece] == sample.tokens.ids.tolist()
    for row in rows:
        assert len(row) <= 2
        assert len({document_of(sample, token) for piece in row for token in piece}) == 1, "rows do not span documents"


@given(samples())
def test_first_segments_and_real_continuations_hold_every_token_once_in_order(sample: Sample) -> None:
    layout = segments(sample, next_sentence=True)
    random_next = layout.random_next
    assert random_next is not None and random_next.size == layout.num_rows
    kept: list[int] = []
    for row, is_random in zip(rows_of(layout, sample), random_next, strict=True):
        first, second = pieces(row)
        documents = {document_of(sample, token) for token in first}, {document_of(sample, token) for token in second}
        assert [len(found) for found in documents] == [1, 1]
        assert np.diff(second).tolist() == [1] * (len(second) - 1), "a second segment is running text"
        kept += first
        if is_random:
            assert documents[0] != documents[1] or sample.tokens.document_ends.size == 1
        else:
            assert second[0] == first[-1] + 1
            kept += second
    assert kept == sample.tokens.ids.tolist()


@given(samples())
def test_packed_rows_hold_every_token_once_in_order(sample: Sample) -> None:
    layout = lay_packed(sample.tokens, sequence_length=sample.sequence_length)
    rows = rows_of(layout, sample)
    found = [pieces(row) for row in rows]
    assert [token for row in found for piece in row for token in piece] == sample.tokens.ids.tolist()
    of_documents = [{document_of(sample, token) for token in piece} for row in found for piece in row]
    assert all(len(documents) == 1 for documents in of_documents), "a piece is of one document"
    padding = (rows == MARKS.pad).sum(axis=1)
    assert (padding[:-1] < SMALLEST_CUT).all()
    for row in rows:
        assert (row == MARKS.cls).sum() == (row == MARKS.sep).sum(), "each piece has both marks"


@given(samples())
def test_causal_rows_are_one_tape_cut_into_overlapping_windows(sample: Sample) -> None:
    layout = lay_causal(sample.tokens, sequence_length=sample.sequence_length)
    rows = rows_of(layout, sample)
    documents = np.split(sample.tokens.ids, sample.tokens.document_ends[:-1])
    tape = [MARKS.sep, *(token for document in documents for token in [*document.tolist(), MARKS.sep])]
    assert not (rows[:-1] == MARKS.pad).any(), "padding only in the last row"
    np.testing.assert_array_equal(rows[1:, 0], rows[:-1, -1])
    joined = [rows[0, 0], *rows[:, 1:].ravel().tolist()]
    assert joined[: len(tape)] == tape
    assert not any(joined[len(tape) :]) and len(joined) - len(tape) < sample.sequence_length - 1
    assert layout.length.sum() + layout.closes.sum() == (rows != MARKS.pad).sum()


@given(samples(), st.integers(1, 7), st.booleans())
def test_reordered_rows_are_the_same_rows_however_they_are_filled(sample: Sample, step: int, causal: bool) -> None:
    length = sample.sequence_length
    layout = lay_causal(sample.tokens, sequence_length=length) if causal else segments(sample, next_sentence=True)
    order = RandomStream(sample.seed, StreamPurpose.ROW_ORDER, 1).permutation(layout.num_rows)
    moved = reorder(layout, order)
    np.testing.assert_array_equal(rows_of(moved, sample), rows_of(layout, sample)[order])
    assert (moved.random_next is None) == (layout.random_next is None) == causal
    if moved.random_next is not None and layout.random_next is not None:
        np.testing.assert_array_equal(moved.random_next, layout.random_next[order])
    ranges = [(first, min(first + step, moved.num_rows)) for first in range(0, moved.num_rows, step)]
    shards = [fill(moved, *ends, sample.tokens.ids, length, MARKS) for ends in ranges]
    np.testing.assert_array_equal(np.concatenate(shards), rows_of(moved, sample))


@pytest.mark.parametrize("extra", range(-4, 5))
@pytest.mark.parametrize("single", [0.0, 1.0])
def test_one_sentence_near_the_length_of_a_row(extra: int, single: float) -> None:
    length = 16 + extra
    sample = Sample(tokens_of([[length]]), 16, 0)
    rows = [pieces(row) for row in rows_of(segments(sample, short=0.0, single=single), sample)]
    assert [len(piece) for row in rows for piece in row] == ([length] if length <= 14 else [14, length - 14])


def test_packing_near_the_length_of_a_row() -> None:
    """Rows of 16: 14 tokens fill one; a gap of 7 slots or less stays empty."""
    for lengths, expected in (([13], [1]), ([13, 14], [1, 1]), ([6, 6], [2]), ([12, 6], [1, 1]), ([5, 9], [2, 1])):
        sample = Sample(tokens_of([[length] for length in lengths]), 16, 0)
        layout = lay_packed(sample.tokens, sequence_length=16)
        assert np.bincount(layout.row).tolist() == expected


def test_halves_follow_electras_shares() -> None:
    """Long documents of ten-token sentences: the shares of single segments and short rows are as configured."""
    sample = Sample(tokens_of([[10] * 40] * 500), 128, 7)
    layout = segments(sample, short=0.1, single=0.1)
    runs, lengths = np.bincount(layout.row), np.bincount(layout.row, weights=layout.length)
    whole = ~np.isin(np.cumsum(lengths), sample.tokens.document_ends)
    assert 0.87 < (lengths[whole] >= 125).mean() < 0.93
    full = whole & (lengths >= 125)
    assert 0.08 < (runs[full] == 1).mean() < 0.12
    first = layout.length[layout.column == 1][full & (runs == 2)]
    assert 45 < first.mean() < 70, "A is about half of the row"
    short = lengths[whole & (lengths < 125)]
    assert short.min() < 30 and short.max() > 100


def test_half_of_the_next_sentences_are_random_when_documents_are_long() -> None:
    sample = Sample(tokens_of([[10] * 400] * 50), 128, 7)
    layout = segments(sample, short=0.1, next_sentence=True)
    assert layout.random_next is not None
    assert 0.47 < layout.random_next.mean() < 0.53
    first, second = layout.length[layout.column == 1], layout.length[layout.column != 1]
    for label in (False, True):
        chosen = layout.random_next == label
        assert 50 < first[chosen].mean() < 65 and 50 < second[chosen].mean() < 65, "length gives the label away"
