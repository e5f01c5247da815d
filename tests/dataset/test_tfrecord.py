"""TFRecord framing: what was written is read, and nothing else."""

from __future__ import annotations

import bisect
import gzip
import struct
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from tfrecord_files import frame
from tpulm.dataset.tfrecord import masked_crc32c, read_records, survey
from tpulm.errors import DataError, StorageError

records_of_bytes = strategies.lists(strategies.binary(max_size=40), max_size=6)
in_memory = hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])


def write(path: Path, records: list[bytes]) -> str:
    path.write_bytes(b"".join(map(frame, records)))
    return str(path)


def offsets(records: list[bytes]) -> list[int]:
    return [sum(16 + len(record) for record in records[:number]) for number in range(len(records))]


def record_with(byte: int, records: list[bytes]) -> str:
    """How errors name the record in which this byte of the file "a" is; a pattern."""
    number = bisect.bisect(offsets(records), byte)
    return rf"a, record {number} \(byte {offsets(records)[number - 1]}\)"


def test_the_checksum_is_that_of_tensorflow() -> None:
    """crc32c("123456789") is 0xe3069283 (RFC 3720, B.4, gives its kind); masked as record_writer.h does."""
    assert masked_crc32c(b"123456789") == (((0xE3069283 >> 15) | (0xE3069283 << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


@in_memory
@hypothesis.given(records_of_bytes)
def test_what_was_framed_is_read(tmp_path: Path, records: list[bytes]) -> None:
    path = write(tmp_path / "a", records)
    found = list(read_records(path))
    assert [record.data for record in found] == records
    assert [(record.number, record.offset) for record in found] == list(enumerate(offsets(records), 1))


@in_memory
@hypothesis.given(records_of_bytes, strategies.integers(1, 200))
def test_stretches_are_the_file_in_pieces(tmp_path: Path, records: list[bytes], range_bytes: int) -> None:
    path = write(tmp_path / "a", records)
    found = survey(path, range_bytes=range_bytes)
    assert [record for span in found.ranges for record in read_records(path, span)] == list(read_records(path))
    assert found.records == len(records)
    assert sum(span.bytes for span in found.ranges) == Path(path).stat().st_size
    assert found.fingerprint == survey(path, range_bytes=1).fingerprint


@in_memory
@hypothesis.given(strategies.lists(strategies.binary(max_size=20), min_size=1, max_size=4), strategies.data())
def test_any_flipped_bit_or_cut_is_found_where_it_is(tmp_path: Path, records: list[bytes], data: strategies.DataObject) -> None:
    path = Path(write(tmp_path / "a", records))
    whole = path.read_bytes()
    bit = data.draw(strategies.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    with pytest.raises(DataError, match=record_with(bit // 8, records)):
        list(read_records(str(path)))
    cut = data.draw(strategies.integers(1, len(whole) - 1).filter(lambda size: size not in offsets(records)))
    path.write_bytes(whole[:cut])
    for read in (lambda: list(read_records(str(path))), lambda: survey(str(path), range_bytes=64)):
        with pytest.raises(DataError, match=record_with(cut, records)):
            read()


def test_a_length_beyond_the_file_is_never_allocated(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 60)
    (tmp_path / "a").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"abc")
    with pytest.raises(DataError, match="1,152,921,504,606,846,980"):
        list(read_records(str(tmp_path / "a")))


def test_other_files_are_refused_with_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(frame(b"data")))
    with pytest.raises(DataError, match="gunzip"):
        list(read_records(str(tmp_path / "a.gz")))
    length = int.from_bytes(b"\x1f\x8b", "little")  # begins as such a file does
    (tmp_path / "b").write_bytes(frame(b"x" * length))
    assert [len(record.data) for record in read_records(str(tmp_path / "b"))] == [length]
    (tmp_path / "a.txt").write_text("Once upon a time\n")
    with pytest.raises(DataError, match="compressed, or no TFRecord"):
        list(read_records(str(tmp_path / "a.txt")))
    with pytest.raises(StorageError, match="no such file"):
        list(read_records(str(tmp_path / "nothing")))
