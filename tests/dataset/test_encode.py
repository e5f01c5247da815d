"""Documents become token ids, with the ends of sentences and documents, and with where an analyser's words begin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tpulm import tokenization
from tpulm.config import TokenizerConfig
from tpulm.dataset import encode
from tpulm.dataset.encode import WordEncoder, encode_documents, first_of_words
from tpulm.tokenization import Aligned, Tokenization, analysers
from tpulm.tokenization.analysers import TextSpan


class Encoded(NamedTuple):
    ids: np.ndarray
    lengths: np.ndarray


class Letters:
    """A tokenizer of characters, to which "-" is nothing and "?" unknown."""

    special = SimpleNamespace(unknown=ord("?"))

    def encode(self, texts: list[str]) -> Encoded:
        kept = [text.replace("-", "") for text in texts]
        ids = np.array([ord(letter) for text in kept for letter in text], np.uint32)
        return Encoded(ids, np.array([len(text) for text in kept], np.int32))

    def encode_with_offsets(self, texts: list[str]) -> Aligned:
        ids, lengths = self.encode(texts)
        return Aligned(ids, lengths, np.stack([np.arange(len(ids)), np.arange(len(ids)) + 3], axis=1))


LETTERS: Any = Letters()
UINT16 = np.dtype(np.uint16)


def text_of(ids: np.ndarray) -> str:
    return "".join(map(chr, ids))


def test_what_is_done_is_told_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_CHARACTERS_AT_ONCE", 4)
    told: list[tuple[int, int]] = []
    advance = lambda text_bytes, documents: told.append((text_bytes, documents))  # noqa: E731
    tokens, _ = encode_documents(["A. b", "한글", "xyz"], LETTERS, sentences=False, dtype=UINT16, advance=advance)
    assert told == [(4, 1), (9, 2)]
    assert tokens.sentence_ends.tolist() == tokens.document_ends.tolist() == [4, 6, 9], "documents stay whole"


@pytest.mark.parametrize("at_once", [1, 2, 10**6])
def test_sentences_and_documents_end_where_they_should(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(encode, "_CHARACTERS_AT_ONCE", at_once)
    documents = ["One is here.  Two is there.\nThree.", "---", "四。五。", "Why?"]
    tokens, counts = encode_documents(documents, LETTERS, sentences=True, dtype=UINT16)
    assert tokens.ids.dtype == np.uint16
    assert text_of(tokens.ids) == "".join(documents).replace("-", ""), "white space between sentences is kept"
    pieces = [text_of(piece) for piece in np.split(tokens.ids, tokens.sentence_ends[:-1])]
    assert pieces == ["One is here.", "  Two is there.", "\nThree.", "四。", "五。", "Why?"]
    assert tokens.document_ends.tolist() == [34, 38, 42]
    assert (counts.documents, counts.empty_documents, counts.tokens, counts.unknown_tokens) == (4, 1, 42, 1)
    assert (counts.characters, counts.bytes) == (45, 34 + 3 + 12 + 4)
    assert (counts.blanks, counts.unknown_characters, counts.unknown_fraction) == (7, 3, 3 / 38)
    assert counts.words == sum(len(document.split()) for document in documents) == 10


def test_sentences_apart_are_documents_that_begin_and_end_with_text() -> None:
    documents = ["One is here.  Two is there.\nThree.", "---", "四。五。"]
    tokens, counts = encode_documents(documents, LETTERS, sentences=False, apart=True, dtype=UINT16)
    pieces = [text_of(piece) for piece in np.split(tokens.ids, tokens.document_ends[:-1])]
    assert pieces == ["One is here.", "Two is there.", "Three.", "四。", "五。"]
    assert tokens.document_ends.tolist() == tokens.sentence_ends.tolist()
    _, whole = encode_documents(documents, LETTERS, sentences=True, dtype=UINT16)
    for name in ("documents", "empty_documents", "characters", "bytes", "unknown_tokens", "unknown_characters"):
        assert getattr(counts, name) == getattr(whole, name), name


def test_sentences_without_tokens_vanish() -> None:
    tokens, _ = encode_documents(["One.\n--\nTwo."], LETTERS, sentences=True, dtype=UINT16)
    assert tokens.sentence_ends.tolist()[-1] == tokens.document_ends.tolist()[-1] == tokens.ids.size
    assert (np.diff(tokens.sentence_ends, prepend=0) > 0).all()


@pytest.mark.parametrize("documents", [[], ["--"]])
def test_nothing_is_nothing(documents: list[str]) -> None:
    tokens, counts = encode_documents(documents, LETTERS, sentences=True, dtype=UINT16)
    assert [field.size for field in tokens[:3]] == [0, 0, 0]
    assert counts.empty_documents == len(documents)


ALGORITHMS = {"wordpiece": 120, "bpe": 330, "unigram": 340}
TEXT = ["吾輩は猫である。名前はまだ無い。", "どこで生れたかとんと見当がつかぬ。", "the cats sat; 영화를 봤다 👍🏽 ﾊﾞｲｸ", "cat's"]
TROUBLE = [
    *["猫", "は", "ﾊﾞ", "か\u3099", "가", "\u1100\u1161\u11a8", "👍🏽", "𠮷", "Ａ", "cats", "e\u0301", "\x01", "\0", "\ud800"],
    *[" ", "  ", "\n", "\t", ".", "\u3000", "\xa0", "[MASK]", "<s>", "▁", "Ġ"],
]


@pytest.fixture(scope="module", params=ALGORITHMS)
def made(request: pytest.FixtureRequest) -> Tokenization:
    config = TokenizerConfig(algorithm=request.param, vocab_size=ALGORITHMS[request.param], split_cjk=False)
    more = [" ".join(map("".join, itertools.permutations("猫名前生見", size))) for size in (2, 3, 4)]
    return tokenization.train([TEXT * 6 + more * 2], config)


class Every:
    """A word begins at every `step`-th character."""

    def __init__(self, step: int):
        self.step = step

    def morphemes(self, texts: Sequence[str]) -> Iterator[list[TextSpan]]:
        for text in texts:
            yield [TextSpan(place, text[place : place + self.step]) for place in range(0, len(text), self.step)]


def encoder(made: Tokenization, step: int = 2) -> WordEncoder:
    """With an analyser that needs no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysers, "load", lambda name: Every(step))
        return WordEncoder(made, "mecab")


@given(st.lists(st.integers(0, 30), max_size=12).map(sorted), st.sets(st.integers(1, 30)).map(lambda some: [0, *sorted(some)]))
def test_which_tokens_begin_a_word(places: list[int], starts: list[int]) -> None:
    before = [-1, *places]
    expected = [any(before[index] < start <= place for start in starts) for index, place in enumerate(places)]
    found = first_of_words(np.array(places, np.int64), np.array(starts))
    assert found.dtype == np.int8 and found.astype(bool).tolist() == expected
    assert expected[:1] != [False], "the first token begins a word"


@given(st.lists(st.sampled_from([*TROUBLE, *TEXT]), max_size=10).map("".join), st.integers(1, 4))
def test_ids_are_those_of_the_tokenizer(made: Tokenization, text: str, step: int) -> None:
    texts = [text, "猫", "", text]
    (found, begins), expected = encoder(made, step).encode(texts), made.encode(texts)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    assert begins.shape == expected.ids.shape
    firsts = (np.cumsum(expected.lengths) - expected.lengths)[expected.lengths > 0]
    assert begins[firsts].all()


def pieces(made: Tokenization, text: str, step: int) -> list[str]:
    """The text's tokens, decoded, those of one word together."""
    (ids, _), starts = encoder(made, step).encode([text])
    begins = [*np.flatnonzero(starts).tolist(), len(starts)]
    return [made.decode(ids[first:last]).strip() for first, last in itertools.pairwise(begins)]


def test_words_are_those_of_the_analyser(made: Tokenization) -> None:
    """Characters of which each has tokens of its own: of a byte-level vocabulary several, of which one begins the word."""
    if made.algorithm == "BPE":
        assert pieces(made, "無犬吾", 1) == ["無", "犬", "吾"]
    elif made.algorithm == "WordPiece":
        config = TokenizerConfig(vocab_size=21, split_cjk=False)
        letters = tokenization.train([["猫無名前生見当" * 2, "無", "名", "猫"] * 2], config)
        assert pieces(letters, "無名猫", 1) == ["無", "##名", "##猫"]


def test_a_blank_before_a_word_is_no_word(made: Tokenization) -> None:
    """ " sat" begins at the blank for some tokenizers; the word at its fifth character begins with it all the same."""
    _, starts = encoder(made, 4).encode(["cats sat;"])
    assert starts[0] == 1
    words_of = pieces(made, "cat sat", 4)
    assert words_of[0].replace(" ", "") == "cat" and words_of[1:] == ["sat"]


def test_a_token_over_a_boundary_belongs_where_it_begins(made: Tokenization) -> None:
    ids = made.encode(["cats"]).ids
    _, starts = encoder(made, 3).encode(["cats"])
    longest = max(len(made.decode([index]).strip()) for index in ids.tolist())
    assert starts.sum() == (1 if longest == 4 else 2)
