"""Texts as rows: framed, cut as transformers cuts, and padded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulm import storage, tokenization
from tpulm.labelled.rows import encode_rows, kept_lengths
from tpulm.tokenization import Tokenization

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "cat", "sees", "a", "and", "##s", ".", ","]
TEXTS = ["the old cat sees a cat.", "cats", "the " * 30, "unheard of", "a [SEP] b"]
PAIRS = ["and the old cats", "the old " * 20, "the " * 30, "a", "."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenization:
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    storage.write_atomic(path, "\n".join(WORDS) + "\n")
    return tokenization.load(path)


def as_lists(tokenizer: Tokenization, texts: list[str], pairs: list[str] | None, max_length: int) -> list[list[int]]:
    rows = encode_rows(tokenizer, texts, pairs, max_length=max_length)
    return [rows.ids[start:end].tolist() for start, end in zip(rows.starts, rows.starts[1:], strict=False)]


@pytest.mark.parametrize("max_length", [8, 9, 16, 64])
@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_rows_are_those_of_transformers(
    tokenizer: Tokenization, tmp_path: Path, max_length: int, pairs: list[str] | None
) -> None:
    from transformers import AutoTokenizer

    tokenization.save(tokenizer, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = TEXTS[:-1]
    pairs = None if pairs is None else pairs[:-1]
    expected = theirs(texts, pairs, truncation=True, max_length=max_length)["input_ids"]
    assert as_lists(tokenizer, texts, pairs, max_length) == expected


def test_a_special_tokens_name_is_plain_text(tokenizer: Tokenization) -> None:
    (row,) = as_lists(tokenizer, ["a [SEP] b"], None, 32)
    assert row.count(tokenizer.special.sep) == 1


def test_texts_that_lose_tokens_are_counted(tokenizer: Tokenization) -> None:
    assert encode_rows(tokenizer, TEXTS, None, max_length=16).cut == 1
    assert encode_rows(tokenizer, TEXTS, PAIRS, max_length=16).cut == 2


def test_no_texts_are_no_rows(tokenizer: Tokenization) -> None:
    assert len(encode_rows(tokenizer, [], None, max_length=16)) == 0


def test_padding_fills_rows_and_the_batch(tokenizer: Tokenization) -> None:
    rows = encode_rows(tokenizer, ["the cat", "a"], None, max_length=16)
    table = rows.padded(np.array([1, 0]), rows=3, length=6, pad=0)
    assert table.tolist() == [[2, 9, 3, 0, 0, 0], [2, 5, 7, 3, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert rows.lengths.tolist() == [4, 3]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1), st.integers(0, 40))
def test_a_pair_is_cut_no_more_than_it_must_be(lengths: list[tuple[int, int]], room: int) -> None:
    a, b = (np.array(side) for side in zip(*lengths, strict=True))
    kept_a, kept_b = kept_lengths(a, b, room)
    assert ((kept_a >= 0) & (kept_a <= a) & (kept_b >= 0) & (kept_b <= b)).all()
    assert (kept_a + kept_b == np.minimum(a + b, room)).all()
    assert (kept_a[a <= room // 2] == a[a <= room // 2]).all()  # what is short is not cut for what is long
