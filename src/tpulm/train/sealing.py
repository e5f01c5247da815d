"""What a checkpoint consists of: what is missing or damaged is known before it is read, and what was read wrong afterwards.

STEP/objects.json lists the objects with their sizes and checksums, and the arrays with theirs. It is written when all else is,
and before the commit. It is of names within the checkpoint alone, so that a copy in another bucket or on disk is as good as the
original.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import google_crc32c

from tpulm import storage
from tpulm.errors import CheckpointError, StorageError

FORMAT_VERSION = 2  # of the state and metadata; version 1, which did not say so, counted the data in batches
SEAL = "objects.json"
_WRITTEN_LATER = {SEAL, "_CHECKPOINT_METADATA", storage.COMMIT}
_READ_BYTES = 8 << 20


def seal(folder: PurePath, arrays: Mapping[str, int]) -> None:
    """List the objects of a checkpoint that is about to be committed, and the checksums of its arrays."""
    objects = {
        name: {"bytes": found.size, "crc32c": found.crc32c or _crc32c(folder / name)}
        for name, found in storage.walk(folder).items()
        if name not in _WRITTEN_LATER
    }
    storage.write_json(folder / SEAL, {"format_version": FORMAT_VERSION, "objects": objects, "arrays": dict(arrays)})


def damage(folder: PurePath) -> str | None:
    """What is wrong with a checkpoint, or None. Files of this machine are read; Cloud Storage knows its checksums.

    A Cloud Storage that does not answer raises StorageError: that says nothing of the checkpoint.
    """
    there = storage.walk(folder)
    if SEAL not in there:
        return f"{SEAL} is missing"
    try:
        listed: dict[str, Any] = storage.parse_json(storage.read_bytes(folder / SEAL))["objects"]
        for name, recorded in listed.items():
            if name not in there:
                return f"{name} is missing"
            if there[name].size != recorded["bytes"]:
                return f"{name} has {there[name].size} bytes, not {recorded['bytes']}"
            if (there[name].crc32c or _crc32c(folder / name)) != recorded["crc32c"]:
                return f"{name} has another checksum than when it was written"
    except (KeyError, TypeError, AttributeError) as error:
        return f"{SEAL} is not a list of objects ({error})"
    except ValueError as error:
        return f"{SEAL} is not valid JSON ({error})"
    except StorageError as error:
        if storage.is_remote(folder):
            raise
        return str(error)
    return None


def check_format(folder: PurePath) -> None:
    """Raise CheckpointError for a checkpoint that another version of tpulm wrote."""
    found = storage.read_json(folder / SEAL).get("format_version", 1)
    if found != FORMAT_VERSION:
        what = "an older tpulm, which counted batches of data where this one counts rows" if found == 1 else "another tpulm"
        raise CheckpointError(
            f"checkpoint {folder} is of {what} (format {found}, this tpulm reads {FORMAT_VERSION}). Continue with the version "
            "that wrote it, or begin a new work folder; --init DIR takes the weights of an exported model along"
        )


def array_checksums(folder: PurePath) -> dict[str, int]:
    """Of the arrays, as `seal` was given them."""
    return storage.read_json(folder / SEAL)["arrays"]


def _crc32c(path: PurePath) -> str:
    """Base64 of the big-endian bytes, as Cloud Storage gives it."""
    checksum = google_crc32c.Checksum()
    with storage.open_read(path) as stream, storage.explain("read", path):
        while data := stream.read(_READ_BYTES):
            checksum.update(data)
    return base64.b64encode(checksum.digest()).decode()
