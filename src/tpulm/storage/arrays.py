"""Where an array lies, as TensorStore says it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tpulm.storage.paths import as_path, bucket_and_name


def tensorstore_location(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `kvstore` of a TensorStore specification for the folder `path`."""
    folder = as_path(path)
    if isinstance(folder, Path):
        return {"driver": "file", "path": f"{folder.absolute()}/"}
    bucket, name = bucket_and_name(folder)
    return {"driver": "gcs", "bucket": bucket, "path": f"{name}/"}
