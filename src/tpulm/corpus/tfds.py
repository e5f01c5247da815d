"""Datasets of TensorFlow Datasets, "tfds:NAME[/CONFIG][:VERSION]": where one is prepared, and the files of its splits.

A dataset lies in data_dir/NAME[/CONFIG]/VERSION, as ArrayRecord shards beside JSON that describes them. Nothing here, and
nothing that reads them, needs TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.errors import ConfigError, MissingExtra, installing, some_of, suggest

_NAME: Final = re.compile(r"(?P<name>[a-z]\w*)(/(?P<config>[\w.+-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
DESCRIPTION: Final = "dataset_info.json"


class NotPrepared(ConfigError):
    """The dataset is not there; the message says where it was looked for."""


class DatasetName(NamedTuple):
    name: str
    config: str | None
    version: str | None

    def __str__(self) -> str:
        return self.name + (f"/{self.config}" if self.config else "") + (f":{self.version}" if self.version else "")


def parse(path: str) -> DatasetName:
    """ "tfds:wiki40b/ja" -> ("wiki40b", "ja", None). Raises ConfigError."""
    found = _NAME.fullmatch(path.removeprefix("tfds:"))
    if found is None:
        raise ConfigError(
            f"'{path}' is no name of a dataset; write tfds:NAME, tfds:NAME/CONFIG or tfds:NAME/CONFIG:1.0.0, as in "
            "'tfds:wiki40b/ja'"
        )
    return DatasetName(found["name"], found["config"], found["version"])


def data_dir_of(source: SourceConfig) -> PurePath:
    """Where its datasets are prepared; by default TensorFlow Datasets' own place, $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    return storage.as_path(source.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def find_shards(source: SourceConfig) -> dict[str, storage.FileInfo]:
    """The files that hold the source's split, by path, in order.

    Raises NotPrepared where the dataset is not there, ConfigError for what is no dataset, split or ArrayRecord, and
    MissingExtra.
    """
    folder = find_folder(parse(source.path), data_dir_of(source))
    with described(folder) as builder:
        kind = str(getattr(builder.info.file_format, "value", builder.info.file_format))
        if kind != "array_record":
            raise ConfigError(
                f"{source.path} lies in {folder} as {kind}, which is read with TensorFlow alone; prepare it as ArrayRecord, "
                f"where TensorFlow is installed, and name that folder with data_dir:\n  {command(source, folder=None)}"
            )
        names = [PurePath(part.filename).name for part in parts_of(builder, source)]
    found: dict[str, storage.FileInfo] = {}
    for name in names:
        info = storage.info(folder / name)
        if info is None:
            raise ConfigError(f"{folder} is not whole: it has no {name}; delete the folder, and prepare the dataset again")
        if str(folder / name) in found:
            raise ConfigError(
                f"split '{source.split}' of {source.path} names the same shards twice; make a source of each part"
            )
        found[str(folder / name)] = info
    return found


def command(source: SourceConfig, *, folder: PurePath | None) -> str:
    """What prepares the dataset elsewhere."""
    return f"tfds build {source.path.removeprefix('tfds:')} --file_format=array_record --data_dir={folder or 'FOLDER'}"


def find_folder(name: DatasetName, data_dir: PurePath) -> PurePath:
    """The folder of the version that is meant; of several the newest."""
    place = data_dir / name.name
    if name.config:
        place /= name.config
    below = [path.name for path in storage.list_folder(place)] if storage.is_folder(place) else []
    versions = sorted((item for item in below if _VERSION.fullmatch(item)), key=_as_numbers)
    if not versions and name.config is None and (configs := _configs(place, below)):
        default = storage.read_json(place / ".config" / "metadata.json").get("defaultConfigName")
        chosen = default if default in configs else configs[0] if len(configs) == 1 else None
        if chosen is None:
            raise ConfigError(
                f"tfds:{name} has several configurations in {data_dir}: choose one of {', '.join(configs)}, as in "
                f"'tfds:{name.name}/{configs[0]}'"
            )
        return find_folder(name._replace(config=chosen), data_dir)
    if name.version in versions:
        versions = [name.version]
    elif name.version is not None or not versions:
        known = f" {place} has {some_of(versions, 5)}." if versions else ""
        near = storage.list_folder(place.parent) if not versions and storage.is_folder(place.parent) else []
        hint = suggest(place.name, [path.name for path in near if not path.name.startswith(".")])
        raise NotPrepared(f"tfds:{name} is not prepared in {data_dir}.{known}{hint}")
    folder = place / versions[-1]
    if not storage.exists(folder / DESCRIPTION):
        raise NotPrepared(f"tfds:{name} is not whole: {folder} has no {DESCRIPTION}; delete the folder and prepare it again")
    return folder


def _configs(place: PurePath, names: list[str]) -> list[str]:
    """The configurations of a dataset that has some."""
    if not storage.exists(place / ".config" / "metadata.json"):
        return []
    return sorted(name for name in names if not name.startswith(".") and storage.is_folder(place / name))


def _as_numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


@contextlib.contextmanager
def described(folder: PurePath) -> Iterator[Any]:
    """TensorFlow Datasets' own view of a prepared dataset: `info` with splits and features."""
    library = library_()
    with contextlib.ExitStack() as stack:
        here = folder
        if not isinstance(folder, Path):  # its descriptions alone, with this package's patience and credentials
            here = stack.enter_context(_descriptions(folder))
        try:
            with deprecations_ignored():
                builder = library.builder_from_directory(str(here))
        except Exception as error:
            raise ConfigError(
                f"{folder} is no dataset that TensorFlow Datasets can read ({type(error).__name__}: {error}); delete it and "
                "prepare it again"
            ) from error
        yield builder


@contextlib.contextmanager
def deprecations_ignored() -> Iterator[None]:
    """The library uses old names of protobuf's, which is not the user's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextlib.contextmanager
def _descriptions(folder: PurePath) -> Iterator[Path]:
    with storage.scratch_folder() as temporary:
        for path in storage.list_folder(folder):
            if path.suffix == ".json":
                (temporary / path.name).write_bytes(storage.read_bytes(path))
        yield temporary


def parts_of(builder: Any, source: SourceConfig) -> list[Any]:
    """Which records of which shards the source's split is: objects with `filename`, `skip` and `take`."""
    names = list(builder.info.splits)
    split = source.split or "train"
    try:
        with deprecations_ignored():
            return list(builder.info.splits[split].file_instructions)
    except Exception as error:  # of several types, by what is wrong with it
        near = suggest(split, names)
        raise ConfigError(
            f"{source.path} has no split '{split}'.{near} The splits: {', '.join(names)}; 'train[:10%]', 'train[1000:]' and "
            "'train+test' name parts of them and sums."
        ) from error


def library_() -> Any:
    """The package tensorflow_datasets. Raises MissingExtra."""
    os.environ.setdefault("EPATH_USE_TF", "false")
    try:
        import array_record.python.array_record_module  # noqa: F401
        import tensorflow_datasets
    except ModuleNotFoundError as error:
        raise MissingExtra(f"datasets of TensorFlow Datasets need {error.name}: {installing('tfds')}") from error
    return tensorflow_datasets
