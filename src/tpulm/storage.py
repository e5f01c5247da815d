"""Local and (later) gs:// paths as one: the only module that writes run-level objects.

Two promises hold on every backend. `write_atomic` replaces an object as a whole: a reader, or a process that comes after a
crash, sees the old bytes or the new ones and never a mixture. `create_if_absent` lets exactly one of several writers win.
Operating-system errors leave here as `StorageError`, with the path, the operation and the likely cause.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from tpulm.errors import ConfigError, StorageError

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

TEMPORARY_SUFFIX = ".tpulm-tmp"


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path as an object with pathlib's interface. Raises ConfigError for schemes that are not supported."""
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(f"{text}: only local paths are supported by this version; copy the files to a local folder first")
    return Path(text).expanduser()


@contextlib.contextmanager
def explain(operation: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError: "cannot {operation} {path}: {cause}"."""
    try:
        yield
    except OSError as error:
        raise storage_error(operation, path, error) from error


def storage_error(operation: str, path: str | os.PathLike[str], error: OSError) -> StorageError:
    cause = _CAUSES.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"cannot {operation} {os.fspath(path)}: {cause}")


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, created with its parents where absent."""
    folder = as_path(path)
    with explain("create the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The folder, created if need be, after a probe file was written to it: better refused now than in an hour."""
    folder = make_folder(path)
    probe = folder / f".probe-{os.getpid()}{TEMPORARY_SUFFIX}"
    with explain("write to", folder):
        probe.write_bytes(b"tpulm")
        probe.unlink()
    return folder


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Replace `path` by `data`, wholly or not at all; durable when this returns."""
    target = as_path(path)
    temporary = _write_temporary(target, data)
    with explain("write", target), _removed_on_error(temporary):
        temporary.replace(target)
        _sync_folder(target.parent)


def create_if_absent(path: str | os.PathLike[str], data: bytes | str) -> bool:
    """Create `path` with `data` unless it exists. True for the one writer that created it, False for all others."""
    target = as_path(path)
    temporary = _write_temporary(target, data)
    with explain("create", target), _removed_on_error(temporary):
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        _sync_folder(target.parent)
    return True


def publish(temporary: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Move a finished file or folder to its final name in one step; a file or folder already there is replaced.

    An old folder is moved aside first: whoever looks, or is killed, meanwhile never finds half of it under its name.
    """
    source, target = as_path(temporary), as_path(path)
    aside = _temporary_name(target)
    with explain("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        replaced = target.is_dir()
        if replaced:
            target.replace(aside)
        try:
            source.replace(target)
        except OSError:
            if replaced:
                aside.replace(target)
            raise
        _sync_folder(target.parent)
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def held(folder: str | os.PathLike[str]) -> Iterator[None]:
    """The block has `folder` to itself: a second process that asks meanwhile gets a StorageError naming the first.

    The lock belongs to the process and goes with it, however it ends.
    """
    path = make_folder(folder) / ".lock"
    with explain("write to", folder):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with explain("write to", folder):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "unknown"
                raise StorageError(
                    f"{os.fspath(folder)} is in use by another tpulm process (process {owner}); wait for it or stop it"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    with explain("read", path):
        return as_path(path).read_bytes()


def read_text(path: str | os.PathLike[str]) -> str:
    """The object's UTF-8 text, or StorageError with the offset of the first byte that is none."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StorageError(f"cannot read {os.fspath(path)}: not UTF-8 text at byte {error.start}") from error


def open_read(path: str | os.PathLike[str]) -> BufferedReader:
    """The object opened for reading as bytes (buffered, seekable)."""
    with explain("read", path):
        return as_path(path).open("rb")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Atomic JSON: sorted keys, two-space indentation, a final newline, UTF-8 as it is."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The parsed object, or StorageError naming the file and the place where it stops being JSON."""
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:
        raise StorageError(f"cannot read {os.fspath(path)}: not valid JSON ({error}); delete it and run again") from error


def exists(path: str | os.PathLike[str]) -> bool:
    with explain("look at", path):
        return as_path(path).exists()


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file or a whole folder; absent is fine."""
    target = as_path(path)
    with explain("delete", target):
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def sha256(path: str | os.PathLike[str]) -> str:
    """Hex digest of the object's bytes."""
    with open_read(path) as stream, explain("read", path):
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_temporary(target: Path, data: bytes | str) -> Path:
    payload = data.encode("utf-8") if isinstance(data, str) else data
    temporary = _temporary_name(target)
    with explain("write", target), _removed_on_error(temporary):
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
    return temporary


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")


@contextlib.contextmanager
def _removed_on_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Not every file system can open a folder; those that cannot need no sync."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
