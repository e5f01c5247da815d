from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpulm.dataset import Batches, evaluation_batches, load_split
from tpulm.dataset.layouts import TokenizedDocuments, lay_packed
from tpulm.dataset.manifest import Counts, RowFormat, split_manifest
from tpulm.dataset.parts import SplitRows, Version, write_part
from tpulm.errors import ConfigError, DataError, StorageError
from tpulm.special_tokens import SpecialTokens

WriteSplit = Callable[..., Path]
PART_ROWS = [10, 3, 0, 9]
FIRST_ID = 10  # of the rows' tokens, of which each row has six


@pytest.fixture
def write_split(tmp_path: Path) -> WriteSplit:
    """write_split([rows of part 0, rows of part 1, …], …) -> the folder of a split whose rows are full of unique tokens."""

    def write(part_rows: list[int], *, block_rows: int = 4, name: str = "dataset/train") -> Path:
        sizes: dict[str, Any] = {"sequence_length": 8, "block_rows": block_rows, "vocab_size": 1_000_000}
        special = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
        rows = RowFormat(kind="packed", dtype="uint32", columns=("tokens",), special=special, **sizes)
        folder, parts, next_id = tmp_path / name, [], FIRST_ID
        for number, count in enumerate(part_rows):
            ids = np.arange(next_id, next_id + 6 * count, dtype=np.uint32)
            next_id += 6 * count
            ends = np.arange(1, count + 1) * 6
            layout = lay_packed(TokenizedDocuments(ids, ends, ends), sequence_length=8)
            counts = Counts(documents=count, tokens=6 * count, characters=6 * count)
            parts.append(write_part(folder, number, "x", SplitRows("train", [Version(layout, ids)], counts), rows))
        split_manifest(folder, "train", {}, rows, parts).write(folder / "manifest.json")
        return folder

    return write


def all_rows(folder: Path) -> np.ndarray:
    return np.concatenate([batch["tokens"] for batch in evaluation_batches(load_split(folder), batch_size=1)])


def test_a_batch_holds_the_rows_it_names(write_split: WriteSplit) -> None:
    folder = write_split(PART_ROWS)
    rows = all_rows(folder)
    assert rows.shape == (22, 8) and np.unique(rows[:, 1]).size == 22
    batches = Batches(load_split(folder), batch_size=5, seed=3)
    assert batches.sequence_length == 8
    seen, iterator = [], Batches(load_split(folder), batch_size=5, seed=3).iterate(0)
    for cursor, (at, iterated) in zip(range(0, 45, 5), iterator, strict=False):  # two epochs and a bit; some batches span two
        batch = batches.batch(cursor)
        np.testing.assert_array_equal(iterated["tokens"], batch["tokens"])
        assert at == cursor
        assert batch["tokens"].dtype == np.uint32
        np.testing.assert_array_equal(batch["tokens"], rows[batches.row_indices(cursor)])
        seen += batches.row_indices(cursor).tolist()
    iterator.close()
    assert sorted(seen[:22]) == sorted(seen[22:44]) == list(range(22))
    assert seen[:22] != seen[22:44]


def test_where_words_begin_is_looked_up_by_token(write_split: WriteSplit) -> None:
    folder = write_split(PART_ROWS)
    starts = (np.arange(1_000_000) % 3 == 0).astype(np.int8)
    plain = Batches(load_split(folder), batch_size=5, seed=3)
    batches = Batches(load_split(folder), batch_size=5, seed=3, of_tokens={"word_start": starts})
    for (_, before), (_, batch), _ in zip(plain.iterate(0), batches.iterate(0), range(3), strict=False):
        assert set(before) == {"tokens"} and batch["word_start"].dtype == np.int8
        np.testing.assert_array_equal(batch["tokens"], before["tokens"])
        np.testing.assert_array_equal(batch["word_start"], starts[batch["tokens"]])


def test_hosts_joined_equal_one_host(write_split: WriteSplit) -> None:
    split = load_split(write_split([20_000, 3, 700, 18_000], block_rows=64))
    alone = Batches(split, batch_size=6, seed=1)
    for num_hosts in (2, 6):
        hosts = [Batches(split, batch_size=6, seed=1, host_index=host, num_hosts=num_hosts) for host in range(num_hosts)]
        for cursor in (0, 6, 16_380, 38_700, 60_000):  # windows, parts and epochs meet somewhere in these
            joined = np.concatenate([host.batch(cursor)["tokens"] for host in hosts])
            np.testing.assert_array_equal(joined, alone.batch(cursor)["tokens"])
            np.testing.assert_array_equal(hosts[-1].row_indices(cursor), alone.row_indices(cursor))


def test_a_cursor_says_the_same_rows_whatever_the_batch(write_split: WriteSplit) -> None:
    """After 10 batches of 6 rows, batches of 16: every row once in the epoch; and a dataset may begin later in the run."""
    folder = write_split([100, 30, 70])
    small, large = Batches(load_split(folder), batch_size=6, seed=1), Batches(load_split(folder), batch_size=20, seed=1)
    later = Batches(load_split(folder), batch_size=20, seed=1, first_cursor=1000)
    rows = [small.row_indices(cursor) for cursor in range(0, 60, 6)]
    rows += [large.row_indices(cursor) for cursor in range(60, 200, 20)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(200))
    np.testing.assert_array_equal(later.row_indices(1060), large.row_indices(60))
    np.testing.assert_array_equal(later.batch(1060)["tokens"], large.batch(60)["tokens"])


def delivered(batches: Batches, start_cursor: int, count: int) -> list[int]:
    """The rows of so many batches, by their tokens."""
    iterator = batches.iterate(start_cursor)
    rows = [(batch["tokens"][:, 1].astype(int) - FIRST_ID) // 6 for _, batch in itertools.islice(iterator, count)]
    iterator.close()
    return np.concatenate(rows).tolist()


def test_blocks_are_read_once_an_epoch_and_by_each_host(write_split: WriteSplit) -> None:
    """Windows are read ahead and kept while they last; a host reads the blocks that its rows come from."""
    folder = write_split([60_000, 40_000], block_rows=64)
    alone = Batches(load_split(folder), batch_size=500, seed=1)
    assert sorted(delivered(alone, 0, 200)) == list(range(100_000))
    assert 1.0 <= alone.read_amplification <= 1.4  # 1.2 of an epoch, a window and what is under way, are read ahead
    host = Batches(load_split(folder), batch_size=500, seed=1, host_index=1, num_hosts=4)
    assert len(delivered(host, 0, 200)) == 25_000
    assert 4.0 <= host.read_amplification <= 5.6


def test_skipped_rows_are_left_out(write_split: WriteSplit) -> None:
    batches = Batches(load_split(write_split(PART_ROWS)), batch_size=4, seed=2)
    for skipped, expected in (
        ([(20, 28)], [12, 16, 28, 32, 36]),
        ([(0, 16)], [16, 20, 24, 28, 32]),
        ([(0, 8), (20, 20)], [12, 16, 20, 24, 28]),
        ([(24, 28), (12, 16), (16, 24)], [28, 32, 36, 40, 44]),
        ([(16, 32), (20, 24)], [12, 32, 36, 40, 44]),
    ):
        iterator = batches.iterate(12, skipped=skipped)
        assert [cursor for cursor, _ in itertools.islice(iterator, 5)] == expected
        iterator.close()


def test_closing_stops_the_threads(write_split: WriteSplit) -> None:
    before = set(threading.enumerate())
    iterator = Batches(load_split(write_split(PART_ROWS)), batch_size=4, seed=2).iterate(0)
    next(iterator)
    iterator.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_a_process_that_forgets_to_close_still_ends(write_split: WriteSplit, user_environment: dict[str, str]) -> None:
    code = (
        "import sys; from tpulm.dataset import Batches, load_split\n"
        "iterator = Batches(load_split(sys.argv[1]), batch_size=4, seed=0).iterate(0)\n"
        "print(next(iterator)[0])\n"
    )
    command = [sys.executable, "-c", code, str(write_split(PART_ROWS))]
    result = subprocess.run(command, env=user_environment, capture_output=True, text=True, timeout=600, check=False)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


def test_damage_is_noticed_and_named(write_split: WriteSplit) -> None:
    folder = write_split([10, 6])
    shard = folder / "part-00001" / "tokens.zarr" / "c.0.0"
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    split = load_split(folder)
    batches = Batches(split, batch_size=16, seed=0)
    for read in (batches.batch, lambda at: list(batches.iterate(at)), lambda at: list(evaluation_batches(split, batch_size=4))):
        with pytest.raises(StorageError, match="part-00001"):
            read(0)


def test_lost_files_and_those_of_another_dataset_are_not_read_as_rows(write_split: WriteSplit) -> None:
    folder, other = (write_split([count], name=f"dataset/{count}") / "part-00000" for count in (10, 8))

    def refused(message: str) -> None:
        with pytest.raises(StorageError, match=message):
            Batches(load_split(folder.parent), batch_size=4, seed=0).batch(0)

    for lost in ("tokens.zarr/c.0.0", "tokens.zarr/zarr.json", "tokens.zarr"):
        aside = (folder / lost).rename(folder / "aside")
        refused("part-00000")
        aside.rename(folder / lost)
    (folder / "tokens.zarr").rename(folder / "aside")
    (other / "tokens.zarr").rename(folder / "tokens.zarr")
    refused(r"\(8, 8\).*\(10, 8\)")


def test_impossible_settings_are_refused(write_split: WriteSplit) -> None:
    folder = write_split([4])
    for host_index, num_hosts, message in ((0, 3, "multiple of 3"), (2, 2, "host_index 2")):
        with pytest.raises(ConfigError, match=message):
            Batches(load_split(folder), batch_size=4, seed=0, host_index=host_index, num_hosts=num_hosts)
    with pytest.raises(DataError, match="no rows"):
        Batches(load_split(write_split([0], name="dataset/holdout")), batch_size=4, seed=0)


def test_evaluation_gives_each_row_once_and_fills_up(write_split: WriteSplit) -> None:
    folder = write_split(PART_ROWS)
    split, rows = load_split(folder), all_rows(folder)
    for max_rows, num_hosts in itertools.product((None, 1, 7, 8, 22, 100), (1, 2)):
        expected = rows[:max_rows]
        given: dict[str, Any] = {"batch_size": 8, "max_rows": max_rows, "num_hosts": num_hosts}
        hosts = [list(evaluation_batches(split, host_index=host, **given)) for host in range(num_hosts)]
        joined = np.concatenate([host[step]["tokens"] for step in range(len(hosts[0])) for host in hosts])
        assert len(joined) % 8 == 0 and len(joined) - len(expected) < 8
        np.testing.assert_array_equal(joined[: len(expected)], expected)
        assert not joined[len(expected) :].any()
