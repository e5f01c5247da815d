"""MinHash with banding: documents that are much alike share a band's hash, probably (Broder 1997; Leskovec et al., chapter 3).

A document is the set of its shingles: `SHINGLE_WORDS` words in a row, without regard to case and marks. Where words are not
written apart each character counts as one: Chinese characters and kana. The smallest of the shingles' hashes is the same for
two documents with the probability of their Jaccard similarity s; a band is `rows` such minima, and of `bands` bands at least
one is the same with the probability 1 - (1 - s^rows)^bands.

Libraries were measured on the same shingles (benchmarks/near.py). rensa 0.5 is 1.4 to 1.9 times as fast for long texts and
has 0.3 to 0.8 of the speed for short ones, since its signatures come out as Python lists. They changed with its last version,
and the shingles would still be ours. datasketch has a tenth to a fifth of the speed. gaoya keeps its signatures to itself, in
memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from tpulm.corpus.identity import mix

SHINGLE_WORDS: Final = 5  # as in FineWeb (Penedo et al. 2024, section 3.4)
MOST_HASHES: Final = 128
_SINGLE: Final = ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
_BASE: Final = 0x9E3779B97F4A7C15  # odd, hence with an inverse modulo 2^64
_MASK: Final = (1 << 64) - 1

_APART, _WORD, _ALONE = range(3)


class Banding(NamedTuple):
    bands: int
    rows: int

    def probability(self, similarity: np.ndarray) -> np.ndarray:
        """That documents of this Jaccard similarity share a band."""
        return 1.0 - (1.0 - similarity**self.rows) ** self.bands


@lru_cache
def banding(threshold: float) -> Banding:
    """The one whose probability comes nearest to a step at the threshold: the least area between the two."""
    similarity = (np.arange(2000) + 0.5) / 2000
    wanted = similarity >= threshold
    choices = [Banding(bands, rows) for rows in range(1, 33) for bands in range(1, MOST_HASHES // rows + 1)]
    return min(choices, key=lambda choice: float(np.abs(choice.probability(similarity) - wanted).sum()))


def band_hashes(documents: Sequence[str], banding: Banding) -> np.ndarray:
    """uint64 [bands, N]. A document without a single letter or digit is like itself alone."""
    shingles, ends = _shingles(documents)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    found = np.zeros((banding.bands, len(documents)), np.uint64)
    full = ends > starts
    if full.any():
        factors, offsets = _hash_family()
        hashes, starts = np.empty_like(shingles), starts[full]
        for band in range(banding.bands):
            mixed = np.zeros(len(starts), np.uint64)
            for row in range(band * banding.rows, (band + 1) * banding.rows):
                np.multiply(shingles, factors[row], out=hashes)
                hashes += offsets[row]
                mixed = mix(mixed * np.uint64(_BASE) + (np.minimum.reduceat(hashes, starts) >> np.uint64(32)))
            found[band, full] = mixed
    for index in np.flatnonzero(~full).tolist():
        found[:, index] = int.from_bytes(hashlib.blake2b(documents[index].encode(), digest_size=8).digest(), "big")
    return found


def _shingles(documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The hashes of all shingles, and how many there are up to and with each document."""
    lowered = [document.lower() for document in documents]
    points = np.frombuffer("".join(lowered).encode("utf-32-le"), "<u4")
    sizes = np.fromiter(map(len, lowered), np.int64, len(lowered))
    kinds = _kinds()[points]
    begins = np.ones(len(points), bool)
    np.not_equal(kinds[1:], kinds[:-1], out=begins[1:])
    begins[(np.cumsum(sizes) - sizes)[sizes > 0]] = True
    begins |= kinds == _ALONE
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(points))
    is_word = kinds[first] != _APART
    words = _hash_stretches(points, first[is_word], last[is_word])
    ends = np.searchsorted(first[is_word], np.cumsum(sizes))
    counts = np.diff(ends, prepend=0)

    # Sums go on into the next document: only a short one's shingle is kept of those, without what is not its own.
    hashes, kept = np.zeros(len(words), np.uint64), np.ones(len(words), bool)
    for place in range(SHINGLE_WORDS):
        mixed = mix(words[place:] + np.uint64(place + 1))
        hashes[: len(mixed)] += mixed
        short = (ends - counts)[(counts > 0) & (counts <= place)]
        short = short[short < len(mixed)]
        hashes[short] -= mixed[short]
        if place:
            kept[(ends - place)[counts > place]] = False
    return mix(hashes[kept]), np.cumsum(np.where(counts > 0, np.maximum(1, counts - SHINGLE_WORDS + 1), 0))


def _hash_stretches(points: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """A hash of points[first:last] for each pair: differences of a running polynomial modulo 2^64, brought to one degree."""
    powers, inverses = _powers(1 << max(10, (len(points) + 1).bit_length()))
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix(points.astype(np.uint64)) * powers[: len(points)])])
    return mix((running[last] - running[first]) * inverses[first])


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(
        np.cumprod(np.full(count, base, np.uint64)) * np.uint64(pow(base, -1, 1 << 64))
        for base in (_BASE, pow(_BASE, -1, 1 << 64))
    )  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=1)
def _hash_family() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(1, 2 * MOST_HASHES + 1, dtype=np.uint64)
    drawn = mix(numbers * np.uint64(_BASE))
    return drawn[:MOST_HASHES] | np.uint64(1), drawn[MOST_HASHES:]


@lru_cache(maxsize=1)
def _kinds() -> np.ndarray:
    kinds = np.fromiter((_WORD if chr(point).isalnum() else _APART for point in range(0x110000)), np.uint8, 0x110000)
    for first, last in _SINGLE:
        kinds[first : last + 1][kinds[first : last + 1] == _WORD] = _ALONE
    return kinds
