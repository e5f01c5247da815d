"""Words that a pipeline's normaliser and pre-tokenizer leave as they are, and a shorter way to encode those.

BERT's normaliser, if it strips no accents, looks at one character at a time, and so does its pre-tokenizer. A word all of
whose characters pass unchanged and unsplit needs only the WordPiece model. That is most words, and half of the work saved.

Byte-level BPE is alike: letters in a row are one word of GPT-2's expression, with the space before them. Their bytes, written
as the characters that the vocabulary has for bytes, need only the model. So do letters of our Unigram, with "▁" for the
space before them, if each letter has a token.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from tpulm.tokenization import byte_level
from tpulm.tokenization.encoded import NOTHING, Encoded, ids_of
from tpulm.tokenization.pipelines import SPACE, Specified, is_unigram, steps

_JOINED_WORDS = 1024  # handed to the tokenizer as one string
_UNSEEN, _UNCHANGED, _CHANGED = range(3)
_SPACE: Final = ord(" ")
_BETWEEN: Final = b"\xff"  # words as bytes: in no UTF-8


def bare_words(pipeline: Specified) -> BareWords | None:
    """What encodes bare words of this tokenizer, or None where none can be told."""
    tokenizer, specification = pipeline
    if _is_plain_bert(specification):
        return BareWords(tokenizer, _WordPieceWords(specification, tokenizer.get_vocab()))
    if _is_plain_byte_level(specification):
        return BareWords(tokenizer, _ByteWords(tokenizer.get_vocab()))
    if _is_plain_unigram(specification):
        return BareWords(tokenizer, _UnigramWords(tokenizer.get_vocab()))
    return None


class Joined(NamedTuple):
    """Many words a string, and `between` between them; and the size of each word, int64 [N], where that tells them apart."""

    strings: list[str]
    sizes: np.ndarray


class BareWords:
    """Encodes bare words by the tokenizer's model alone; `form` says how words go in and come out."""

    def __init__(self, tokenizer: Tokenizer, form: _WordPieceWords | _ByteWords | _UnigramWords):
        self._normalizer, self._pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        self._model = Tokenizer(tokenizer.model)
        self._model.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(form.between)
        self._form = form
        self._character = np.full(0x110000, _UNSEEN, np.uint8)

    def are_bare(self, chunks: list[str]) -> np.ndarray:
        """Which of the chunks, none of them empty, are bare words; bool [N]."""
        points = np.frombuffer("".join(chunks).encode("utf-32-le"), "<u4")
        new = np.unique(points[self._character[points] == _UNSEEN])
        self._character[new] = [_UNCHANGED if self._passes(chr(point)) else _CHANGED for point in new.tolist()]
        sizes = np.fromiter(map(len, chunks), np.int64, len(chunks))
        ends = np.cumsum(sizes)
        changed = self._character[points] == _CHANGED
        if self._form.may_begin_with_space:
            begins = (ends - sizes)[sizes > 1]
            changed[begins[points[begins] == _SPACE]] = False
        changes = np.concatenate([[0], np.cumsum(changed)])
        return changes[ends] == changes[ends - sizes]

    def encode(self, words: list[str]) -> Encoded:
        """The ids of bare words."""
        if not words:
            return NOTHING
        strings, sizes = self._form.joined(words)
        ids = np.concatenate(list(ids_of(self._model, strings)))
        return Encoded(ids, np.diff(self._form.starts(ids, sizes), append=len(ids)).astype(np.int32))

    def _passes(self, character: str) -> bool:
        if not self._form.can_write(character):
            return False
        surrounded = f"a{character}a"
        normalized = self._normalizer.normalize_str(surrounded) if self._normalizer else surrounded
        return normalized == surrounded and len(self._pre_tokenizer.pre_tokenize_str(surrounded)) == 1


class _WordPieceWords:
    """Words are told apart by the sign that all their tokens but the first have."""

    between = " "
    may_begin_with_space = False

    def __init__(self, specification: Mapping[str, Any], vocabulary: Mapping[str, int]):
        prefix = specification["model"]["continuing_subword_prefix"]
        self._begins_word = np.ones(1 + max(vocabulary.values(), default=0), bool)
        self._begins_word[[index for token, index in vocabulary.items() if token.startswith(prefix)]] = False

    def can_write(self, character: str) -> bool:
        return True

    def joined(self, words: list[str]) -> Joined:
        return Joined(_joined(words, self.between), np.zeros(0, np.int64))

    def starts(self, ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        return np.flatnonzero(self._begins_word[ids])


class _SizedWords:
    """Words are told apart by their size: each token is as long as it is written."""

    may_begin_with_space = True

    def __init__(self, vocabulary: Mapping[str, int]):
        self._size_of = np.zeros(1 + max(vocabulary.values()), np.int64)
        self._size_of[list(vocabulary.values())] = list(map(len, vocabulary))

    def starts(self, ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.cumsum(self._size_of[ids]), np.cumsum(sizes) - sizes, "right")


class _ByteWords(_SizedWords):
    """Sizes are in bytes: each character of a token stands for one."""

    between = " "

    def __init__(self, vocabulary: Mapping[str, int]):
        super().__init__(vocabulary)
        self._character_of = np.array(list(map(ord, byte_level.CHARACTERS)), "<u2")
        self._character_of[_BETWEEN[0]] = _SPACE

    def can_write(self, character: str) -> bool:
        return True

    def joined(self, words: list[str]) -> Joined:
        data = np.frombuffer(_BETWEEN.join(map(str.encode, words)), np.uint8)
        ends = np.append(np.flatnonzero(data == _BETWEEN[0]), len(data))
        characters = self._character_of[data]
        edges = [-1, *ends[_JOINED_WORDS - 1 :: _JOINED_WORDS].tolist()]
        if edges[-1] != len(data):
            edges.append(len(data))
        strings = [characters[first + 1 : last].tobytes().decode("utf-16-le") for first, last in itertools.pairwise(edges)]
        return Joined(strings, np.diff(ends, prepend=-1) - 1)


class _UnigramWords(_SizedWords):
    """Sizes are in characters, which no token writes otherwise if each has a token of its own."""

    between = "\n"

    def __init__(self, vocabulary: Mapping[str, int]):
        super().__init__(vocabulary)
        self._vocabulary = vocabulary

    def can_write(self, character: str) -> bool:
        return character in self._vocabulary

    def joined(self, words: list[str]) -> Joined:
        strings = [string.replace(" ", SPACE) for string in _joined(words, self.between)]
        return Joined(strings, np.fromiter(map(len, words), np.int64, len(words)))


def _joined(words: list[str], between: str) -> list[str]:
    return [between.join(words[start : start + _JOINED_WORDS]) for start in range(0, len(words), _JOINED_WORDS)]


def _is_plain_bert(specification: Mapping[str, Any]) -> bool:
    """Whether the normaliser and pre-tokenizer are BERT's, without accents, and the model is WordPiece with a prefix."""
    model, normalizer, pre_tokenizer = (specification[name] or {} for name in ("model", "normalizer", "pre_tokenizer"))
    if pre_tokenizer.get("type") != "BertPreTokenizer" or model["type"] != "WordPiece":
        return False
    prefix = model["continuing_subword_prefix"]
    if not prefix.startswith("#") or model["unk_token"].startswith(prefix):  # "#" is punctuation: no bare word has it
        return False
    if not normalizer:
        return True
    strips = normalizer.get("lowercase") if normalizer.get("strip_accents") is None else normalizer["strip_accents"]
    return normalizer["type"] == "BertNormalizer" and not strips


def _is_plain_byte_level(specification: Mapping[str, Any]) -> bool:
    """Whether text is cut by GPT-2's expression alone, at most lower-cased before, and every byte has a token."""
    pre_tokenizer = specification["pre_tokenizer"] or {}
    return (
        byte_level.is_plain(specification["model"])
        and _at_most_lowercases(specification)
        and pre_tokenizer.get("type") == "ByteLevel"
        and pre_tokenizer.get("use_regex", True)
        and not pre_tokenizer.get("add_prefix_space")
    )


def _is_plain_unigram(specification: Mapping[str, Any]) -> bool:
    """Whether text is cut as our Unigram's, at most lower-cased before, and nothing is put before it."""
    model = specification["model"]
    return (
        model["type"] == "Unigram"
        and _at_most_lowercases(specification)
        and is_unigram(specification["pre_tokenizer"])
        and specification["pre_tokenizer"]["pretokenizers"][0]["prepend_scheme"] == "never"
        and any(token == SPACE for token, _ in model["vocab"])
    )


def _at_most_lowercases(specification: Mapping[str, Any]) -> bool:
    return all(step["type"] == "Lowercase" for step in steps(specification["normalizer"], "normalizers"))
