from __future__ import annotations

import os
from pathlib import Path

import pytest
import zstandard

import compiled


def test_torn_and_long_unused_programs_are_removed(tmp_path: Path) -> None:
    """The judge of what is whole is zstandard, in which JAX writes entries."""
    entry = zstandard.compress(os.urandom(1000))
    names = ["this/new", "other/new", "this/old", "other/old"]
    kept = [tmp_path / f"{name}-cache" for name in names]
    torn = tmp_path / "this" / "torn-cache"
    for path in (*kept, torn):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(entry[: 500 if path == torn else None])
    compiled.tidy(tmp_path / "this")
    assert sorted(tmp_path.glob("*/*-cache")) == sorted(kept)
    for age, path in enumerate(kept):
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    compiled.tidy(tmp_path / "this", limit_bytes=2 * len(entry))
    assert sorted(tmp_path.glob("*/*-cache")) == sorted(kept[:2])


def test_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = compiled.folder("flags")
    assert found.is_dir() and tmp_path not in found.parents
    found.rmdir()
