"""Which examples are held out as the dev set, if the user has no file of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tpulm.errors import ConfigError, DataError
from tpulm.labelled.examples import Examples

_PURPOSE: Final = b"tpulm held out"  # keeps these hashes apart from all others
_KEY_BYTES: Final = 16  # equal keys mean equal texts


class Split(NamedTuple):
    """Indices of examples, ascending; every example is in one of them."""

    train: np.ndarray  # int64
    held_out: np.ndarray  # int64


def hold_out(examples: Examples, classes: np.ndarray | None, *, fraction: float) -> Split:
    """Hold out `fraction` of the distinct texts of each class (None: of all), those with the lowest hashes.

    The hash is of text and pair alone: neither file order nor machine matters, copies of a text stay together whatever their
    labels, and one more text moves at most one other of its class. A class with two distinct texts of its own is on both sides,
    one with a single text in `train`. A text with several labels counts to the rarest of them.

    Pairs that share a text stay together, too, and count as one: a premise with another hypothesis reveals much of a held-out
    pair. If that would link more than half of what is to be held out, only copies of pairs stay together.

    Raises ConfigError for a fraction outside (0, 0.5], DataError if there is nothing to hold out.
    """
    if not 0.0 < fraction <= 0.5:
        raise ConfigError(f"a fraction of {fraction} cannot be held out; choose one above 0 and up to 0.5, such as 0.1")
    keys = _keys(examples, most=fraction * len(examples) / 2)
    held_out: set[bytes] = set()
    for stratum in _strata(keys, classes):
        held_out.update(sorted(stratum)[: _quota(len(stratum), fraction)])
    if not held_out:
        raise DataError(f"of {len(keys)} examples none can be held out: no class has two different texts. Give a dev file.")
    chosen = np.fromiter((key in held_out for key in keys), np.bool_, len(keys))
    return Split(np.flatnonzero(~chosen), np.flatnonzero(chosen))


def _keys(examples: Examples, *, most: float) -> list[bytes]:
    """For each example a hash of its group: its copies and, unless a group exceeds `most`, the examples that share a text."""
    texts, pairs = examples.texts, examples.pairs
    if pairs is None:
        return [_hash(text) for text in texts]
    keys = [_hash(text, *([pair] if isinstance(pair, str) else pair)) for text, pair in zip(texts, pairs, strict=True)]
    if not all(isinstance(pair, str) for pair in pairs):  # lists of choices, which many questions may have
        return keys
    numbers = {text: number for number, text in enumerate({*texts, *pairs})}
    ends = [[numbers[text] for text in side] for side in (texts, pairs)]
    graph = coo_array((np.ones(len(keys), np.int8), ends), shape=(len(numbers), len(numbers)))
    groups = connected_components(graph, directed=False)[1][ends[0]]
    if np.bincount(groups).max() > most:
        return keys
    first: dict[int, bytes] = {}
    for key, group in zip(keys, groups.tolist(), strict=True):
        first[group] = min(key, first.get(group, key))
    return [_hash(first[group].hex()) for group in groups.tolist()]  # once more, else large groups would come first


def _hash(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=_KEY_BYTES, person=_PURPOSE).digest()  # texts hold no NUL


def _strata(keys: list[bytes], classes: np.ndarray | None) -> list[set[bytes]]:
    """The distinct texts of each class, each text in one class."""
    if classes is None:
        return [set(keys)]
    pairs = set(zip(keys, classes.tolist(), strict=True))
    texts = Counter(label for _, label in pairs)  # distinct texts by class
    home: dict[bytes, int] = {}
    for key, label in pairs:
        other = home.setdefault(key, label)
        home[key] = min(label, other, key=lambda one: (texts[one], one))
    strata: dict[int, set[bytes]] = {}
    for key, label in home.items():
        strata.setdefault(label, set()).add(key)
    return list(strata.values())


def _quota(count: int, fraction: float) -> int:
    """How many of `count` texts to hold out: rounded, with at least one on each side if there are two."""
    return 0 if count < 2 else min(max(int(fraction * count + 0.5), 1), count - 1)
