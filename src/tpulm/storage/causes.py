"""From what went wrong to what it means: errors of the operating system and of Cloud Storage as `StorageError`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tpulm.errors import StorageError
from tpulm.storage import cloud
from tpulm.storage.paths import is_remote
from tpulm.storage.system_causes import known_cause


@contextlib.contextmanager
def explain(operation: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what fails inside the block, here or in Cloud Storage, into a StorageError: "cannot {operation} {path}: {cause}"."""
    if is_remote(path):
        with cloud.explained(operation, path):
            yield
        return
    try:
        yield
    except OSError as error:
        raise storage_error(operation, path, error) from error


def storage_error(operation: str, path: str | os.PathLike[str], error: OSError) -> StorageError:
    cause = known_cause(error) or error.strerror or str(error)
    return StorageError(f"cannot {operation} {os.fspath(path)}: {cause}")
