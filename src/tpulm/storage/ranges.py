"""A file read here and there: mapped into memory on this machine, by range requests in Cloud Storage."""

from __future__ import annotations

import mmap
import os
from pathlib import Path, PurePath
from typing import Protocol

from tpulm.storage import cloud
from tpulm.storage.causes import explain
from tpulm.storage.paths import as_path


class Ranges(Protocol):
    def read(self, start: int, stop: int) -> memoryview | bytes:
        """Bytes [start, stop); on this machine a view of the file, which costs nothing until it is looked at."""
        ...


def open_ranges(path: str | os.PathLike[str]) -> Ranges:
    source = as_path(path)
    return _Mapped(source) if isinstance(source, Path) else _Requested(source)


class _Mapped:
    def __init__(self, path: Path):
        with explain("read", path), path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            self._view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")

    def read(self, start: int, stop: int) -> memoryview:
        return self._view[start:stop]


class _Requested:
    def __init__(self, path: PurePath):
        self._path = path

    def read(self, start: int, stop: int) -> bytes:
        return cloud.read_range(self._path, start, stop)
