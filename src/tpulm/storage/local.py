"""Files of this machine: the same functions as `cloud` has for objects."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import BinaryIO

from tpulm.storage.causes import explain
from tpulm.storage.paths import TEMPORARY_SUFFIX, FileInfo


def temporary_name(target: Path) -> Path:
    """A hidden name beside the target that nobody else uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")


def temporaries_of(target: Path) -> list[Path]:
    """All such names there are, whoever made them."""
    return list(target.parent.glob(f".{glob.escape(target.name)}.*{TEMPORARY_SUFFIX}"))


def make_folder(folder: Path) -> None:
    with explain("create the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)


def read(path: Path) -> bytes:
    with explain("read", path):
        return path.read_bytes()


def open_read(path: Path) -> BinaryIO:
    with explain("read", path):
        return path.open("rb")


def write(target: Path, data: bytes) -> None:
    with explain("write", target), _written(target, data) as temporary:
        temporary.replace(target)
        _sync_folder(target.parent)


def create(target: Path, data: bytes) -> bool:
    with explain("create", target), _written(target, data) as temporary:
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        _sync_folder(target.parent)
    return True


def read_versioned(path: Path) -> tuple[bytes, str] | None:
    with explain("read", path):
        try:
            with path.open("rb") as stream:
                return stream.read(), _version(os.fstat(stream.fileno()))
        except FileNotFoundError:
            return None


def replace_version(path: Path, data: bytes, version: str) -> str | None:
    with explain("write", path), _alone(path):
        try:
            if _version(path.stat()) != version:
                return None
        except FileNotFoundError:
            return None
        with _written(path, data) as temporary:
            new = _version(temporary.stat())
            temporary.replace(path)
            _sync_folder(path.parent)
        return new


def publish(source: Path, target: Path, *, operation: str = "write") -> None:
    """Move a file or folder to its final name in one step. An old folder is moved aside first: whoever looks, or is killed,
    meanwhile never finds half of it under its name."""
    with explain(operation, source if operation == "move" else target):
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


def info(path: Path) -> FileInfo | None:
    with explain("look at", path):
        try:
            status = path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise
        return None if path.is_dir() else FileInfo(status.st_size, status.st_mtime_ns)


def is_folder(path: Path) -> bool:
    with explain("look at", path):
        return path.is_dir()


def list_folder(folder: Path) -> list[PurePath]:
    with explain("list", folder):
        try:
            return [*sorted(folder.iterdir())]
        except (FileNotFoundError, NotADirectoryError):
            return []


def walk(folder: Path, beginning: str) -> dict[str, FileInfo]:
    found: dict[str, FileInfo] = {}
    with explain("list", folder):
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder).as_posix()
            if file.is_file() and name.startswith(beginning):
                status = file.stat()
                found[name] = FileInfo(status.st_size, status.st_mtime_ns)
    return found


def remove(target: Path) -> None:
    with explain("delete", target):
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def remove_file(target: Path) -> None:
    with explain("delete", target):
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


@contextlib.contextmanager
def _written(target: Path, data: bytes) -> Iterator[Path]:
    """A file beside the target with these bytes, durable; removed if the block fails."""
    temporary = temporary_name(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield temporary
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
