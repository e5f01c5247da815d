"""Ranges of TFRecord files, read, checked and sorted by part: the unit of restart when records are imported.

PIECES/000000.npy    the rows, sorted by the hash of their ids, and so by part
PIECES/000000.json   what it was made from and where its parts end, written last
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from tpulm import storage
from tpulm.corpus.identity import HashPurpose, Keys, draw, keys_of, part_range
from tpulm.dataset.manifest import FORMAT_VERSION, RowFormat
from tpulm.dataset.pretraining_records import Shape, read_rows
from tpulm.dataset.tfrecord import RecordRange, read_records
from tpulm.errors import DataError
from tpulm.runtime import stage
from tpulm.tokenization import Vocabulary

_TOKENS_AT_ONCE = 1 << 20


class RangeTask(NamedTuple):
    folder: str  # PIECES
    number: int
    path: str
    file: str  # fingerprint
    span: RecordRange
    shape: Shape
    rows: RowFormat
    num_parts: int
    inputs: str  # digest of inputs.json
    held_out: bool = False  # the whole file

    @property
    def piece(self) -> PurePath:
        return storage.as_path(self.folder) / f"{self.number:06d}.npy"

    @property
    def identity(self) -> dict[str, object]:
        """What the rows depend on; the file's path is not part of it."""
        return {"inputs": self.inputs, "file": self.file, "stretch": list(self.span)}

    @property
    def files(self) -> tuple[PurePath, PurePath]:
        return self.piece, self.piece.with_suffix(".json")

    @property
    def amount(self) -> int:
        return self.span.bytes

    def finished(self) -> ImportedRange | None:
        """The record, if the piece exists, complete by its size and made from the same inputs; else None."""
        made_from = {"format_version": FORMAT_VERSION, "identity": self.identity}
        record = stage.read_record(ImportedRange, self.files[1], **made_from)
        return record if record and stage.has_size(self.piece, record.bytes) else None

    def build(self) -> ImportedRange:
        """Read the span and write its rows, sorted. Memory: the rows, and about `_TOKENS_AT_ONCE` tokens of records."""
        rows = np.empty(self.span.records, row_dtype(self.rows))
        vocabulary = Vocabulary(self.rows.vocab_size, self.rows.special)
        records = read_records(self.path, self.span)
        done, at_once = 0, max(1, _TOKENS_AT_ONCE // self.rows.sequence_length)
        while batch := list(islice(records, at_once)):
            tokens, random_next = read_rows(batch, self.path, self.shape, vocabulary)
            some = rows[done : done + len(batch)]
            some["tokens"], some["random_next"] = tokens, random_next
            some["high"], some["low"] = keys_of([row.tobytes() for row in some["tokens"]])
            done += len(batch)
        if done != len(rows):
            raise DataError(f"the file had {len(rows):,} records here, and now {done:,}: it changed", location=self.path)
        rows = rows[order_of(rows)]
        with storage.stream_aside(self.piece) as stream:
            np.save(stream, rows)
            size = stream.tell()
        draws = draw(keys_in(rows), HashPurpose.HOLDOUT)
        firsts = [np.uint64(part_range(part, self.num_parts)[0]) for part in range(1, self.num_parts)]
        record = ImportedRange(
            identity=self.identity,
            held_out=self.held_out,
            bytes=size,
            part_ends=(*(int(np.searchsorted(rows["high"], first)) for first in firsts), len(rows)),
            smallest_draw=int(draws.min()),
            largest_draw=int(draws.max()),
        )
        record.write(self.files[1])
        return record


class ImportedRange(stage.Record):
    format_version: int = FORMAT_VERSION
    identity: dict[str, object]
    held_out: bool
    bytes: int
    part_ends: tuple[int, ...]  # cumulative rows of the parts
    smallest_draw: int  # of the rows' holdout draws; see corpus.identity.holdout_threshold
    largest_draw: int


def row_dtype(rows: RowFormat) -> np.dtype:
    tokens = rows.token_dtype.newbyteorder("<")
    return np.dtype([("high", "<u8"), ("low", "<u8"), ("random_next", "i1"), ("tokens", tokens, (rows.sequence_length,))])


def rows_of_part(pieces: Iterable[tuple[PurePath, ImportedRange]], part: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a part from all pieces, `row_dtype` [N] sorted by key, and which are of a held-out file, bool [N]."""
    arrays, held = [np.empty(0, dtype)], [np.empty(0, bool)]
    for path, record in pieces:
        first, last = (record.part_ends[part - 1] if part else 0), record.part_ends[part]
        if first < last:
            offset = record.bytes - record.part_ends[-1] * dtype.itemsize  # NumPy's header
            data = storage.Ranges(path).read(offset + first * dtype.itemsize, offset + last * dtype.itemsize)
            arrays.append(np.frombuffer(data, dtype))
            held.append(np.full(last - first, record.held_out))
    rows = np.concatenate(arrays)
    order = order_of(rows)
    return rows[order], np.concatenate(held)[order]


def keys_in(rows: np.ndarray) -> Keys:
    return Keys(np.ascontiguousarray(rows["high"]), np.ascontiguousarray(rows["low"]))


def order_of(rows: np.ndarray) -> np.ndarray:
    """The indices that sort rows by key, and rows with equal ids by label."""
    return np.lexsort((rows["random_next"], rows["low"], rows["high"]))
