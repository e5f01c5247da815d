"""A LevelDB table, which the index of a TF1 checkpoint is: sorted keys and values in blocks, each with a checksum.

A block's entries are (bytes shared with the key before, bytes that are new, length of the value), the new bytes and the value,
then the places where nothing is shared ("restarts") and their count. After the block come its kind (0 plain, 1 snappy) and the
masked crc32c of both. The file ends with where the index of the blocks is, and a magic number (leveldb: doc/table_format.md;
tensorflow: tsl/lib/io/format.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tpulm.dataset.tfrecord import masked_crc32c
from tpulm.errors import DataError

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48  # two handles of at most 20 bytes, padded, and the magic number
TRAILER = struct.Struct("<BI")  # kind of the block, masked crc32c
_WORD = struct.Struct("<I")
_AGAIN = "Copy it again from where it came"


class Malformed(ValueError):
    """Bytes that are not what they are taken for; `byte` counts from the beginning of what was read."""

    def __init__(self, message: str, byte: int):
        super().__init__(message)
        self.byte = byte


class Number(NamedTuple):
    value: int
    end: int  # where the next thing begins


class _Handle(NamedTuple):
    """Where a block is."""

    offset: int
    size: int  # bytes, without the trailer


def varint(data: bytes, start: int) -> Number:
    """The variable-length number (seven bits a byte, lowest first) at `start`. Raises Malformed."""
    value = 0
    for place, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return Number(value, start + place + 1)
    raise Malformed("a number does not end", start)


def is_table(data: bytes) -> bool:
    """Whether a file with this end is a table."""
    return len(data) >= 8 and data[-8:] == struct.pack("<Q", MAGIC)


def read_table(data: bytes, path: str) -> dict[bytes, bytes]:
    """The values by key, in the order of the keys, of a whole file. Every block's checksum is verified.

    Raises DataError naming file and byte.
    """
    if len(data) < FOOTER_BYTES or not is_table(data):
        raise DataError(
            f"it does not end as the index of a checkpoint does, with the number {MAGIC:#x}: the file was cut off, is still "
            f"being written, or is something else. {_AGAIN}",
            location=f"{path}, byte {max(len(data) - 8, 0):,}",
        )
    footer = len(data) - FOOTER_BYTES
    try:
        metaindex = _handle(data, footer)
        blocks = _handle(data, metaindex.end).handle
        table: dict[bytes, bytes] = {}
        list(_block(data, metaindex.handle, path))  # holds nothing, but damage is damage
        for _, value in _block(data, blocks, path):
            table.update(_block(data, _handle(value, 0).handle, path))
    except Malformed as error:
        raise DataError(f"{error}: the file is damaged. {_AGAIN}", location=f"{path}, byte {error.byte:,}") from error
    return table


class _Found(NamedTuple):
    handle: _Handle
    end: int


def _handle(data: bytes, start: int) -> _Found:
    offset = varint(data, start)
    size = varint(data, offset.end)
    return _Found(_Handle(offset.value, size.value), size.end)


def _block(data: bytes, handle: _Handle, path: str) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block."""
    end = handle.offset + handle.size
    where = f"{path}, byte {handle.offset:,}"
    if end + TRAILER.size > len(data) - FOOTER_BYTES:
        raise DataError(
            f"a block of {handle.size:,} bytes should be there, and the file has {len(data):,} bytes: it was cut off or is "
            f"damaged. {_AGAIN}",
            location=where,
        )
    kind, recorded = TRAILER.unpack_from(data, end)
    found = masked_crc32c(data[handle.offset : end + 1])
    if found != recorded:
        raise DataError(
            f"the {handle.size:,} bytes of a block have the checksum {found:#010x} (masked crc32c), and {recorded:#010x} is "
            f"recorded: the file is damaged. {_AGAIN}",
            location=where,
        )
    if kind != 0:
        name = "snappy" if kind == 1 else f"kind {kind}"
        raise DataError(
            f"the block is compressed ({name}), and only plain ones are read, as tf.train.Saver writes them; load the "
            "checkpoint with TensorFlow and save it again with tf.compat.v1.train.Saver",
            location=where,
        )
    return _entries(data[handle.offset : end], handle.offset)


def _entries(block: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < _WORD.size:
        raise Malformed("a block is too short to hold anything", offset)
    (restarts,) = _WORD.unpack_from(block, len(block) - _WORD.size)
    end = len(block) - _WORD.size * (restarts + 1)
    if end < 0:
        raise Malformed(f"a block of {len(block):,} bytes says it has {restarts:,} restarts", offset)
    place, key = 0, b""
    while place < end:
        try:
            shared = varint(block, place)
            fresh = varint(block, shared.end)
            length = varint(block, fresh.end)
        except Malformed as error:
            raise Malformed(str(error), offset + error.byte) from error
        start = length.end
        stop = start + fresh.value + length.value
        if shared.value > len(key) or stop > end:
            raise Malformed("an entry reaches out of its block", offset + place)
        key = key[: shared.value] + block[start : start + fresh.value]
        yield key, block[start + fresh.value : stop]
        place = stop
