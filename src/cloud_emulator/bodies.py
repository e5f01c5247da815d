"""The bytes of an object, in memory or in a file; never changed once made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 1 << 20


class Body(Protocol):
    @property
    def size(self) -> int: ...

    def open(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """The pieces of [start, stop), which stay readable even if the object is deleted meanwhile."""
        ...


class MemoryBody:
    def __init__(self, content: bytes):
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def open(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        view = memoryview(self._content)
        return (view[at : min(at + PIECE_BYTES, stop)] for at in range(start, stop, PIECE_BYTES))


class ForgottenBody:
    """What is left of a body once only its size matters."""

    def __init__(self, size: int):
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def open(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        raise ValueError("these bytes were not kept")


class FileBody:
    def __init__(self, path: Path, size: int):
        self.path = path
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def open(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        file = self.path.open("rb")

        def pieces() -> Iterator[bytes]:
            with file:
                for at in range(start, stop, PIECE_BYTES):
                    yield os.pread(file.fileno(), min(PIECE_BYTES, stop - at), at)

        return _Closing(pieces(), file.close)


class _Closing:
    """An iterator that closes its file also when it was never begun."""

    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]):
        self._pieces = pieces
        self.close = close

    def __iter__(self) -> _Closing:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)


def read_all(body: Body) -> bytes:
    return b"".join(body.open(0, body.size))
