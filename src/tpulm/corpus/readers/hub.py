"""Datasets of the Hugging Face Hub, "hub:NAME", and local folders of the same form, "hub:./folder".

A dataset is a repository at a commit: its files are identified by the commit, and read from there. Files of a folder are
identified by their bytes, like all other local files.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus.documents import Batcher, DocumentBatch, Faults
from tpulm.corpus.readers.lines import Input, InputFile
from tpulm.corpus.readers.parquet import add_texts, check_column
from tpulm.errors import ConfigError, DataError, MissingExtra, TpulmError, Unavailable, installing, suggest

if TYPE_CHECKING:
    import pyarrow as pa


_ON_THE_HUB: Final = re.compile(r"hf://datasets/[^@]+@[^/]+/")
_ANSWER_SECONDS: Final = 10.0
# Of a read: 5 seconds apart, 20 if the server is unavailable, 60 if it limits the rate. Each includes half a minute of the
# client's own retries.
_RETRIES: Final = 3
_PATHS_A_REQUEST: Final = 500
_ROWS: Final = 1000  # read at once
_NETWORK: Final = ("httpx", "httpcore", "requests", "urllib3", "aiohttp", "socket", "ssl")  # whose errors may be temporary
_PAGE: Final = "https://huggingface.co/datasets"


def is_folder(path: str) -> bool:
    """Whether "hub:…" names a local folder rather than a dataset on the Hub."""
    return path.removeprefix("hub:").startswith((".", "/", "~"))


def find_data_files(source: SourceConfig, index: int, download: bool) -> list[InputFile]:
    """The files of the source's split, in the dataset's order; with `download` they are downloaded unless streamed.

    Raises ConfigError if there is no such dataset, config or split, Unavailable if the Hub does not respond, and MissingExtra.
    """
    library()
    commit = "" if is_folder(source.path) else _commit(source)
    builder = _open_builder(source, commit)
    names = names_of(builder, source)
    if not commit:
        folder = _folder(source) or Path()
        found: list[InputFile] = []
        for name in names:
            info = storage.info(folder / name)
            if info is None:
                raise ConfigError(f"{source.path} names {name}, which is not a file of this machine; download it and name that")
            found.append(InputFile(str(folder / name), name, index, "hub", None, "utf-8", info.size, info.modified_ns))
        return found
    try:
        sizes = _sizes(source, names, commit)
        if download and not source.streaming:
            builder.download_and_prepare()
    except Exception as error:
        raise explained(source, error) from error
    place = f"hub:{_name(source)}"
    return [InputFile(f"{place}/{name}", name, index, "hub", None, "utf-8", sizes.get(name, 0), 0, commit) for name in names]


def _open_builder(source: SourceConfig, commit: str) -> Any:
    """The library's builder of the dataset at a commit."""
    folder = _folder(source)
    if folder is not None and (folder / "state.json").is_file():
        raise ConfigError(
            f"{folder} was written by save_to_disk, which is no form of a dataset on the Hub; write it with "
            "Dataset.to_parquet('…/train.parquet') and name that folder, or that file without hub:"
        )
    try:
        if folder is not None:
            return library().load_dataset_builder(str(folder), source.config)
        builder = _builder_on_the_hub(_name(source), source.config, commit)
        if not isinstance(builder.config.data_files, Mapping):  # from the library's cache, since the Hub refused
            from huggingface_hub import HfApi

            HfApi().auth_check(_name(source), repo_type="dataset")
        return builder
    except Exception as error:
        if isinstance(error, ValueError) and (message := _wrong_config(source, commit)):
            raise ConfigError(message) from error
        raise explained(source, error) from error


def _split_of(builder: Any, source: SourceConfig) -> str:
    """The name of the source's split. Raises ConfigError if the dataset lacks it."""
    files = builder.config.data_files
    if not isinstance(files, Mapping):
        raise ConfigError(
            f"{source.path} has no data files that can be read one by one; download it and name its files as sources"
        )
    split = source.split or "train"
    if split not in files:
        names = ", ".join(str(name) for name in files)
        also = " A part of a split cannot be named; corpus.max_documents limits what is read." if "[" in split else ""
        raise ConfigError(f"{source.path} has no split '{split}'.{suggest(split, map(str, files))} Its splits: {names}.{also}")
    return split


def names_of(builder: Any, source: SourceConfig) -> list[str]:
    """The names of the split's data files, relative to the dataset and in its order."""
    urls = [str(url) for url in builder.config.data_files[_split_of(builder, source)]]
    folder = _folder(source)
    return [os.path.relpath(url, folder) if folder is not None else _ON_THE_HUB.sub("", url) for url in urls]


@functools.lru_cache(maxsize=16)
def _builder_on_the_hub(name: str, config: str | None, commit: str) -> Any:
    return library().load_dataset_builder(name, config, revision=commit)


def _wrong_config(source: SourceConfig, commit: str) -> str | None:
    """The error message if the configuration is wrong, else None."""
    folder = _folder(source)
    place = str(folder) if folder is not None else _name(source)
    try:
        known = list(library().get_dataset_config_names(place, revision=commit or None))
    except Exception:  # then something else is wrong
        return None
    if source.config is not None and source.config not in known:
        return (
            f"{source.path} has no config '{source.config}'.{suggest(source.config, known)} Choose one of {', '.join(known)}."
        )
    if source.config is None and len(known) > 1:
        return f"{source.path} has several configurations; set config to one of {', '.join(known)}"
    return None


def _commit(source: SourceConfig) -> str:
    """The revision's current commit: the first request, so that a missing network is noticed at once."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    name = _name(source)
    if HF_HUB_OFFLINE or library().config.HF_HUB_OFFLINE:
        raise unavailable(source, "HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set in the environment")
    try:
        return str(HfApi().dataset_info(name, revision=source.revision, timeout=_ANSWER_SECONDS).sha)
    except Exception as error:
        raise explained(source, error) from error


def _sizes(source: SourceConfig, names: Sequence[str], commit: str) -> dict[str, int]:
    from huggingface_hub import HfApi

    found: dict[str, int] = {}
    for first in range(0, len(names), _PATHS_A_REQUEST):
        some = list(names[first : first + _PATHS_A_REQUEST])
        items = HfApi().get_paths_info(_name(source), some, revision=commit, repo_type="dataset")
        found.update({item.path: int(getattr(item, "size", 0)) for item in items})
    return found


def _name(source: SourceConfig) -> str:
    name = source.path.removeprefix("hub:")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ConfigError(
            f"'{source.path}' is no name of a dataset; write hub:NAME, hub:OWNER/NAME as in 'hub:wikimedia/wikipedia', or "
            "hub:./folder; what else its page shows goes into config, split and revision"
        )
    return name


def _folder(source: SourceConfig) -> Path | None:
    if not is_folder(source.path):
        return None
    folder = Path(source.path.removeprefix("hub:")).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; 'hub:…' names a folder with the files of a dataset, or one on the Hub")
    if source.revision is not None or not source.streaming:
        name = "revision" if source.revision is not None else "streaming = false"
        raise ConfigError(f"{name} is for datasets on the Hub, and {folder} is a folder; leave it out")
    return folder


@functools.cache
def library() -> Any:
    """The package datasets, silenced and with few retries. Raises MissingExtra."""
    try:
        import datasets
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise MissingExtra(f"datasets of the Hugging Face Hub need {error.name}: {installing('hub')}") from error
    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    huggingface_hub.utils.logging.set_verbosity(logging.CRITICAL)
    for name in ("STREAMING_READ_MAX_RETRIES", "STREAMING_OPEN_MAX_RETRIES"):
        setattr(importlib.import_module("datasets.config"), name, _RETRIES)
    return datasets


def unavailable(source: SourceConfig, why: str) -> Unavailable:
    name = source.path.removeprefix("hub:")
    return Unavailable(
        f"{source.path} cannot be read from the Hugging Face Hub: {why}. Without a network, bring the dataset here from "
        f"where there is one and name the folder:\n  hf download {name} --repo-type dataset --local-dir FOLDER\n"
        '  sources = [{path = "hub:FOLDER"}], FOLDER beginning with ./ or /'
    )


def explained(source: SourceConfig, error: BaseException) -> TpulmError:
    """The error to raise instead of a library's."""
    if isinstance(error, TpulmError):
        return error
    name = source.path.removeprefix("hub:")
    kinds = {kind.__name__ for one in _causes(error) for kind in type(one).__mro__}
    text = next(iter(str(error).strip().splitlines()), "")[:300]
    if "GatedRepoError" in kinds or "gated dataset" in text:
        return ConfigError(
            f"{source.path} is gated: accept its terms on {_PAGE}/{name}, then let this machine in with 'hf auth login' or a "
            "token in HF_TOKEN"
        )
    if "RevisionNotFoundError" in kinds:
        return ConfigError(f"{source.path} has no revision '{source.revision}'; {_PAGE}/{name}/commits/main lists them")
    if {"RepositoryNotFoundError", "DatasetNotFoundError", "HFValidationError"} & kinds:
        return ConfigError(
            f"the Hugging Face Hub has no dataset '{name}', or shows it to its owners alone: look for it at {_PAGE}; if it is "
            "private, 'hf auth login' or a token in HF_TOKEN lets this machine in"
        )
    if "scripts are no longer supported" in str(error) or "trust_remote_code" in str(error):
        return ConfigError(
            f"{source.path} is a program that makes a dataset, which is not run. The Hub has often converted such a dataset: "
            f'try revision = "refs/convert/parquet"; {_PAGE}/{name} shows its files'
        )
    if _is_network(error):
        return unavailable(source, f"it does not answer ({type(error).__name__}: {text})")
    if {"EmptyDatasetError", "DataFilesNotFoundError", "FileNotFoundError"} & kinds:
        return ConfigError(
            f"{source.path} holds no files of text or tables that can be read ({text}); a dataset is of .parquet, .jsonl, "
            ".csv or .txt files"
        )
    return DataError(f"{type(error).__name__}: {text}", location=source.path)


def _is_network(error: BaseException) -> bool:
    """Whether a retry may succeed later: no network, no response, or a server failure."""
    return any(
        isinstance(one, (ConnectionError, TimeoutError))
        or any(kind.__module__.startswith(_NETWORK) for kind in type(one).__mro__)
        for one in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(10):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def read_hub(given: Input) -> Iterator[DocumentBatch]:
    """Read a data file. Raises DataError if it lacks the column, and Unavailable if the Hub stops responding."""
    file, source, stream, faults, advance = given
    builder = _open_builder(source, file.sha256)
    if not file.sha256:
        stream.exhaust()
    left = file.bytes if file.sha256 else 0  # bytes; progress is estimated from the size of the tables read
    batcher = Batcher(faults, place=lambda row: f"row {row}")
    path: list[str] = []
    row = 0
    for table in _tables(builder, file, source, faults):
        path = path or check_column(table.schema, source.text_field, faults)
        yield from add_texts(table.column(path[0]), path[1:], row, source.text_field, batcher, faults)
        row += table.num_rows
        advance(min(table.nbytes, left))
        left -= min(table.nbytes, left)
    advance(left)
    yield from batcher.flush()


def _tables(builder: Any, file: InputFile, source: SourceConfig, faults: Faults) -> Iterator[pa.Table]:
    number = 0
    try:
        dataset = _part(builder, file, source)
        for table in () if dataset is None else dataset.with_format("arrow").iter(batch_size=_ROWS):
            number += table.num_rows
            yield table
    except Exception as error:  # from parsers, Arrow or the network
        if file.sha256 and _is_network(error):
            raise Unavailable(
                f"{source.path}: the Hugging Face Hub stopped answering while {file.within} was read ({error}); run the same "
                "command again when it does, files that were read to their end need not be read again"
            ) from error
        if file.sha256:
            raise explained(source, error) from error
        cause = error.__cause__ or error
        faults.add("broken_file", f"it cannot be read ({type(cause).__name__}: {cause}).", f"after row {number}")


def _part(builder: Any, file: InputFile, source: SourceConfig) -> Any:
    """The file's share of the split, None if it is empty; all shares in order are the split."""
    split, names = _split_of(builder, source), names_of(builder, source)
    index, count = names.index(file.within), len(names)
    if not source.streaming:
        builder.download_and_prepare()  # already done when the files were found
        return builder.as_dataset(split).shard(count, index, contiguous=True)
    dataset = builder.as_streaming_dataset(split)
    parts = min(count, dataset.num_shards)  # one per file, unless the library shards differently
    return dataset.shard(parts, index, contiguous=True) if index < parts else None
