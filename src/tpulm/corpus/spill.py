"""Cleaned documents on disk, in runs sorted by key, so that a part of the corpus is one range of each run.

A run holds as many documents as memory allows at once. In the file it is: the texts, each followed by NUL, padded to a
multiple of 8 bytes; then three arrays of little-endian uint64, one entry a document: first half of the key, second half, and
where its text ends. Within a run documents with equal keys keep their order in the source.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.corpus.identity import RANGE, Keys
from tpulm.errors import StorageError

_RUN_BYTES: Final = 96 << 20  # of memory, texts and what Python adds to them
_DOCUMENT_OVERHEAD: Final = 100  # bytes of memory a document costs beside its text
_WRITE_DOCUMENTS: Final = 1 << 16


class Run(NamedTuple):
    offset: int  # in the file
    text_bytes: int
    documents: int

    @property
    def arrays_offset(self) -> int:
        return self.offset + -(-self.text_bytes // 8) * 8

    @property
    def end(self) -> int:
        return self.arrays_offset + 24 * self.documents


def spill_bytes(runs: Sequence[Run]) -> int:
    """The size of the file."""
    return runs[-1].end if runs else 0


@contextlib.contextmanager
def new_spill(path: Path) -> Iterator[SpillWriter]:
    """A spill that is written under a temporary name and takes its own when the block ends without an error."""
    storage.make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{storage.TEMPORARY_SUFFIX}")
    try:
        with storage.explain("write", path), temporary.open("wb") as stream:
            writer = SpillWriter(stream)
            yield writer
            writer.write_run()
            stream.flush()
            os.fsync(stream.fileno())
        storage.publish(temporary, path)
    except BaseException:
        storage.remove(temporary)
        raise


class SpillWriter:
    """Gathers documents and writes them out in sorted runs."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._documents: list[bytes] = []
        self._keys: list[Keys] = []
        self._cost = 0
        self.runs: list[Run] = []

    def add(self, documents: Sequence[bytes], keys: Keys) -> None:
        self._documents.extend(documents)
        self._keys.append(keys)
        self._cost += sum(map(len, documents)) + _DOCUMENT_OVERHEAD * len(documents)
        if self._cost >= _RUN_BYTES:
            self.write_run()

    def write_run(self) -> None:
        """Write what was gathered. Raises OSError."""
        documents, self._documents, self._cost = self._documents, [], 0
        if not documents:
            return
        keys = Keys(*map(np.concatenate, zip(*self._keys, strict=True)))
        self._keys = []
        order = keys.order()
        documents = [documents[index] for index in order.tolist()]
        keys = keys.take(order)
        ends = np.cumsum(np.fromiter(map(len, documents), np.uint64, len(documents)) + np.uint64(1))
        run = Run(self._stream.tell(), int(ends[-1]), len(documents))
        for start in range(0, len(documents), _WRITE_DOCUMENTS):
            self._stream.write(b"\0".join([*documents[start : start + _WRITE_DOCUMENTS], b""]))
        self._stream.write(bytes(run.arrays_offset - run.offset - run.text_bytes))
        for array in (*keys, ends):
            self._stream.write(array.astype("<u8").tobytes())
        self.runs.append(run)


class SpillReader:
    """One spill, opened for reading by ranges of keys."""

    def __init__(self, path: Path, runs: Sequence[Run]):
        size = spill_bytes(runs)
        found = path.stat().st_size if path.exists() else None
        if found != size:
            what = "gone" if found is None else f"damaged ({found} bytes, not {size})"
            raise StorageError(
                f"the documents in {path} are {what}; delete {path.parent.parent / 'manifest.json'} and run the same command "
                "again: it reads the corpus anew"
            )
        with storage.explain("read", path):
            self._bytes = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        self._runs = runs

    def slices(self, low: int = 0, high: int = RANGE) -> Iterator[Slice]:
        """The documents with low <= first half < high, a slice for each run, runs in source order."""
        for run in self._runs:
            table = self._bytes[run.arrays_offset : run.end].view("<u8").reshape(3, run.documents)
            first = int(np.searchsorted(table[0], np.uint64(low)))
            last = run.documents if high >= RANGE else int(np.searchsorted(table[0], np.uint64(high)))
            if first < last:
                start = int(table[2, first - 1]) if first else 0
                text = self._bytes[run.offset + start : run.offset + int(table[2, last - 1])]
                yield Slice(Keys(table[0, first:last], table[1, first:last]), text, table[2, first:last] - np.uint64(start))


class Slice(NamedTuple):
    """Documents in the order of their keys; all arrays are views of the file."""

    keys: Keys
    text: np.ndarray  # uint8, NUL after each document
    ends: np.ndarray  # uint64: where each document's NUL ends

    def lengths(self) -> np.ndarray:
        """Bytes of each document, int64."""
        return np.diff(self.ends.astype(np.int64), prepend=0) - 1

    def documents(self) -> list[str]:
        return self.text.tobytes().decode().split("\0")[:-1]

    def some_documents(self, index: np.ndarray) -> list[str]:
        """The documents at `index` (ascending), without reading the others if they are few."""
        if 2 * len(index) > len(self.ends):
            documents = self.documents()
            return documents if len(index) == len(documents) else [documents[number] for number in index.tolist()]
        ends = self.ends[index].astype(np.int64)
        starts = ends - self.lengths()[index] - 1
        text = self.text.data
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return b"".join([text[start:end] for start, end in pairs]).decode().split("\0")[:-1]
