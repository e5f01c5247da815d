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

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

import numpy as np

from tpulm.tokenization import byte_level

_MOST_PAIRS: Final = 1 << 26  # of kinds of letters: the bytes of the table
_NEVER, _DEPENDS, _ALWAYS = range(3)  # whether there may be a token across
_ALONE, _TOGETHER = 1, 2
_CHARACTERS: Final = re.compile(rb"[^\x80-\xbf][\x80-\xbf]*|[\x80-\xbf]+")  # the first one may lack its beginning
_WHOLE_BITS, _FRACTION_BITS = 11, 10  # of a score; a double holds the sum of four thousand million of these exactly


def crossings(model: Mapping[str, Any], letters: np.ndarray) -> Crossings | None:
    """For a model of tokenizer.json, or None for one of another kind, or with too many kinds of letters.

    `letters`: as of `crossings_of`. Byte-level BPE must see text as bytes, Unigram as characters.
    """
    if byte_level.is_plain(model) and not model.get("ignore_merges"):  # with that, words that no merge makes are tokens, too
        return crossings_of(filter(None, map(byte_level.bytes_of, model["vocab"])), letters)
    if model["type"] == "Unigram" and all(_is_exact(score) for _, score in model["vocab"]):
        pieces = {piece for piece, _ in model["vocab"]}
        known = np.array([ord(piece) for piece in pieces if len(piece) == 1], np.uint32)
        return crossings_of(map(str.encode, pieces), np.intersect1d(letters, known))
    return None


def crossings_of(tokens: Iterable[bytes], letters: np.ndarray) -> Crossings | None:
    """For a vocabulary in UTF-8, or None where there would be more than `_MOST_PAIRS`.

    `letters`: code points, each once, uint32 [N]; all of three bytes in UTF-8, U+0800 to U+FFFF.
    """
    places = {chr(letter).encode(): place for place, letter in enumerate(letters.tolist())}
    seams = _seams(tokens, places)
    left = _Kinds(letters, places, {before for _, before, _, _ in seams}, ends_with=True)
    right = _Kinds(letters, places, {after for _, _, after, _ in seams}, ends_with=False)
    return Crossings(seams, left, right) if left.number * right.number <= _MOST_PAIRS else None


def _is_exact(score: float) -> bool:
    return abs(score) < 1 << _WHOLE_BITS and (score * (1 << _FRACTION_BITS)).is_integer()


class Crossings:
    """Asked about neighbours among the letters; of others it says that there may be a token across.

    Across two letters that are a token, or the end and the beginning of characters in one, there may always be a token. Across
    those that have neighbours in every token of theirs, only where these stand beside them.
    """

    def __init__(self, seams: set[_Seam], left: _Kinds, right: _Kinds):
        """`left` and `right`: the letters by their ends, and by their beginnings."""
        self._left, self._right = left.of_letter, right.of_letter
        self._row = right.number
        self._crossed = np.full(left.number * right.number, _ALWAYS, np.uint8)
        _fill(self._crossed.reshape(left.number, right.number)[1:, 1:], seams, left, right)
        self._first = _Triples((first + before + after, bool(last)) for first, before, after, last in seams if first)
        self._last = _Triples((before + after + last, bool(first)) for first, before, after, last in seams if last)

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


# A place between two characters of a token: what the token has of these two, as UTF-8, and the letters before and after them,
# or b"" where it has none, or what a normaliser might have made of something else: (first, before, after, last).
_Seam = tuple[bytes, bytes, bytes, bytes]


def _seams(tokens: Iterable[bytes], letters: Container[bytes]) -> set[_Seam]:
    seams: set[_Seam] = set()
    for token in tokens:
        if token.isascii():
            continue
        characters = [b"", *_CHARACTERS.findall(token), b""]
        are_letters = [character in letters for character in characters]
        for index in range(1, len(characters) - 2):
            first = last = b""
            if are_letters[index] and are_letters[index + 1]:
                first = characters[index - 1] if are_letters[index - 1] else b""
                last = characters[index + 2] if are_letters[index + 2] else b""
            seams.add((first, characters[index], characters[index + 1], last))
    return seams


def _fill(crossed: np.ndarray, seams: Iterable[_Seam], left: _Kinds, right: _Kinds) -> None:
    """Of kinds but 0, whether there may be a token across; uint8 [left.number - 1, right.number - 1]."""
    crossed[:] = _NEVER
    pairs: dict[tuple[bytes, bytes], bool] = {}
    for first, before, after, last in seams:
        pairs[before, after] = pairs.get((before, after), False) or not (first or last)
    letters = [
        (left.of_whole[before], right.of_whole[after], is_pair)
        for (before, after), is_pair in pairs.items()
        if before in left.of_whole and after in right.of_whole
    ]
    rows, columns, is_pair = np.array(letters, np.int64).reshape(-1, 3).T
    crossed[rows - 1, columns - 1] = np.where(is_pair, _ALWAYS, _DEPENDS)
    for before, after in pairs:
        if not (before in left.of_whole and after in right.of_whole):
            crossed[np.ix_(left.having(before) - 1, right.having(after) - 1)] = _ALWAYS


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
    """Letters in groups that no seam tells apart; group 0 are all other characters.

    `letters`, and their `places` by UTF-8; `wanted`: the pieces of UTF-8 that letters may end, or begin, with. `of_letter`: the
    groups, int32 [0x110000]. `of_whole`: of the wanted pieces that are letters. `number`: of groups.
    """

    def __init__(self, letters: np.ndarray, places: Mapping[bytes, int], wanted: set[bytes], *, ends_with: bool):
        encoded = 0xE08080 | (letters >> 12) << 16 | (letters >> 6 & 0x3F) << 8 | letters & 0x3F
        whole = {piece: places[piece] for piece in wanted if piece in places}
        parts = [sorted(piece for piece in wanted if len(piece) == size) for size in (1, 2)]
        numbers = []  # of each letter's part of that size among these; their count, if it is none of them
        for size, pieces in enumerate(parts, start=1):
            values = np.array([*map(int.from_bytes, pieces), 1 << 24])
            own = encoded & (1 << 8 * size) - 1 if ends_with else encoded >> 24 - 8 * size
            found = np.searchsorted(values, own)
            numbers.append(np.where(values[found] == own, found, len(pieces)))
        group = np.unique(numbers[0] * (len(parts[1]) + 1) + numbers[1], return_inverse=True)[1] + 1
        group[list(whole.values())] = group.max(initial=0) + 1 + np.arange(len(whole))
        self.number = 1 + int(group.max(initial=0))
        self.of_letter = np.zeros(0x110000, np.int32)
        self.of_letter[letters] = group
        self.of_whole = {piece: int(group[place]) for piece, place in whole.items()}
        self._of_part: dict[bytes, np.ndarray] = {}
        for pieces, found in zip(parts, numbers, strict=True):
            pairs = np.unique(found * self.number + group)
            edges = np.searchsorted(pairs, self.number * np.arange(1, len(pieces) + 1))
            self._of_part |= zip(pieces, np.split(pairs % self.number, edges), strict=False)  # the last has none of them

    def having(self, piece: bytes) -> np.ndarray:
        """The groups of the letters that end, or begin, with a wanted piece, or are it; int64 [M]."""
        if piece in self.of_whole:
            return np.array([self.of_whole[piece]])
        return self._of_part.get(piece, np.zeros(0, np.int64))  # of no letter
