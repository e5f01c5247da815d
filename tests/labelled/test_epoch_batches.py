"""Every row once an epoch, in an order that the seed decides, padded to few lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulm.labelled.rows import epoch_batches, fixed_lengths, length_for, ordered_batches


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (128, (8, 16, 24, 32, 48, 64, 96, 128)),
        (512, (32, 64, 96, 128, 192, 256, 384, 512)),
        (100, (16, 24, 32, 40, 56, 80, 100)),
        (64, (8, 16, 24, 32, 48, 64)),
        (20, (16, 20)),
        (8, (8,)),
    ],
)
def test_a_few_lengths(max_length: int, expected: tuple[int, ...]) -> None:
    assert fixed_lengths(max_length) == expected


def test_the_least_length_that_holds_a_row() -> None:
    assert [length_for(longest, (16, 32, 64)) for longest in (1, 16, 17, 64)] == [16, 16, 32, 64]


@given(st.integers(1, 700), st.integers(1, 40), st.booleans(), st.integers(0, 3))
def test_every_row_once(count: int, batch_size: int, group: bool, epoch: int) -> None:
    lengths = np.random.default_rng(count).integers(3, 65, count)
    batches = epoch_batches(lengths, (16, 32, 64), batch_size=batch_size, seed=1, epoch=epoch, group_by_length=group)
    assert sorted(np.concatenate([batch.indices for batch in batches]).tolist()) == list(range(count))
    assert len(batches) == -(-count // batch_size)
    assert sum(len(batch.indices) < batch_size for batch in batches) == (count % batch_size > 0)
    for batch in batches:
        assert lengths[batch.indices].max() <= batch.length


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(3, 65, 500)

    def order(seed: int, epoch: int) -> list[int]:
        batches = epoch_batches(lengths, (64,), batch_size=32, seed=seed, epoch=epoch, group_by_length=True)
        return np.concatenate([batch.indices for batch in batches]).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_grouping_saves_padding() -> None:
    lengths = np.random.default_rng(0).integers(3, 65, 3200)

    def positions(group: bool) -> int:
        batches = epoch_batches(lengths, (16, 32, 64), batch_size=32, seed=0, epoch=0, group_by_length=group)
        return sum(batch.length * len(batch.indices) for batch in batches)

    assert positions(True) < 0.75 * positions(False)


def test_scoring_begins_with_the_longest() -> None:
    batches = ordered_batches(np.array([3, 30, 5, 16]), (16, 32), batch_size=2)
    assert [(batch.indices.tolist(), batch.length) for batch in batches] == [([1, 3], 32), ([2, 0], 16)]
