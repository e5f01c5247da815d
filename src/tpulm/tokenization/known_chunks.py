"""Chunks that were encoded before, found by fingerprints: a hash table of arrays, asked for a whole slice of text at once.

A fingerprint is two sums modulo 2^64, each over the characters of a chunk: of a random number for the character times an odd
random base to the power of its place. The numbers are others in each process, so that no text can be made for which they fail.
Two different chunks of at most 48 characters agree in both with a probability of 2^-90 at most (the worst repeat two characters
in the order of Thue and Morse). So of a million known chunks and ten thousand million to be found, 10^16 pairs, one is mistaken
with a probability of 10^-11 at most.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from tpulm.tokenization.encoded import Encoded, gather_from

LONGEST_KNOWN: Final = 48  # characters; longer chunks hardly ever return
_AT_ONCE: Final = 1 << 15  # characters, and chunks: what is worked on stays in the processor's cache
_FEWEST: Final = 1 << 12  # chunks that there is room for


class Fingerprints(NamedTuple):
    """Of C chunks; uint64 [C] each. Not 0, but by chance."""

    first: np.ndarray
    second: np.ndarray

    def take(self, index: np.ndarray | slice) -> Fingerprints:
        return Fingerprints(self.first[index], self.second[index])


class _Numbers(NamedTuple):
    of_character: np.ndarray  # uint64 [0x110000]
    powers: np.ndarray  # uint64 [2 * _AT_ONCE]
    inverse_powers: np.ndarray


@cache
def _numbers(number: int) -> _Numbers:
    """Of the first or the second sum."""
    rng = np.random.default_rng()
    base = int(rng.integers(1 << 61)) << 3 | 3  # of these the powers repeat last
    powers = (np.cumprod(np.full(2 * _AT_ONCE, value, np.uint64)) for value in (base, pow(base, -1, 1 << 64)))
    return _Numbers(rng.integers(1 << 64, size=0x110000, dtype=np.uint64), *powers)


def fingerprints(points: np.ndarray, starts: np.ndarray, dropped: str = "") -> Fingerprints:
    """Of the chunks that begin at `starts`, int64 [C], and go on to the next; each at most `LONGEST_KNOWN` long, or it is void.

    `points`: the characters, [T]. Those in `dropped` do not count.
    """
    found = [np.empty(len(starts), np.uint64) for _ in range(2)]
    numbers = list(map(_numbers, range(2)))
    edges = [*np.searchsorted(starts, np.arange(0, len(points), _AT_ONCE)).tolist(), len(starts)]
    for first, last in itertools.pairwise(edges):
        if first == last:
            continue
        begin = int(starts[first])
        end = int(starts[last]) if last < len(starts) else len(points)
        here = points[begin : min(end, begin + 2 * _AT_ONCE)].astype(np.intp)
        begins = starts[first:last] - begin
        blank = [here == ord(character) for character in dropped]
        for sums, (of_character, powers, inverse_powers) in zip(found, numbers, strict=True):
            values = of_character.take(here)
            values *= powers[: len(here)]
            for places in blank:
                values[places] = 0
            np.add.reduceat(values, begins, out=sums[first:last])
            sums[first:last] *= inverse_powers.take(begins)
    return Fingerprints(*found)


class KnownChunks:
    """Chunks and their ids. A chunk is known by its number, from 1 on; numbers never change."""

    def __init__(self):
        self._number = 1  # of the next one; 0 is none
        self._ids = np.zeros(_FEWEST, np.uint32)
        self._ends = np.zeros(_FEWEST, np.int64)  # of each one's ids
        self._prints = Fingerprints(np.zeros(_FEWEST, np.uint64), np.zeros(_FEWEST, np.uint64))
        self._was_asked = np.zeros(_FEWEST, bool)
        self._in_slot = np.zeros(2 * _FEWEST, np.int32)  # a number, or 0; a power of two, at least twice as many as numbers

    def __len__(self) -> int:
        return self._number - 1

    def find(self, prints: Fingerprints) -> np.ndarray:
        """The numbers of chunks, int32 [C]; 0 of those that are not known."""
        found = np.empty(len(prints.first), np.int32)
        for start in range(0, len(found), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            found[some] = self._find(prints.take(some))
        self._was_asked[found] = True
        return found

    def _find(self, prints: Fingerprints) -> np.ndarray:
        slots = self._slot_of(prints.first)
        found = self._in_slot.take(slots)
        is_wrong = self._is_other(found, prints)
        places = np.flatnonzero(is_wrong & (found != 0))  # another chunk is where this one would be: perhaps it is in the next
        found[is_wrong] = 0
        while len(places):
            slots[places] = (slots[places] + 1) & (len(self._in_slot) - 1)
            here = self._in_slot.take(slots[places])
            is_wrong = self._is_other(here, prints.take(places))
            found[places[~is_wrong]] = here[~is_wrong]
            places = places[is_wrong & (here != 0)]
        return found

    def _is_other(self, numbers: np.ndarray, prints: Fingerprints) -> np.ndarray:
        return (self._prints.first.take(numbers) != prints.first) | (self._prints.second.take(numbers) != prints.second)

    def _slot_of(self, first: np.ndarray) -> np.ndarray:
        return (first >> np.uint64(65 - len(self._in_slot).bit_length())).astype(np.intp)

    def append(self, encoded: Encoded) -> int:
        """The number of the first of these, which cannot be found yet; see `keep`."""
        number, count = self._number, len(encoded.lengths)
        if number + count > len(self._ends):
            self._make_room(number + count)
        begin = int(self._ends[number - 1])
        end = begin + len(encoded.ids)
        if end > len(self._ids):
            self._ids = _grown(self._ids, max(end, 2 * len(self._ids)))
        self._ids[begin:end] = encoded.ids
        self._ends[number : number + count] = begin + np.cumsum(encoded.lengths, dtype=np.int64)
        return number

    def encoded(self, numbers: np.ndarray) -> Encoded:
        """The ids of chunks, one after another; with those of the last `append`."""
        return gather_from(self._ids, self._ends.take(numbers - 1), self._ends.take(numbers))

    def keep(self, prints: Fingerprints) -> None:
        """Of what was appended last, let the first ones be found, by these fingerprints, of which no two are equal."""
        numbers = np.arange(self._number, self._number + len(prints.first), dtype=np.int32)
        self._number += len(numbers)
        self._prints.first[numbers], self._prints.second[numbers] = prints
        self._was_asked[numbers] = False
        self._put(numbers)

    def without_rare(self) -> KnownChunks:
        """Those that were asked for since they were learnt, or since the last time; at most half of them."""
        kept = np.flatnonzero(self._was_asked[1 : self._number])[: len(self) // 2] + 1  # the oldest are the commonest
        found = KnownChunks()
        found.append(self.encoded(kept))
        found.keep(self._prints.take(kept))
        return found

    def _make_room(self, numbers: int) -> None:
        size = 1 << (numbers - 1).bit_length()
        self._ends, self._was_asked = _grown(self._ends, size), _grown(self._was_asked, size)
        self._prints = Fingerprints(*(_grown(prints, size) for prints in self._prints))
        self._in_slot = np.zeros(2 * size, np.int32)
        self._put(np.arange(1, self._number, dtype=np.int32))

    def _put(self, numbers: np.ndarray) -> None:
        slots = self._slot_of(self._prints.first[numbers])
        while len(numbers):
            is_free = self._in_slot[slots] == 0
            self._in_slot[slots[is_free]] = numbers[is_free]
            is_elsewhere = self._in_slot[slots] != numbers
            numbers, slots = numbers[is_elsewhere], (slots[is_elsewhere] + 1) & (len(self._in_slot) - 1)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    found = np.zeros(size, array.dtype)
    found[: len(array)] = array
    return found
