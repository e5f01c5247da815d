"""Character offsets of tokens in the original text, across normalizers and analysers.

The library's own offsets are right, except where a normalizer composes several characters (an accent, conjoining Hangul,
half-width voice marks), which NFC and NFKC shift, wherever SentencePiece's table drops one, and after characters that a BPE
vocabulary lacks and has no unknown token for. The first are normalized here in chunks that never interact, and a token that
comes from a chunk has the offsets of the whole chunk.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import numpy as np
from tokenizers import Encoding, PreTokenizedString, Regex, Tokenizer

from tpulm.tokenization.hf_files import guarded, watched
from tpulm.tokenization.pipelines import composing, normalizer, steps, without_surrogates

_SURROGATE = re.compile("[\ud800-\udfff]")
_CHARACTER = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\\s\\S]")
_WORD = re.compile(r"\S+|\s+")
_IN_CONTEXT: Final = ("Replace", "Strip", "Prepend")  # normalizers that look at more than a character and its marks
_EACH: Final = Regex(r"[\s\S]")


class Aligned(NamedTuple):
    """The ids of N texts as in `Encoded`, and for each token the characters it comes from: `spans` int64 [T, 2], without blanks
    at their ends; begin and end are equal for a token that comes from no visible character."""

    ids: np.ndarray
    lengths: np.ndarray
    spans: np.ndarray


class Derived(NamedTuple):
    """A text derived from another, and for each of its characters the span in the other; int64 [characters, 2]."""

    text: str
    spans: np.ndarray

    @classmethod
    def original(cls, text: str) -> Self:
        """An original text, in which each lone surrogate becomes U+FFFD, and a pair of them its character."""
        if _SURROGATE.search(text):
            return cls.of_parts((without_surrogates(match.group()), *match.span()) for match in _CHARACTER.finditer(text))
        places = np.arange(len(text) + 1)
        return cls(text, np.stack([places[:-1], places[1:]], axis=1))

    @classmethod
    def joined(cls, parts: Iterable[Derived]) -> Self:
        """The texts with a space between them, which comes from no character."""
        non_empty = [part for part in parts if part.text]
        spans = [np.concatenate([part.spans, part.spans[-1:, [1, 1]]]) for part in non_empty]
        offsets = np.concatenate([np.zeros((0, 2), np.int64), *spans])
        return cls(" ".join(part.text for part in non_empty), offsets[: -1 if non_empty else 0])

    @classmethod
    def of_parts(cls, parts: Iterable[tuple[str, int, int]]) -> Self:
        """Join (text, begin, end), where each text comes from the characters [begin, end)."""
        listed = list(parts)
        spans = np.array([part[1:] for part in listed], np.int64).reshape(-1, 2)
        return cls("".join(part[0] for part in listed), np.repeat(spans, [len(part[0]) for part in listed], axis=0))

    def back(self, spans: np.ndarray) -> np.ndarray:
        """Map spans in this text to spans in the one it was derived from; int64 [N, 2]."""
        if not len(self.spans):
            return np.zeros_like(spans)
        last = len(self.spans) - 1
        begins, ends = self.spans[np.minimum(spans[:, 0], last), 0], self.spans[np.clip(spans[:, 1] - 1, 0, last), 1]
        return np.stack([begins, np.where(spans[:, 1] > spans[:, 0], np.maximum(begins, ends), begins)], axis=1)

    def then(self, later: Derived) -> Derived:
        return Derived(later.text, self.back(later.spans))

    def mapped(self, function: Callable[[str], str]) -> Derived:
        """Apply a function that acts on a character and its marks, without looking further."""
        expected = function(self.text)
        for cuts in (_clusters, _words):
            result = Derived.of_parts((function(self.text[a:b]), a, b) for a, b in pairwise(cuts(self.text)))
            if result.text == expected:
                return self.then(result)
        return self.then(Derived.of_parts([(expected, 0, len(self.text))]))


def subsequence(text: str, of: str) -> np.ndarray:
    """The spans of the visible characters of `text` in `of`, which has them all in this order; int64 [characters, 2].

    A blank gets an empty span, where the next character may begin.
    """
    places, at = list[tuple[int, int]](), 0
    for character in text:
        position = -1 if character.isspace() else of.find(character, at)
        places.append((at, at) if position < 0 else (position, position + 1))
        at = at if position < 0 else position + 1
    return np.array(places, np.int64).reshape(-1, 2)


class AlignedSteps:
    """Steps of a normalizer in tokenizer.json, of which each character's origin is known."""

    def __init__(self, steps: Iterable[dict[str, Any]]):
        normalizers = [(step["type"] in _IN_CONTEXT, normalizer([step])) for step in steps]
        self.steps = [(looks_further, step) for looks_further, step in normalizers if step is not None]

    def normalized(self, text: Derived) -> Derived:
        for looks_further, step in self.steps:
            if looks_further:
                string = PreTokenizedString(text.text)
                string.normalize(step.normalize)
                string.split(lambda _, piece: piece.split(_EACH, "isolated"))
                text = text.then(Derived.of_parts((c, *span) for c, span, _ in string.get_splits("original", "char")))
            else:
                text = text.mapped(step.normalize_str)
        return text


class Realigner:
    """Places tokens around characters that a tokenizer drops, which the library's offsets leave out of account."""

    def __init__(self, library: Tokenizer):
        self._library = library

    @cached_property
    def _alphabet(self) -> set[str]:
        return {token for token in self._library.get_vocab(with_added_tokens=False) if len(token) == 1}

    def __call__(self, text: str, encoding: Encoding) -> Encoding:
        """The same tokens, read from what is left after the drops, which keeps its places in the text."""
        string = PreTokenizedString(text)
        if self._library.normalizer is not None:
            string.normalize(self._library.normalizer.normalize)
        if self._library.pre_tokenizer is not None:
            self._library.pre_tokenizer.pre_tokenize(string)
        string.normalize(lambda piece: piece.filter(self._alphabet.__contains__))
        string.tokenize(self._library.model.tokenize)
        again = string.to_encoding()
        return again if again.ids == encoding.ids else encoding


class Aligner:
    """Encodes with offsets. `library` is a tokenizer that adds no special tokens; `drops`: it lacks an unknown one."""

    def __init__(self, library: Tokenizer, *, drops: bool):
        specification = json.loads(library.to_str())
        self._library = library
        self._steps = AlignedSteps(steps(specification["normalizer"], "normalizers"))
        self._shifts = '"Precompiled"' in json.dumps(specification["normalizer"])  # the library's are wrong if it drops one
        self._unnormalized = Tokenizer.from_str(json.dumps({**specification, "normalizer": None}))
        self._unnormalized.encode_special_tokens = True
        self._realigners = (Realigner(library), Realigner(self._unnormalized)) if drops else (None, None)

    @guarded()
    def align(self, texts: Sequence[Derived], originals: Sequence[str]) -> Aligned:
        ids, spans = [np.zeros(0, np.uint32)], [np.zeros((0, 2), np.int64)]
        with watched(self._library, originals):
            encodings = self._library.encode_batch([text.text for text in texts], add_special_tokens=False)
        realigned, again_realigned = self._realigners
        for text, encoding, original in zip(texts, encodings, originals, strict=True):
            own = np.array(encoding.ids, np.uint32)
            placed = encoding if realigned is None else realigned(text.text, encoding)
            places = text.back(np.array(placed.offsets, np.int64).reshape(-1, 2))
            if self._shifts or (self._steps.steps and _has_marks(text.text)):
                normalized = self._steps.normalized(text)
                again = self._unnormalized.encode(normalized.text, add_special_tokens=False)
                if again.ids == encoding.ids:
                    again = again if again_realigned is None else again_realigned(normalized.text, again)
                    places = normalized.back(np.array(again.offsets, np.int64).reshape(-1, 2))
            ids.append(own)
            spans.append(trimmed(places, original))
        lengths = np.array([len(own) for own in ids[1:]], np.int32)
        return Aligned(np.concatenate(ids), lengths, np.concatenate(spans))


def trimmed(spans: np.ndarray, text: str) -> np.ndarray:
    """The spans without the blanks at their ends."""
    visible = np.flatnonzero([not c.isspace() for c in text])
    if not len(visible):
        return np.repeat(spans[:, :1], 2, axis=1)
    first, last = np.searchsorted(visible, spans[:, 0]), np.searchsorted(visible, spans[:, 1]) - 1
    empty = last < first
    begins = np.where(empty, spans[:, 0], visible[np.minimum(first, len(visible) - 1)])
    return np.stack([begins, np.where(empty, begins, visible[last] + 1)], axis=1)


def _has_marks(text: str) -> bool:
    return not text.isascii() and any(map(_continues, text))


def _clusters(text: str) -> list[int]:
    return [*(at for at, character in enumerate(text) if not at or not _continues(character)), len(text)]


def _words(text: str) -> list[int]:
    return [0, *(match.end() for match in _WORD.finditer(text))]


@cache
def _continues(character: str) -> bool:
    """Whether Unicode normalization may join a character to the previous one, or move it."""
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.combining(first) != 0 or ord(first) in composing(0x1160)
