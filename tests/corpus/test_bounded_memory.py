"""Reading takes less than 200 MB of memory, whatever a small file expands to: in another process."""

from __future__ import annotations

import bz2
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import zstandard

from tpulm.config import SourceConfig
from tpulm.corpus import read_texts
from tpulm.corpus.readers import lines
from tpulm.errors import DataError
from tpulm.runtime.workers import WorkerPool

MOST_MEGABYTES = 200
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


class Found(NamedTuple):
    megabytes: float  # that were needed
    documents: int
    message: str


def measured(source: SourceConfig, batches: int) -> Found:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, documents, message = peak(), 0, ""
    try:
        for texts in itertools.islice(read_texts([source]), batches):
            documents += len(texts)
    except DataError as error:
        message = str(error)
    return Found(peak() - before, documents, message)


def peak() -> float:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


Reader = Callable[..., Found]


@pytest.fixture(scope="module")
def read_apart() -> Iterator[Reader]:
    """read_apart(path, batches=3, on_error="stop") -> what another process reads, in a bounded amount of memory."""

    def read(path: Path, *, batches: int = 3, **settings: Any) -> Found:
        (found,) = pool(measured, [(SourceConfig(path=str(path), **settings), batches)])
        assert found.megabytes < MOST_MEGABYTES, found
        return found

    with WorkerPool(1) as pool:
        yield read


@pytest.mark.parametrize("suffix", [".gz", ".zst", *(pytest.param(name, marks=pytest.mark.slow) for name in (".bz2", ".xz"))])
def test_lines_of_any_codec(read_apart: Reader, tmp_path: Path, suffix: str):
    """240 MB; the raw bytes that are read at once hold (nearly) all of them."""
    path = write_bomb(tmp_path / f"a.txt{suffix}", b"a" * (MEGABYTE - 1) + b"\n", 240)
    assert path.stat().st_size < 2_000_000
    assert read_apart(path).documents >= 3


def test_a_record_without_an_end_is_refused(read_apart: Reader, tmp_path: Path):
    for name, head, piece, times, message in (
        ("a.txt.zst", b"one\n", b"a" * MEGABYTE, 240, "line 2: "),
        ("a.jsonl.zst", b'{"text": "a", "x": [0', b",[]" * 300_000, 8, "500,000"),
        ("a.csv.zst", b"text,x\n", b'"ab","a\nb",' * 100_000, 20, "line 2: "),
        ("a.csv.zst", b"text", b",ab" * 300_000, 9, "line 1: "),
        ("a.xml.zst", b"<mediawiki><page><revision><text>", b"ab\n" * 300_000, 200, "4 MiB"),
        ("a.xml.zst", b"<mediawiki><page>", b"<a b='c'/>" * 100_000, 40, "4 MiB"),
    ):
        assert message in read_apart(write_bomb(tmp_path / name, piece, times, head=head)).message


def test_short_lines_and_a_line_that_is_skipped(read_apart: Reader, tmp_path: Path):
    path = write_bomb(tmp_path / "a.txt.zst", b"a\n" * (MEGABYTE // 2), 240)
    assert read_apart(path).documents > 100_000
    path = write_bomb(tmp_path / "b.txt.zst", b"a" * MEGABYTE, 240, head=b"one\n")
    assert read_apart(path, on_error="skip").documents == 1


@pytest.mark.slow
def test_large_values_of_parquet(read_apart: Reader, tmp_path: Path):
    """One that stands for hundreds of megabytes; and a large page, of which Arrow holds one copy."""
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["a" * MEGABYTE] * 300}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    assert read_apart(path).documents >= 3
    table = pa.table({"text": ["a" * MEGABYTE] * 80})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    assert read_apart(path, batches=100).documents == 80


def test_windows_that_need_too_much_memory_are_refused(read: Callable, monkeypatch: pytest.MonkeyPatch):
    wide = zstandard.ZstdCompressionParameters(window_log=28, compression_level=1)
    compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    with pytest.raises(DataError, match=r"a\.txt\.zst.* zstd .*128 MiB"):
        read("a.txt.zst", compressor.compress(b"text\n") + compressor.flush())
    alone = bytearray(lzma.compress(b"text\n", format=lzma.FORMAT_ALONE))
    assert read("a.txt.xz", bytes(alone)).documents == ["text"]
    alone[1:5] = (1 << 30).to_bytes(4, "little")  # the size of the dictionary
    with pytest.raises(DataError, match=r"xz .*128 MiB"):
        read("a.txt.xz", bytes(alone))
    monkeypatch.setattr(lines, "_PIECE_BYTES", 100)
    for suffix, make in CODECS.items():
        compressor = make()
        data = compressor.compress(b"a line\n" * 1000) + compressor.flush()
        assert read(f"a.txt{suffix}", data * 2).documents == ["a line"] * 2000
