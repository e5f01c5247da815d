"""What a document's hash decides: its part and, by independent bits, holdout split, sample and copies.

A key is two 64-bit hashes: the first half of XXH3-128 of the cleaned UTF-8 text, and XXH3-64 of its letters and digits only.
Documents are kept in the order of their keys, and a part is a range of the first half. Every other choice compares a mix of the
second half with a threshold; each purpose mixes with its own constant, so the choices are independent of each other. Texts that
differ only in punctuation, spaces or case are thus held out, or trained on, together.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_64_digest, xxh3_128_digest

RANGE: Final = 1 << 64
HASH: Final = "xxh3_128"
_TABLE: Final = 0x20000  # code points; the ideographs that follow are letters
_LAST_LETTER: Final = 0xE0000
_DROPPED_ASCII: Final = bytes(code for code in range(1, 128) if not chr(code).isalnum())


class HashPurpose(IntEnum):
    HOLDOUT = 1
    TOKENIZER_SAMPLE = 2
    WEIGHT = 4


class Keys(NamedTuple):
    """The two halves of N keys, uint64 [N] each."""

    high: np.ndarray
    low: np.ndarray

    def take(self, index: np.ndarray | slice) -> Keys:
        return Keys(self.high[index], self.low[index])

    def order(self) -> np.ndarray:
        """The permutation that sorts the keys; equal keys keep their order."""
        order = np.argsort(self.high, kind="stable")
        high, low = self.take(order)
        # In a corpus, first halves are equal only where whole keys are, so this has sorted both.
        mixed = bool(((high[1:] == high[:-1]) & (low[1:] < low[:-1])).any())
        return np.lexsort((self.low, self.high)) if mixed else order

    def are_new(self) -> np.ndarray:
        """Which of these ascending keys differ from the previous one; bool [N]."""
        new = np.ones(len(self.high), bool)
        new[1:] = (self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1])
        return new


def joined(parts: Iterable[Keys]) -> Keys:
    none = np.zeros(0, np.uint64)
    return Keys(*map(np.concatenate, zip(Keys(none, none), *parts, strict=True)))


def keys_of(documents: Sequence[bytes]) -> Keys:
    digests = b"".join(map(xxh3_128_digest, documents))
    halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    return Keys(halves[:, 0], halves[:, 1])


def keys_of_texts(documents: Sequence[bytes], text: str) -> Keys:
    """Keys whose second half depends only on letters and digits (`letters`), or on the whole text if it has none.

    `text` is all documents, separated by NUL.
    """
    essences = letters(text)
    if b"" in essences:
        essences = [essence or document for essence, document in zip(essences, documents, strict=True)]
    digests = b"".join(map(xxh3_64_digest, essences))
    return Keys(keys_of(documents).high, np.frombuffer(digests, ">u8").astype(np.uint64))


def is_letter(code: int) -> bool:
    """Whether a code point is a letter, a digit or a combining mark (L, N, Mn, Mc), and no variation selector."""
    category = unicodedata.category(chr(code))
    return category[0] in "LN" or (category in ("Mn", "Mc") and not (0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF))


def letters(text: str) -> list[bytes]:
    """The letters (`is_letter`) of each document in a text that separates them by NUL, with simple case folding, in UTF-8."""
    table = _folded()
    if text.isascii():
        return text.encode().translate(bytes(table[:256].astype(np.uint8)), _DROPPED_ASCII).split(b"\0")
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    if codes.max() < _TABLE:
        folded = table.take(codes)
    else:
        folded = np.where(codes < _TABLE, table.take(np.minimum(codes, _TABLE - 1)), codes * (codes < _LAST_LETTER))
    remaining = np.compress((folded > 0) | (codes == 0), folded)
    return remaining.tobytes().decode("utf-32-le").encode().split(b"\0")


@functools.cache
def _folded() -> np.ndarray:
    """What each code point becomes, 0 if it is dropped; uint32 [_TABLE]."""
    table = np.zeros(_TABLE, np.uint32)
    for code in range(_TABLE):
        if is_letter(code):
            folded = chr(code).casefold()
            table[code] = ord(folded) if len(folded) == 1 else code
    return table


def draw(keys: Keys, purpose: HashPurpose) -> np.ndarray:
    """A number for each document, uniform in [0, 2**64), from the second half of its key; uint64 [N]."""
    return mix(keys.low + np.uint64(purpose * 0x9E3779B97F4A7C15 % RANGE))


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele et al. 2014); uint64 to uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def below(draws: np.ndarray, threshold: int) -> np.ndarray:
    """draws < threshold, for a threshold in [0, 2**64] (2**64 itself does not fit in uint64)."""
    return np.ones(len(draws), bool) if threshold >= RANGE else draws < np.uint64(threshold)


def threshold_of(fraction: float) -> int:
    """The threshold below which a `fraction` of all draws lies."""
    return min(RANGE, int(fraction * RANGE))


def part_range(part: int, num_parts: int) -> tuple[int, int]:
    """The range [low, high) of the first halves of a part's keys."""
    return -(-part * RANGE // num_parts), -(-(part + 1) * RANGE // num_parts)


def holdout_threshold(fraction: float, smallest: int, largest: int) -> int:
    """The threshold below which a document's holdout draw holds it out.

    `smallest` and `largest` are the extreme draws of the corpus. With at least two different documents the one with the
    smallest draw is always held out and the one with the largest is always trained on, so neither split of a tiny corpus is
    empty. A single document is trained on.
    """
    return min(max(threshold_of(fraction), smallest + 1), largest) if smallest < largest else 0
