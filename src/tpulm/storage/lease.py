"""Only one process at a time works in a folder.

On this machine that is an OS lock, released when its process ends, however that happens. In Cloud Storage it is a lease, the
object FOLDER/.lease.json, which its owner renews; others take it over by compare-and-swap once it has expired, or at once if
its owner was a process of the same machine that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
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
from tpulm.storage import files
from tpulm.storage.causes import explain
from tpulm.storage.files import parse_json

LEASE = ".lease.json"
_LEASE_SECONDS = 60.0
_RENEW_SECONDS = 15.0
_WATCH_SECONDS = 1.0
_RELEASE_SECONDS = 10.0


@contextlib.contextmanager
def held(folder: str | os.PathLike[str], *, note: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Hold `folder` during the block; a second process that tries meanwhile gets a StorageError naming the first.

    In Cloud Storage this may take a minute, until it is clear whether the first one lives; `note` is told of the wait. A
    process that loses its lease there, after a minute without any response, is asked to stop by `interrupt`.
    """
    path = files.make_folder(folder)
    with _locked(path) if isinstance(path, Path) else _leased(path, note):
        yield


def holder(folder: str | os.PathLike[str]) -> str | None:
    """The process that holds the folder, in words, or None. A dead process of another machine holds it for up to a minute."""
    path = files.as_path(folder)
    if isinstance(path, Path):
        return _locked_by(path)
    found = files.read_versioned(path / LEASE)
    lease = None if found is None else _read(path / LEASE, found[0])
    if lease is None or is_free(lease, now=time.time(), host=_host()):
        return None
    return f"process {lease['process']} on {lease['host']}"


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
    path, owner = folder / LEASE, _this_process()
    version = _acquire(path, owner, note)
    ended = threading.Event()
    keeper = threading.Thread(target=_renew, args=(path, owner, version, ended), name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        # Not for long: if nothing responds, the lease expires by itself.
        last = threading.Thread(target=_release, args=(path, owner, keeper), name="lease", daemon=True)
        last.start()
        last.join(_RELEASE_SECONDS)


def _release(path: PurePath, owner: dict[str, Any], keeper: threading.Thread) -> None:
    keeper.join()
    with contextlib.suppress(StorageError):
        found = files.read_versioned(path)
        if found is not None and _read(path, found[0])["id"] == owner["id"]:
            files.replace_version(path, _lease(owner, seconds=0.0), found[1])


def _acquire(path: PurePath, owner: dict[str, Any], note: Callable[[str], None]) -> str:
    """The lease's version once it is ours. A lease in force is watched until it expires: a vanished machine does not renew it.

    It expires at the time it states, or if not renewed in time by this machine's own clock: the owner's may be hours ahead.
    """
    watched: str | None = None
    give_up_at = 0.0
    while True:
        found = files.read_versioned(path)
        if found is None:
            files.create_if_absent(path, _lease(owner, seconds=0.0))
            continue
        content, version = found
        other = _read(path, content)
        is_stale = watched == version and time.monotonic() > give_up_at
        if is_stale or is_free(other, now=time.time(), host=owner["host"]):
            new = files.replace_version(path, _lease(owner), version)
            if new is not None:
                return new
            continue
        name = f"process {other['process']} on {other['host']}"
        if other["host"] == owner["host"] or watched not in (None, version):
            raise _in_use(path.parent, name)
        if watched is None:
            left = min(other["expires_at"] - time.time(), _LEASE_SECONDS)
            give_up_at = time.monotonic() + _LEASE_SECONDS + _RENEW_SECONDS
            note(f"{path.parent} was in use by {name}; waiting {left:.0f} s to see whether it still is")
        watched = version
        interrupt.check("nothing was begun")
        time.sleep(_WATCH_SECONDS)


def is_free(lease: dict[str, Any], *, now: float, host: str) -> bool:
    """Whether a lease has expired, or its owner was a process of this machine that is gone."""
    if lease["expires_at"] <= now:
        return True
    return lease["host"] == host and _started_at(lease["process"]) != lease["started_at"]


def _renew(path: PurePath, owner: dict[str, Any], version: str, ended: threading.Event) -> None:
    while not ended.wait(_RENEW_SECONDS):
        try:
            new = files.replace_version(path, _lease(owner), version)
        except StorageError:
            continue  # no response: it may still be ours, and the next request will tell
        if new is None:
            interrupt.request("the loss of the work folder to another process")
            return
        version = new


def _read(path: PurePath, content: bytes) -> dict[str, Any]:
    try:
        found = parse_json(content)
        found["expires_at"] = float(found["expires_at"])
        return {name: found[name] for name in ("id", "host", "process", "started_at", "expires_at")}
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is not the lease of a process ({error!r}); see that nobody uses the folder, and delete it"
        ) from error


def _lease(owner: dict[str, Any], *, seconds: float = _LEASE_SECONDS) -> str:
    return json.dumps({**owner, "expires_at": round(time.time() + seconds, 3)}, indent=2, sort_keys=True) + "\n"


def _this_process() -> dict[str, Any]:
    process = os.getpid()
    return {"id": uuid.uuid4().hex, "host": _host(), "process": process, "started_at": _started_at(process)}


def _host() -> str:
    """The machine and its boot: another machine may get the same name."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} ({Path('/proc/sys/kernel/random/boot_id').read_text().strip()[:8]})"
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
