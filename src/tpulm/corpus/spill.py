"""Cleaned documents on disk, in runs sorted by key, so that a part of the corpus is one range of each run.

A run holds as many documents as memory allows at once. It is stored as the texts, each followed by NUL, padded to a multiple
of 8 bytes, then three arrays of little-endian uint64 with one entry per document: the first half of the key, the second half,
and where the text ends. Within a run, documents with equal keys keep their source order.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.corpus.identity import RANGE, Keys, joined
from tpulm.errors import StorageError

_RUN_BYTES: Final = 96 << 20  # of memory, for texts and for sorting them
_DOCUMENT_OVERHEAD: Final = 100  # bytes of memory per document besides its text
_WRITE_DOCUMENTS: Final = 1 << 16  # sorted at a time
_WRITE_BYTES: Final = 4 << 20  # sorted at a time, or one document


class SortedRun(NamedTuple):
    offset: int  # in the file
    text_bytes: int
    documents: int

    @property
    def arrays_offset(self) -> int:
        return self.offset + -(-self.text_bytes // 8) * 8

    @property
    def end(self) -> int:
        return self.arrays_offset + 24 * self.documents


def spill_bytes(runs: Sequence[SortedRun]) -> int:
    """The size of a spill with these runs."""
    return runs[-1].end if runs else 0


@contextlib.contextmanager
def new_spill(path: PurePath) -> Iterator[SpillWriter]:
    """Write a spill under a temporary name; it is renamed when the block ends without an error."""
    with storage.stream_aside(path) as stream:
        writer = SpillWriter(stream)
        yield writer
        writer.write_run()


class SpillWriter:
    """Gathers documents and writes them in sorted runs."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._text = bytearray()  # NUL after each document
        self._ends: list[np.ndarray] = []  # of documents with their NUL, int64 [N] each
        self._keys: list[Keys] = []
        self._cost = 0
        self.runs: list[SortedRun] = []

    def add(self, documents: Sequence[bytes], keys: Keys) -> None:
        text = b"\0".join([*documents, b""])
        self._ends.append(np.flatnonzero(np.frombuffer(text, np.uint8) == 0) + 1 + len(self._text))
        self._text += text
        self._keys.append(keys)
        self._cost += len(text) + _DOCUMENT_OVERHEAD * len(documents)
        if self._cost >= _RUN_BYTES:
            self.write_run()

    def write_run(self) -> None:
        """Write the gathered documents. Raises OSError."""
        if not self._text:
            return
        text, keys, ends = np.frombuffer(self._text, np.uint8), joined(self._keys), np.concatenate(self._ends)
        self._text, self._ends, self._keys, self._cost = bytearray(), [], [], 0
        order = keys.order()
        sizes = np.diff(ends, prepend=0)
        keys, starts, sizes = keys.take(order), (ends - sizes)[order], sizes[order]
        ends = np.cumsum(sizes)
        run = SortedRun(self._stream.tell(), len(text), len(order))
        for some in _blocks(ends, _WRITE_BYTES, _WRITE_DOCUMENTS):
            self._stream.write(_in_order(text, starts[some], sizes[some]).data)
        self._stream.write(bytes(run.arrays_offset - run.offset - run.text_bytes))
        for array in (*keys, ends):
            self._stream.write(array.astype("<u8").tobytes())
        self.runs.append(run)


def _blocks(ends: np.ndarray, max_bytes: int, max_documents: int) -> Iterator[slice]:
    """Slices of documents up to both limits, or of one larger document; `ends`: cumulative bytes, int64 [N]."""
    first = start = 0
    while first < len(ends):
        last = int(np.searchsorted(ends, start + max_bytes, "right"))
        last = min(max(last, first + 1), first + max_documents)
        yield slice(first, last)
        first, start = last, int(ends[last - 1])


def _in_order(text: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The documents at `starts`, of `sizes` bytes, concatenated; uint8. Those of equal size are copied at once."""
    ends = np.cumsum(sizes)
    copied = np.empty(int(ends[-1]), np.uint8)
    by_size = np.argsort(sizes, kind="stable")
    for group in np.split(by_size, np.flatnonzero(np.diff(sizes[by_size])) + 1):
        size = int(sizes[group[0]])
        _windows(copied, size)[ends[group] - size] = _windows(text, size)[starts[group]]
    return copied


def _windows(data: np.ndarray, size: int) -> np.ndarray:
    """Every window of `size` bytes as one element, sharing memory with `data`."""
    return np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))


class SpillReader:
    """Reads one spill by ranges of keys, and nothing outside them."""

    def __init__(self, path: PurePath, runs: Sequence[SortedRun]):
        size, info = spill_bytes(runs), storage.info(path)
        if info is None or info.size != size:
            what = "gone" if info is None else f"damaged ({info.size} bytes, not {size})"
            manifest = path.parent.parent / "manifest.json"
            raise StorageError(f"the documents in {path} are {what}; delete {manifest} and run the same command again")
        self._bytes = storage.Ranges(path)
        self._runs = runs

    def slices(self, low: int = 0, high: int = RANGE) -> Iterator[SpillSlice]:
        """The documents with low <= first half < high, one slice per run, runs in source order."""
        for run in self._runs:
            first, last = self._place(run, low), self._place(run, high)
            if first < last:
                ends = self._column(run, 2, max(first - 1, 0), last)
                start, ends = (int(ends[0]), ends[1:]) if first else (0, ends)
                keys = Keys(self._column(run, 0, first, last), self._column(run, 1, first, last))
                yield SpillSlice(keys, ends - np.uint64(start), self._bytes, run.offset + start)

    def _place(self, run: SortedRun, key: int) -> int:
        return place_of(key, run.documents, lambda first, last: self._column(run, 0, first, last))

    def _column(self, run: SortedRun, number: int, first: int, last: int) -> np.ndarray:
        """Entries [first, last) of one of the run's three arrays, uint64."""
        start = run.arrays_offset + 8 * number * run.documents
        return np.frombuffer(self._bytes.read(start + 8 * first, start + 8 * last), "<u8")


def place_of(key: int, count: int, read: Callable[[int, int], np.ndarray]) -> int:
    """How many of `count` ascending numbers are below `key`; `read` returns numbers [first, last), uint64.

    Keys are uniform, so the result is about `count` * `key` / 2^64; a window around it is read, then larger ones if it misses.
    """
    if key <= 0 or key >= RANGE or not count:
        return count if key > 0 else 0
    guess, reach = count * key // RANGE, 64 + 4 * math.isqrt(count)
    while True:
        first, last = max(0, guess - reach), min(count, guess + reach)
        place = int(np.searchsorted(read(first, last), np.uint64(key)))
        if (place > 0 or first == 0) and (place < last - first or last == count):
            return first + place
        reach *= 4


class SpillSlice(NamedTuple):
    """Documents in the order of their keys; their text is read on request."""

    keys: Keys
    ends: np.ndarray  # uint64: where each document's NUL ends, counted from the first document
    spill: storage.Ranges
    offset: int  # of the first document in the spill

    def lengths(self) -> np.ndarray:
        """The bytes of each document, int64 [N]."""
        return np.diff(self.ends.astype(np.int64), prepend=0) - 1

    def text(self) -> memoryview:
        """UTF-8, with NUL after each document."""
        return memoryview(self.spill.read(self.offset, self.offset + int(self.ends[-1])))

    def documents(self) -> list[str]:
        return str(self.text(), "utf-8").split("\0")[:-1]

    def some_documents(self, index: np.ndarray) -> list[str]:
        """The documents at `index` (ascending); on a local disk the others are not read if they are the majority."""
        if 2 * len(index) > len(self.ends):
            documents = self.documents()
            return documents if len(index) == len(documents) else [documents[number] for number in index.tolist()]
        ends = self.ends[index].astype(np.int64)
        starts = ends - self.lengths()[index] - 1
        text = self.text()
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return b"".join([text[start:end] for start, end in pairs]).decode().split("\0")[:-1]

    def blocks(self, max_bytes: int) -> Iterator[list[str]]:
        """All documents in order, in lists of up to `max_bytes` of text, or of one document."""
        ends, start = self.ends.astype(np.int64), 0
        for some in _blocks(ends, max_bytes, len(ends)):
            end = int(ends[some.stop - 1])
            yield str(self.spill.read(self.offset + start, self.offset + end), "utf-8").split("\0")[:-1]
            start = end
