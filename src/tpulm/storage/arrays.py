"""Paths as libraries take them that do their own reading and writing: TensorStore, and Orbax through etils and gcsfs."""

from __future__ import annotations

import contextlib
import os
import re
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from tpulm.progress import held_stderr
from tpulm.storage.files import list_folder, walk
from tpulm.storage.paths import as_path, bucket_and_name, is_remote

COMMIT = "commit_success.txt"  # Orbax's, without which it sees no checkpoint in Cloud Storage

LOG_LINE = re.compile(  # in which C++ libraries inform or warn
    rb"(?m)[IW]\d{4} \d\d:\d\d:\d\d\.\d+ .*\n|^WARNING: All log messages before absl.*\n"
)


def tensorstore_location(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `kvstore` of a TensorStore specification for the folder `path`."""
    folder = as_path(path)
    if isinstance(folder, Path):
        return {"driver": "file", "path": f"{folder.absolute()}/"}
    bucket, name = bucket_and_name(folder)
    _sign_in(bucket)
    return {"driver": "gcs", "bucket": bucket, "path": f"{name}/"}


def orbax_folder(path: str | os.PathLike[str]) -> PurePath:
    """An absolute folder for Orbax, with gcsfs set up for it where it lies in Cloud Storage."""
    folder = as_path(path)
    if isinstance(folder, Path):
        return folder.absolute()
    # Or gcsfs asks another API for each bucket, and waits for half a minute where there is none.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    from fsspec import config

    _sign_in(bucket_and_name(folder)[0])
    # Listings must not be remembered: TensorStore and other hosts write there, too.
    config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return folder


@cache
def _sign_in(bucket: str) -> None:
    """Have TensorStore find its credentials now: it tells which in a line of its log, that no setting of its own silences."""
    import tensorstore

    impatient = tensorstore.Context({"gcs_request_retries": {"max_retries": 1}})
    with held_stderr(without=LOG_LINE), contextlib.suppress(Exception):  # what is wrong will be so when it matters
        store = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket}, context=impatient).result()
        store.read("tpulm").result()


def committed_steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps of the checkpoints in W/checkpoints that were finished, in order; damaged ones are among them."""
    if not is_remote(folder):
        return sorted(int(path.name) for path in list_folder(folder) if path.name.isdigit())
    names = [PurePath(name) for name in walk(folder)]
    return sorted(int(name.parts[0]) for name in names if name.parts[1:] == (COMMIT,) and name.parts[0].isdigit())
