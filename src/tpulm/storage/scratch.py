"""A folder for files on their way to or from Cloud Storage, in the machine's place for temporary files ($TMPDIR)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpulm.storage.causes import explain
from tpulm.storage.paths import TEMPORARY_SUFFIX

_PREFIX = "tpulm-"


def make_scratch() -> Path:
    """A new folder, its maker's to remove; those that killed processes of this machine left behind are removed first."""
    place = Path(tempfile.gettempdir())
    with explain("write to", place):
        for left in place.glob(f"{_PREFIX}*{TEMPORARY_SUFFIX}"):
            process = left.name.removeprefix(_PREFIX).partition("-")[0]
            if process.isdigit() and not _is_alive(int(process)):
                shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", suffix=TEMPORARY_SUFFIX, dir=place))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """The same for the length of a block."""
    folder = make_scratch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
