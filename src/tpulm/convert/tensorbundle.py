"""TF1 checkpoints of version 2 ("TensorBundle"), read without TensorFlow: PREFIX.index and PREFIX.data-00000-of-0000N.

The index is a table (sstable.py) of protobuf messages by tensor name: data type, shape, and which bytes of which data file with
which masked crc32c. Its first key, the empty one, says how many data files there are (tensorflow:
core/protobuf/tensor_bundle.proto, core/util/tensor_bundle/tensor_bundle.h). Nothing in these files is ever executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tpulm import storage
from tpulm.convert.sstable import Malformed, is_table, read_table, varint
from tpulm.dataset.tfrecord import masked_crc32c
from tpulm.errors import ConfigError, DataError, suggest

LATEST = "checkpoint"  # the file in which tf.train.Saver notes the newest prefix
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_NEWEST = re.compile(r'^model_checkpoint_path:\s*"([^"]*)"', re.MULTILINE)


def find_checkpoint(path: PurePath) -> PurePath | None:
    """The prefix that PREFIX.index lies under; None where nothing there looks like a TF1 checkpoint.

    Raises ConfigError for a folder of several or a prefix that is wrong, DataError for a checkpoint of version 1 or without
    its index.
    """
    prefix = _without_ending(path)
    if storage.info(_index(prefix)) is not None:
        return prefix
    if storage.is_folder(path):
        return _in_folder(path)
    beside = {file.name for file in storage.list_folder(path.parent)}
    if any(name.startswith(prefix.name + ".") and _DATA.search(name) for name in beside):
        raise DataError(
            f"the checkpoint's data is there, but not its index; copy {prefix.name}{INDEX} there too", location=str(prefix)
        )
    there = storage.info(path)
    if there is not None:
        if is_table(bytes(storage.open_ranges(path).read(max(there.size - 8, 0), there.size))):
            raise DataError(
                "a checkpoint of version 1, a single file, which is not read; load it with TensorFlow and save it again with "
                "tf.compat.v1.train.Saver(), which writes .index and .data files",
                location=str(path),
            )
        return None
    prefixes = sorted(name.removesuffix(INDEX) for name in beside if name.endswith(INDEX))
    if prefixes:
        hint = suggest(prefix.name, prefixes) or f" Those of the folder: {', '.join(prefixes[:8])}"
        raise ConfigError(f"{path}: no such checkpoint: there is no {prefix.name}{INDEX}.{hint}")
    return None


def _index(prefix: PurePath) -> PurePath:
    return prefix.with_name(prefix.name + INDEX) if prefix.name else prefix / INDEX


def _without_ending(path: PurePath) -> PurePath:
    name = _DATA.sub("", path.name).removesuffix(INDEX)
    return path.with_name(name) if name and name != path.name else path


def _in_folder(folder: PurePath) -> PurePath | None:
    names = {file.name for file in storage.list_folder(folder)}
    prefixes = sorted(name.removesuffix(INDEX) for name in names if name.endswith(INDEX))
    if LATEST in names:
        newest = _NEWEST.search(storage.read_text(folder / LATEST))
        name = newest.group(1).replace("\\", "/").rpartition("/")[2] if newest else ""
        if name in prefixes:  # the folder may have been moved since it was written
            return folder / name
        if not prefixes:
            raise DataError(f"{LATEST} names {name!r}, of which no file is there; copy them too", location=str(folder))
    if len(prefixes) > 1:
        example = folder / prefixes[-1]
        raise ConfigError(f"{folder} holds {len(prefixes)} checkpoints: {', '.join(prefixes[:8])}. Name one, as in {example}")
    if not prefixes and any(_DATA.search(name) for name in names):
        raise DataError(f"there is a checkpoint's data, but no {INDEX} file; copy that there too", location=str(folder))
    return folder / prefixes[0] if prefixes else None


INDEX = ".index"
# tensorflow's numbers of data types (core/framework/types.proto)
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
_AGAIN = "Copy it again from where it came"


class _Entry(NamedTuple):
    """What a BundleEntryProto says."""

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int  # bytes
    checksum: int  # masked crc32c
    sliced: bool  # a partitioned variable, whose pieces are stored apart


class StoredTensor:
    """One tensor of a checkpoint; nothing of it is read before `read`."""

    def __init__(self, bundle: Bundle, name: str, entry: _Entry):
        self.name, self.shape = name, entry.shape
        self._bundle, self._entry = bundle, entry

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self.read()

    def __repr__(self) -> str:
        return f"StoredTensor({self.name!r}, {list(self.shape)}, {self.dtype or 'no numbers'})"

    @property
    def dtype(self) -> np.dtype | None:
        """None for what holds no numbers, such as strings."""
        return _DTYPES.get(self._entry.kind)

    def read(self) -> np.ndarray:
        """The numbers, with `shape` and `dtype`, read-only.

        Raises DataError naming file, tensor and byte for a wrong checksum, a file cut off, a data file that is not there, a
        partitioned variable, or a data type that is no number.
        """
        entry, shard = self._entry, self._bundle.shard(self._entry.shard)
        where = f"{shard}, tensor {self.name} (byte {entry.offset:,})"
        if entry.sliced:
            raise DataError(
                "it is a partitioned variable, stored in pieces, which are not read; load the checkpoint with TensorFlow and "
                "save it again without a partitioner",
                location=where,
            )
        if self.dtype is None:
            what = _NAMELESS.get(entry.kind, f"data of type {entry.kind}")
            raise DataError(f"it holds {what}, not numbers, and cannot be part of a model", location=where)
        expected = math.prod(entry.shape) * self.dtype.itemsize
        if entry.size != expected:
            raise DataError(
                f"the index says {entry.size:,} bytes, and {list(entry.shape)} of {self.dtype} are {expected:,}: the index is "
                f"damaged. {_AGAIN}",
                location=where,
            )
        data = self._bundle.read_range(entry, where)
        found = masked_crc32c(data)
        if found != entry.checksum:
            raise DataError(
                f"its {entry.size:,} bytes have the checksum {found:#010x} (masked crc32c), and {entry.checksum:#010x} is "
                f"recorded: the file is damaged. {_AGAIN}",
                location=where,
            )
        return np.frombuffer(data, self.dtype).reshape(entry.shape)


class Bundle(Mapping[str, StoredTensor]):
    """The tensors of a checkpoint by name, in the order of the names. `open_bundle` makes one."""

    def __init__(self, prefix: PurePath):
        self.prefix = prefix
        self.index = str(prefix.with_name(prefix.name + INDEX))
        table = read_table(storage.read_bytes(self.index), self.index)
        self._shards = self._read_header(table.pop(b"", None))
        # A key that begins with a zero byte is a piece of a partitioned variable, whose own key comes without it.
        names = {key: self._named(key) for key in table if not key.startswith(b"\0")}
        self._tensors = {name: StoredTensor(self, name, self._read_entry(name, table[key])) for key, name in names.items()}
        self._opened: dict[int, storage.Ranges] = {}
        self._sizes: dict[int, int] = {}

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shard(self, number: int) -> PurePath:
        """The path of a data file."""
        return self.prefix.with_name(f"{self.prefix.name}.data-{number:05d}-of-{self._shards:05d}")

    def read_range(self, entry: _Entry, where: str) -> bytes:
        path, end = self.shard(entry.shard), entry.offset + entry.size
        if entry.shard not in self._opened:
            there = storage.info(path)
            if there is None:
                raise DataError(
                    f"the data file is not there; a checkpoint is {self.prefix.name}{INDEX} and {self._shards:,} data "
                    f"file{'s' * (self._shards > 1)}, all in one folder. Copy {path.name} there too",
                    location=where,
                )
            self._sizes[entry.shard] = there.size
            self._opened[entry.shard] = storage.open_ranges(path)
        if end > self._sizes[entry.shard]:
            raise DataError(
                f"its {entry.size:,} bytes end at byte {end:,}, and the file has {self._sizes[entry.shard]:,}: it was cut off. "
                f"{_AGAIN}",
                location=where,
            )
        return bytes(self._opened[entry.shard].read(entry.offset, end)) if entry.size else b""

    def _read_header(self, value: bytes | None) -> int:
        """The number of data files."""
        if value is None:
            raise DataError("the table has no header: it is not the index of a TF1 checkpoint", location=self.index)
        try:
            header = _fields(value)
            shards, endianness = _one(header, 1), _one(header, 2)
        except Malformed as error:
            raise DataError(f"its header is damaged ({error}). {_AGAIN}", location=self.index) from error
        if endianness != 0:
            raise DataError("its numbers are big-endian; only little-endian ones are read", location=self.index)
        if not 1 <= shards < 100_000:
            raise DataError(f"its header speaks of {shards:,} data files. {_AGAIN}", location=self.index)
        return shards

    def _named(self, key: bytes) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"the name {key!r} of a tensor is not UTF-8. {_AGAIN}", location=self.index) from error

    def _read_entry(self, name: str, value: bytes) -> _Entry:
        where = f"{self.index}, tensor {name}"
        try:
            fields = _fields(value)
            shape = tuple(_one(_fields(size), 1) for size in _many(_fields(_bytes(fields, 2)), 2))
            kind, shard, offset, size, checksum = (_one(fields, number) for number in (1, 3, 4, 5, 6))
            entry = _Entry(kind, shape, shard, offset, size, checksum, sliced=bool(_many(fields, 7)))
        except Malformed as error:
            raise DataError(f"its entry is damaged ({error}). {_AGAIN}", location=where) from error
        if entry.shard >= self._shards:
            raise DataError(f"it is said to be in data file {entry.shard}, of {self._shards}. {_AGAIN}", location=where)
        return entry


def open_bundle(prefix: PurePath) -> Bundle:
    """The tensors under PREFIX, with the index's checksums verified; those of the data are, when it is read.

    Raises DataError for a damaged index, StorageError where there is none (`checkpoint_path.find_checkpoint` gives a prefix).
    """
    return Bundle(prefix)


# Protobuf's wire format, as far as these messages need it: field number -> the values in their order.

_Fields = dict[int, list[int | bytes]]


def _fields(message: bytes) -> _Fields:
    found: _Fields = {}
    place = 0
    while place < len(message):
        tag = varint(message, place)
        number, wire = tag.value >> 3, tag.value & 7
        value, place = _value(message, tag.end, wire)
        found.setdefault(number, []).append(value)
    return found


def _value(message: bytes, start: int, wire: int) -> tuple[int | bytes, int]:
    """The value there, and where the next field begins."""
    if wire == 0:
        return varint(message, start)
    if wire == 2:
        size = varint(message, start)
        start, end = size.end, size.end + size.value
    elif wire in (1, 5):
        end = start + (8 if wire == 1 else 4)
    else:
        raise Malformed(f"a field of the unknown kind {wire}", start)
    if end > len(message):
        raise Malformed("a field reaches out of its message", start)
    piece = message[start:end]
    return (piece if wire == 2 else int.from_bytes(piece, "little")), end


def _one(fields: _Fields, number: int) -> int:
    """The number in a field; 0, as protobuf has it, where it is absent."""
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int) or value >= 1 << 63:
        raise Malformed(f"field {number} is no number, or a negative one", 0)
    return value


def _bytes(fields: _Fields, number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise Malformed(f"field {number} is no message", 0)
    return value


def _many(fields: _Fields, number: int) -> list[bytes]:
    values = fields.get(number, [])
    if not all(isinstance(value, bytes) for value in values):
        raise Malformed(f"field {number} is no message", 0)
    return [value for value in values if isinstance(value, bytes)]
