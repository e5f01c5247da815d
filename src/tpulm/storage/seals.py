"""What makes damage known: sizes and checksums of files, recorded after them, and the seal of a checkpoint made of these."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from tpulm.errors import StorageError
from tpulm.storage.arrays import COMMIT
from tpulm.storage.causes import explain
from tpulm.storage.files import info, make_durable, open_read, parse_json, read_bytes, walk, write_json
from tpulm.storage.paths import is_remote

SEAL = "objects.json"  # of a checkpoint: {"objects": its `listing`, …}
_WRITTEN_LATER = {SEAL, "_CHECKPOINT_METADATA", COMMIT}
_READ_BYTES = 8 << 20


def seal(folder: PurePath, **values: Any) -> None:
    """List the objects of a checkpoint that is about to be committed, with further values, once all are on disk."""
    make_durable(folder)  # Orbax leaves its JSON files to the kernel, which may take half a minute
    objects = {name: entry for name, entry in listing(folder).items() if name not in _WRITTEN_LATER}
    write_json(folder / SEAL, {"objects": objects, **values})


def listing(folder: PurePath, names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """The sizes and checksums of the files below a folder, or of those of these names that exist, by relative name. Local files
    are read; Cloud Storage supplies its own checksums."""
    files = walk(folder) if names is None else {name: one for name in names if (one := info(folder / name)) is not None}
    return {name: {"bytes": one.size, "crc32c": one.crc32c or _crc32c(folder / name)} for name, one in files.items()}


def differences(folder: PurePath, recorded: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(name, what is wrong with it), for the files that differ from a `listing`; further files are no difference.

    Raises StorageError if Cloud Storage does not answer, which says nothing about the files.
    """
    files = walk(folder)
    for name, was in recorded.items():
        if name not in files:
            yield name, "is missing"
        elif files[name].size != was["bytes"]:
            yield name, f"has {files[name].size} bytes, not {was['bytes']}"
        elif (files[name].crc32c or _crc32c(folder / name)) != was["crc32c"]:
            yield name, "has another checksum than when it was written"


def find_damage(folder: PurePath) -> str | None:
    """What is wrong with a checkpoint, or None. Raises StorageError as `differences` does."""
    try:
        if info(folder / SEAL) is None:
            return f"{SEAL} is missing"
        difference = next(differences(folder, parse_json(read_bytes(folder / SEAL))["objects"]), None)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return f"{SEAL} is not a list of objects in JSON ({error})"
    except StorageError as error:
        if is_remote(folder):
            raise
        return str(error)
    return None if difference is None else " ".join(difference)


def _crc32c(path: PurePath) -> str:
    """The checksum of a file as Cloud Storage gives it: base64 of the big-endian bytes."""
    import google_crc32c  # takes what few commands need

    checksum = google_crc32c.Checksum()
    with open_read(path) as stream, explain("read", path):
        while data := stream.read(_READ_BYTES):
            checksum.update(data)
    return base64.b64encode(checksum.digest()).decode()
