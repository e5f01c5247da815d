"""The ids of many strings as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from tokenizers import Tokenizer

_CHARACTERS_AT_ONCE = 1 << 18


class Encoded(NamedTuple):
    """The ids of N strings one after another: `ids` uint32 [T], and how many each has: `lengths` int32 [N]."""

    ids: np.ndarray
    lengths: np.ndarray


NOTHING: Final = Encoded(np.zeros(0, np.uint32), np.zeros(0, np.int32))


def ids_of(tokenizer: Tokenizer, strings: list[str]) -> Iterator[np.ndarray]:
    """The ids of each string, uint32. A few strings at a time: what the library gives takes a hundred bytes a token."""
    for some in slices(strings, _CHARACTERS_AT_ONCE):
        for encoding in tokenizer.encode_batch_fast(some, add_special_tokens=False):
            yield np.array(encoding.ids, np.uint32)


def slices(texts: list[str], characters: int) -> Iterator[list[str]]:
    """The texts in order, in lists of about so many characters."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    first = done = 0
    while first < len(texts):
        last = min(int(np.searchsorted(ends, done + characters)) + 1, len(texts))
        yield texts[first:last]
        first, done = last, int(ends[last - 1])


def joined(parts: list[Encoded]) -> Encoded:
    return Encoded(np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts]))


def gather(encoded: Encoded, places: np.ndarray) -> Encoded:
    """The strings at `places`, int64 [M]."""
    ends = np.cumsum(encoded.lengths, dtype=np.int64)
    return gather_from(encoded.ids, (ends - encoded.lengths)[places], ends[places])


def gather_from(ids: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> Encoded:
    """Stretches of `ids`; int64 [M] each."""
    lengths = ends - begins
    source = np.repeat(ends - np.cumsum(lengths), lengths)
    source += np.arange(len(source))
    return Encoded(ids.take(source), lengths.astype(np.int32))
