"""Reading whole blocks of rows: asynchronously, with a cache, and with errors that name the damaged part and the fix.

A block here is about 512 rows, several of the blocks that are compressed on disk: TensorStore gets neighbours with one
request, whose price and latency are then paid once for all of them.
"""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Collection
from pathlib import PurePath
from typing import Any

import google_crc32c
import numpy as np
import tensorstore

from tpulm import storage
from tpulm.dataset import store
from tpulm.dataset.manifest import PartRecord, SplitManifest, array_path
from tpulm.dataset.order import Blocks, RowLocations, list_blocks
from tpulm.errors import StorageError
from tpulm.workfolder import is_imported

_INDEX_CACHE_BYTES = 64 << 20  # mostly shard indexes, 16 bytes per block


class BlockReader:
    """The blocks of one split, version after version. Thread-safe.

    `columns` are those to read besides the tokens, where the dataset has them; None: all. Up to `keep_rows` rows stay in
    memory. `rows_read` counts rows of the blocks that were read, `rows_delivered` rows returned.
    """

    def __init__(self, manifest: SplitManifest, *, keep_rows: int, columns: Collection[str] | None = None):
        self.columns = tuple(name for name in manifest.rows.columns if columns is None or name in ("tokens", *columns))
        self._folder = storage.as_path(manifest.folder)
        self._format = manifest.rows
        block_rows = manifest.rows.read_rows
        sources = [
            [(part, version, rows) for part in manifest.parts if (rows := part.version_rows[version])]
            for version in range(manifest.num_versions)
        ]
        self._sources = [source for of_version in sources for source in of_version]
        self.blocks: Blocks = list_blocks([rows for _, _, rows in self._sources], block_rows)
        self.versions = [sum(-(-rows // block_rows) for _, _, rows in of_version) for of_version in sources]  # blocks of each
        self._context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _INDEX_CACHE_BYTES}})
        self._arrays: dict[tuple[int, str], tensorstore.TensorStore] = {}
        self._cached: OrderedDict[int, dict[str, tensorstore.Future | np.ndarray]] = OrderedDict()  # an array once checked
        self._keep_rows, self._cached_rows = keep_rows, 0
        self._lock = threading.Lock()
        self.rows_read = 0
        self.rows_delivered = 0

    def start(self, locations: RowLocations) -> None:
        """Start reading the blocks of these rows."""
        for block in np.unique(locations.block).tolist():
            self._start(block)

    def rows(self, locations: RowLocations) -> dict[str, np.ndarray]:
        """The rows, in this order: {"tokens": [rows, L], …}. All reads start before the first is waited for."""
        total = locations.block.size
        blocks, counts = np.unique(locations.block, return_counts=True)
        reads = [self._start(block) for block in blocks.tolist()]
        by_block = np.split(np.argsort(locations.block, kind="stable"), np.cumsum(counts)[:-1])
        result = {
            name: np.empty((total, *self._format.column_shape(name)), self._format.column_dtype(name)) for name in self.columns
        }
        for block, read, chosen in zip(blocks.tolist(), reads, by_block, strict=False):  # zero rows split into one empty array
            for name in self.columns:
                result[name][chosen] = self._wait(block, name, read)[locations.offset[chosen]]
        with self._lock:
            self.rows_delivered += total
        return result

    def locations(self, first: int, last: int) -> RowLocations:
        """Where rows [first, last) of the dataset are."""
        row = np.arange(first, last)
        block = np.searchsorted(self.blocks.first_row, row, "right") - 1
        return RowLocations(block, row - self.blocks.first_row[block])

    def part_of(self, block: int) -> PartRecord:
        return self._sources[int(self.blocks.array[block])][0]

    def _start(self, block: int) -> dict[str, tensorstore.Future | np.ndarray]:
        with self._lock:
            if block in self._cached:
                self._cached.move_to_end(block)
                return self._cached[block]
            source = int(self.blocks.array[block])
            first = int(self.blocks.first_row[block] - self.blocks.array_first_row[source])
            count = int(self.blocks.num_rows[block])
            read: dict[str, Any] = {name: self._array(source, name)[first : first + count].read() for name in self.columns}
            self._cached[block] = read
            self._cached_rows += count
            self.rows_read += count
            while self._cached_rows > self._keep_rows:
                oldest, _ = self._cached.popitem(last=False)
                self._cached_rows -= int(self.blocks.num_rows[oldest])
            return read

    def _array(self, source: int, column: str) -> tensorstore.TensorStore:
        if (source, column) not in self._arrays:
            path = self._path(source, column)
            try:
                array = store.open_array(path, self._context)
            except StorageError as error:
                raise self._damaged(source, error) from error
            expected = (self._sources[source][2], *self._format.column_shape(column))
            if array.shape != expected or array.dtype.numpy_dtype != self._format.column_dtype(column):
                actual = f"{array.dtype.name} {array.shape}, expected {self._format.column_dtype(column)} {expected}"
                raise self._damaged(source, StorageError(f"{path} holds {actual}"))
            self._arrays[source, column] = array
        return self._arrays[source, column]

    def _wait(self, block: int, column: str, read: dict[str, Any]) -> np.ndarray:
        """The rows, once compared with their checksum, if the dataset has it."""
        if isinstance(array := read[column], np.ndarray):
            return array
        source = int(self.blocks.array[block])
        part, version, _ = self._sources[source]
        number = int(self.blocks.first_row[block] - self.blocks.array_first_row[source]) // self._format.read_rows
        sums = base64.b64decode(part.checksums.get(array_path(column, version), ""))[4 * number : 4 * number + 4]
        try:
            with store.explain("read", self._path(source, column)):
                rows: np.ndarray = array.result()
            if sums and google_crc32c.value(rows.tobytes()) != int.from_bytes(sums):
                raise StorageError(f"{self._path(source, column)} holds other rows than were written")
        except StorageError as error:
            raise self._damaged(source, error) from error
        read[column] = rows
        return rows

    def _path(self, source: int, column: str) -> PurePath:
        part, version, _ = self._sources[source]
        return self._folder / part.name / array_path(column, version)

    def _damaged(self, source: int, error: StorageError) -> StorageError:
        """The error for a damaged part, saying how to recover."""
        dataset = self._folder.parent
        again = f"and {dataset.parent / 'corpus'} and run the same command again: the same corpus gives"
        if is_imported(dataset.parent):
            again = (
                f"and {dataset.parent / 'tokenizer'}, import the records into an empty folder and move the two from there: "
                "the same records give"
            )
        return StorageError(
            f"part {self._folder / self._sources[source][0].name} of the dataset is damaged: {error}. Put the part's files "
            f"back from a copy, or delete {dataset} {again} the same rows, and training goes on from its checkpoint"
        )
