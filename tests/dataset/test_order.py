from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tpulm.dataset.order import Order, list_blocks
from tpulm.dataset.random_streams import RandomStream, StreamPurpose

PARTS = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any)


@given(st.lists(PARTS, min_size=1, max_size=3), *(st.integers(1, most) for most in (7, 12, 200, 100)), st.integers(0, 3))
def test_epochs_go_through_the_versions_and_any_place_is_found_at_once(
    parts: list[list[int]], block_rows: int, window_rows: int, first: int, count: int, seed: int
) -> None:
    """Epoch e is one of version e mod D, each of its rows once; the versions have their own numbers of rows."""
    rows = [sum(part_rows) for part_rows in parts]
    blocks = list_blocks([number for part_rows in parts for number in part_rows], block_rows)
    counts = [sum(-(-number // block_rows) for number in part_rows) for part_rows in parts]
    order, fresh = (Order(blocks, seed, versions=counts, window_rows=window_rows) for _ in range(2))
    starts = np.cumsum([0, *rows])
    expected = [np.arange(starts[version], starts[version + 1]) for version in [*range(len(rows))] * 3]
    stream = order.rows(0, 3 * int(starts[-1]))
    for epoch, found in zip(expected, np.split(stream, np.cumsum([*rows] * 3)[:-1]), strict=True):
        np.testing.assert_array_equal(np.sort(found), epoch)
    if first < (last := min(first + count, stream.size)):
        np.testing.assert_array_equal(fresh.rows(first, last), stream[first:last])


@pytest.mark.parametrize(("rows", "batch_size"), [(2_000, 32), (50_000, 256)])
def test_epochs_hardly_share_pairs_of_rows(rows: int, batch_size: int) -> None:
    """Pairs of rows that stand in one batch of an epoch, and again in one of the next, or of the epoch of another seed."""
    blocks = list_blocks([rows // 3, rows - rows // 3], 512)
    batch = np.arange(rows) // batch_size
    order = Order(blocks, 0)
    epochs = [order.rows(0, rows), order.rows(rows, 2 * rows), Order(blocks, 1).rows(0, rows)]
    batch_of = [batch[np.argsort(epoch)] for epoch in epochs]
    for other in batch_of[1:]:
        together = np.unique(batch_of[0] * rows + other, return_counts=True)[1]
        whole = np.bincount(batch_of[0])
        assert (together * (together - 1)).sum() < 0.02 * (whole * (whole - 1)).sum()


def test_a_window_takes_its_rows_from_few_blocks() -> None:
    order = Order(list_blocks([100_000], 512), 0)
    for first in range(0, 100_000, 10_000):
        assert np.unique(order.locations(first, min(first + 10_000, 100_000)).block).size <= 2 * 33


def test_draws_never_change() -> None:
    """These numbers decide which rows a resumed run reads: another release of numpy must give the same."""
    assert RandomStream(0, StreamPurpose.BLOCK_ORDER, 0).permutation(8).tolist() == [1, 3, 0, 6, 7, 5, 4, 2]
    uniform = [[0.6067748151538771, 0.8120001731255423], [0.8229520877120264, 0.5787495018840108]]
    assert RandomStream(2**40, StreamPurpose.LAYOUT, 3).uniform(2, 2).tolist() == uniform
    spread = np.histogram(RandomStream(1, StreamPurpose.LAYOUT, 0).uniform(100_000), 10, (0, 1))[0]
    assert abs(spread - 10_000).max() < 500
