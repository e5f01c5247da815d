"""Reading blocks of rows: whole blocks, started early, kept for a while, and complaints that name the part and the way out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from pathlib import PurePath

import numpy as np
import tensorstore

from tpulm import storage
from tpulm.dataset import store
from tpulm.dataset.manifest import COLUMNS, PartRecord, SplitManifest
from tpulm.dataset.order import Blocks, Run, list_blocks
from tpulm.errors import StorageError
from tpulm.workfolder import is_imported

_INDEX_CACHE_BYTES = 64 << 20  # mostly shard indexes, 16 bytes a block


class BlockReader:
    """The blocks of one split. Safe to use from several threads.

    `rows_read` counts rows of the blocks that were read, `rows_delivered` those handed out.
    """

    def __init__(self, folder: PurePath, manifest: SplitManifest, *, keep: int, without: Collection[str] = ()):
        self.columns = tuple(column for column in manifest.rows.columns if column not in without)
        self._folder = folder
        self._format = manifest.rows
        self._parts = [part for part in manifest.parts if part.counts.rows]
        self.blocks: Blocks = list_blocks([part.counts.rows for part in self._parts], manifest.rows.block_rows)
        self._context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _INDEX_CACHE_BYTES}})
        self._arrays: dict[tuple[int, str], tensorstore.TensorStore] = {}
        self._kept: OrderedDict[int, dict[str, tensorstore.Future]] = OrderedDict()
        self._keep = keep
        self._lock = threading.Lock()
        self.rows_read = 0
        self.rows_delivered = 0

    def rows(self, runs: list[Run]) -> dict[str, np.ndarray]:
        """The rows of the runs, one after another: {"tokens": [rows, L], …}. All reads start before one is waited for."""
        reads = [self._start(run.block) for run in runs]
        total = sum(run.num_rows for run in runs)
        result = {
            name: np.empty((total, *self._format.column_shape(name)), self._format.column_dtype(name)) for name in self.columns
        }
        place = 0
        for run, read in zip(runs, reads, strict=True):
            for name, future in read.items():
                result[name][place : place + run.num_rows] = self._wait(run.block, name, future)[
                    run.offset : run.offset + run.num_rows
                ]
            place += run.num_rows
        with self._lock:
            self.rows_delivered += total
        return result

    def part_of(self, block: int) -> PartRecord:
        return self._parts[int(self.blocks.part[block])]

    def _start(self, block: int) -> dict[str, tensorstore.Future]:
        with self._lock:
            if block in self._kept:
                self._kept.move_to_end(block)
                return self._kept[block]
            part = int(self.blocks.part[block])
            first = int(self.blocks.first_row[block] - self.blocks.part_first_row[part])
            count = int(self.blocks.num_rows[block])
            read = {name: self._array(part, name)[first : first + count].read() for name in self.columns}
            self._kept[block] = read
            while len(self._kept) > self._keep:
                self._kept.popitem(last=False)
            self.rows_read += count
            return read

    def _array(self, part: int, column: str) -> tensorstore.TensorStore:
        if (part, column) not in self._arrays:
            path = self._path(part, column)
            try:
                array = store.open_array(path, self._context)
            except StorageError as error:
                raise self._damaged(part, error) from error
            expected = (self._parts[part].counts.rows, *self._format.column_shape(column))
            if array.shape != expected or array.dtype.numpy_dtype != self._format.column_dtype(column):
                found = f"{array.dtype.name} {array.shape}, expected {self._format.column_dtype(column)} {expected}"
                raise self._damaged(part, StorageError(f"{path} holds {found}"))
            self._arrays[part, column] = array
        return self._arrays[part, column]

    def _wait(self, block: int, column: str, future: tensorstore.Future) -> np.ndarray:
        part = int(self.blocks.part[block])
        try:
            with store.explain("read", self._path(part, column)):
                return future.result()
        except StorageError as error:
            raise self._damaged(part, error) from error

    def _path(self, part: int, column: str) -> PurePath:
        return self._folder / self._parts[part].name / COLUMNS[column]

    def _damaged(self, part: int, error: StorageError) -> StorageError:
        return damaged(self._folder / self._parts[part].name, str(error))


def damaged(part_folder: PurePath, what: str) -> StorageError:
    """The error for a part that cannot be trusted, with the way out."""
    dataset = part_folder.parent.parent
    again = f"and {dataset.parent / 'corpus'} and run the same command again: the same corpus gives"
    if is_imported(dataset.parent):
        again = (
            f"and {dataset.parent / 'tokenizer'}, import the records into an empty folder and move the two from there: "
            "the same records give"
        )
    return StorageError(
        f"part {part_folder} of the dataset is damaged: {what}. Put the part's files back from a copy, or delete "
        f"{storage.as_path(dataset)} {again} the same rows, and training goes on from its checkpoint"
    )
