"""Between this machine's disk and Cloud Storage: files made here that go there, and files there that are needed here."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpulm.errors import StorageError
from tpulm.storage import cloud, files, local
from tpulm.storage.causes import explain
from tpulm.storage.paths import TEMPORARY_SUFFIX, as_path


@contextlib.contextmanager
def built_aside(path: str | os.PathLike[str], *, last: str = "") -> Iterator[Path]:
    """A local name for a file or folder that the block makes, and that takes its place at `path` when the block ends well.

    It lies beside its place where that is on this machine, else in the folder for temporary files. An error removes it. In
    Cloud Storage the file of a folder that is called `last` comes last.
    """
    target = as_path(path)
    if isinstance(target, Path):
        with explain("write", target):
            target.parent.mkdir(parents=True, exist_ok=True)
        temporary = local.temporary_name(target)
    else:
        with explain("write to", tempfile.gettempdir()):
            temporary = Path(tempfile.mkdtemp(prefix="tpulm-", suffix=TEMPORARY_SUFFIX)) / target.name
    try:
        yield temporary
        files.publish(temporary, target, last=last)
    except BaseException:
        with contextlib.suppress(StorageError):
            files.remove(temporary)
        raise
    finally:
        if not isinstance(target, Path):
            with contextlib.suppress(OSError):
                temporary.parent.rmdir()


@contextlib.contextmanager
def local_copy(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The file on this machine: itself, or a copy that lives as long as the block."""
    source = as_path(path)
    if isinstance(source, Path):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="tpulm-", suffix=TEMPORARY_SUFFIX) as folder:
        copy = Path(folder) / source.name
        cloud.download(source, copy)
        yield copy
