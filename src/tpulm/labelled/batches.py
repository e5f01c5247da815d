"""Which rows make which batch, and how long its rows are: a few fixed lengths, so that a few programs are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BATCHES_SORTED_TOGETHER = 50
_SHORTEST = 8
_SHARES = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)  # of max_length


class Batch(NamedTuple):
    indices: np.ndarray  # int64 [at most B]; the last batch of an epoch may be short
    length: int  # to which its rows are padded


def fixed_lengths(max_length: int) -> tuple[int, ...]:
    """At most eight: `max_length` and shares of it (3/4, 1/2, 3/8, … 1/16) in multiples of 8, the shortest first.

    On film reviews a fifth fewer positions than with halves alone (docs/experiments.md).
    """
    found = {-(-int(max_length * share) // 8) * 8 for share in _SHARES if max_length * share >= _SHORTEST}
    return tuple(sorted({length for length in found if length < max_length} | {max_length}))


def epoch_batches(
    row_lengths: np.ndarray,
    lengths: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    group_by_length: bool,
) -> list[Batch]:
    """Every row once, in an order that is a function of (seed, epoch) and the rows' lengths.

    With `group_by_length`, rows are shuffled, sorted by length within every 50 batches, and the batches are shuffled: what is
    padded shrinks, and a batch still is a random sample but for its length.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(row_lengths))
    if group_by_length:
        together = _BATCHES_SORTED_TOGETHER * batch_size
        order = np.concatenate(
            [
                part[np.argsort(-row_lengths[part], kind="stable")]
                for part in (order[start : start + together] for start in range(0, len(order), together))
            ]
        )
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    if group_by_length:
        batches = [batches[number] for number in random.permutation(len(batches))]
    return [Batch(indices, length_for(int(row_lengths[indices].max()), lengths)) for indices in batches]


def ordered_batches(row_lengths: np.ndarray, lengths: Sequence[int], *, batch_size: int) -> list[Batch]:
    """Every row once, longest first: for scores and predictions, which do not depend on the batch."""
    order = np.argsort(-row_lengths, kind="stable")
    cut = (order[start : start + batch_size] for start in range(0, len(order), batch_size))
    return [Batch(indices, length_for(int(row_lengths[indices].max()), lengths)) for indices in cut]


def length_for(longest: int, lengths: Sequence[int]) -> int:
    """The least of the fixed `lengths` (in ascending order) that holds `longest` tokens."""
    return next(length for length in lengths if length >= longest)
