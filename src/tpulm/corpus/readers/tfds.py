"""TensorFlow Datasets, "tfds:NAME[/CONFIG][:VERSION]": preparing a dataset, and reading the shards of its splits.

A dataset is stored in data_dir/NAME[/CONFIG]/VERSION, as ArrayRecord shards with JSON that describes them. Nothing here needs
TensorFlow, except some datasets' generators.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus.documents import BATCH_BYTES, Batcher, DocumentBatch, Faults
from tpulm.corpus.paths import name_within
from tpulm.corpus.readers.lines import ByteStream, Input, InputFile
from tpulm.errors import ConfigError, DataError, MissingExtra, installing, some_of, suggest

_NAME: Final = re.compile(r"(?P<name>[a-z]\w*)(/(?P<config>[\w.+-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
DESCRIPTION: Final = "dataset_info.json"
_MOST_RECORDS: Final = 1024  # decoded at a time
_EXPANSION: Final = 4  # of records over the compressed shard: a guess
_WIKI40B_HEADS: Final = re.compile(r"\s*_START_(?:ARTICLE|SECTION|PARAGRAPH)_\s*")


class NotPrepared(ConfigError):
    """The dataset is missing; the message says where it was looked for."""


class DatasetName(NamedTuple):
    name: str
    config: str | None
    version: str | None

    def __str__(self) -> str:
        return self.name + (f"/{self.config}" if self.config else "") + (f":{self.version}" if self.version else "")


def parse(path: str) -> DatasetName:
    """ "tfds:wiki40b/ja" -> ("wiki40b", "ja", None). Raises ConfigError."""
    match = _NAME.fullmatch(path.removeprefix("tfds:"))
    if match is None:
        raise ConfigError(f"'{path}' is not a dataset name; write tfds:NAME, tfds:NAME/CONFIG or tfds:NAME/CONFIG:1.0.0")
    return DatasetName(match["name"], match["config"], match["version"])


def _data_dir_of(source: SourceConfig) -> PurePath:
    """The folder of prepared datasets; by default that of TensorFlow Datasets, $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    return storage.as_path(source.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def find_shards(source: SourceConfig, index: int, prepare: bool) -> list[InputFile]:
    """The shards of the source's split, in order; with `prepare` a missing dataset is prepared.

    Raises MissingExtra, and ConfigError if preparing fails, there is no such dataset or split, or shards are not ArrayRecord.
    """
    data_dir = _data_dir_of(source)
    try:
        folder = _find_folder(parse(source.path), data_dir)
    except NotPrepared:
        if not prepare:
            raise
        _prepare_dataset(source)
        folder = _find_folder(parse(source.path), data_dir)
    with described(folder) as builder:
        kind = str(getattr(builder.info.file_format, "value", builder.info.file_format))
        if kind != "array_record":
            raise ConfigError(
                f"{source.path} lies in {folder} as {kind}, which is read with TensorFlow alone; prepare it as ArrayRecord, "
                f"where TensorFlow is installed, and name that folder with data_dir:\n  {command(source, folder=None)}"
            )
        names = [PurePath(part.filename).name for part in _parts_of(builder, source)]
    if len(set(names)) < len(names):
        raise ConfigError(f"split '{source.split}' of {source.path} names the same shards twice; make a source of each part")
    shards: list[InputFile] = []
    for name in names:
        info = storage.info(folder / name)
        if info is None:
            raise ConfigError(f"{folder} is not whole: it has no {name}; delete the folder, and prepare the dataset again")
        path = str(folder / name)
        within = name_within(path, str(data_dir))
        shards.append(InputFile(path, within, index, "tfds", None, "utf-8", info.size, info.modified_ns))
    return shards


def command(source: SourceConfig, *, folder: PurePath | None) -> str:
    """The command that prepares the dataset elsewhere."""
    return f"tfds build {source.path.removeprefix('tfds:')} --file_format=array_record --data_dir={folder or 'FOLDER'}"


def _find_folder(name: DatasetName, data_dir: PurePath) -> PurePath:
    """The folder of the named version, by default the newest."""
    place = data_dir / name.name
    if name.config:
        place /= name.config
    below = [path.name for path in storage.list_folder(place)] if storage.is_folder(place) else []
    versions = sorted((item for item in below if _VERSION.fullmatch(item)), key=lambda item: [*map(int, item.split("."))])
    if not versions and name.config is None and (configs := _configs(place, below)):
        default = storage.read_json(place / ".config" / "metadata.json").get("defaultConfigName")
        chosen = default if default in configs else configs[0] if len(configs) == 1 else None
        if chosen is None:
            raise ConfigError(f"tfds:{name} has several configurations in {data_dir}: choose one of {', '.join(configs)}")
        return _find_folder(name._replace(config=chosen), data_dir)
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
    """The prepared configurations of a dataset; [] if it has none."""
    if not storage.exists(place / ".config" / "metadata.json"):
        return []
    return sorted(name for name in names if not name.startswith(".") and storage.is_folder(place / name))


@contextlib.contextmanager
def described(folder: PurePath) -> Iterator[Any]:
    """The TensorFlow Datasets builder of a prepared dataset, whose `info` has its splits and features."""
    tfds = library()
    with contextlib.ExitStack() as stack:
        here = folder
        if not isinstance(folder, Path):  # only the JSON files, with this package's retries and credentials
            here = stack.enter_context(storage.scratch_folder())
            for path in storage.list_folder(folder):
                if path.suffix == ".json":
                    (here / path.name).write_bytes(storage.read_bytes(path))
        try:
            with deprecations_ignored():
                builder = tfds.builder_from_directory(str(here))
        except Exception as error:
            raise ConfigError(f"{folder} is not a dataset ({type(error).__name__}: {error}); prepare it again") from error
        yield builder


@contextlib.contextmanager
def deprecations_ignored() -> Iterator[None]:
    """Ignore the library's use of old protobuf names, which does not concern the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _parts_of(builder: Any, source: SourceConfig) -> list[Any]:
    """The shards of the source's split and the records in them: objects with `filename`, `skip` and `take`."""
    names = list(builder.info.splits)
    split = source.split or "train"
    try:
        with deprecations_ignored():
            return list(builder.info.splits[split].file_instructions)
    except Exception as error:  # of several types, depending on the mistake
        near = suggest(split, names)
        raise ConfigError(
            f"{source.path} has no split '{split}'.{near} The splits: {', '.join(names)}; 'train[:10%]', 'train[1000:]' and "
            "'train+test' name parts of them and sums."
        ) from error


def library() -> Any:
    """The package tensorflow_datasets. Raises MissingExtra."""
    os.environ.setdefault("EPATH_USE_TF", "false")
    try:
        import array_record.python.array_record_module  # noqa: F401
        import tensorflow_datasets
    except ModuleNotFoundError as error:
        raise MissingExtra(f"datasets of TensorFlow Datasets need {error.name}: {installing('tfds')}") from error
    return tensorflow_datasets


def _prepare_dataset(source: SourceConfig) -> None:
    """Download the dataset and write its shards to its data_dir. Raises ConfigError saying what to do instead."""
    tfds = library()
    name, folder = parse(source.path), _data_dir_of(source)
    tfds.disable_progress_bar()
    try:
        with _silence():
            builder = tfds.builder(str(name), data_dir=str(folder), file_format="array_record")
            if hasattr(sys.modules[type(builder).__module__], "tf") and importlib.util.find_spec("tensorflow") is None:
                raise ModuleNotFoundError("its generator imports it", name="tensorflow")  # before any download
            _check_network(builder.url_infos or ())
            builder.download_and_prepare()
    except Exception as error:  # downloads, the generators of 200 datasets and their imports raise all kinds
        raise ConfigError(
            f"{source.path} is not prepared in {folder}, and cannot be here: {_cause(error)}\n"
            "Prepare it on a machine with a network and TensorFlow, in a folder or bucket that this one reads, and name that "
            f"with data_dir:\n  {command(source, folder=folder if storage.is_remote(folder) else None)}"
        ) from error


def _check_network(urls: Iterable[str]) -> None:
    """Raise ConnectionError if no host of the downloads has an address: the library itself would retry for minutes."""
    if getproxies():  # a proxy may know addresses that this machine does not
        return
    hosts = {host for url in urls if (host := urlsplit(url).hostname)}
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            continue
        return
    if hosts:
        raise ConnectionError(f"no address is known of {', '.join(sorted(hosts)[:3])}")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the library's output and the log of retried requests."""
    retries = logging.getLogger("urllib3.connectionpool")
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), deprecations_ignored():
            yield
    finally:
        retries.setLevel(level)


def _cause(error: BaseException) -> str:
    """The root cause in one line; the library wraps errors in others, and lists its 200 datasets after an unknown name."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError):
        if error.name == "tensorflow":
            return "this dataset's generator needs TensorFlow."
        return f"preparing needs the package {error.name}; try 'pip install {error.name}'."
    kind = type(error).__name__
    if kind == "DatasetNotFoundError":
        return "TensorFlow Datasets has no generator of that name that works without TensorFlow."
    if "Connection" in kind or "Timeout" in kind:
        return f"its source does not answer ({kind}); is there a network?"
    lines = str(error).strip().splitlines() or [""]
    return f"{kind}: {lines[0][:300]}"


def read_tfds(opened: Input) -> Iterator[DocumentBatch]:
    """Read a shard. Raises DataError if the feature is missing or not a single string, whatever `on_error` is."""
    _, source, stream, faults, _ = opened
    folder = storage.as_path(stream.path).parent
    name = PurePath(stream.path).name
    stream.exhaust()
    with described(folder) as builder:
        (part,) = (part for part in _parts_of(builder, source) if PurePath(part.filename).name == name)
        parse, path = _parser(builder.info.features, source.text_field, faults)
        is_wiki40b = builder.info.name == "wiki40b"
    batcher = Batcher(faults, place=lambda record: f"record {record}")
    for number, record in _records(stream, part.skip, part.skip + part.take, faults):
        try:
            value: Any = parse(record)
            for step in path:
                value = value[step]
            text = value.decode()
        except UnicodeDecodeError as error:
            faults.add("undecodable", f"'{source.text_field}' is not UTF-8 (byte {error.start} of it).", f"record {number}")
            continue
        except Exception as error:  # from protobuf or the library's checks
            faults.add("broken_file", f"not an example as described ({error}). Prepare it again.", f"record {number}")
            continue
        batcher.add(plain_wiki40b(text) if is_wiki40b else text, number)
        yield from batcher.full()
    yield from batcher.flush()


def plain_wiki40b(text: str) -> str:
    """The text without Wiki-40B's markers: titles, section headings and paragraphs (split at `_NEWLINE_`) become lines."""
    return _WIKI40B_HEADS.sub("\n", text).replace("_NEWLINE_", "\n").strip()


def _records(stream: ByteStream, first: int, last: int, faults: Faults) -> Iterator[tuple[int, bytes]]:
    """Records [first, last) of a shard, with their numbers."""
    from array_record.python.array_record_module import ArrayRecordReader

    number = first
    # A local copy, so that a bucket that does not respond is not mistaken for a broken file.
    with storage.local_copy(stream.path) as here:
        reader = None
        try:
            reader = ArrayRecordReader(str(here), options="readahead_buffer_size:0", file_reader_buffer_size=32 << 10)
            count = reader.num_records()
            if count < last:
                raise ValueError(f"it has {count} records, not {last}")
            size = max(1, stream.read_bytes * _EXPANSION // max(1, count))
            at_once = min(_MOST_RECORDS, max(1, 4 * BATCH_BYTES // size))
            while number < last:
                for record in reader.read(number, min(number + at_once, last)):
                    yield number, record
                    number += 1
        except (ValueError, RuntimeError, IndexError, OSError) as error:
            faults.add("broken_file", f"not a whole ArrayRecord file ({error}). Prepare it again.", f"after record {number}")
        finally:
            if reader is not None:
                with contextlib.suppress(RuntimeError):  # reported above; a broken file's reader raises it again
                    reader.close()


def _parser(features: Any, text_field: str, faults: Faults) -> tuple[Any, list[str]]:
    """A function that decodes only this feature of a record, and the path to the feature in its result."""
    import numpy as np
    from tensorflow_datasets.core.example_parser import ExampleParserNp

    described = features.get_serialized_info()
    path = [text_field] if text_field in described else text_field.split(".")
    spec: Any = described
    for name in path:
        if not isinstance(spec, dict) or name not in spec:
            names = list(_names(described))
            raise DataError(
                f"there is no feature '{text_field}'.{suggest(text_field, names)} The features: {', '.join(names)}. "
                "Set text_field.",
                location=faults.name,
            )
        spec = spec[name]
    kind = getattr(spec, "np_dtype", None)
    if isinstance(spec, dict) or spec.shape or kind not in (np.object_, np.str_, np.bytes_, object, str, bytes):
        what = "features of its own" if isinstance(spec, dict) else "a list" if spec.shape else str(np.dtype(kind))
        raise DataError(f"feature '{text_field}' holds {what}, not a text; set text_field.", location=faults.name)
    feature: Any = spec
    for name in reversed(path):
        feature = {name: feature}
    return ExampleParserNp(feature).parse_example, path


def _names(features: Any, prefix: str = "") -> Iterator[str]:
    for name, value in features.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield prefix + name
