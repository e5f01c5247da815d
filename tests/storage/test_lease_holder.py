"""Who has a folder to himself can be asked without taking it, and files go one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpulm import storage
from tpulm.emulator import Emulator
from tpulm.errors import StorageError


def agrees(folder: str | Path) -> None:
    assert storage.holder(folder) is None
    with storage.held(folder):
        assert (storage.holder(folder) or "").startswith("process ")
        assert storage.holder(folder), "asking takes nothing"
    assert storage.holder(folder) is None


def test_the_holder_of_a_folder_here(tmp_path: Path):
    agrees(tmp_path / "w")


def test_the_holder_of_a_folder_in_cloud_storage(gcs: Emulator):
    agrees("gs://runs/w")
    storage.write_atomic("gs://runs/w/.lease.json", b"{}")
    with pytest.raises(StorageError, match="is not the lease of a process"):
        storage.holder("gs://runs/w")


def removes(folder: str | Path) -> None:
    for name in ("a", "b/c", "b/d"):
        target = storage.as_path(folder) / name
        storage.make_folder(target.parent)
        storage.write_atomic(target, b"1")
    told: list[str] = []
    storage.remove_files(folder, ["a", "b/c", "absent"], done=told.append)
    assert sorted(told) == ["a", "absent", "b/c"] and list(storage.walk(folder)) == ["b/d"]


def test_files_are_removed_here(tmp_path: Path):
    removes(tmp_path / "w")


def test_files_are_removed_in_cloud_storage(gcs: Emulator):
    removes("gs://runs/w")
