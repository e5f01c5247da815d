"""Path types: pathlib's for local paths, etils' for gs://bucket/object. Both are pure paths: `storage` does the I/O."""

from __future__ import annotations

import glob
import os
import re
import sys
from pathlib import Path, PurePath
from typing import NamedTuple

from tpulm.errors import ConfigError

REMOTE = "gs://"
_BUCKET = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
TEMPORARY_SUFFIX = ".tpulm-tmp"
ESCAPES = r"In TOML, \ between double quotes begins an escape: write paths between single quotes, or with /"


class FileInfo(NamedTuple):
    size: int  # bytes
    modified_ns: int  # since 1970
    crc32c: str = ""  # base64; known without reading only in Cloud Storage


def cache_folder(kind: str) -> Path:
    """$XDG_CACHE_HOME/tpulm/KIND; XDG_CACHE_HOME defaults to ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tpulm" / kind


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether the path is in Cloud Storage."""
    return os.fspath(path).startswith(REMOTE)


def as_path(path: str | os.PathLike[str]) -> PurePath:
    """The path, with the interface of pathlib.PurePath. Raises ConfigError unless it is local or gs://."""
    text = os.fspath(path)
    try:
        named = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        named = False
    if not named:
        encoding = sys.getfilesystemencoding()
        locale = "" if encoding == "utf-8" else f", or is not {encoding} as this locale's names are: set PYTHONUTF8=1 for UTF-8"
        raise ConfigError(f"{text!r} cannot be a path: it holds a NUL character or half of a surrogate pair{locale}")
    if text.startswith(REMOTE):
        return _remote(text)
    if "://" in text:
        scheme = text.partition("://")[0]
        raise ConfigError(f"{text}: paths are local or gs://bucket/…, not {scheme}://; copy the files to one of the two first")
    if text.startswith("gs:/"):
        raise ConfigError(f"{text}: a path in Cloud Storage begins with {REMOTE}, with two slashes")
    local = Path(text)
    if not text.startswith("~"):
        return local.absolute() if str(local).startswith("~") else local  # ./~x, where pathlib forgets what precedes the tilde
    try:
        return local.expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{text}: there is no such user; write the path out, or ./{text} for a file of that name") from error


def absolute(path: str | os.PathLike[str]) -> PurePath:
    """The path from the root and without `..`: for what is recorded, and for what does not leave `..` to the operating system.

    As there, link/.. is the folder that holds the link's target. Other links stay, and so does `..` behind a wildcard.
    """
    original = as_path(path)
    if not isinstance(original, Path):
        return original
    parts = original.absolute().parts
    above = Path(*parts[: len(parts) - parts[::-1].index("..")]) if ".." in parts else Path(parts[0])
    if glob.has_magic(str(above)) and not above.exists():
        return original.absolute()
    return Path(os.path.realpath(above), *parts[len(above.parts) :])


def printable(path: str | os.PathLike[str]) -> str:
    """A path for messages and manifests: bytes of a file name that are not UTF-8 appear as \\xbf, a line end as \\n."""
    text = os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return re.sub(r"[\x00-\x1f]", lambda control: repr(control[0])[1:-1], text)


def bucket_and_name(path: str | os.PathLike[str]) -> tuple[str, str]:
    """ "gs://b/x/y" -> ("b", "x/y"); the name is "" for a bucket as a whole."""
    bucket, _, name = os.fspath(path).removeprefix(REMOTE).partition("/")
    return bucket, name.rstrip("/")


def _remote(text: str) -> PurePath:
    bucket, _ = bucket_and_name(text)
    if not bucket:
        raise ConfigError(f"{text}: name the bucket, as in {REMOTE}my-bucket/folder")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{text}: '{bucket}' cannot be a bucket's name, which is of small letters, digits, '-', '_' and '.', and begins "
            "and ends with a letter or digit"
        )
    if any(part in (".", "..") for part in text.split("/")):
        raise ConfigError(f"{text}: names in Cloud Storage have no . and .. for folders; write the path out")
    if re.search("[\r\n\ud800-\udfff]", text):  # docs.cloud.google.com/storage/docs/objects#naming
        raise ConfigError(f"{printable(text)!r}: names in Cloud Storage are UTF-8 without line breaks; take another")
    from etils import epath  # takes a tenth of a second, which local runs save

    return epath.Path(text.rstrip("/"))
