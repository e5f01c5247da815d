"""Between which letters no token of a vocabulary reaches across.

Byte-level BPE: a merge across a place makes a token that holds the bytes on both of its sides. Where the vocabulary has no
such token, nothing is ever merged there, and the text on either side is tokenized as if it stood alone.

Unigram: no path of pieces leads across such a place, so the best path of the whole is the best of either side. Of two paths
that are equally good the library takes the first, and which are equally good depends on what stands before, by rounding: unless
scores are such that their sums are exact, as those of our own vocabularies are (see unigram.py). Unknown characters in a row
become one token, so a letter counts only if it is known.

In languages without spaces one place in four is such, so that clauses, which hardly return, fall apart into words, which do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tpulm.tokenization import byte_level

_MOST_PAIRS: Final = 1 << 26  # of kinds of letters: the bytes of the table
_WHOLE_BITS, _FRACTION_BITS = 11, 10  # of a score; a double holds the sum of four thousand million of these exactly


def crossings(model: Mapping[str, Any], letters: Iterable[int]) -> Crossings | None:
    """For a model of tokenizer.json, or None for one of another kind."""
    if byte_level.is_plain(model):
        return Crossings(filter(None, map(byte_level.bytes_of, model["vocab"])), list(letters))
    if model["type"] == "Unigram" and all(_is_exact(score) for _, score in model["vocab"]):
        pieces = {piece for piece, _ in model["vocab"]}
        return Crossings(map(str.encode, pieces), [letter for letter in letters if chr(letter) in pieces])
    return None


def _is_exact(score: float) -> bool:
    return abs(score) < 1 << _WHOLE_BITS and (score * (1 << _FRACTION_BITS)).is_integer()


class Crossings:
    """Asked about pairs of neighbours among `letters`; of others it says that there may be a token across."""

    def __init__(self, tokens: Iterable[bytes], letters: Sequence[int]):
        seams = {seam for token in tokens for seam in _seams(token)}
        left = _kinds(letters, {before for before, _ in seams}, [slice(at, None) for at in range(4)])
        right = _kinds(letters, {after for _, after in seams}, [slice(0, end) for end in range(1, 5)])
        self._left, self._right = left.of_letter, right.of_letter
        crossed = np.ones((left.number, right.number), bool)
        if crossed.size <= _MOST_PAIRS:
            crossed[1:, 1:] = False
            for before, after in seams:
                crossed[np.ix_(left.having.get(before, []), right.having.get(after, []))] = True
        self._crossed = crossed.ravel()
        self._row = right.number

    def between(self, points: np.ndarray) -> np.ndarray:
        """Whether a token may reach across from each of the characters [T] to the next; bool [T - 1]."""
        pair = self._left[points[:-1]] * np.int32(self._row)
        pair += self._right[points[1:]]
        return self._crossed[pair]


class _Kinds:
    """Letters in groups that no seam tells apart; group 0 are all other characters."""

    def __init__(self, of_letter: np.ndarray, having: dict[bytes, list[int]], number: int):
        self.of_letter = of_letter  # int32 [0x110000]
        self.having = having  # the groups whose letters have these bytes at the seam
        self.number = number


def _kinds(letters: Sequence[int], wanted: set[bytes], pieces: Sequence[slice]) -> _Kinds:
    of_letter = np.zeros(0x110000, np.int32)
    groups: dict[tuple[bytes, ...], int] = {}
    for letter in letters:
        encoded = chr(letter).encode()
        found = tuple(sorted({encoded[piece] for piece in pieces} & wanted))
        of_letter[letter] = groups.setdefault(found, len(groups) + 1)
    having: dict[bytes, list[int]] = {}
    for found, group in groups.items():
        for piece in found:
            having.setdefault(piece, []).append(group)
    return _Kinds(of_letter, having, len(groups) + 1)


def _seams(token: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The bytes of the two characters around each place between characters, as far as the token has them."""
    begins = [0, *(at for at in range(1, len(token)) if token[at] & 0xC0 != 0x80), len(token)]
    for before, at, after in zip(begins, begins[1:], begins[2:], strict=False):
        yield token[before:at], token[at:after]
