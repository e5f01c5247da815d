"""Between which letters no token of a vocabulary reaches across.

Byte-level BPE: a merge across a place makes a token that holds the bytes on both of its sides. Where the vocabulary has no
such token, nothing is ever merged there, and the text on either side is tokenized as if it stood alone.

Unigram: no path of pieces leads across such a place, so the best path of the whole is the best of either side. Of two paths
that are equally good the library takes the first, and which are equally good depends on what stands before, by rounding: unless
scores are such that their sums are exact, as those of our own vocabularies are (see unigram.py). Unknown characters in a row
become one token, so a letter counts only if it is known.

A letter must be to the vocabulary what it is in the text: no normaliser may change it, or compose it with what follows.

In Japanese one place in three is such, so that clauses, which hardly return, fall apart into words, which do.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from tpulm.tokenization import byte_level

_MOST_PAIRS: Final = 1 << 26  # of kinds of letters: the bytes of the table
_NEVER, _DEPENDS, _ALWAYS = range(3)  # whether there may be a token across
_ALONE, _TOGETHER = 1, 2
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
    """Asked about neighbours among `letters`; of others it says that there may be a token across.

    `letters`: their code points, each once, uint32 [N]; all of three bytes in UTF-8, U+0800 to U+FFFF.

    Across two letters that are a token, or the end and the beginning of characters in one, there may always be a token. Across
    those that have neighbours in every token of theirs, only where these stand beside them.
    """

    def __init__(self, tokens: Iterable[bytes], letters: np.ndarray):
        places = {chr(letter).encode(): place for place, letter in enumerate(letters.tolist())}
        seams = {seam for token in tokens if not token.isascii() for seam in _seams(token, places)}
        left = _Kinds(letters, places, {seam.before for seam in seams}, ends_with=True)
        right = _Kinds(letters, places, {seam.after for seam in seams}, ends_with=False)
        self._left, self._right = left.of_letter, right.of_letter
        crossed = np.full((left.number, right.number), _ALWAYS, np.uint8)
        seams = {seam for seam in seams if seam.before in left.having and seam.after in right.having}
        if crossed.size <= _MOST_PAIRS:
            crossed[1:, 1:] = _NEVER
            for value, is_pair in ((_DEPENDS, False), (_ALWAYS, True)):
                here = [(left.having[seam.before], right.having[seam.after]) for seam in seams if _is_pair(seam) is is_pair]
                rows = [np.repeat(before, len(after)) for before, after in here]
                columns = [after if len(before) == 1 else np.tile(after, len(before)) for before, after in here]
                if here:
                    crossed[np.concatenate(rows), np.concatenate(columns)] = value
        self._crossed = crossed.ravel()
        self._row = right.number
        self._first = _Triples((seam.first + seam.before + seam.after, bool(seam.last)) for seam in seams if seam.first)
        self._last = _Triples((seam.before + seam.after + seam.last, bool(seam.first)) for seam in seams if seam.last)

    def between(self, points: np.ndarray) -> np.ndarray:
        """Whether a token may reach across from each of the characters [T] to the next; bool [T - 1]."""
        found = np.ones(len(points) - 1, bool)
        places = np.flatnonzero(self._left[points[:-1]])
        pairs = self._left[points[places]] * np.int32(self._row) + self._right[points[places + 1]]
        crossed = self._crossed[pairs]
        found[places] = crossed != _NEVER
        places = places[crossed == _DEPENDS]
        around = np.concatenate([[0], points, [0]]).astype(np.uint64)
        first, last = self._first.find(around, places), self._last.find(around, places + 1)
        found[places] = ((first | last) & _ALONE | first & last & _TOGETHER) != 0
        return found


class _Seam(NamedTuple):
    """A place between two characters of a token, as UTF-8.

    `before`, `after`: what the token has of these two. `first`, `last`: the letters before and after those, or b"" where the
    token has none, or what a normaliser might have made of something else.
    """

    first: bytes
    before: bytes
    after: bytes
    last: bytes


def _is_pair(seam: _Seam) -> bool:
    return not (seam.first or seam.last)


def _seams(token: bytes, letters: Container[bytes]) -> Iterable[_Seam]:
    begins = [0, *(at for at in range(1, len(token)) if token[at] & 0xC0 != 0x80), len(token)]
    characters = [b"", *(token[begin:end] for begin, end in itertools.pairwise(begins)), b""]
    for first, before, after, last in zip(characters, characters[1:], characters[2:], characters[3:], strict=False):
        is_known = before in letters and after in letters
        yield _Seam(
            first if is_known and first in letters else b"", before, after, last if is_known and last in letters else b""
        )


class _Triples:
    """Three letters in a row, and whether they alone may have a token across, or only together with those on the other side."""

    def __init__(self, triples: Iterable[tuple[bytes, bool]]):
        flags: dict[int, int] = {}
        for triple, together in triples:
            first, second, third = map(ord, triple.decode())
            key = first << 42 | second << 21 | third
            flags[key] = flags.get(key, 0) | (_TOGETHER if together else _ALONE)
        keys = sorted(flags)
        self._keys = np.array([*keys, 1 << 63], np.uint64)
        self._flags = np.array([*map(flags.__getitem__, keys), 0], np.uint8)

    def find(self, points: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The flags of the characters at `places` and the two after, of uint64 `points`; 0 where they are no such triple."""
        keys = points[places] << np.uint64(42) | points[places + 1] << np.uint64(21) | points[places + 2]
        found = np.searchsorted(self._keys, keys)
        return np.where(self._keys[found] == keys, self._flags[found], 0)


class _Kinds:
    """Letters in groups that no seam tells apart; group 0 are all other characters. `places`: of letters' UTF-8 in `letters`.

    `of_letter`: the groups, int32 [0x110000]. `having`: of each of the wanted pieces of UTF-8, the groups of the letters that
    end, or begin, with it. `number`: of groups.
    """

    def __init__(self, letters: np.ndarray, places: Mapping[bytes, int], wanted: set[bytes], *, ends_with: bool):
        encoded = 0xE08080 | (letters >> 12) << 16 | (letters >> 6 & 0x3F) << 8 | letters & 0x3F
        whole = {piece: places[piece] for piece in wanted if piece in places}
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
