"""Between the local disk and Cloud Storage: files made here and uploaded, and files downloaded for use here."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import TracebackType
from typing import BinaryIO

from tpulm.errors import StorageError
from tpulm.storage import cloud, files
from tpulm.storage.causes import explain
from tpulm.storage.paths import TEMPORARY_SUFFIX, absolute, as_path

_unfinished: set[Path] = set()


@contextlib.contextmanager
def built_aside(path: str | os.PathLike[str], *, last: str = "") -> Iterator[Path]:
    """A local name under which the block builds a file or folder, which is moved to `path` if the block succeeds.

    It is beside its target if that is local, else in the temporary folder. An error removes it, and the next attempt removes
    what a killed process left of the same target, so only one process may build it at a time. In Cloud Storage a folder's file
    named `last` is uploaded last.
    """
    target = absolute(path)
    if not isinstance(target, Path):
        with scratch_folder() as folder:
            yield folder / target.name
            files.publish(folder / target.name, target, last=last)
        return
    with explain("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f".{glob.escape(target.name)}.*{TEMPORARY_SUFFIX}"):
            files.remove(left)
    temporary = files.temporary_name(target)
    _unfinished.add(temporary)
    try:
        yield temporary
        files.publish(temporary, target)
    except BaseException:
        with contextlib.suppress(StorageError):
            files.remove(temporary)
        raise
    finally:
        _unfinished.discard(temporary)


@contextlib.contextmanager
def stream_aside(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Like `built_aside`, for one file, opened for writing; durable when the block ends."""
    with built_aside(path) as temporary, explain("write", temporary), temporary.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


def abandon() -> None:
    """Remove what `built_aside` has not finished on this machine: for a process that ends without unwinding."""
    for temporary in list(_unfinished):
        with contextlib.suppress(StorageError):
            files.remove(temporary)


@contextlib.contextmanager
def local_copy(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A local path of the file: its own, or that of a copy for the duration of the block."""
    source = as_path(path)
    if isinstance(source, Path):
        yield source
        return
    with scratch_folder() as folder:
        copy = folder / source.name
        cloud.download(source, copy)
        yield copy


_PREFIX = "tpulm-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder for the duration of the block. Leftovers of killed processes are removed first."""
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.gettempdir())
        remove_leftovers()
        with explain("write to", place):
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", suffix=TEMPORARY_SUFFIX, dir=place))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # NFS locks no folders, and then only this process removes it
            stack.enter_context(_locked(folder))
        yield folder


def remove_leftovers() -> None:
    """Remove the folders of processes that are certainly dead: not alive here, nor anywhere that shares this place."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{TEMPORARY_SUFFIX}"):
            process = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if process.isdigit() and not _is_alive(int(process)):
                with contextlib.suppress(OSError), _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if it belongs to another user, is no folder, or is locked by a process (in another container, say)."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_INTERVAL_SECONDS = 30.0


class Mirror:
    """Growing files in Cloud Storage: written locally and uploaded as a whole, periodically and on request.

    `folder` is where to write: the work folder itself if it is local, else a copy of what this process adds to it.

    `sync` returns when all that was written (and flushed) is uploaded; this also happens every half minute and at the end of
    the block. Files that this process did not write are left alone.
    """

    def __init__(self, target: PurePath):
        self._target = target
        self._sent: dict[str, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if isinstance(target, Path):
            self.folder = target
            return
        self._scratch = contextlib.ExitStack()
        self.folder = self._scratch.enter_context(scratch_folder())
        self._thread = threading.Thread(target=self._now_and_then, name="mirror", daemon=True)
        self._thread.start()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is None:
            return
        self._ended.set()
        try:
            self.sync()
        except StorageError:
            if error is None:  # the original error says more
                raise
        finally:
            self._scratch.close()

    def sync(self) -> None:
        if self._thread is None:
            return
        with self._lock:
            for path in sorted(self.folder.rglob("*")):
                if not path.is_file():
                    continue
                name, size = path.relative_to(self.folder).as_posix(), path.stat().st_size
                if self._sent.get(name) != size:
                    cloud.upload_file(path, self._target / name)
                    self._sent[name] = size

    def _now_and_then(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            with contextlib.suppress(StorageError):  # until the next time, or `sync`, which raises
                self.sync()


class Ranges:
    """Random access to a file: memory-mapped if local, by range requests in Cloud Storage."""

    def __init__(self, path: str | os.PathLike[str]):
        self._path = source = as_path(path)
        self._view: memoryview | None = None
        if isinstance(source, Path):
            with explain("read", source), source.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                self._view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")

    def read(self, start: int, stop: int) -> memoryview | bytes:
        """Bytes [start, stop); of a local file a view, which is read when accessed."""
        return cloud.read_range(self._path, start, stop) if self._view is None else self._view[start:stop]
