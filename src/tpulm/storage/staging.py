"""Between this machine's disk and Cloud Storage: files made here that go there, and files there that are needed here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tpulm.errors import StorageError
from tpulm.storage import cloud, files, local
from tpulm.storage.causes import explain
from tpulm.storage.paths import as_path
from tpulm.storage.scratch import scratch_folder

_unfinished: set[Path] = set()


@contextlib.contextmanager
def built_aside(path: str | os.PathLike[str], *, last: str = "") -> Iterator[Path]:
    """A local name for a file or folder that the block makes, and that takes its place at `path` when the block ends well.

    It lies beside its place where that is on this machine, else in the folder for temporary files. An error removes it, and
    what a killed process left of the same file the next attempt does; so only one process may build it at a time. In Cloud
    Storage the file of a folder that is called `last` comes last.
    """
    target = as_path(path)
    if not isinstance(target, Path):
        with scratch_folder() as folder:
            yield folder / target.name
            files.publish(folder / target.name, target, last=last)
        return
    with explain("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in local.temporaries_of(target):
            local.remove(left)
    temporary = local.temporary_name(target)
    _unfinished.add(temporary)
    try:
        yield temporary
        files.publish(temporary, target)
    except BaseException:
        with contextlib.suppress(StorageError):
            files.remove(temporary)
        raise
    finally:
        _unfinished.discard(temporary)


def abandon() -> None:
    """Remove what `built_aside` has under way on this machine: for a process that ends without unwinding."""
    for temporary in list(_unfinished):
        with contextlib.suppress(StorageError):
            files.remove(temporary)


@contextlib.contextmanager
def local_copy(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The file on this machine: itself, or a copy that lives as long as the block."""
    source = as_path(path)
    if isinstance(source, Path):
        yield source
        return
    with scratch_folder() as folder:
        copy = folder / source.name
        cloud.download(source, copy)
        yield copy
