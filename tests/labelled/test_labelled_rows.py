"""Texts as rows, framed, cut as transformers cuts, and padded; and every row once an epoch, padded to few lengths."""

from __future__ import annotations

import pickle
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer

from tpulm import tokenization
from tpulm.labelled.rows import encode_rows, epoch_batches, fixed_lengths, ordered_batches, truncated_lengths, window_rows
from tpulm.tokenization import Tokenization

TEXTS = ["the old cat sees a cat.", "cats", "the " * 30, "unheard of", "a [SEP] b"]
PAIRS = ["and the old cats", "the old " * 20, "the " * 30, "a", "."]


def as_lists(tokenizer: Tokenization, texts: list[str], pairs: list[str] | None, max_length: int) -> list[list[int]]:
    rows = encode_rows(tokenizer, texts, pairs, max_length=max_length)
    return [rows.ids[start:end].tolist() for start, end in zip(rows.starts, rows.starts[1:], strict=False)]


def test_rows_are_those_of_transformers(tokenizer: Tokenization, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenization.save(tokenizer, tmp_path)
    theirs, texts = AutoTokenizer.from_pretrained(tmp_path), TEXTS[:-1]
    for max_length, pairs in product((8, 9, 16, 64), (None, PAIRS[:-1])):
        expected = theirs(texts, pairs, truncation=True, max_length=max_length)["input_ids"]
        assert as_lists(tokenizer, texts, pairs, max_length) == expected


@pytest.fixture(scope="module")
def marked(tokenizer: Tokenization, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer to which special and ordinary tokens were added."""
    folder = tmp_path_factory.mktemp("marked")
    tokenization.save(tokenizer, folder)
    (folder / "manifest.json").unlink()  # has the fingerprint of the tokenizer before
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_special_tokens(["[E1]", "[/E1]", AddedToken("<at>", lstrip=True, rstrip=True), "[unused3]"])
    made.add_tokens(["zzz", AddedToken("Qx", single_word=True, normalized=False)])
    made.save(str(folder / "tokenizer.json"))
    return folder


MARKED = ["the [E1]old cat[/E1] sees a <at>  cat zzz, [unused3] Qx Qxa", "[E1] [/E1]", "a [e1] cat", "<at>"]
MARKED += ["a\u0301 [E1] cats"]


def test_added_tokens_are_read_as_transformers_reads_them(marked: Path) -> None:
    from transformers import AutoTokenizer

    loaded, theirs = tokenization.load(marked), AutoTokenizer.from_pretrained(marked)
    for pairs in (None, MARKED[::-1]):
        expected = theirs(MARKED, pairs, truncation=True, max_length=16)["input_ids"]
        assert as_lists(loaded, MARKED, pairs, 16) == expected
        assert as_lists(pickle.loads(pickle.dumps(loaded.reading_added)), MARKED, pairs, 16) == expected
    assert loaded.vocabulary()["[E1]"] not in loaded.encode(MARKED).ids.tolist()  # in a corpus it is plain text
    (row,) = as_lists(loaded, ["a [SEP] [E1] [MASK]"], None, 32)
    assert row.count(loaded.special.sep) == row.count(loaded.vocabulary()["[E1]"]) == 1 and loaded.special.mask not in row


def test_offsets_around_added_tokens_are_those_of_transformers(marked: Path) -> None:
    from transformers import AutoTokenizer

    loaded, theirs = tokenization.load(marked), AutoTokenizer.from_pretrained(marked)
    texts = [text for text in MARKED if "<at>" not in text]  # its blanks are its own there, and never part of a span here
    expected = theirs(texts, return_offsets_mapping=True)
    rows = encode_rows(loaded, texts, None, max_length=64, offsets=True)
    asked = window_rows(loaded, ["[E1] cat"] * len(texts), texts, max_length=64, stride=8)
    assert rows.spans is not None and asked.spans is not None
    for row, (ids, spans) in enumerate(zip(expected["input_ids"], expected["offset_mapping"], strict=True)):
        begin, end = rows.starts[row : row + 2].tolist()
        assert rows.ids[begin:end].tolist() == ids and rows.spans[begin:end].tolist() == list(map(list, spans))
        begin, end = asked.starts[row : row + 2].tolist()
        assert asked.ids[begin:end].tolist() == theirs("[E1] cat", texts[row])["input_ids"]
        assert asked.spans[end - len(ids) + 1 : end].tolist() == list(map(list, spans[1:]))


def test_texts_that_lose_tokens_are_counted(tokenizer: Tokenization) -> None:
    assert encode_rows(tokenizer, TEXTS, None, max_length=16).cut == 1
    assert encode_rows(tokenizer, TEXTS, PAIRS, max_length=16).cut == 2


def test_padding_fills_rows_and_the_batch(tokenizer: Tokenization) -> None:
    rows = encode_rows(tokenizer, ["the cat", "a"], None, max_length=16)
    table = rows.padded(np.array([1, 0]), rows=3, length=6, pad=0)
    assert table.tolist() == [[2, 18, 3, 0, 0, 0], [2, 5, 16, 3, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert rows.lengths.tolist() == [4, 3]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1), st.integers(0, 40))
def test_a_pair_is_cut_no_more_than_it_must_be(lengths: list[tuple[int, int]], room: int) -> None:
    a, b = (np.array(side) for side in zip(*lengths, strict=True))
    kept_a, kept_b = truncated_lengths(a, b, room)
    assert ((kept_a >= 0) & (kept_a <= a) & (kept_b >= 0) & (kept_b <= b)).all()
    assert (kept_a + kept_b == np.minimum(a + b, room)).all()
    assert (kept_a[a <= room // 2] == a[a <= room // 2]).all()  # what is short is not cut for what is long


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (128, (8, 16, 24, 32, 48, 64, 80, 96, 112, 128)),
        (512, (32, 64, 96, 128, 192, 256, 320, 384, 448, 512)),
        (100, (16, 24, 32, 40, 56, 64, 80, 88, 100)),
        (64, (8, 16, 24, 32, 40, 48, 56, 64)),
        (20, (16, 20)),
        (8, (8,)),
    ],
)
def test_a_few_lengths(max_length: int, expected: tuple[int, ...]) -> None:
    assert fixed_lengths(max_length) == expected


@given(st.integers(1, 700), st.integers(1, 40), st.booleans(), st.integers(0, 3))
def test_every_row_once(count: int, batch_size: int, group: bool, epoch: int) -> None:
    lengths = np.random.default_rng(count).integers(3, 65, count)
    batches = epoch_batches(lengths, (16, 32, 64), batch_size=batch_size, seed=1, epoch=epoch, group_by_length=group)
    assert sorted(np.concatenate([batch.indices for batch in batches]).tolist()) == list(range(count))
    assert len(batches) == -(-count // batch_size)
    assert sum(len(batch.indices) < batch_size for batch in batches) == (count % batch_size > 0)
    for batch in batches:
        assert lengths[batch.indices].max() <= batch.length


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(3, 65, 500)

    def order(seed: int, epoch: int) -> list[int]:
        batches = epoch_batches(lengths, (64,), batch_size=32, seed=seed, epoch=epoch, group_by_length=True)
        return np.concatenate([batch.indices for batch in batches]).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_grouping_saves_padding() -> None:
    lengths = np.random.default_rng(0).integers(3, 65, 3200)

    def positions(group: bool) -> int:
        batches = epoch_batches(lengths, (16, 32, 64), batch_size=32, seed=0, epoch=0, group_by_length=group)
        return sum(batch.length * len(batch.indices) for batch in batches)

    assert positions(True) < 0.75 * positions(False)


def test_scoring_begins_with_the_longest() -> None:
    batches = ordered_batches(np.array([3, 30, 5, 16]), (16, 32), batch_size=2)
    assert [(batch.indices.tolist(), batch.length) for batch in batches] == [([1, 3], 32), ([2, 0], 16)]
