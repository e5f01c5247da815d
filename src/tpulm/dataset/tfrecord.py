"""TFRecord files: the framing of records, with every length and checksum verified. No TensorFlow.

A record is its length (uint64), the masked crc32c of those eight bytes (uint32), the data, and the masked crc32c of the data
(uint32), all little-endian, one record after another. "Masked" is rotated right by 15 bits, plus 0xa282ead8 (tensorflow:
tsl/lib/hash/crc32c.h, tsl/lib/io/record_writer.h).

A changed bit anywhere is detected, and so is a file truncated within a record; a file truncated exactly between two records is
indistinguishable from a complete one.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import google_crc32c

from tpulm import storage
from tpulm.errors import DataError

AGAIN = "Copy it again from where it came, or write it anew"
_MASK_DELTA = 0xA282EAD8
_HEAD = struct.Struct("<QI")  # length, its checksum
_TAIL = struct.Struct("<I")  # the data's checksum
_FRAME_BYTES = _HEAD.size + _TAIL.size
_LARGEST_BYTES = 16 << 20  # of a record; rows of 65,536 tokens take a tenth of that
_GZIP = b"\x1f\x8b"


class Record(NamedTuple):
    number: int  # in its file, from 1
    offset: int  # of its first byte in the file, where its length is
    data: bytes


class RecordRange(NamedTuple):
    """Consecutive records of a file."""

    first: int  # number of the first record, from 1
    offset: int  # where the first record begins
    records: int
    bytes: int


class Survey(NamedTuple):
    """What the frames alone say about a file."""

    path: str
    fingerprint: str  # sha256 of all lengths and checksums, and through these of the file
    ranges: tuple[RecordRange, ...]

    @property
    def records(self) -> int:
        return sum(span.records for span in self.ranges)


class _Frame(NamedTuple):
    number: int
    offset: int
    length: int
    head: bytes


def masked_crc32c(data: bytes) -> int:
    """The checksum of the data as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def check_crc32c(data: bytes, recorded: int, what: str, where: str, *, because: str = "the file is damaged") -> None:
    """Raise DataError unless the data have this masked checksum; `what` begins the message, such as "its 8 bytes have"."""
    if (actual := masked_crc32c(data)) != recorded:
        raise DataError(
            f"{what} the checksum {actual:#010x} (masked crc32c), and {recorded:#010x} is recorded: {because}. {AGAIN}",
            location=where,
        )


def place(path: str, number: int, offset: int) -> str:
    """Where a record is, for the `location` of an error."""
    return f"{path}, record {number:,} (byte {offset:,})"


def read_records(path: str, span: RecordRange | None = None) -> Iterator[Record]:
    """The records of a span (None: of the whole file), one in memory at a time.

    Raises DataError naming file, record and byte for a wrong checksum, a truncated file, or a compressed one.
    """
    with storage.open_read(path) as stream, storage.explain("read", path):
        for frame in _frames(stream, path, span):
            data = stream.read(frame.length)
            (recorded,) = _TAIL.unpack(stream.read(_TAIL.size))
            check_crc32c(data, recorded, f"its {frame.length:,} bytes have", place(path, frame.number, frame.offset))
            yield Record(frame.number, frame.offset, data)


def survey(path: str, *, range_bytes: int, advance: Callable[[float], None] = lambda amount: None) -> Survey:
    """Scan the frames without reading the data, and divide the file into ranges of about `range_bytes`.

    Raises like `read_records`, but does not detect damage within the data.
    """
    digest = hashlib.sha256()
    ranges: list[RecordRange] = []
    first = offset = records = size = 0
    with storage.open_read(path) as stream, storage.explain("read", path):
        for frame in _frames(stream, path, None):
            if not records:
                first, offset = frame.number, frame.offset
            stream.seek(frame.length, io.SEEK_CUR)
            digest.update(frame.head + stream.read(_TAIL.size))
            records, size = records + 1, size + frame.length + _FRAME_BYTES
            if size >= range_bytes:
                ranges.append(RecordRange(first, offset, records, size))
                advance(size)
                records = size = 0
    if records:
        ranges.append(RecordRange(first, offset, records, size))
        advance(size)
    return Survey(path, digest.hexdigest(), tuple(ranges))


def _frames(stream: BinaryIO, path: str, span: RecordRange | None) -> Iterator[_Frame]:
    """The records' frames, with lengths checked and the data known to be in the file. The stream is at the data of each; the
    consumer must leave it at the end of the record.
    """
    end = stream.seek(0, io.SEEK_END)
    number, offset, last = (span.first, span.offset, span.first + span.records) if span else (1, 0, None)
    stream.seek(offset)
    while offset < end and number != last:
        where = place(path, number, offset)
        head = stream.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise _cut_off(f"{len(head)} of the {_HEAD.size} bytes of its length", where)
        length, recorded = _HEAD.unpack(head)
        if number == 1 and head.startswith(_GZIP) and masked_crc32c(head[:8]) != recorded:  # a length may begin so, too
            raise DataError("the file is gzip-compressed; decompress it first (gunzip), then name the result", location=where)
        damaged = "the file is damaged, or compressed, or no TFRecord" if number == 1 else "the file is damaged"
        check_crc32c(head[:8], recorded, f"its length, {length:,}, has", where, because=damaged)
        if offset + length + _FRAME_BYTES > end:
            available = end - offset - _HEAD.size
            raise _cut_off(f"{available:,} of the {length + _TAIL.size:,} bytes of its data and checksum", where)
        if length > _LARGEST_BYTES:
            raise DataError(
                f"it has {length:,} bytes, more than the {_LARGEST_BYTES:,} that a row needs: no file of pretraining records",
                location=where,
            )
        yield _Frame(number, offset, length, head)
        number, offset = number + 1, offset + length + _FRAME_BYTES


def _cut_off(rest: str, where: str) -> DataError:
    return DataError(f"the file ends within the record, after {rest}: it was cut off. {AGAIN}", location=where)
