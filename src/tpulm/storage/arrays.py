"""Paths as libraries take them that do their own reading and writing: TensorStore, and Orbax through etils and gcsfs."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Any

from tpulm.storage.paths import as_path, bucket_and_name


def tensorstore_location(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `kvstore` of a TensorStore specification for the folder `path`."""
    folder = as_path(path)
    if isinstance(folder, Path):
        return {"driver": "file", "path": f"{folder.absolute()}/"}
    bucket, name = bucket_and_name(folder)
    return {"driver": "gcs", "bucket": bucket, "path": f"{name}/"}


def orbax_folder(path: str | os.PathLike[str]) -> PurePath:
    """An absolute folder for Orbax, with gcsfs set up for it where it lies in Cloud Storage."""
    folder = as_path(path)
    if isinstance(folder, Path):
        return folder.absolute()
    # Or gcsfs asks another API for each bucket, and waits for half a minute where there is none.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    from fsspec import config

    # Listings must not be remembered: TensorStore and other hosts write there, too.
    config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return folder
