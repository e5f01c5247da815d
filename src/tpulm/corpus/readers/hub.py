"""Datasets of the Hugging Face Hub, "hub:NAME", and local folders of the same form, "hub:./folder".

A dataset is a repository at a commit: its files are identified by the commit, and downloaded one by one. Files of a folder are
identified by their bytes, like all other local files. Which files belong to a configuration and a split follows from the card
and from names, as in the library `datasets`; each file is read by the reader of its format.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus.documents import DocumentBatch
from tpulm.corpus.paths import all_paths
from tpulm.corpus.readers.jsonl import read_jsonl
from tpulm.corpus.readers.lines import ByteStream, Compression, Input, InputFile, suffixes
from tpulm.corpus.readers.parquet import read_parquet
from tpulm.corpus.readers.tables import read_table
from tpulm.corpus.readers.text import read_text
from tpulm.errors import ConfigError, DataError, TpulmError, Unavailable, suggest

_ANSWER_SECONDS: Final = 10.0
_NETWORK: Final = ("httpx", "httpcore", "requests", "urllib3", "aiohttp", "socket", "ssl")  # whose errors may be temporary
_PAGE: Final = "https://huggingface.co/datasets"
_CARD: Final = "README.md"
_KINDS: Final = {
    ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv",
    ".txt": "text", ".text": "text",
}  # fmt: skip
_READERS: Final = {"parquet": read_parquet, "jsonl": read_jsonl, "csv": read_table, "tsv": read_table, "text": read_text}
_CONVERTED: Final = "refs/convert/parquet"  # a branch of the Hub's own, with CONFIG/SPLIT/0000.parquet
_CONVERTED_NAME: Final = re.compile(r"[^/]+/[^/]+/[0-9]{4}\.parquet")
_PARTIAL: Final = "partial-"  # before SPLIT: of a large one that branch has the first 5 GB
_SPLITS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD: Final = re.compile(r"data/([^/]+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")


def find_data_files(source: SourceConfig, index: int, download: bool) -> list[InputFile]:
    """The files of the source's split, in the dataset's order; with `download` they are downloaded unless streamed.

    Raises ConfigError if there is no such dataset, config or split, and Unavailable if the Hub does not respond.
    """
    folder = _folder(source)
    if folder is not None:
        infos = {Path(path).relative_to(folder).as_posix(): info for path, info in all_paths(folder).items()}
        card = storage.read_text(folder / _CARD) if _CARD in infos else ""
        with _explaining(source):
            names = _names_of(source, sorted(infos), card)
        chosen = ((str(folder / name), name, infos[name]) for name in names)
        return [InputFile(path, name, index, "hub", None, "utf-8", info.size, info.modified_ns) for path, name, info in chosen]
    name, commit = _name(source), _commit(source, source.revision)
    with _explaining(source):
        sizes, program = _sizes(name, commit), f"{PurePosixPath(name).name}.py"  # which makes a dataset, and is never run
        if source.revision is None and (program in sizes or not any(map(_kind, sizes))):
            sizes = {}
            with contextlib.suppress(ConfigError):  # the Hub has not converted it
                commit = _commit(source, _CONVERTED)
                sizes = _sizes(name, commit)
        card = storage.read_text(_downloaded(name, commit, _CARD)) if _CARD in sizes else ""
        names = _names_of(source, sorted(sizes), card)
        for within in names if download and not source.streaming else ():
            _downloaded(name, commit, within)
    return [InputFile(f"hub:{name}/{one}", one, index, "hub", None, "utf-8", sizes[one], 0, commit) for one in names]


def read_hub(opened: Input) -> Iterator[DocumentBatch]:
    """Read a data file. Raises as the reader of its format does, and Unavailable if the Hub stops responding."""
    file, source, stream, faults, advance = opened
    kind, compression = _kind(file.within) or ("text", None)
    with contextlib.ExitStack() as closing:
        if file.sha256:
            scratch = closing.enter_context(storage.scratch_folder()) if source.streaming else None
            with _explaining(source):
                stream = ByteStream(_downloaded(_name(source), file.sha256, file.within, scratch), compression, faults, advance)
        else:
            stream.exhaust()
            stream = ByteStream(file.path, compression, faults)
        file = file._replace(format=kind, compression=compression)
        yield from _READERS[kind](opened._replace(file=file, stream=stream))


# -- configurations and splits --


def _names_of(source: SourceConfig, names: Sequence[str], card: str) -> list[str]:
    """The names of the split's data files, in the dataset's order."""
    splits, split = splits_of(source, names, card), source.split or "train"
    if not splits:
        raise ConfigError(f"{source.path} holds no files of text or tables: .parquet, .jsonl, .csv, .tsv or .txt")
    if split not in splits:
        also = " A part of a split cannot be named; corpus.max_documents limits what is read." if "[" in split else ""
        raise ConfigError(
            f"{source.path} has no split '{split}'.{suggest(split, splits)} Its splits: {', '.join(splits)}.{also}"
        )
    if source.revision is None and any(f"/{_PARTIAL}{split}/" in name for name in splits[split]):
        raise ConfigError(
            f"{source.path} has no files that can be read, and the Hub has converted the first 5 GB of '{split}' alone: set "
            f'revision = "{_CONVERTED}" to read these'
        )
    return splits[split]


def splits_of(source: SourceConfig, names: Sequence[str], card: str) -> dict[str, list[str]]:
    """The data files of each split of the source's config, as the card says, or else as their names do.

    Of files in several formats those in the most frequent one. Raises ConfigError if there is no such config.
    """
    from fsspec.utils import glob_translate

    names = [name for name in names if _kind(name)]
    if not names:
        return {}
    configs = _configs(card)
    if not configs and all(map(_CONVERTED_NAME.fullmatch, names)):
        configs = {name.split("/")[0]: {"data_dir": name.split("/")[0]} for name in names}
    chosen = _config(source, configs)
    folder = str(chosen.get("data_dir") or "").strip("/")
    below = f"{folder}/" if folder else ""
    files = chosen.get("data_files")
    if files is None:
        inside = [name.removeprefix(below) for name in names if name.startswith(below)]
        splits = {split: [below + name for name in some] for split, some in _by_name(inside).items()}
    else:
        splits = dict[str, list[str]]()
        for one in files if isinstance(files, list) else [files]:
            split, patterns = (str(one["split"]), one["path"]) if isinstance(one, Mapping) else ("train", one)
            for pattern in patterns if isinstance(patterns, list) else [patterns]:
                matching = filter(re.compile(glob_translate(below + str(pattern))).fullmatch, names)
                splits[split] = list(dict.fromkeys([*splits.get(split, []), *matching]))
    counts = Counter(_kind(name)[0] for some in splits.values() for name in some)  # pyright: ignore[reportOptionalSubscript]
    kind = max(counts, key=lambda kind: (counts[kind], kind == "parquet", kind == "jsonl"), default="")
    data_files = {split: [name for name in some if (_kind(name) or "")[0] == kind] for split, some in splits.items()}
    return {split: some for split, some in data_files.items() if some}


def _configs(card: str) -> dict[str, Mapping[str, Any]]:
    """The configurations of a card's head, by name."""
    import yaml

    head = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(\n|$)", card.replace("\r\n", "\n"), re.DOTALL)
    values = yaml.safe_load(head[1]) if head else None
    return {str(one.get("config_name", "default")): one for one in (values or {}).get("configs") or []}


def _config(source: SourceConfig, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if source.config is not None:
        if source.config not in (configs or {"default": {}}):
            hint, known = suggest(source.config, configs), ", ".join(configs or ["default"])
            raise ConfigError(f"{source.path} has no config '{source.config}'.{hint} Choose one of {known}.")
        return configs.get(source.config, {})
    default = [one for name, one in configs.items() if len(configs) == 1 or name == "default" or one.get("default")]
    if configs and not default:
        raise ConfigError(f"{source.path} has several configurations; set config to one of {', '.join(configs)}")
    return default[0] if default else {}


def _by_name(names: Sequence[str]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {}
    for name in names:
        if shard := _SHARD.fullmatch(name):
            splits.setdefault(shard[1], []).append(name)
    for in_folders in (True, False):
        if splits:
            break
        forms = ("{0}", "{0}{1}.*", ".*{1}{0}", ".*{1}{0}{1}.*") if in_folders else ("{0}{1}.*", ".*{1}{0}{1}.*")
        parts = {name: PurePosixPath(name).parts[:-1] if in_folders else [PurePosixPath(name).name] for name in names}
        for split, words in _SPLITS.items():
            patterns = [re.compile(form.format(word, "[-._ 0-9]")) for word in words for form in forms]
            some = dict.fromkeys(name for one in patterns for name in names if any(map(one.fullmatch, parts[name])))
            if some:
                splits[split] = list(some)
    return splits or {"train": list(names)}


def _kind(name: str) -> tuple[str, Compression | None] | None:
    """The format and compression of a data file by its name; None: it is none, or hidden."""
    suffix, compression = suffixes(name)
    hidden = any(part.startswith((".", "__")) for part in PurePosixPath(name).parts)
    return None if hidden or suffix not in _KINDS else (_KINDS[suffix], compression)


# -- the Hub --


def _commit(source: SourceConfig, revision: str | None) -> str:
    """The revision's current commit: the first request, so that a missing network is noticed at once."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    name = _name(source)
    if HF_HUB_OFFLINE:
        raise unavailable(source, "HF_HUB_OFFLINE is set in the environment")
    with _explaining(source):
        return str(_api().dataset_info(name, revision=revision, timeout=_ANSWER_SECONDS).sha)


def _sizes(name: str, commit: str) -> dict[str, int]:
    tree = _api().list_repo_tree(name, recursive=True, revision=commit, repo_type="dataset")
    return {item.path: int(item.size) for item in tree if hasattr(item, "size")}


def _downloaded(name: str, commit: str, within: str, folder: Path | None = None) -> str:
    """The path of the file in this folder, or in the library's cache."""
    return _api().hf_hub_download(name, within, repo_type="dataset", revision=commit, local_dir=folder)


@functools.cache
def _api() -> Any:
    """Silenced; it tries again by itself. Tokens come from the environment, or 'hf auth login'."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars, logging

    logging.set_verbosity(logging.CRITICAL)
    disable_progress_bars()
    return HfApi()


def _name(source: SourceConfig) -> str:
    name = source.path.removeprefix("hub:")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ConfigError(f"'{source.path}' is not a dataset name; write hub:NAME, hub:OWNER/NAME or hub:./folder")
    return name


def _folder(source: SourceConfig) -> Path | None:
    """The local folder that "hub:…" names, or None if it names a dataset on the Hub."""
    name = source.path.removeprefix("hub:")
    if not name.startswith((".", "/", "~")):
        return None
    folder = Path(name).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; 'hub:…' names a folder with the files of a dataset, or one on the Hub")
    if (folder / "state.json").is_file():
        raise ConfigError(f"{folder} was written by save_to_disk; write it with Dataset.to_parquet, and name that folder")
    if source.revision is not None or not source.streaming:
        name = "revision" if source.revision is not None else "streaming = false"
        raise ConfigError(f"{name} is for datasets on the Hub, and {folder} is a folder; leave it out")
    return folder


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
    classes = {kind for one in _causes(error) for kind in type(one).__mro__}
    kinds = {kind.__name__ for kind in classes}
    text = next(iter(str(error).strip().splitlines()), "")[:300]
    if "GatedRepoError" in kinds:
        return ConfigError(f"{source.path} is gated: accept its terms on {_PAGE}/{name}, then 'hf auth login' or set HF_TOKEN")
    if "RevisionNotFoundError" in kinds:
        return ConfigError(f"{source.path} has no revision '{source.revision}'; {_PAGE}/{name}/commits/main lists them")
    if {"RepositoryNotFoundError", "HFValidationError"} & kinds:
        return ConfigError(
            f"the Hugging Face Hub has no dataset '{name}', or shows it to its owners alone: look for it at {_PAGE}; if it is "
            "private, 'hf auth login' or a token in HF_TOKEN lets this machine in"
        )
    if any(issubclass(kind, (ConnectionError, TimeoutError)) or kind.__module__.startswith(_NETWORK) for kind in classes):
        return unavailable(source, f"it does not answer ({type(error).__name__}: {text})")
    return DataError(f"{type(error).__name__}: {text}", location=source.path)


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(10):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


@contextlib.contextmanager
def _explaining(source: SourceConfig) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise explained(source, error) from error
