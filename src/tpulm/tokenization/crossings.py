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

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from tpulm.tokenization import byte_level

_MOST_PAIRS: Final = 1 << 26  # of kinds of letters: the bytes of the table
_WHOLE_BITS, _FRACTION_BITS = 11, 10  # of a score; a double holds the sum of four thousand million of these exactly


def crossings(model: Mapping[str, Any], letters: np.ndarray) -> Crossings | None:
    """For a model of tokenizer.json, or None for one of another kind. `letters`: as of `Crossings`."""
    if byte_level.is_plain(model):
        return Crossings(filter(None, map(byte_level.bytes_of, model["vocab"])), letters)
    if model["type"] == "Unigram" and all(_is_exact(score) for _, score in model["vocab"]):
        pieces = {piece for piece, _ in model["vocab"]}
        known = np.array([ord(piece) for piece in pieces if len(piece) == 1], np.uint32)
        return Crossings(map(str.encode, pieces), np.intersect1d(letters, known))
    return None


def _is_exact(score: float) -> bool:
    return abs(score) < 1 << _WHOLE_BITS and (score * (1 << _FRACTION_BITS)).is_integer()


class Crossings:
    """Asked about pairs of neighbours among `letters`; of others it says that there may be a token across.

    `letters`: their code points, each once, uint32 [N]; all of three bytes in UTF-8, U+0800 to U+FFFF.
    """

    def __init__(self, tokens: Iterable[bytes], letters: np.ndarray):
        seams = {seam for token in tokens if not token.isascii() for seam in _seams(token)}
        left = _Kinds(letters, {before for before, _ in seams}, ends_with=True)
        right = _Kinds(letters, {after for _, after in seams}, ends_with=False)
        self._left, self._right = left.of_letter, right.of_letter
        crossed = np.ones((left.number, right.number), bool)
        if crossed.size <= _MOST_PAIRS:
            crossed[1:, 1:] = False
            for before, after in seams:
                if before in left.having and after in right.having:
                    crossed[left.having[before][:, None], right.having[after]] = True
        self._crossed = crossed.ravel()
        self._row = right.number

    def between(self, points: np.ndarray) -> np.ndarray:
        """Whether a token may reach across from each of the characters [T] to the next; bool [T - 1]."""
        pair = self._left[points[:-1]] * np.int32(self._row)
        pair += self._right[points[1:]]
        return self._crossed[pair]


class _Kinds:
    """Letters in groups that no seam tells apart; group 0 are all other characters.

    `of_letter`: the groups, int32 [0x110000]. `having`: of each of the wanted pieces of UTF-8, the groups of the letters that
    end, or begin, with it. `number`: of groups.
    """

    def __init__(self, letters: np.ndarray, wanted: set[bytes], *, ends_with: bool):
        encoded = 0xE08080 | (letters >> 12) << 16 | (letters >> 6 & 0x3F) << 8 | letters & 0x3F
        places = dict(zip(encoded.tolist(), range(len(letters)), strict=True))
        whole = {piece: places[number] for piece in wanted if (number := int.from_bytes(piece)) in places}
        pieces = [piece for piece in sorted(wanted) if len(piece) < 3]
        has = np.zeros((len(letters), len(pieces)), bool)
        for number, piece in enumerate(pieces):
            bits = 8 * len(piece)
            has[:, number] = (encoded & (1 << bits) - 1 if ends_with else encoded >> 24 - bits) == int.from_bytes(piece)
        group = _numbered_rows(np.packbits(has, axis=1)) + 1
        group[list(whole.values())] = group.max(initial=0) + 1 + np.arange(len(whole))
        self.of_letter = np.zeros(0x110000, np.int32)
        self.of_letter[letters] = group
        self.having = {piece: np.unique(group[has[:, number]]) for number, piece in enumerate(pieces)}
        self.having |= {piece: group[[place]] for piece, place in whole.items()}
        self.number = 1 + int(group.max(initial=0))


def _numbered_rows(rows: np.ndarray) -> np.ndarray:
    """Equal rows of uint8 have equal numbers, from 0 on; int64 [N]."""
    if not rows.size:
        return np.zeros(len(rows), np.int64)
    return np.unique(np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel(), return_inverse=True)[1]


def _seams(token: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The bytes of the two characters around each place between characters, as far as the token has them."""
    begins = [0, *(at for at in range(1, len(token)) if token[at] & 0xC0 != 0x80), len(token)]
    for before, at, after in zip(begins, begins[1:], begins[2:], strict=False):
        yield token[before:at], token[at:after]
