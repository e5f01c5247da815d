"""Identity: ids in bulk are the stock tokenizer's, however the texts come; and no string stops it."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import make_texts, troublesome_text
from tokenizers import Tokenizer, models

from tpulm.config import TokenizerConfig
from tpulm.tokenization import Encoded, Tokenization, bulk, pipelines, special


def stock_ids(made: Tokenization, texts: list[str]) -> list[list[int]]:
    """What the library gives when it is told that special tokens are text."""
    tokenizer = Tokenizer.from_str(made.canonical_json)
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def lists(encoded: Encoded) -> list[list[int]]:
    assert encoded.ids.dtype == np.uint32 and encoded.lengths.dtype == np.int32
    assert encoded.ids.size == encoded.lengths.sum()
    return [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])] if encoded.lengths.size else []


def test_any_string_has_the_stock_tokenizers_ids(made: Tokenization):
    @settings(max_examples=200)
    @given(st.lists(troublesome_text, max_size=4))
    def check(texts: list[str]):
        assert lists(made.encode(texts)) == stock_ids(made, texts)

    check()


def test_natural_text_however_it_is_cut_into_calls(made: Tokenization):
    texts = make_texts(2_000, seed=1)
    expected = stock_ids(made, texts)
    assert lists(made.encode(texts)) == expected
    fresh = pickle.loads(pickle.dumps(made))
    rng, start, found = random.Random(0), 0, []
    while start < len(texts):
        stop = start + rng.randint(1, 400)
        found += lists(fresh.encode(texts[start:stop]))
        start = stop
    assert found == expected


@pytest.mark.parametrize("most_kept", [0, 10, 200])
def test_forgetting_changes_nothing(made: Tokenization, monkeypatch: pytest.MonkeyPatch, most_kept: int):
    monkeypatch.setattr(bulk, "_MOST_KEPT", most_kept)
    monkeypatch.setattr(bulk, "SLICE_CHARACTERS", 500)
    monkeypatch.setattr(bulk, "LONGEST_KNOWN", 3)
    fresh, texts = pickle.loads(pickle.dumps(made)), make_texts(300, seed=2)
    assert lists(fresh.encode(texts)) == stock_ids(made, texts)


def test_text_that_repeats_nothing_goes_whole_with_the_same_ids(made: Tokenization, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bulk, "SLICE_CHARACTERS", 2_000)
    rng = random.Random(3)
    texts = ["".join(chr(rng.randrange(0x3041, 0x3097)) for _ in range(60)) for _ in range(1_000)]
    fresh = pickle.loads(pickle.dumps(made))
    assert lists(fresh.encode(texts)) == stock_ids(made, texts)


def test_nothing_blank_and_empty(made: Tokenization):
    assert lists(made.encode([])) == []
    assert lists(made.encode([""])) == [[]]
    texts = ["", " ", "\n", "a", "", "   ", "a "]
    assert lists(made.encode(texts)) == stock_ids(made, texts)


def test_lone_surrogates_count_as_the_replacement_character(made: Tokenization):
    assert lists(made.encode(["the \ud800cat", "dog\udfff"])) == stock_ids(made, ["the \ufffdcat", "dog\ufffd"])


def test_the_private_marks_are_characters_like_others(made: Tokenization):
    texts = ["a\U0010fffdb", "the cat", "\U0010fffc[MASK]\U0010fffc"]
    assert lists(made.encode(texts)) == stock_ids(made, texts)


def test_a_wrong_type_is_said_so(made: Tokenization):
    with pytest.raises((TypeError, AttributeError)):
        made.encode(["a", None])  # pyright: ignore[reportArgumentType]


def test_a_vocabulary_with_gaps_is_encoded_by_its_own_ids():
    tokenizer = pipelines.wordpiece(TokenizerConfig(lowercase=True))
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "cat": 5, "##s": 7}
    tokenizer.model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="##")
    made = Tokenization(tokenizer, special.locate(vocabulary, "here"))
    assert lists(made.encode(["Cats", "cat CATS"])) == stock_ids(made, ["Cats", "cat CATS"]) == [[5, 7], [5, 5, 7]]
