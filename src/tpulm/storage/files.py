"""Files and objects by path. Each function handles local files itself, and objects through `cloud`."""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final

from tpulm.errors import ConfigError, Damaged, DataError, brief
from tpulm.storage import cloud
from tpulm.storage.causes import explain
from tpulm.storage.paths import ESCAPES, TEMPORARY_SUFFIX, FileInfo, as_path, is_remote

AnyPath = str | os.PathLike[str]


def make_folder(path: AnyPath) -> PurePath:
    """The folder, created with its parents if absent. In Cloud Storage a folder is only a name prefix."""
    folder = as_path(path)
    if isinstance(folder, Path):
        with explain("create the folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_writable(path: AnyPath) -> PurePath:
    """The folder, created if need be, after writing a probe file to it: better refused now than in an hour."""
    if is_remote(path) and "[" in os.fspath(path):
        raise ConfigError(f"{os.fspath(path)}: no folder for checkpoints, as Orbax takes [ for a wildcard there; name another")
    folder = make_folder(path)
    probe = folder / f".probe-{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY_SUFFIX}"
    if isinstance(probe, Path):
        with explain("write to", folder):
            probe.write_bytes(b"tpulm")
            probe.unlink()
    else:
        cloud.write(probe, b"tpulm")
        cloud.remove_file(probe)
    return folder


def write_atomic(path: AnyPath, data: bytes | str) -> None:
    """Replace `path` by `data` atomically; durable when this returns."""
    target, payload = as_path(path), _payload(data)
    if not isinstance(target, Path):
        cloud.write(target, payload)
        return
    with explain("write", target), _written(target, payload) as temporary:
        temporary.replace(target)
        _sync(target.parent)


def create_if_absent(path: AnyPath, data: bytes | str) -> bool:
    """Create `path` with `data` unless it exists. True for the one writer that created it, False for all others."""
    target, payload = as_path(path), _payload(data)
    if not isinstance(target, Path):
        return cloud.create(target, payload)
    with explain("create", target), _written(target, payload) as temporary:
        try:
            _link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        _sync(target.parent)
    return True


def read_versioned(path: AnyPath) -> tuple[bytes, str] | None:
    """The bytes and their version, for `replace_version`; None if there is no file."""
    source = as_path(path)
    if not isinstance(source, Path):
        return cloud.read_versioned(source)
    with explain("read", source):
        try:
            with source.open("rb") as stream:
                return stream.read(), _version(os.fstat(stream.fileno()))
        except FileNotFoundError:
            return None


def replace_version(path: AnyPath, data: bytes | str, version: str) -> str | None:
    """Replace `path` if it still has that version; return the new version, or None, with nothing written, if it has another."""
    target, payload = as_path(path), _payload(data)
    if not isinstance(target, Path):
        return cloud.replace_version(target, payload, version)
    with explain("write", target), _locked(target):
        try:
            if _version(target.stat()) != version:
                return None
        except FileNotFoundError:
            return None
        with _written(target, payload) as temporary:
            new = _version(temporary.stat())
            temporary.replace(target)
            _sync(target.parent)
        return new


def publish(temporary: AnyPath, path: AnyPath, *, last: str = "") -> None:
    """Move a finished local file or folder into place, replacing what is there.

    On this machine that is atomic. In Cloud Storage it is for a file; of a folder the file named `last` is written last, so
    that a reader who finds it finds all.
    """
    source, target = Path(temporary), as_path(path)
    if isinstance(target, Path):
        with explain("write", target):
            _move(source, target)
    else:
        with explain("read", source):
            source.lstat()  # else a missing source would count as an empty folder, and replace what is there
        cloud.upload(source, target, last=last)
        remove(source)


def copy_files(source: AnyPath, target: AnyPath, *, names: Iterable[str] | None = None, last: str = "") -> None:
    """Copy the files below `source`, or those of these names, to the same names below `target`, each atomically, the one named
    `last` at the end."""
    source_folder, target_folder = as_path(source), as_path(target)
    for name in sorted(walk(source_folder) if names is None else names, key=lambda name: (name == last, name)):
        file = source_folder / name
        if isinstance(file, Path) and is_remote(target_folder):
            cloud.upload_file(file, target_folder / name)  # which reads a part of it at a time
        else:
            make_folder((target_folder / name).parent)
            write_atomic(target_folder / name, read_bytes(file))


def move_folder(source: AnyPath, target: AnyPath, *, first: str = "") -> None:
    """Rename a folder within the same storage. In Cloud Storage the object named `first` goes first."""
    old, new = as_path(source), as_path(target)
    if isinstance(old, Path) and isinstance(new, Path):
        with explain("move", old):
            _move(old, new)
    else:
        cloud.move_folder(old, new, first=first)


def read_bytes(path: AnyPath) -> bytes:
    source = as_path(path)
    if not isinstance(source, Path):
        return cloud.read(source)
    with explain("read", source):
        return source.read_bytes()


def read_text(path: AnyPath) -> str:
    """The UTF-8 text of a user's file. Raises DataError with the offset of the first undecodable byte."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start:,})", location=os.fspath(path)) from error


def open_read(path: AnyPath) -> BinaryIO:
    """Open for reading as bytes (buffered, seekable); errors of reading are for the caller to `explain`."""
    source = as_path(path)
    if not isinstance(source, Path):
        return cloud.open_read(source)
    with explain("read", source):
        return source.open("rb")


def make_durable(folder: AnyPath) -> None:
    """Return when all that is below the folder, and its own name, are on disk; in Cloud Storage they always are."""
    root = as_path(folder)
    if isinstance(root, Path):
        with explain("write", root):
            for path in (*root.rglob("*"), root, root.parent):
                _sync(path)


def write_json(path: AnyPath, value: Any, *, sealed: bool = False) -> None:
    """Write JSON atomically: sorted keys, two-space indentation, a final newline, UTF-8; file names as `printable`.

    `sealed` adds a checksum of all else and of the file's name, by which `read_json` knows that nothing changed.
    """

    def text(value: Any) -> str:
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
        return re.sub("[\udc80-\udcff]", lambda byte: rf"\\x{ord(byte[0]) & 0xFF:x}", text)

    write_atomic(path, text({**value, _CHECKSUM: _checksum(path, json.loads(text(value)))} if sealed else value))


def read_json(path: AnyPath) -> dict[str, Any]:
    """A JSON object that tpulm wrote. Raises Damaged naming the file, and the position of an error of JSON; a sealed one's
    checksum is compared."""
    try:
        value = parse_json(read_bytes(path))
    except ValueError as error:
        raise Damaged(f"cannot read {os.fspath(path)}: not valid JSON ({error}); delete it and run again") from error
    if not isinstance(value, dict) or value.pop(_CHECKSUM, sealed := _checksum(path, value)) != sealed:
        raise Damaged(f"{os.fspath(path)} is not what was written, so it is damaged or was edited; delete it and run again")
    return value


_CHECKSUM: Final = "sha256_of_the_rest"


def _checksum(path: AnyPath, value: dict[str, Any]) -> str:
    rest = {name: of for name, of in value.items() if name != _CHECKSUM}
    return hashlib.sha256(json.dumps([as_path(path).name, rest], sort_keys=True).encode()).hexdigest()


def read_given_object(path: AnyPath, kind: type = dict) -> Any:
    """A JSON object, or list, of a user's model. Raises DataError if it is not one, as nothing here can recreate it."""
    location = os.fspath(path)
    try:
        value = parse_json(read_bytes(path))
    except ValueError as error:
        raise DataError(f"not valid JSON ({error}); copy or export the model again", location=location) from error
    if not isinstance(value, kind):
        raise DataError(
            f"not a JSON {'object' if kind is dict else 'array'}; copy or export the model again", location=location
        )
    return value


def exists(path: AnyPath) -> bool:
    """Whether a file or folder exists."""
    source = as_path(path)
    if isinstance(source, Path):
        with explain("look at", source):
            return source.exists()
    return cloud.info(source) is not None or cloud.is_folder(source)


def is_folder(path: AnyPath) -> bool:
    source = as_path(path)
    if not isinstance(source, Path):
        return cloud.is_folder(source)
    with explain("look at", source):
        return source.is_dir()


def info(path: AnyPath) -> FileInfo | None:
    """A file's size and time; None for a folder, or if there is none."""
    source = as_path(path)
    if not isinstance(source, Path):
        return cloud.info(source)
    with explain("look at", source):
        try:
            status = source.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise
        return None if source.is_dir() else FileInfo(status.st_size, status.st_mtime_ns)


def same_file(path: AnyPath, other: AnyPath) -> bool:
    """Whether both name one existing file, by whatever links and folders; in Cloud Storage whether the names are equal."""
    first, second = as_path(path), as_path(other)
    if isinstance(first, Path) and isinstance(second, Path):
        with explain("look at", first):
            return first.exists() and second.exists() and first.samefile(second)
    return str(first) == str(second)


def list_folder(path: AnyPath) -> list[PurePath]:
    """The entries of the folder, sorted by name; none if there is no folder."""
    folder = as_path(path)
    if not isinstance(folder, Path):
        return cloud.list_folder(folder)
    with explain("list", folder):
        try:
            return [*sorted(folder.iterdir())]
        except (FileNotFoundError, NotADirectoryError):
            return []


def walk(path: AnyPath, *, beginning: str = "", markers: bool = False) -> dict[str, FileInfo]:
    """All files below the folder, by relative name; in Cloud Storage with one request (or few), not one per file.

    Only names that start with `beginning` are listed; with `markers` also the objects that stand for folders there.
    """
    folder = as_path(path)
    if not isinstance(folder, Path):
        return cloud.walk(folder, beginning, markers=markers)
    with explain("list", folder):
        files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
        statuses = {name: file.stat() for name, file in files.items() if name.startswith(beginning)}
    return {name: FileInfo(status.st_size, status.st_mtime_ns) for name, status in statuses.items()}


def remove(path: AnyPath) -> None:
    """Delete a file or a whole folder; absent is fine."""
    target = as_path(path)
    if not isinstance(target, Path):
        cloud.remove(target)
        return
    with explain("delete", target):
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def remove_files(folder: AnyPath, names: Sequence[str], *, done: Callable[[str], None] = lambda name: None) -> None:
    """Delete files below a folder by relative name, in parallel; `done` is called with each name.

    Absent files are fine. An error is raised once all deletions were tried.
    """

    def delete(name: str) -> None:
        target = as_path(folder) / name
        if isinstance(target, Path):
            with explain("delete", target):
                target.unlink(missing_ok=True)
        else:
            cloud.remove_file(target)
        done(name)

    cloud.each(delete, names)


def sha256(path: AnyPath) -> str:
    """SHA-256 of the object's bytes, in hex."""
    with open_read(path) as stream, explain("read", path):
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def temporary_name(target: Path) -> Path:
    """A hidden, unique name beside the target."""
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")


def _move(source: Path, target: Path) -> None:
    """Rename atomically. An existing folder is first moved aside, so that no reader, even after a kill, finds half of it under
    its name."""
    aside = temporary_name(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    replaced = target.is_dir()
    if replaced:
        target.replace(aside)
    try:
        _rename(source, target)
    except OSError:
        if replaced:
            aside.replace(target)
        raise
    _sync(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _rename(source: Path, target: Path) -> None:
    """Rename, or copy, from another disk (W/checkpoints may be a link to one), under a name that comes when all is there."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = temporary_name(target)
        try:
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copy)
            copy.replace(target)
        finally:
            remove(copy)
        remove(source)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name. Without hard links, as on a mounted Google Drive, it is moved there, after an empty one."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
            raise
        target.touch(exist_ok=False)
        source.replace(target)


def _version(status: os.stat_result) -> str:
    """A replaced file has another inode and time."""
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other conditional writes of this file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _written(target: Path, data: bytes) -> Iterator[Path]:
    """A durable temporary file beside the target with these bytes; removed if the block fails."""
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


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable. File systems that cannot open a folder need no sync."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _payload(data: bytes | str) -> bytes:
    return data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data


_DEEPEST: Final = 100  # nesting of brackets; code that walks through the values is recursive
_TOO_DEEP: Final = f"brackets are nested more than {_DEEPEST} deep"
_LONG_KEY: Final = re.compile(rf"""(?m)(?:^|[{{,\[])[ \t]*(?:[\w"'-]+[ \t]*\.[ \t]*){{{_DEEPEST}}}""")  # each part takes longer
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: bytes | str, *, strict: bool = True, once: bool | None = None) -> Any:
    """The value. With `strict` it can be written again: numbers are finite, strings are UTF-8. With `once`, by default as
    `strict`, no object has a key twice."""
    try:
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        checks: Any = {"parse_constant": _not_finite, "parse_float": _finite} if strict else {}
        if strict if once is None else once:
            checks["object_pairs_hook"] = _once
        value = json.loads(decoded, **checks)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start:,}") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if decoded.count("[") + decoded.count("{") > _DEEPEST:
        _check_depth(value)
    if strict and _SURROGATE.search(decoded) and (half := re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))):
        raise ValueError(f"half of a surrogate pair (\\u{ord(half[0]):04x}), which has no UTF-8")
    return value


def parse_toml(text: bytes | str) -> dict[str, Any]:
    """The table. Bytes are UTF-8, or UTF-16 with its mark, which PowerShell writes."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-16" if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 at byte {error.start:,}") from error
        text = text.replace("\r\n", "\n")
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_DEEPEST} parts")
    try:
        value = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except tomllib.TOMLDecodeError as error:
        escape = any(word in str(error) for word in ("\\", "escape", "hex"))
        raise ValueError(f"{error}{f'. {ESCAPES}' if escape else ''}") from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        values = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        level = [item for item in values if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {brief(twice)} is there twice")
    return unique


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _not_finite(text)


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
