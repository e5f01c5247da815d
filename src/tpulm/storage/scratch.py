"""Folders for files on their way, in the machine's place for temporary files ($TMPDIR)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpulm.storage.causes import explain
from tpulm.storage.paths import TEMPORARY_SUFFIX

_PREFIX = "tpulm-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for the length of a block. What killed processes left is removed first."""
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.gettempdir())
        remove_leftovers()
        with explain("write to", place):
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", suffix=TEMPORARY_SUFFIX, dir=place))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # NFS locks no folders, and then nobody removes it but this process
            stack.enter_context(_locked(folder))
        yield folder


def remove_leftovers() -> None:
    """Remove the folders of processes that are certainly dead: neither here, nor where this place is shared."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{TEMPORARY_SUFFIX}"):
            process = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if process.isdigit() and not _is_alive(int(process)):
                with contextlib.suppress(OSError), _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where it is another user's, no folder, or locked by a process (in another container, say)."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
