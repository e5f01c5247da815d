from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpulm.dataset import store
from tpulm.errors import StorageError


def write(path: Path, rows: np.ndarray, *, block_rows: int = 4) -> None:
    shape: dict[str, Any] = {"num_rows": len(rows), "row_shape": rows.shape[1:], "dtype": rows.dtype}
    store.write_array(path, lambda first, last: rows[first:last], **shape, block_rows=block_rows)


@pytest.fixture
def rows() -> np.ndarray:
    return (np.arange(50 * 8, dtype=np.uint16) % 300).reshape(50, 8)


@pytest.mark.parametrize(
    "name", ["x[1] %20#?*", "C:\\temp", "tab\t", "new\nline", "\udcbf", "a.__lock", "ㅎ", "below/../c", "link/../d"]
)
def test_a_folder_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: np.ndarray, name: str) -> None:
    (tmp_path / "there" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "below")
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir(parents=True)
    write(Path(name) / "a", rows)
    assert Path(os.path.realpath(name), "a", "zarr.json").exists()  # where the operating system says
    np.testing.assert_array_equal(store.open_array(tmp_path / name / "a").read().result(), rows)


def test_what_was_written_is_read(tmp_path: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", 20 * 16)
    write(tmp_path / "a", rows)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["c.0.0", "c.1.0", "c.2.0", "zarr.json"]
    array = store.open_array(tmp_path / "a")
    np.testing.assert_array_equal(array.read().result(), rows)
    np.testing.assert_array_equal(array[17:31].read().result(), rows[17:31])
    metadata = json.loads((tmp_path / "a" / "zarr.json").read_text())
    assert (metadata["data_type"], metadata["shape"]) == ("uint16", [50, 8])
    write(tmp_path / "zeros", np.zeros(10, np.int8))  # as the fill value is, but absent blocks are errors
    assert store.open_array(tmp_path / "zeros").read().result().tolist() == [0] * 10


def test_one_damaged_block_leaves_the_others_readable(tmp_path: Path, rows: np.ndarray) -> None:
    write(tmp_path / "a", rows)
    shard = tmp_path / "a" / "c.0.0"
    data = bytearray(shard.read_bytes())
    data[3] ^= 1
    shard.write_bytes(data)
    array = store.open_array(tmp_path / "a")
    np.testing.assert_array_equal(array[4:8].read().result(), rows[4:8])
    with pytest.raises(StorageError, match=r"c\.0\.0"), store.explain("read", shard):
        array[0:4].read().result()
    with pytest.raises(StorageError, match="nothing"):
        store.open_array(tmp_path / "nothing")


def test_a_write_that_fails_says_why(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*ulimit -f"):
            write(tmp_path / "a", np.arange(20_000, dtype=np.uint16).reshape(-1, 8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
