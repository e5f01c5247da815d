from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpulm.dataset.draws import Draws, Purpose
from tpulm.dataset.order import Order, list_blocks

PARTS = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any)


def rows_of(order: Order, part_rows: list[int], block_rows: int, first: int, last: int) -> list[int]:
    blocks = list_blocks(part_rows, block_rows)
    return [
        int(blocks.first_row[run.block]) + run.offset + place
        for run in order.runs(first, last)
        for place in range(run.num_rows)
    ]


@given(PARTS, st.integers(1, 7), st.integers(0, 3))
def test_every_epoch_holds_every_row_once(part_rows: list[int], block_rows: int, seed: int) -> None:
    order = Order(list_blocks(part_rows, block_rows), seed)
    total = sum(part_rows)
    assert order.num_rows == total
    for epoch in range(3):
        assert sorted(rows_of(order, part_rows, block_rows, epoch * total, (epoch + 1) * total)) == list(range(total))


@given(PARTS, st.integers(1, 7), st.integers(0, 100), st.integers(1, 60), st.integers(1, 60))
def test_any_place_is_found_at_once(part_rows: list[int], block_rows: int, first: int, count: int, cut: int) -> None:
    whole = Order(list_blocks(part_rows, block_rows), 5)
    fresh = Order(list_blocks(part_rows, block_rows), 5)
    middle = first + min(cut, count)
    joined = rows_of(fresh, part_rows, block_rows, middle, first + count)
    assert rows_of(whole, part_rows, block_rows, first, first + count)[middle - first :] == joined


def test_blocks_stay_inside_their_part() -> None:
    blocks = list_blocks([5, 0, 4, 1], 2)
    assert blocks.part.tolist() == [0, 0, 0, 2, 2, 3]
    assert blocks.first_row.tolist() == [0, 2, 4, 5, 7, 9]
    assert blocks.num_rows.tolist() == [2, 2, 1, 2, 2, 1]


def test_epochs_and_seeds_differ() -> None:
    blocks = list_blocks([1000], 1)
    order, other = Order(blocks, 0), Order(blocks, 1)
    first, second = [run.block for run in order.runs(0, 1000)], [run.block for run in order.runs(1000, 2000)]
    assert first != second
    assert first != [run.block for run in other.runs(0, 1000)]


def test_draws_never_change() -> None:
    """These numbers decide which rows a resumed run reads: another release of numpy must give the same."""
    assert Draws(0, Purpose.BLOCK_ORDER, 0).permutation(8).tolist() == PERMUTATION
    assert Draws(2**40, Purpose.LAYOUT, 3).uniform(2, 2).tolist() == UNIFORM
    spread = np.histogram(Draws(1, Purpose.LAYOUT, 0).uniform(100_000), 10, (0, 1))[0]
    assert abs(spread - 10_000).max() < 500


PERMUTATION = [1, 3, 0, 6, 7, 5, 4, 2]
UNIFORM = [[0.6067748151538771, 0.8120001731255423], [0.8229520877120264, 0.5787495018840108]]
