"""Reading takes less than 200 MB of memory, whatever a small file expands to: each in a process of its own."""

from __future__ import annotations

import bz2
import json
import lzma
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import zstandard

from tpulm.corpus.readers import lines
from tpulm.errors import DataError

MOST_MEGABYTES = 200
READ = """
import itertools, json, sys
from tpulm.config import SourceConfig
from tpulm.corpus.documents import Faults
from tpulm.corpus.readers import read_documents
from tpulm.corpus.readers.lines import open_file
from tpulm.corpus.sources import find_files
from tpulm.errors import DataError

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

path, batches, on_error = sys.argv[1:]
if path.endswith(".parquet"):
    import pyarrow.compute, pyarrow.parquet
source = SourceConfig(path=path, on_error=on_error)
before, documents, said = peak(), 0, ""
(file,) = find_files([source])
faults = Faults(on_error, "it")
try:
    for batch in itertools.islice(read_documents(file, source, open_file(file, faults), faults), int(batches)):
        documents += len(batch.documents())
except DataError as error:
    said = str(error)
print(json.dumps({"megabytes": peak() - before, "documents": documents, "said": said}))
"""
CODECS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.compressobj(1, wbits=31),
    ".bz2": lambda: bz2.BZ2Compressor(1),
    ".xz": lambda: lzma.LZMACompressor(preset=0),
    ".zst": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
}
MEGABYTE = 1 << 20


def write_bomb(path: Path, piece: bytes, times: int, *, head: bytes = b"") -> Path:
    compressor = CODECS[path.suffix]()
    with path.open("wb") as file:
        file.write(compressor.compress(head))
        for _ in range(times):
            file.write(compressor.compress(piece))
        file.write(compressor.flush())
    return path


def read_apart(path: Path, *, batches: int = 3, on_error: str = "stop") -> dict[str, Any]:
    command = [sys.executable, "-c", READ, str(path), str(batches), on_error]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["megabytes"] < MOST_MEGABYTES, found
    return found


@pytest.mark.parametrize("suffix", CODECS)
def test_lines_of_any_codec(tmp_path: Path, suffix: str):
    """240 MB; the raw bytes that are read at once hold (nearly) all of them."""
    path = write_bomb(tmp_path / f"a.txt{suffix}", b"a" * (MEGABYTE - 1) + b"\n", 240)
    assert path.stat().st_size < 2_000_000
    assert read_apart(path)["documents"] >= 3


def test_short_lines(tmp_path: Path):
    path = write_bomb(tmp_path / "a.txt.zst", b"a\n" * (MEGABYTE // 2), 240)
    assert read_apart(path)["documents"] > 100_000


@pytest.mark.parametrize(
    ("name", "head", "piece", "times", "said"),
    [
        ("a.txt.zst", b"one\n", b"a" * MEGABYTE, 240, "line 2: a line longer than 8 MiB"),
        ("a.jsonl.zst", b'{"text": "a", "x": [0', b",[]" * 300_000, 8, "line 1: a record of more than 500,000"),
        ("a.csv.zst", b"text,x\n", b'"ab","a\nb",' * 100_000, 20, "line 2: row larger"),
        ("a.csv.zst", b"text", b",ab" * 300_000, 9, "line 1: row larger"),
        ("a.xml.zst", b"<mediawiki><page><revision><text>", b"ab\n" * 300_000, 200, "4 MiB"),
        ("a.xml.zst", b"<mediawiki><page>", b"<a b='c'/>" * 100_000, 40, "4 MiB"),
    ],
)
def test_a_record_without_an_end_is_refused(tmp_path: Path, name: str, head: bytes, piece: bytes, times: int, said: str):
    assert said in read_apart(write_bomb(tmp_path / name, piece, times, head=head))["said"]


def test_a_line_without_an_end_is_skipped(tmp_path: Path):
    path = write_bomb(tmp_path / "a.txt.gz", b"a" * MEGABYTE, 240, head=b"one\n")
    assert read_apart(path, on_error="skip")["documents"] == 1


def test_one_value_of_parquet_that_stands_for_thousands(tmp_path: Path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["a" * MEGABYTE] * 300}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    assert read_apart(path)["documents"] >= 3


def test_a_large_page_of_parquet(tmp_path: Path):
    """Arrow holds it once; so a row group of long rows, which is one page by default, does not take many times its size."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["a" * MEGABYTE] * 80})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    assert read_apart(path, batches=100)["documents"] == 80


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_parquet_of_all_encodings_is_read(tmp_path: Path, read: Callable, version: str):
    texts = [f"text {number} {'ab' * (number % 40)}" for number in range(3000)]
    settings: list[dict[str, Any]] = [
        {},
        {"use_dictionary": False},
        {"use_dictionary": ["text"], "data_page_size": 500},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    ]
    for setting in settings:
        path, table = tmp_path / "b.parquet", pa.table({"text": texts})
        parquet.write_table(table, path, row_group_size=700, data_page_version=version, compression="gzip", **setting)
        assert read("a.parquet", path.read_bytes()).documents == texts


def test_windows_that_need_too_much_memory_are_refused(read: Callable, monkeypatch: pytest.MonkeyPatch):
    wide = zstandard.ZstdCompressionParameters(window_log=28, compression_level=1)
    compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    with pytest.raises(DataError, match=r"a\.txt\.zst.* the zstd data needs a window of more than 128 MiB"):
        read("a.txt.zst", compressor.compress(b"text\n") + compressor.flush())
    alone = bytearray(lzma.compress(b"text\n", format=lzma.FORMAT_ALONE))
    assert read("a.txt.xz", bytes(alone)).documents == ["text"]
    alone[1:5] = (1 << 30).to_bytes(4, "little")  # the size of the dictionary
    with pytest.raises(DataError, match=r"the xz data needs a window of more than 128 MiB"):
        read("a.txt.xz", bytes(alone))
    monkeypatch.setattr(lines, "_PIECE_BYTES", 100)
    for suffix, make in CODECS.items():
        compressor = make()
        data = compressor.compress(b"a line\n" * 1000) + compressor.flush()
        assert read(f"a.txt{suffix}", data * 2).documents == ["a line"] * 2000
