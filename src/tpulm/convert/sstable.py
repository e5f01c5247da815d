"""LevelDB tables, the format of a TF1 checkpoint's index: sorted keys and values in blocks, each with a checksum.

A block's entries are (bytes shared with the previous key, new bytes of the key, length of the value), the new bytes and the
value, then the positions where nothing is shared ("restarts") and their count. A block is followed by its kind (0 plain, 1
snappy) and the masked crc32c of both. The file ends with the position of the index of blocks and a magic number (leveldb:
doc/table_format.md; tensorflow: tsl/lib/io/format.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tpulm.dataset.tfrecord import AGAIN, check_crc32c
from tpulm.errors import DataError

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48  # two handles of at most 20 bytes, padded, and the magic number
TRAILER = struct.Struct("<BI")  # kind of the block, masked crc32c
_WORD = struct.Struct("<I")


def damaged(what: str, where: str) -> DataError:
    return DataError(f"{what}. {AGAIN}", location=where)


class _Malformed(ValueError):
    """Malformed bytes; `byte` counts from the beginning of the file."""

    def __init__(self, message: str, byte: int):
        super().__init__(message)
        self.byte = byte


class _Numbers(NamedTuple):
    values: list[int]
    end: int  # where the next value begins


def _varints(data: bytes, start: int, count: int) -> _Numbers:
    """Variable-length integers (seven bits per byte, lowest first) from `start` on. Raises _Malformed."""
    values, place = [], start
    for _ in range(count):
        begin, value = place, 0
        while True:
            if place == begin + 10 or place >= len(data):
                raise _Malformed("a number does not end", begin)
            value |= (data[place] & 0x7F) << (7 * (place - begin))
            place += 1
            if data[place - 1] < 0x80:
                break
        values.append(value)
    return _Numbers(values, place)


def is_table(data: bytes) -> bool:
    """Whether a file that ends with these bytes is a table."""
    return len(data) >= 8 and data[-8:] == struct.pack("<Q", MAGIC)


def read_table(data: bytes, path: str) -> dict[bytes, bytes]:
    """The key-value pairs of a whole file, in the order of the keys. Every block's checksum is verified.

    Raises DataError naming file and byte.
    """
    if len(data) < FOOTER_BYTES or not is_table(data):
        what = "the file was cut off, is still being written, or is something else"
        where = f"{path}, byte {max(len(data) - 8, 0):,}"
        raise damaged(f"it does not end as the index of a checkpoint does, with the number {MAGIC:#x}: {what}", where)
    try:
        meta_offset, meta_size, offset, size = _varints(data, len(data) - FOOTER_BYTES, 4).values
        table: dict[bytes, bytes] = {}
        list(_block(data, meta_offset, meta_size, path))  # it is empty, but its checksum is verified
        for _, block in _block(data, offset, size, path):
            start, length = _varints(block, 0, 2).values
            table.update(_block(data, start, length, path))
    except _Malformed as error:
        raise damaged(f"{error}: the file is damaged", f"{path}, byte {error.byte:,}") from error
    return table


def _block(data: bytes, offset: int, size: int, path: str) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block; `size` excludes the trailer."""
    end = offset + size
    where = f"{path}, byte {offset:,}"
    if end + TRAILER.size > len(data) - FOOTER_BYTES:
        raise damaged(f"a block of {size:,} bytes reaches past the end of the file: it was cut off or is damaged", where)
    kind, recorded = TRAILER.unpack_from(data, end)
    check_crc32c(data[offset : end + 1], recorded, f"the {size:,} bytes of a block have", where)
    if kind != 0:
        name = "snappy" if kind == 1 else f"kind {kind}"
        raise DataError(
            f"the block is compressed ({name}), and only plain ones are read, as tf.train.Saver writes them; load the "
            "checkpoint with TensorFlow and save it again with tf.compat.v1.train.Saver",
            location=where,
        )
    if size < _WORD.size:
        raise _Malformed("a block is too short to hold anything", offset)
    (restarts,) = _WORD.unpack_from(data, end - _WORD.size)
    end -= _WORD.size * (restarts + 1)
    if end < offset:
        raise _Malformed(f"a block of {size:,} bytes says it has {restarts:,} restarts", offset)
    place, key = offset, b""
    while place < end:
        (shared, fresh, length), start = _varints(data, place, 3)
        stop = start + fresh + length
        if shared > len(key) or stop > end:
            raise _Malformed("an entry reaches out of its block", place)
        key = key[:shared] + data[start : start + fresh]
        yield key, data[start + fresh : stop]
        place = stop
