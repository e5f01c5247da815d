"""One part on disk: a folder that appears complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tpulm import storage
from tpulm.dataset import store
from tpulm.dataset.manifest import COLUMNS, FORMAT_VERSION, Counts, ObjectRecord, PartRecord, RowFormat, parse, part_name
from tpulm.dataset.rows import Layout, Marks, fill


def write_part(
    split_folder: Path, *, number: int, inputs: str, layout: Layout, tokens: np.ndarray, counts: Counts, rows: RowFormat
) -> PartRecord:
    """Write the layout's rows and their record into a temporary folder, then move that to its name.

    Memory: a shard of rows at a time, beside what TensorStore holds of it. `counts` are those of the text.
    """
    final = split_folder / part_name(number)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.{os.urandom(4).hex()}{storage.TEMPORARY_SUFFIX}")
    storage.make_folder(temporary)
    try:
        if layout.num_rows:
            for column in rows.columns:
                _write_column(temporary / COLUMNS[column], column, layout, tokens, rows)
        record = PartRecord(
            inputs=inputs,
            number=number,
            counts=_with_rows(counts, layout, rows.sequence_length),
            objects={
                path.relative_to(temporary).as_posix(): ObjectRecord(bytes=path.stat().st_size, sha256=storage.sha256(path))
                for path in sorted(temporary.rglob("*"))
                if path.is_file()
            },
        )
        storage.write_json(temporary / "part.json", record.model_dump(mode="json"))
        storage.publish(temporary, final)
    except BaseException:
        storage.remove(temporary)
        raise
    return record


def read_record(split_folder: Path, number: int, inputs: str) -> PartRecord | None:
    """The record of a part that is there, whole by its sizes, and made from these inputs; else None."""
    folder = split_folder / part_name(number)
    path = folder / "part.json"
    if not storage.exists(path):
        return None
    value = storage.read_json(path)
    if not isinstance(value, dict) or (value.get("format_version"), value.get("inputs")) != (FORMAT_VERSION, inputs):
        return None
    record: PartRecord = parse(PartRecord, value, path)
    for name, found in record.objects.items():
        object_path = folder / name
        if not storage.exists(object_path) or object_path.stat().st_size != found.bytes:
            return None
    return record


def _write_column(path: Path, column: str, layout: Layout, tokens: np.ndarray, rows: RowFormat) -> None:
    dtype = rows.column_dtype(column)
    marks = Marks(rows.special.pad, rows.special.cls, rows.special.sep)

    def values(first: int, last: int) -> np.ndarray:
        if column == "tokens":
            return fill(layout, first, last, tokens, rows.sequence_length, marks)
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


def _with_rows(counts: Counts, layout: Layout, sequence_length: int) -> Counts:
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
