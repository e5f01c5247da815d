"""One part on disk: a folder that appears complete or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tpulm import storage
from tpulm.dataset import store
from tpulm.dataset.manifest import (
    FORMAT_VERSION,
    WORD_START,
    Counts,
    ObjectRecord,
    PartRecord,
    RowFormat,
    array_path,
    parse,
    part_name,
)
from tpulm.dataset.rows import Layout, Marks, fill

_RECORD = "part.json"
_NO_WORDS = Marks(pad=0, cls=0, sep=0)  # what stands for [PAD], [CLS] and [SEP] among the beginnings of words


class Version(NamedTuple):
    """Rows of a part: a layout of its tokens."""

    layout: Layout
    tokens: np.ndarray  # [T]
    word_start: np.ndarray | None = None  # int8 [T]


def write_part(
    split_folder: PurePath,
    *,
    number: int,
    inputs: str,
    versions: Iterable[Version],
    counts: Counts,
    rows: RowFormat,
    removed: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> PartRecord:
    """Write the rows, which are one version of the text or several, and their record into a temporary folder, then put that in
    its place.

    Memory: one version, and a shard of its rows beside what TensorStore holds of it. `counts` are those of the text.
    """
    with storage.built_aside(split_folder / part_name(number), last=_RECORD) as temporary:
        storage.make_folder(temporary)
        written: list[Counts] = []
        for version in versions:
            if version.layout.num_rows:
                for column in rows.columns:
                    _write_column(temporary / array_path(column, len(written)), column, version, rows)
            written.append(with_rows(counts, version.layout, rows.sequence_length))
        record = PartRecord(
            inputs=inputs,
            number=number,
            counts=written[0],
            objects={
                name: ObjectRecord(bytes=found.size, sha256=storage.sha256(temporary / name))
                for name, found in storage.walk(temporary).items()
            },
            removed=dict(removed),
            redrawn_rows=tuple(drawn.rows for drawn in written[1:]),
        )
        storage.write_json(temporary / _RECORD, record.model_dump(mode="json"))
    return record


def read_record(split_folder: PurePath, number: int, inputs: str) -> PartRecord | None:
    """The record of a part that is there, whole by its sizes, and made from these inputs; else None."""
    folder = split_folder / part_name(number)
    path, there = folder / _RECORD, storage.walk(folder)
    if _RECORD not in there:
        return None
    value = storage.read_json(path)
    if (value.get("format_version"), value.get("inputs")) != (FORMAT_VERSION, inputs):
        return None
    record: PartRecord = parse(PartRecord, value, path)
    for name, found in record.objects.items():
        if name not in there or there[name].size != found.bytes:
            return None
    return record


def _write_column(path: PurePath, column: str, version: Version, rows: RowFormat) -> None:
    layout, tokens, word_start = version
    dtype = rows.column_dtype(column)
    marks = Marks(rows.special.pad, rows.special.cls, rows.special.sep)

    def values(first: int, last: int) -> np.ndarray:
        if column == "tokens":
            return fill(layout, first, last, tokens, rows.sequence_length, marks)
        if column == WORD_START:
            assert word_start is not None
            return fill(layout, first, last, word_start, rows.sequence_length, _NO_WORDS)
        assert layout.random_next is not None
        return layout.random_next[first:last].astype(dtype)

    store.write_array(
        path,
        values,
        num_rows=layout.num_rows,
        row_shape=rows.column_shape(column),
        dtype=dtype,
        block_rows=rows.block_rows,
    )


def with_rows(counts: Counts, layout: Layout, sequence_length: int) -> Counts:
    """The counts of the text with those of its rows."""
    in_rows = int(layout.length.sum())
    slots = layout.num_rows * sequence_length
    return counts.model_copy(
        update={
            "rows": layout.num_rows,
            "copied_tokens": in_rows - counts.tokens,
            "random_next_rows": 0 if layout.random_next is None else int(layout.random_next.sum()),
            "padding": slots - in_rows - int(layout.closes.sum()) - int(layout.opens.sum()),
        }
    )
