"""Which TF1 checkpoint a path means: its prefix, one of its files, or the folder it lies in."""

from __future__ import annotations

import re
from pathlib import PurePath

from tpulm import storage
from tpulm.convert.sstable import is_table
from tpulm.convert.tensorbundle import INDEX
from tpulm.errors import ConfigError, DataError, suggest

LATEST = "checkpoint"  # the file in which tf.train.Saver notes the newest prefix
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_NEWEST = re.compile(r'^model_checkpoint_path:\s*"([^"]*)"', re.MULTILINE)


def find_checkpoint(path: PurePath) -> PurePath | None:
    """The prefix that PREFIX.index lies under; None where nothing there looks like a TF1 checkpoint.

    Raises ConfigError for a folder of several or a prefix that is wrong, DataError for a checkpoint of version 1 or without
    its index.
    """
    prefix = _without_ending(path)
    if storage.info(_index(prefix)) is not None:
        return prefix
    if storage.is_folder(path):
        return _in_folder(path)
    beside = {file.name for file in storage.list_folder(path.parent)}
    if any(name.startswith(prefix.name + ".") and _DATA.search(name) for name in beside):
        raise DataError(
            f"the checkpoint's data is there, but not its index; copy {prefix.name}{INDEX} there too", location=str(prefix)
        )
    there = storage.info(path)
    if there is not None:
        if is_table(bytes(storage.open_ranges(path).read(max(there.size - 8, 0), there.size))):
            raise DataError(
                "a checkpoint of version 1, a single file, which is not read; load it with TensorFlow and save it again with "
                "tf.compat.v1.train.Saver(), which writes .index and .data files",
                location=str(path),
            )
        return None
    prefixes = sorted(name.removesuffix(INDEX) for name in beside if name.endswith(INDEX))
    if prefixes:
        hint = suggest(prefix.name, prefixes) or f" Those of the folder: {', '.join(prefixes[:8])}"
        raise ConfigError(f"{path}: no such checkpoint: there is no {prefix.name}{INDEX}.{hint}")
    return None


def _index(prefix: PurePath) -> PurePath:
    return prefix.with_name(prefix.name + INDEX) if prefix.name else prefix / INDEX


def _without_ending(path: PurePath) -> PurePath:
    name = _DATA.sub("", path.name).removesuffix(INDEX)
    return path.with_name(name) if name and name != path.name else path


def _in_folder(folder: PurePath) -> PurePath | None:
    names = {file.name for file in storage.list_folder(folder)}
    prefixes = sorted(name.removesuffix(INDEX) for name in names if name.endswith(INDEX))
    if LATEST in names:
        newest = _NEWEST.search(storage.read_text(folder / LATEST))
        name = newest.group(1).replace("\\", "/").rpartition("/")[2] if newest else ""
        if name in prefixes:  # the folder may have been moved since it was written
            return folder / name
        if not prefixes:
            raise DataError(f"{LATEST} names {name!r}, of which no file is there; copy them too", location=str(folder))
    if len(prefixes) > 1:
        example = folder / prefixes[-1]
        raise ConfigError(f"{folder} holds {len(prefixes)} checkpoints: {', '.join(prefixes[:8])}. Name one, as in {example}")
    if not prefixes and any(_DATA.search(name) for name in names):
        raise DataError(f"there is a checkpoint's data, but no {INDEX} file; copy that there too", location=str(folder))
    return folder / prefixes[0] if prefixes else None
