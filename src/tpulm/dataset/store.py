"""Arrays of rows on disk: Zarr version 3 with the sharding codec, through TensorStore.

A shard is one object of at most `SHARD_BYTES` before compression; it consists of blocks of `block_rows` rows, each compressed
and checksummed separately, so that a block can be read without its neighbours and damage is detected. The same rows give the
same bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import tensorstore

from tpulm import storage
from tpulm.errors import StorageError

SHARD_BYTES = 64 << 20
_CHECKSUM = {"name": "crc32c"}
_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
_COMPRESSION = {"name": "zstd", "configuration": {"level": 6}}  # docs/experiments.md has the other levels


def shard_rows(num_rows: int, row_bytes: int, block_rows: int) -> int:
    """Rows per shard: whole blocks, shards of about equal size, none over `SHARD_BYTES` unless one block is."""
    blocks = max(1, math.ceil(num_rows / block_rows))
    most = max(1, SHARD_BYTES // (row_bytes * block_rows))
    return block_rows * math.ceil(blocks / math.ceil(blocks / most))


def write_array(
    path: PurePath,
    rows: Callable[[int, int], np.ndarray],
    *,
    num_rows: int,
    row_shape: tuple[int, ...],
    dtype: np.dtype,
    block_rows: int,
) -> None:
    """Write a new array [num_rows, *row_shape] in the folder `path`; `rows(first, last)` is called for one shard at a time."""
    step = shard_rows(num_rows, dtype.itemsize * math.prod(row_shape), block_rows)
    sharding = {
        "chunk_shape": [block_rows, *row_shape],
        "codecs": [_LITTLE_ENDIAN, _COMPRESSION, _CHECKSUM],
        "index_codecs": [_LITTLE_ENDIAN, _CHECKSUM],
    }
    metadata = {
        "shape": [num_rows, *row_shape],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [step, *row_shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    spec = _spec(path) | {"metadata": metadata, "store_data_equal_to_fill_value": True}
    with explain("write", path):
        array = tensorstore.open(spec, create=True).result()
    for first in range(0, num_rows, step):
        last = min(first + step, num_rows)
        shard = rows(first, last)
        with explain("write", path):
            array[first:last].write(shard, can_reference_source_data_indefinitely=True).result()


def open_array(path: PurePath, context: tensorstore.Context | None = None) -> tensorstore.TensorStore:
    """Open the array for reading. Missing blocks are errors, not zeros."""
    spec = _spec(path) | {"recheck_cached_data": False, "recheck_cached_metadata": False}
    with explain("read", path):
        return tensorstore.open(spec, open=True, read=True, context=context).result()


@contextlib.contextmanager
def explain(operation: str, path: PurePath) -> Iterator[None]:
    """Turn TensorStore's exceptions into StorageError."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        if code := re.search(r"os_error_code='(\d+)'", message):
            number = int(code[1])
            raise storage.storage_error(operation, path, OSError(number, os.strerror(number))) from error
        raise StorageError(f"cannot {operation} {path}: {message.split(' [tensorstore_spec=')[0]}") from error
    except OSError as error:
        raise storage.storage_error(operation, path, error) from error


def _spec(path: PurePath) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": storage.tensorstore_location(path), "fill_missing_data_reads": False}
