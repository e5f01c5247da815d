"""Only one process at a time works in a folder.

On this machine that is an OS lock, released when its process ends, however that happens. In Cloud Storage it is a lease, the
object FOLDER/.lease.json, which its owner renews; others take it over by compare-and-swap once it has expired, or at once if
its owner was a process of the same machine and container that is gone.

Only times of one clock are compared: the bucket's, which dates the lease and an object written now, or this machine's since it
was last renewed or seen. An owner that was stopped for longer than that (SIGSTOP, a laptop asleep) must renew the lease before
it writes or deletes anything in the folder; if another process took it, each such call raises InUse.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

from tpulm.errors import InUse, StorageError
from tpulm.runtime import interrupt
from tpulm.storage import cloud, files
from tpulm.storage.causes import explain
from tpulm.storage.files import parse_json

LEASE = ".lease.json"
_LEASE_SECONDS = 60.0
_RENEW_SECONDS = 15.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it goes on while the machine sleeps
_WATCH_SECONDS = 1.0
_RELEASE_SECONDS = 10.0


@contextlib.contextmanager
def held(folder: str | os.PathLike[str], *, note: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Hold `folder` during the block; a second process that tries meanwhile gets a StorageError naming the first.

    In Cloud Storage this may take a minute, until it is clear whether the first one lives; `note` is told of the wait. A
    process that loses its lease there, after a minute without renewing it, is asked to stop by `interrupt`; it can write
    nothing below the folder any more, and an error that ends the block is replaced by InUse.
    """
    path = files.make_folder(folder)
    with _locked(path) if isinstance(path, Path) else _leased(path, note):
        yield


def holder(folder: str | os.PathLike[str], *, by_bucket: bool = False) -> str | None:
    """The process that holds the folder, in words, or None. A dead process of another machine holds it for up to a minute:
    by this machine's clock, which may be wrong, or `by_bucket`, which writes an object there."""
    path = files.as_path(folder)
    if isinstance(path, Path):
        return _locked_by(path)
    versioned = files.read_versioned(path / LEASE)
    lease = None if versioned is None else _read(path / LEASE, versioned[0])
    if lease is None or is_free(lease, age_seconds=_age(path / LEASE, by_bucket=by_bucket), host=_host()):
        return None
    return _owner(lease)


def _owner(lease: dict[str, Any]) -> str:
    return f"process {lease['process']} on {lease['host']}"


def _age(path: PurePath, *, by_bucket: bool = True) -> float:
    """Seconds since the lease was written; infinite if it is gone."""
    now_ns = time.time_ns()
    if by_bucket:
        probe = path.parent / f".clock-{uuid.uuid4().hex}"
        files.write_atomic(probe, b"")
        now_ns = getattr(files.info(probe), "modified_ns", 0)
        files.remove(probe)
    written = files.info(path)
    return math.inf if written is None else max(0.0, (now_ns - written.modified_ns) / 1e9)


def _locked_by(folder: Path) -> str | None:
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"process {lock.read(100).strip() or 'unknown'}"
    return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder / ".lock"
    with explain("write to", folder):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with explain("write to", folder):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "unknown"
                raise _in_use(folder, f"process {owner}") from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _leased(folder: PurePath, note: Callable[[str], None]) -> Iterator[None]:
    lease = _Lease(folder, note)
    keeper = threading.Thread(target=lease.keep, name="lease", daemon=True)
    keeper.start()
    cloud.guards[folder] = lease.confirm
    try:
        yield
    except Exception as error:
        if lease.lost_to is not None:
            raise lease.loss() from error
        raise
    finally:
        del cloud.guards[folder]
        lease.ended.set()
        # Not for long: if nothing responds, the lease expires by itself.
        last = threading.Thread(target=lease.release, args=(keeper,), name="lease", daemon=True)
        last.start()
        last.join(_RELEASE_SECONDS)


class _Lease:
    """A lease that this process holds until `lost_to` names another. The constructor waits until it is ours."""

    def __init__(self, folder: PurePath, note: Callable[[str], None]):
        self.ended = threading.Event()
        self.lost_to: str | None = None
        process = os.getpid()
        self._owner = {"id": uuid.uuid4().hex, "host": _host(), "process": process, "started_at": _started_at(process)}
        self._folder, self._path = folder, folder / LEASE
        self._lock = threading.Lock()
        self._renewed_at = _now()
        self._version = self._acquire(note)

    def _acquire(self, note: Callable[[str], None]) -> str:
        """The lease's version once it is ours. A lease in force is watched until it expires: a vanished machine does not renew
        it."""
        watched: str | None = None
        since = 0.0
        while True:
            self._renewed_at = _now()
            versioned = files.read_versioned(self._path)
            if versioned is None:
                files.create_if_absent(self._path, _lease(self._owner, seconds=0.0))
                continue
            content, version = versioned
            other = _read(self._path, content)
            host, age_seconds = self._owner["host"], _now() - since if watched == version else 0.0
            if watched is None and not is_free(other, age_seconds=0.0, host=host):
                age_seconds = _age(self._path)
            if is_free(other, age_seconds=age_seconds, host=host):
                new = files.replace_version(self._path, _lease(self._owner), version)
                if new is not None:
                    return new
                continue
            name = _owner(other)
            if other["host"] == host or watched not in (None, version):
                raise _in_use(self._folder, name)
            if watched is None:
                since, left = _now() - age_seconds, other["seconds"] - age_seconds
                note(f"{self._folder} was in use by {name}; waiting {left:.0f} s to see whether it still is")
            watched = version
            interrupt.check("nothing was begun")
            time.sleep(_WATCH_SECONDS)

    def keep(self) -> None:
        """Renew it until the block ends or another process has it."""
        while self.lost_to is None and not self.ended.wait(_RENEW_SECONDS):
            with contextlib.suppress(StorageError):  # no response: it may still be ours, and the next request will tell
                self._renew()

    def confirm(self) -> None:
        """Raise InUse unless the lease is ours: by our clock, or, if it was not renewed for long, by renewing it now."""
        if self.lost_to is None and _now() - self._renewed_at > _LEASE_SECONDS / 2:
            self._renew()
        if self.lost_to is not None:
            raise self.loss()

    def _renew(self) -> None:
        with self._lock:
            if self.lost_to is not None:
                return
            asked_at = _now()
            new = files.replace_version(self._path, _lease(self._owner), self._version)
            if new is None:  # another's, or our own of an earlier request whose response was lost
                content, new = files.read_versioned(self._path) or (None, "")
                other = None if content is None else _read(self._path, content)
                if other is None or other["id"] != self._owner["id"]:
                    self.lost_to = "another process" if other is None else _owner(other)
                    interrupt.request("the loss of the work folder to another process")
                    return
            self._renewed_at, self._version = asked_at, new

    def loss(self) -> InUse:
        return InUse(
            f"{self._folder} is in use by {self.lost_to}, which took it over when this process had not responded for "
            f"{_LEASE_SECONDS:.0f} s: it was stopped, its machine slept, or it had no connection. Nothing was written since; "
            "the other process goes on from the last checkpoint",
            owner=self.lost_to or "",
        )

    def release(self, keeper: threading.Thread) -> None:
        keeper.join()
        with contextlib.suppress(StorageError):
            files.replace_version(self._path, _lease(self._owner, seconds=0.0), self._version)


def is_free(lease: dict[str, Any], *, age_seconds: float, host: str) -> bool:
    """Whether a lease of that age has expired, or its owner was a process of this machine that is gone."""
    if lease["seconds"] <= age_seconds:
        return True
    return lease["host"] == host and _started_at(lease["process"]) != lease["started_at"]


def _now() -> float:
    """Seconds by a clock that nobody sets."""
    return time.clock_gettime(_CLOCK)


def _read(path: PurePath, content: bytes) -> dict[str, Any]:
    try:
        record = {"seconds": _LEASE_SECONDS, **parse_json(content)}  # older versions wrote none
        record["seconds"] = float(record["seconds"])
        return {name: record[name] for name in ("id", "host", "process", "started_at", "seconds")}
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is not the lease of a process ({error!r}); see that nobody uses the folder, and delete it"
        ) from error


def _lease(owner: dict[str, Any], *, seconds: float | None = None) -> str:
    return json.dumps({**owner, "seconds": _LEASE_SECONDS if seconds is None else seconds}, indent=2, sort_keys=True) + "\n"


def _host() -> str:
    """The machine, its boot and the namespace of process ids: another machine, or a container here, may have the same name."""
    with contextlib.suppress(OSError):
        boot, namespace = Path("/proc/sys/kernel/random/boot_id").read_text()[:8], Path("/proc/self/ns/pid").readlink()
        return f"{socket.gethostname()} ({boot} {namespace})"
    return socket.gethostname()


def _started_at(process: int) -> str | None:
    """When a process of this machine started, in kernel ticks; None if there is no such process, or no /proc.

    A zombie, which has ended without being reaped (a container may have no parent that does), counts as gone.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _in_use(folder: PurePath, owner: str) -> InUse:
    return InUse(f"{folder} is in use by another tpulm process ({owner}); wait for it or stop it", owner=owner)
