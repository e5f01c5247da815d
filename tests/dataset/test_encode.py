from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tpulm.dataset import encode
from tpulm.dataset.encode import encode_documents
from tpulm.tokenization import Aligned


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
