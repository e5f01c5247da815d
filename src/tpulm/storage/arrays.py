"""Paths for libraries that do their own I/O: TensorStore, and Orbax through etils and gcsfs."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from tpulm.progress import held_stderr
from tpulm.storage.files import list_folder, walk
from tpulm.storage.paths import absolute, as_path, bucket_and_name, is_remote
from tpulm.storage.staging import scratch_folder

COMMIT = "commit_success.txt"  # Orbax's, without which it ignores a checkpoint in Cloud Storage

# TensorStore takes \ for /, UTF-8 only, and .__lock for its own; Orbax takes [x] for a wildcard.
_MISREAD = re.compile(r"[\\\[\ud800-\udfff]|\.__lock$")

LOG_LINE = re.compile(  # informational and warning lines of C++ libraries
    rb"(?m)[IW]\d{4} \d\d:\d\d:\d\d\.\d+ .*\n|^WARNING: All log messages before absl.*\n"
)


def tensorstore_location(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `kvstore` of a TensorStore specification for the folder `path`."""
    folder = as_path(path)
    if isinstance(folder, Path):
        return {"driver": "file", "path": f"{_plain(folder)}/"}
    bucket, name = bucket_and_name(folder)
    _sign_in(bucket)
    return {"driver": "gcs", "bucket": bucket, "path": f"{name}/"}


def orbax_folder(path: str | os.PathLike[str]) -> PurePath:
    """An absolute folder for Orbax; gcsfs is configured if it is in Cloud Storage."""
    folder = as_path(path)
    if isinstance(folder, Path):
        return _plain(folder)
    # Else gcsfs asks another API about each bucket, and waits half a minute where there is none.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    from fsspec import config

    _sign_in(bucket_and_name(folder)[0])
    # Listings must not be cached: TensorStore and other hosts write there, too.
    config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return folder


def _plain(folder: Path) -> Path:
    """The absolute path; where the libraries would misread a name in it, by way of a link that lasts as long as the process."""
    parts = absolute(folder).parts
    count = max((place for place, part in enumerate(parts, 1) if _MISREAD.search(part)), default=0)
    return Path(_link(Path(*parts[:count])), *parts[count:]) if count else Path(*parts)


@cache
def _link(folder: Path) -> Path:
    stack = contextlib.ExitStack()
    link = stack.enter_context(scratch_folder()) / "folder"
    atexit.register(stack.close)
    link.symlink_to(folder)
    return link


@cache
def _sign_in(bucket: str) -> None:
    """Have TensorStore find its credentials now, as it logs which ones in a line that none of its settings silences."""
    import tensorstore

    impatient = tensorstore.Context({"gcs_request_retries": {"max_retries": 1}})
    with held_stderr(without=LOG_LINE), contextlib.suppress(Exception):  # an error recurs when it matters
        store = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket}, context=impatient).result()
        store.read("tpulm").result()


def committed_steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps of the complete checkpoints in W/checkpoints, in order, including damaged ones."""
    if not is_remote(folder):
        return sorted(int(path.name) for path in list_folder(folder) if path.name.isdigit())
    names = [PurePath(name) for name in walk(folder)]
    return sorted(int(name.parts[0]) for name in names if name.parts[1:] == (COMMIT,) and name.parts[0].isdigit())
