"""Objects in Cloud Storage, through google-cloud-storage. Endpoint, project and credentials come from the environment.

Every request that may succeed later (429, 5xx, a lost connection, a truncated response) is retried, with backoff and jitter,
until `DEADLINE_SECONDS` ($TPULM_STORAGE_DEADLINE_SECONDS) are over. Writes are safe to retry: an object is written as a whole,
and a conditional write carries an id by which it recognizes its own earlier attempt, whose response was lost.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from tpulm.storage.causes import client, explain
from tpulm.storage.paths import FileInfo, bucket_and_name

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket

DEADLINE_SECONDS = float(os.environ.get("TPULM_STORAGE_DEADLINE_SECONDS", "300"))
_TIMEOUT_SECONDS = (20.0, 60.0)  # to connect, and between two bytes of a response
_UPLOAD_THREADS = 8
_READ_CHUNK_BYTES = 8 << 20
_WRITER = "tpulm-writer"  # metadata key of objects written conditionally

guards: dict[PurePath, Callable[[], None]] = {}
"""By folder, what raises if this process may not write there (any more): a lease that it held and lost."""


def check_guards(path: PurePath) -> None:
    """Raise if a guard of a folder above `path` does, before anything is written there."""
    for folder, check in list(guards.items()):
        if folder in (path, *path.parents):
            check()


def read(path: PurePath) -> bytes:
    with explain("read", path):
        return _blob(path).download_as_bytes(**_patience())


def read_range(path: PurePath, start: int, stop: int) -> bytes:
    """Bytes [start, stop)."""
    if start >= stop:
        return b""
    with explain("read", path):
        return _blob(path).download_as_bytes(start=start, end=stop - 1, **_patience())


def open_read(path: PurePath) -> BinaryIO:
    """Open for reading as bytes: buffered, seekable, and of one generation throughout."""
    with explain("read", path):
        blob = _blob(path)
        blob.reload(**_patience())
        as_stored = bool(blob.content_encoding)  # its size and ranges count the bytes that are stored
        return cast("BinaryIO", blob.open("rb", chunk_size=_READ_CHUNK_BYTES, raw_download=as_stored, **_patience()))


def write(path: PurePath, data: bytes) -> None:
    check_guards(path)
    with explain("write", path):
        _blob(path).upload_from_string(data, **_patience())


def create(path: PurePath, data: bytes) -> bool:
    """Create the object if absent; return whether this call did."""
    check_guards(path)
    with explain("create", path):
        return _write_if(path, data, generation=0) is not None


def read_versioned(path: PurePath) -> tuple[bytes, str] | None:
    """The bytes and their version, the object's generation: microseconds since 1970, which conditional writes compare."""
    with explain("read", path):
        while (current := _find(path)) is not None:
            bucket, name = bucket_and_name(path)
            blob = _bucket(bucket).blob(name, generation=current.generation)
            try:
                return blob.download_as_bytes(**_patience()), str(current.generation)
            except _not_found():  # replaced meanwhile
                continue
        return None


def replace_version(path: PurePath, data: bytes, version: str) -> str | None:
    with explain("write", path):
        return _write_if(path, data, generation=int(version))


def info(path: PurePath) -> FileInfo | None:
    """An object's size, time and checksum; None if there is none (a folder is none)."""
    blob = _find(path)
    return None if blob is None else _info(blob)


def _find(path: PurePath) -> Blob | None:
    if not bucket_and_name(path)[1]:
        return None
    blob = _blob(path)
    with explain("look at", path):
        try:
            blob.reload(**_patience())
        except _not_found() as error:
            if "bucket does not exist" in str(error):
                raise
            return None
    return blob


def is_folder(path: PurePath) -> bool:
    """Whether any object is below the path."""
    bucket, prefix = _below(path)
    with explain("look at", path):
        blobs = client().list_blobs(bucket, prefix=prefix, max_results=1, **_patience())
        return next(iter(blobs), None) is not None or not prefix


def list_folder(path: PurePath) -> list[PurePath]:
    """The objects and folders directly below, sorted by name."""
    bucket, prefix = _below(path)
    with explain("list", path):
        blobs: Any = client().list_blobs(bucket, prefix=prefix, delimiter="/", **_patience())
        names = {blob.name.removeprefix(prefix) for blob in blobs}
        names |= {folder.removeprefix(prefix).rstrip("/") for folder in blobs.prefixes}
    return [path / name for name in sorted(names) if name]


def walk(path: PurePath, beginning: str = "", *, markers: bool = False) -> dict[str, FileInfo]:
    """All objects below whose relative names start with `beginning`, by relative name, sorted. `markers`: those too that the
    console makes for folders, empty and with names that end with a slash."""
    bucket, prefix = _below(path)
    with explain("list", path):
        blobs = list(client().list_blobs(bucket, prefix=prefix + beginning, **_patience()))
    return {blob.name.removeprefix(prefix): _info(blob) for blob in blobs if markers or not blob.name.endswith("/")}


def remove(path: PurePath) -> None:
    """Delete the object and all below, including the empty objects that the console makes for folders; absent is fine."""
    bucket, name = bucket_and_name(path)
    if not name:
        return
    check_guards(path)
    with explain("list", path):
        names = [name, *(blob.name for blob in client().list_blobs(bucket, prefix=f"{name}/", **_patience()))]
    each(lambda name: _delete(_bucket(bucket).blob(name), path), names)


def upload(source: Path, target: PurePath, *, last: str) -> None:
    """Upload a local file, or a folder, which replaces all objects below; its file named `last` comes after the others."""
    if source.is_file():
        upload_file(source, target)
        return
    names = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    each(lambda name: upload_file(source / name, target / name), sorted(names - {last}))
    if last in names:
        upload_file(source / last, target / last)
    each(remove_file, [target / name for name in walk(target) if name not in names])


def download(source: PurePath, target: Path) -> None:
    """Download one object to a local file."""
    with explain("read", source):
        _blob(source).download_to_filename(str(target), **_patience())


def move_folder(source: PurePath, target: PurePath, *, first: str) -> None:
    """Copy all objects, within Cloud Storage, and delete them at the source; the one named `first` goes before any other."""
    names = walk(source)
    if first in names:
        _move_one(source / first, target / first)
    each(lambda name: _move_one(source / name, target / name), [name for name in names if name != first])


def _move_one(source: PurePath, target: PurePath) -> None:
    check_guards(source)
    check_guards(target)
    with explain("move", source):
        old, new = _blob(source), _blob(target)
        token = None
        while True:
            token, _, _ = new.rewrite(old, token=token, **_patience())
            if token is None:
                break
    remove_file(source)


def remove_file(path: PurePath) -> None:
    check_guards(path)
    _delete(_blob(path), path)


def _delete(blob: Blob, path: PurePath) -> None:
    with explain("delete", path), contextlib.suppress(_not_found()):
        blob.delete(**_patience())


def upload_file(source: Path, target: PurePath) -> None:
    check_guards(target)
    with explain("write", target):
        _blob(target).upload_from_filename(str(source), **_patience())


def _write_if(path: PurePath, data: bytes, *, generation: int) -> str | None:
    """Write if the object has this generation (0: there is none); the new generation, or None if it has another."""
    from google.api_core.exceptions import PreconditionFailed

    blob, writer = _blob(path), uuid.uuid4().hex
    blob.metadata = {_WRITER: writer}
    try:
        blob.upload_from_string(data, if_generation_match=generation, **_patience())
    except PreconditionFailed:
        current = _blob(path)
        with contextlib.suppress(_not_found()):
            current.reload(**_patience())
        if (current.metadata or {}).get(_WRITER) != writer:
            return None
        blob = current  # an earlier attempt succeeded, but its response was lost
    return str(blob.generation)


def _not_found() -> type[Exception]:
    from google.api_core.exceptions import NotFound

    return NotFound


def _info(blob: Blob) -> FileInfo:
    return FileInfo(int(blob.size or 0), 1000 * int(blob.generation or 0), blob.crc32c or "")


def each(function: Any, items: Sequence[Any]) -> None:
    """Call `function` for each item in a few threads; the first error is raised once all calls have ended."""
    if len(items) < 2:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(min(_UPLOAD_THREADS, len(items))) as pool:
        for future in [pool.submit(function, item) for item in items]:
            future.result()


@functools.cache
def _bucket(name: str) -> Bucket:
    return client().bucket(name)


def _blob(path: PurePath) -> Blob:
    bucket, name = bucket_and_name(path)
    return _bucket(bucket).blob(name)


def _below(path: PurePath) -> tuple[str, str]:
    """The bucket, and the prefix of all object names below the path."""
    bucket, name = bucket_and_name(path)
    return bucket, f"{name}/" if name else ""


def _patience() -> dict[str, Any]:
    """The timeout and retry policy of a request."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    retry = DEFAULT_RETRY.with_delay(initial=0.5, maximum=20.0, multiplier=2.0).with_timeout(DEADLINE_SECONDS)
    return {"retry": retry, "timeout": _TIMEOUT_SECONDS}


def forget_clients() -> None:
    """To be called after changing the environment that says where Cloud Storage is."""
    client.cache_clear()
    _bucket.cache_clear()
