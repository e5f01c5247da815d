"""From what went wrong to what it means: errors of the operating system and of Cloud Storage as `StorageError`."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from tpulm.errors import StorageError
from tpulm.storage import cloud
from tpulm.storage.paths import is_remote

_CAUSES = {
    errno.ENOSPC: "the disk is full; free some space, then run the same command again: it continues where it stopped",
    errno.EDQUOT: "your disk quota is used up; free some space, then run the same command again",
    errno.EROFS: "the file system is read-only; choose another folder with --workdir",
    errno.EACCES: "permission denied; choose a folder you may write to, or change its owner",
    errno.EPERM: "permission denied; choose a folder you may write to, or change its owner",
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EFBIG: "the file would exceed a size limit (ulimit -f)",
    errno.EMFILE: "too many open files (ulimit -n)",
    errno.EIO: "the device reported an input/output error",
}


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
    cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"cannot {operation} {os.fspath(path)}: {cause}")
