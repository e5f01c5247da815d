"""TF1 checkpoints of version 2 ("TensorBundle"), read without TensorFlow: PREFIX.index and PREFIX.data-00000-of-0000N.

The index is a LevelDB table of protobuf messages by tensor name: data type, shape, data file, byte range and masked crc32c. Its
first key, the empty one, holds the number of data files (tensorflow: core/protobuf/tensor_bundle.proto,
core/util/tensor_bundle/tensor_bundle.h). Nothing in these files is ever executed.

A table is sorted keys and values in blocks, each with a checksum. A block's entries are (bytes shared with the previous key,
new bytes of the key, length of the value), the new bytes and the value, then the positions where nothing is shared ("restarts")
and their count. A block is followed by its kind (0 plain, 1 snappy) and the masked crc32c of both. The file ends with the
position of the index of blocks and a magic number (leveldb: doc/table_format.md; tensorflow: tsl/lib/io/format.h).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from tpulm import storage
from tpulm.dataset.tfrecord import AGAIN, check_crc32c
from tpulm.errors import ConfigError, DataError, suggest
from tpulm.protos import KIND, field, message_class, new_file
from tpulm.readable import plural

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48  # two handles of at most 20 bytes, padded, and the magic number
TRAILER = struct.Struct("<BI")  # kind of the block, masked crc32c
_WORD = struct.Struct("<I")
LATEST = "checkpoint"  # the file in which tf.train.Saver notes the newest prefix
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_NEWEST = re.compile(r'^model_checkpoint_path:\s*"([^"]*)"', re.MULTILINE)


def find_checkpoint(path: PurePath) -> PurePath | None:
    """The PREFIX of PREFIX.index; None if nothing at `path` looks like a TF1 checkpoint.

    Raises ConfigError for a folder of several or a wrong prefix, DataError for a checkpoint of version 1 or without its index.
    """
    name = _DATA.sub("", path.name).removesuffix(INDEX)
    prefix = path.with_name(name) if name else path
    if prefix.name and storage.info(prefix.with_name(prefix.name + INDEX)) is not None:
        return prefix
    if storage.is_folder(path):
        return _in_folder(path)
    siblings = {file.name for file in storage.list_folder(path.parent)}
    if any(name.startswith(prefix.name + ".") and _DATA.search(name) for name in siblings):
        raise DataError(
            f"the checkpoint's data is there, but not its index; copy {prefix.name}{INDEX} there too", location=str(prefix)
        )
    info = storage.info(path)
    if info is not None:
        if is_table(bytes(storage.Ranges(path).read(max(info.size - 8, 0), info.size))):
            raise DataError(
                "a checkpoint of version 1, a single file, which is not read; load it with TensorFlow and save it again with "
                "tf.compat.v1.train.Saver(), which writes .index and .data files",
                location=str(path),
            )
        return None
    prefixes = sorted(name.removesuffix(INDEX) for name in siblings if name.endswith(INDEX))
    if prefixes:
        hint = suggest(prefix.name, prefixes) or f" Those of the folder: {', '.join(prefixes[:8])}"
        raise ConfigError(f"{path}: no such checkpoint: there is no {prefix.name}{INDEX}.{hint}")
    return None


def _in_folder(folder: PurePath) -> PurePath | None:
    names = {file.name for file in storage.list_folder(folder)}
    prefixes = sorted(name.removesuffix(INDEX) for name in names if name.endswith(INDEX))
    if LATEST in names:
        newest = _NEWEST.search(storage.read_text(folder / LATEST))
        name = newest.group(1).replace("\\", "/").rpartition("/")[2] if newest else ""
        if name in prefixes:  # the folder may have been moved since LATEST was written
            return folder / name
        if not prefixes:
            raise DataError(f"{LATEST} names {name!r}, which has no files here; copy them too", location=str(folder))
        if name:
            there = ", ".join(prefixes[:8])
            raise DataError(
                f"{LATEST} names {name!r}, and there is no {name}{INDEX}; copy its files there too, or name one of those that "
                f"are there: {there}",
                location=str(folder),
            )
    if len(prefixes) > 1:
        example = folder / prefixes[-1]
        raise ConfigError(f"{folder} holds {len(prefixes)} checkpoints: {', '.join(prefixes[:8])}. Name one, as in {example}")
    if not prefixes and any(_DATA.search(name) for name in names):
        raise DataError(f"there is a checkpoint's data, but no {INDEX} file; copy that there too", location=str(folder))
    return folder / prefixes[0] if prefixes else None


INDEX = ".index"
# TensorFlow's numbers for the data types that models have (core/framework/types.proto)
_DTYPES: dict[int, np.dtype] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    4: np.dtype("u1"),
    5: np.dtype("<i2"),
    6: np.dtype("i1"),
    9: np.dtype("<i8"),
    10: np.dtype("?"),
    14: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype("<u2"),
    19: np.dtype("<f2"),
    22: np.dtype("<u4"),
    23: np.dtype("<u8"),
}
_NAMELESS = {7: "strings", 20: "a resource", 21: "variants"}


def _messages() -> Any:
    file = new_file("tpulm.tensorbundle")
    shape = file.message_type.add(name="Shape")
    shape.nested_type.add(name="Dim").field.append(field("size", 1, KIND.TYPE_INT64))
    shape.field.append(field("dim", 2, "Shape.Dim", package=file.package, many=True))
    file.message_type.add(name="Entry").field.extend(
        (
            field("dtype", 1, KIND.TYPE_INT32),
            field("shape", 2, "Shape", package=file.package),
            field("shard_id", 3, KIND.TYPE_INT32),
            field("offset", 4, KIND.TYPE_INT64),
            field("size", 5, KIND.TYPE_INT64),
            field("crc32c", 6, KIND.TYPE_FIXED32),  # masked
            field("slices", 7, KIND.TYPE_BYTES, many=True),  # of a partitioned variable, whose pieces are stored separately
        )
    )
    file.message_type.add(name="Header").field.extend(
        (field("num_shards", 1, KIND.TYPE_INT32), field("endianness", 2, KIND.TYPE_INT32))
    )
    return file


_Header, _Entry = (message_class(_messages(), name) for name in ("Header", "Entry"))


class StoredTensor:
    """One tensor of a checkpoint; its data is read only by `read`."""

    def __init__(self, bundle: Bundle, name: str, entry: Any):
        self.name, self.shape = name, tuple(dim.size for dim in entry.shape.dim)
        self._bundle, self._entry = bundle, entry

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self.read()

    @property
    def dtype(self) -> np.dtype | None:
        """None for a tensor without numbers, such as strings."""
        return _DTYPES.get(self._entry.dtype)

    def read(self) -> np.ndarray:
        """The numbers, with `shape` and `dtype`, read-only.

        Raises DataError naming file, tensor and byte for a wrong checksum, a truncated file, a missing data file, a partitioned
        variable, or a non-numeric data type.
        """
        entry, shard = self._entry, self._bundle.shard(self._entry.shard_id)
        where = f"{shard}, tensor {self.name} (byte {entry.offset:,})"
        if entry.slices:
            raise DataError(
                "it is a partitioned variable, stored in pieces, which are not read; load the checkpoint with TensorFlow and "
                "save it again without a partitioner",
                location=where,
            )
        if self.dtype is None:
            what = _NAMELESS.get(entry.dtype, f"data of type {entry.dtype}")
            raise DataError(f"it holds {what}, not numbers, and cannot be part of a model", location=where)
        expected = math.prod(self.shape) * self.dtype.itemsize
        if entry.size != expected:
            whole = f"{list(self.shape)} of {self.dtype} are {expected:,}"
            raise damaged(f"the index says {entry.size:,} bytes, and {whole}: the index is damaged", where)
        data = self._bundle.read_range(entry, where)
        check_crc32c(data, entry.crc32c, f"its {entry.size:,} bytes have", where)
        return np.frombuffer(data, self.dtype).reshape(self.shape)


class Bundle(Mapping[str, StoredTensor]):
    """The tensors under PREFIX by name, in the order of the names.

    The checksums of the index are verified at once, those of the data when it is read. Raises DataError for a damaged index,
    StorageError for a missing one (`find_checkpoint` finds a prefix).
    """

    def __init__(self, prefix: PurePath):
        self.prefix = prefix
        self.index = str(prefix.with_name(prefix.name + INDEX))
        table = read_table(storage.read_bytes(self.index), self.index)
        self._shards = self._read_header(table.pop(b"", None))
        # A key that begins with a zero byte is a piece of a partitioned variable, which also has a key without it.
        try:
            names = {key: key.decode() for key in table if not key.startswith(b"\0")}
        except UnicodeDecodeError as error:
            raise damaged(f"the name {error.object!r} of a tensor is not UTF-8", self.index) from error
        self._tensors = {name: StoredTensor(self, name, self._read_entry(name, table[key])) for key, name in names.items()}
        self._opened: dict[int, tuple[int, storage.Ranges]] = {}  # data file: its size, and the open file

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shard(self, number: int) -> PurePath:
        """The path of a data file."""
        return self.prefix.with_name(f"{self.prefix.name}.data-{number:05d}-of-{self._shards:05d}")

    def read_range(self, entry: Any, where: str) -> bytes:
        path, end = self.shard(entry.shard_id), entry.offset + entry.size
        if entry.shard_id not in self._opened:
            info = storage.info(path)
            if info is None:
                raise DataError(
                    f"the data file is not there; a checkpoint is {self.prefix.name}{INDEX} and "
                    f"{plural(self._shards, 'data file')}, all in one folder. Copy {path.name} there too",
                    location=where,
                )
            self._opened[entry.shard_id] = (info.size, storage.Ranges(path))
        size, ranges = self._opened[entry.shard_id]
        if end > size:
            raise damaged(f"its {entry.size:,} bytes end at byte {end:,}, and the file has {size:,}: it was cut off", where)
        return bytes(ranges.read(entry.offset, end)) if entry.size else b""

    def _read_header(self, value: bytes | None) -> int:
        """The number of data files."""
        if value is None:
            raise DataError("the table has no header: it is not the index of a TF1 checkpoint", location=self.index)
        try:
            header = _Header.FromString(value)
        except DecodeError as error:
            raise damaged(f"its header is damaged ({error})", self.index) from error
        if header.endianness != 0:
            raise DataError("its numbers are big-endian; only little-endian ones are read", location=self.index)
        if not 1 <= header.num_shards < 100_000:
            raise damaged(f"its header speaks of {header.num_shards:,} data files", self.index)
        return header.num_shards

    def _read_entry(self, name: str, value: bytes) -> Any:
        where = f"{self.index}, tensor {name}"
        try:
            entry = _Entry.FromString(value)
        except DecodeError as error:
            raise damaged(f"its entry is damaged ({error})", where) from error
        if min(entry.shard_id, entry.offset, entry.size, *(dim.size for dim in entry.shape.dim)) < 0:
            raise damaged("its entry is damaged (a negative number)", where)
        if entry.shard_id >= self._shards:
            raise damaged(f"its entry names data file {entry.shard_id}, of {self._shards}", where)
        return entry


def damaged(what: str, where: str) -> DataError:
    return DataError(f"{what}. {AGAIN}", location=where)


def _varints(data: bytes, start: int, count: int, path: str) -> tuple[list[int], int]:
    """Variable-length integers (seven bits per byte, lowest first) from `start` on, and where they end."""
    values, place = [], start
    for _ in range(count):
        begin, value = place, 0
        while True:
            if place == begin + 10 or place >= len(data):
                raise damaged("a number does not end: the file is damaged", f"{path}, byte {begin:,}")
            value |= (data[place] & 0x7F) << (7 * (place - begin))
            place += 1
            if data[place - 1] < 0x80:
                break
        values.append(value)
    return values, place


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
    (meta_offset, meta_size, offset, size), _ = _varints(data, len(data) - FOOTER_BYTES, 4, path)
    table: dict[bytes, bytes] = {}
    list(_block(data, meta_offset, meta_size, path))  # it is empty, but its checksum is verified
    for _, block in _block(data, offset, size, path):
        (start, length), _ = _varints(block, 0, 2, path)
        table.update(_block(data, start, length, path))
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
        raise damaged("a block is too short to hold anything: the file is damaged", where)
    (restarts,) = _WORD.unpack_from(data, end - _WORD.size)
    end -= _WORD.size * (restarts + 1)
    if end < offset:
        raise damaged(f"a block of {size:,} bytes says it has {restarts:,} restarts: the file is damaged", where)
    place, key = offset, b""
    while place < end:
        (shared, fresh, length), start = _varints(data, place, 3, path)
        stop = start + fresh + length
        if shared > len(key) or stop > end:
            raise damaged("an entry reaches out of its block: the file is damaged", f"{path}, byte {place:,}")
        key = key[:shared] + data[start : start + fresh]
        yield key, data[start + fresh : stop]
        place = stop
