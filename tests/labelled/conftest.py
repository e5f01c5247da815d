"""Files of rows on disk, in every format."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], Path]:
    """write("a.tsv", content) -> the path; compressed if the name says so."""

    def write(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(COMPRESS.get(path.suffix, lambda data: data)(data))
        return path

    return write


@pytest.fixture
def write_rows(write: Callable[[str, bytes | str], Path]) -> Callable[[str, list[dict[str, Any]]], Path]:
    """The same rows as the name says: write_rows("a.csv.gz", [{"text": "x", "label": 1}]) -> the path."""

    def write_rows(name: str, rows: list[dict[str, Any]]) -> Path:
        form = name.split(".")[1]
        if form == "jsonl":
            return write(name, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        if form == "parquet":
            sink = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(rows), sink)
            return write(name, sink.getvalue())
        table = io.StringIO(newline="")
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        if form == "csv":
            csv.writer(table).writerows(cells)
        else:
            table.writelines("\t".join(map(str, row)) + "\n" for row in cells)
        return write(name, table.getvalue())

    return write_rows
