"""gcsfs, unmodified, against the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from cloud_emulator import Emulator

MEBIBYTE = 1 << 20


@pytest.fixture
def files(gcs: Emulator) -> Any:
    return fsspec.filesystem("gs")


def test_listing(files: Any):
    for name in ("x", "a/1", "a/b/2", "a/b/3"):
        files.pipe(f"runs/{name}", name.encode())
    assert sorted(files.ls("runs", detail=False)) == ["runs/a", "runs/x"]
    assert files.find("runs/a") == ["runs/a/1", "runs/a/b/2", "runs/a/b/3"]
    assert files.glob("runs/a/**/[23]") == ["runs/a/b/2", "runs/a/b/3"]
    info = files.info("runs/a/1")
    assert (info["type"], info["size"], info["name"]) == ("file", 3, "runs/a/1")
    assert files.isdir("runs/a") and files.isfile("runs/x") and files.exists("runs/a/b")
    assert not files.exists("runs/nothing") and not files.isdir("runs/a/1/")
    assert files.du("runs/a") == 3 + 5 + 5
    assert files.ls("runs/a/b", refresh=True, detail=False) == ["runs/a/b/2", "runs/a/b/3"]
    with pytest.raises(FileNotFoundError):
        files.ls("runs/nothing")
    with pytest.raises(FileNotFoundError):
        files.info("nowhere/x")


def test_writing_in_many_chunks(gcs: Emulator, files: Any):
    piece = bytes(i % 251 for i in range(MEBIBYTE))
    with files.open("runs/x", "wb", block_size=5 * MEBIBYTE) as file:
        for _ in range(17):
            file.write(piece)
        file.write(b"odd end")
    assert files.cat("runs/x") == piece * 17 + b"odd end"
    assert gcs.requests["PUT chunk"] > 1
    with files.open("runs/x", "wb") as file:
        file.write(b"short")
    assert files.cat("runs/x") == b"short"


def test_trees_there_and_back(files: Any, tmp_path: Path):
    for name in ("a", "b/c", "b/d/e"):
        (tmp_path / "up" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "up" / name).write_text(name)
    files.put(str(tmp_path / "up"), "runs/tree", recursive=True)
    assert files.find("runs/tree") == ["runs/tree/a", "runs/tree/b/c", "runs/tree/b/d/e"]
    files.get("runs/tree", str(tmp_path / "down"), recursive=True)
    assert (tmp_path / "down" / "b" / "d" / "e").read_text() == "b/d/e"
    files.cp("runs/tree", "runs/copy", recursive=True)
    files.mv("runs/tree", "runs/moved", recursive=True)
    assert len(files.find("runs/copy")) == len(files.find("runs/moved")) == 3 and not files.exists("runs/tree")
    files.rm("runs/copy", recursive=True)
    assert files.ls("runs", detail=False) == ["runs/moved"]
