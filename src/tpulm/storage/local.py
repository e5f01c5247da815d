"""Files of this machine. What goes wrong is raised as OSError by the operating system; `files` explains it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tpulm.storage.paths import TEMPORARY_SUFFIX


def temporary_name(target: Path) -> Path:
    """A hidden name beside the target that nobody else uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")


def temporaries_of(target: Path) -> list[Path]:
    """All such names there are, whoever made them."""
    return list(target.parent.glob(f".{glob.escape(target.name)}.*{TEMPORARY_SUFFIX}"))


def write(target: Path, data: bytes) -> None:
    temporary = _write_temporary(target, data)
    with _removed_on_error(temporary):
        temporary.replace(target)
        _sync_folder(target.parent)


def create(target: Path, data: bytes) -> bool:
    temporary = _write_temporary(target, data)
    with _removed_on_error(temporary):
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        _sync_folder(target.parent)
    return True


def read_versioned(path: Path) -> tuple[bytes, str] | None:
    try:
        with path.open("rb") as stream:
            return stream.read(), _version(os.fstat(stream.fileno()))
    except FileNotFoundError:
        return None


def replace_version(path: Path, data: bytes, version: str) -> str | None:
    with _alone(path):
        try:
            if _version(path.stat()) != version:
                return None
        except FileNotFoundError:
            return None
        temporary = _write_temporary(path, data)
        with _removed_on_error(temporary):
            new = _version(temporary.stat())
            temporary.replace(path)
            _sync_folder(path.parent)
        return new


def publish(source: Path, target: Path) -> None:
    """Move a file or folder to its final name in one step. An old folder is moved aside first: whoever looks, or is killed,
    meanwhile never finds half of it under its name."""
    aside = temporary_name(target)
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


def remove(target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _version(status: os.stat_result) -> str:
    """A replaced file is another file, at another time."""
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Among those that change files of one folder under a condition."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _write_temporary(target: Path, data: bytes) -> Path:
    temporary = temporary_name(target)
    with _removed_on_error(temporary):
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    return temporary


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
