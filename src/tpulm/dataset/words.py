"""Tokens with an analyser's word boundaries: which token is the first of a word.

The tokenizer stays as it is and knows nothing of words; what it made of a text is laid over the boundaries by character.

The law: a token lies where its first visible character stands, and begins a word if a word begins after the place of the token
before it, and not after its own. So a token that reaches over a boundary belongs to the word in which it begins, and of several
tokens of one character the first alone may begin a word.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from tokenizers import Encoding

from tpulm.tokenization import Tokenization, analysers
from tpulm.tokenization.encode import NOTHING, Encoded, joined, slices
from tpulm.tokenization.plain import without_surrogates

_CHARACTERS_AT_ONCE: Final = 1 << 17  # what the tokenizer gives with places takes several hundred bytes a token
_IS_BLANK: Final = np.array([chr(code).isspace() for code in range(0x3001)] + [False])  # nothing above is; the last is "above"


class EncodedWords(NamedTuple):
    encoded: Encoded
    starts: np.ndarray  # int8 [T], 1 where a token begins a word


class WordEncoder:
    """Encodes as `Tokenization.encode`, slower, and says where words begin."""

    def __init__(self, tokenization: Tokenization, analyser: analysers.Name):
        self._tokenizer = tokenization.plain()
        self._analyser = analysers.load(analyser)

    def encode(self, texts: list[str]) -> EncodedWords:
        """The first token of a text always begins a word. A lone surrogate counts as U+FFFD."""
        parts, starts = [NOTHING], [np.zeros(0, np.int8)]
        for some in slices(texts, _CHARACTERS_AT_ONCE):
            some = list(map(without_surrogates, some))
            encodings = self._tokenizer.encode_batch(some, add_special_tokens=False)
            ids = [np.array(encoding.ids, np.uint32) for encoding in encodings]
            parts.append(Encoded(np.concatenate(ids), np.array(list(map(len, ids)), np.int32)))
            for text, encoding, words in zip(some, encodings, analysers.word_offsets(some, self._analyser), strict=True):
                starts.append(first_of_words(_places(text, encoding), words))
        return EncodedWords(joined(parts), np.concatenate(starts))


def first_of_words(places: np.ndarray, words: np.ndarray) -> np.ndarray:
    """int8 [T]: 1 where a token begins a word, from the tokens' places [T] and the words' [W], which rise from 0."""
    return (np.diff(np.searchsorted(words, places, "right"), prepend=0) > 0).astype(np.int8)


def _places(text: str, encoding: Encoding) -> np.ndarray:
    """int64 [T], never falling: the first visible character of each token, or its end if it has none."""
    if not len(encoding):
        return np.zeros(0, np.int64)
    begin, end = np.array(encoding.offsets, np.int64).T
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    visible = np.append(np.flatnonzero(~_IS_BLANK[np.minimum(points, len(_IS_BLANK) - 1)]), len(text))
    first = visible[np.searchsorted(visible, np.minimum(begin, len(text)))]
    return np.maximum.accumulate(np.minimum(first, np.maximum(begin, end)))
