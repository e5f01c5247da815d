"""gcsfs, unmodified, against the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from cloud_emulator import Emulator


def test_trees_there_and_back(gcs: Emulator, tmp_path: Path):
    files: Any = fsspec.filesystem("gs")
    for name in ("a", "b/c", "b/d/e"):
        (tmp_path / "up" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "up" / name).write_text(name)
    files.put(str(tmp_path / "up"), "runs/tree", recursive=True)
    assert files.find("runs/tree") == ["runs/tree/a", "runs/tree/b/c", "runs/tree/b/d/e"]
    assert sorted(files.ls("runs/tree", detail=False)) == ["runs/tree/a", "runs/tree/b"]
    assert files.isdir("runs/tree/b") and files.isfile("runs/tree/b/c") and not files.isdir("runs/tree/a/")
    for look, missing in ((files.ls, "runs/nothing"), (files.info, "nowhere/x")):
        with pytest.raises(FileNotFoundError):
            look(missing)
    files.get("runs/tree", str(tmp_path / "down"), recursive=True)
    assert (tmp_path / "down" / "b" / "d" / "e").read_text() == "b/d/e"
    files.cp("runs/tree", "runs/copy", recursive=True)
    files.mv("runs/tree", "runs/moved", recursive=True)
    assert len(files.find("runs/copy")) == len(files.find("runs/moved")) == 3 and not files.exists("runs/tree")
    files.rm("runs/copy", recursive=True)
    assert files.ls("runs", detail=False) == ["runs/moved"]
