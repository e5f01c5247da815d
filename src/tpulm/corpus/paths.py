"""Find the files that a path in the configuration names: a file, a folder or a glob, local or in Cloud Storage."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Final
from unicodedata import normalize

from tpulm import storage
from tpulm.errors import ConfigError, some_of, suggest
from tpulm.storage.paths import ESCAPES, bucket_and_name, printable

_LEAST_ALIKE: Final = 0.6
# The Hub's may end in a hash. Fewer digits may be other numbers, unless there are two of them.
_SHARD: Final = re.compile(r"(?P<before>.*?)(?P<number>\d+)-of-(?P<of>\d+)(-[0-9a-f]{16})?(?P<after>.*)")
_MOST_SHARDS: Final = 100_000
_MANY_DIGITS: Final = 4
_NO_DATA: Final = {"_SUCCESS", "_metadata", "_common_metadata"}  # what Spark and pyarrow write next to the data
# About the data: what the library `datasets` ignores (FILES_TO_IGNORE), licences, and what desktops write.
_ABOUT: Final = re.compile(
    r"(readme|licen[cs]e|copying)(\.(md|txt|rst))?|(dataset_infos?|dataset_dict|config)\.json|dummy_data\.zip|thumbs\.db|desktop\.ini",
    re.IGNORECASE,
)


def find_paths(pattern: str, note: Callable[[str], None] = lambda message: None) -> dict[str, storage.FileInfo]:
    """The files that a file name, a folder or a glob matches, by path, sorted by name.

    Files about the data, such as README.md, are left out with a `note` unless nothing else is there. Raises ConfigError if
    there are none.
    """
    try:
        files = all_paths(storage.as_path(pattern))
    except ConfigError as error:
        advice = f" {ESCAPES}." if re.search(r"[\x00-\x1f]", pattern) else ""
        raise ConfigError(printable(str(error)) + advice) from error
    data_files = {path: info for path, info in files.items() if not _ABOUT.fullmatch(PurePath(path).name)}
    if not data_files or len(data_files) == len(files):
        return files
    left_out = [name_within(path, pattern) for path in files if path not in data_files]
    note(f"left out of {printable(pattern)}, as not part of the text: {some_of(left_out, 5)}. To read one, name it as a source")
    return data_files


def missing_shards(paths: Iterable[str], pattern: str) -> list[str]:
    """The shards, such as "a.txt-00003-of-00004", that the pattern would have found, were they beside the others of their set.

    A glob that leaves them out, or the name of a file, asks for a part of the set.
    """
    names = set(paths)
    if pattern in names:
        return []
    sets: dict[tuple[str, ...], dict[str, str]] = {}
    for path in names:
        folder, name = os.path.split(path)
        if (match := _SHARD.fullmatch(name)) and int(match["of"]) <= _MOST_SHARDS:
            sets.setdefault((folder, match["before"], match["of"], match["after"]), {})[match["number"]] = name
    asked, missing = os.path.basename(pattern), list[str]()  # noqa: PTH119  of gs://, too
    for (folder, before, of, after), found in sets.items():
        if len(found) == 1 and len(of) < _MANY_DIGITS:
            continue
        width, numbers = min(map(len, found)), set(map(int, found))
        from_one = int(0 not in numbers and int(of) in numbers)  # as safetensors counts
        absent = [number for number in range(from_one, int(of) + from_one) if number not in numbers]
        by_glob = fnmatchcase(next(iter(found.values())), asked)  # else by a folder
        others = [f"{before}{number:0{width}}-of-{of}{after}" for number in absent]
        missing += [os.path.join(folder, name) for name in others if not by_glob or fnmatchcase(name, asked)]  # noqa: PTH118
    return sorted(missing)


def all_paths(path: PurePath) -> dict[str, storage.FileInfo]:
    """`find_paths` that leaves no file out but hidden ones."""
    if not isinstance(path, Path):
        return _in_cloud(path)
    files: dict[str, storage.FileInfo] = {}
    for name in (f"./{name}" if name.startswith("~") else name for name in _on_disk(path)):
        info = storage.info(name)
        if info is None:
            raise ConfigError(f"{name} was there a moment ago and is gone; let nothing remove files while they are read")
        files[name] = info
    return files


def name_within(path: str, pattern: str) -> str:
    """A file's path relative to the folder, or the fixed part of the glob, that found it; printable."""
    root = _without_wildcards(storage.as_path(pattern))
    name = PurePath(os.path.relpath(path, root)) if not storage.is_remote(path) else storage.as_path(path).relative_to(root)
    return printable(storage.as_path(path).name if str(name) == "." else name.as_posix())


def _without_wildcards(path: PurePath) -> PurePath:
    """The part of a pattern that stands for itself: local names with *, ? or [ do where they exist."""
    folders = (path, *path.parents)
    return next(one for one in folders if not glob.has_magic(str(one)) or (isinstance(one, Path) and one.exists()))


def _in_cloud(path: PurePath) -> dict[str, storage.FileInfo]:
    """`all_paths` for gs:// paths, by listing the bucket."""
    info = storage.info(path)
    if info is not None:
        return {str(path): info}
    magic = glob.has_magic(str(path))
    root = _without_wildcards(path)
    matches = _matcher(path.relative_to(root).parts) if magic else lambda parts: True
    beginning = re.split(r"[*?[]", path.relative_to(root).as_posix())[0] if magic else ""  # limits the listing
    below = {name: listed for name, listed in storage.walk(root, beginning=beginning).items() if not _is_hidden(name)}
    listed = {f"{root}/{name}": below[name] for name in sorted(below, key=lambda name: name.split("/")) if matches(name)}
    if not listed:
        raise ConfigError(
            f"{path} matches no file.{_near(path)}" if magic else f"there is no file or folder {path}.{_near(path)}"
        )
    if doubled := next((path for path in listed if path.count("//") > 1), None):
        raise ConfigError(f"{doubled}: a name with // cannot be read; rename it (gcloud storage mv), or use a glob without it")
    return listed


def _matcher(parts: Sequence[str]) -> Callable[[str], bool]:
    """A test of whether a name relative to the root, or a folder that contains it, matches the glob."""
    from fsspec.utils import glob_translate  # takes 0.1 s, which local runs are spared

    if any("**" in part and part != "**" for part in parts):
        raise ConfigError(f"{'/'.join(parts)}: in Cloud Storage ** stands for whole folders; write a/**/b* or use one *")
    pattern = re.compile(glob_translate("/".join(parts)))
    if "**" in parts:
        return lambda name: pattern.match(name) is not None

    def matches(name: str) -> bool:
        steps = name.split("/")
        return any(pattern.match("/".join(steps[:count])) for count in range(1, len(steps) + 1))

    return matches


def _is_hidden(name: str) -> bool:
    return any(step.startswith(".") or step in _NO_DATA for step in name.split("/"))


def _on_disk(path: Path) -> list[str]:
    with storage.explain("read", path):
        if path.is_file():
            return [str(path)]
        if path.is_dir():
            names = sorted(_below(path), key=lambda item: Path(item).parts)
            if not names:
                raise ConfigError(f"the folder {path} holds no files (hidden ones are ignored); put text into it")
            return names
        if path.exists():
            raise ConfigError(f"{path} is neither a file nor a folder; copy its text to a file first")
        if path.is_symlink():
            raise ConfigError(f"{path} is a link that leads nowhere, or to itself ({path.readlink()}); link it again")
        if glob.has_magic(str(path)):
            return _matching(path)
    raise ConfigError(f"there is no file or folder {path}.{_near(path)}")


def _matching(pattern: Path) -> list[str]:
    root = _without_wildcards(pattern)
    within = Path(glob.escape(str(root)), pattern.relative_to(root))
    matches = glob.glob(str(within), recursive=True)  # noqa: PTH207  Path.glob matches hidden files
    files = {match for match in matches if Path(match).is_file()}
    if "**" not in pattern.parts:
        for match in matches:
            if Path(match).is_dir():
                files.update(_below(Path(match)))
    if not files:
        raise ConfigError(f"{pattern} matches no file.{_near(pattern)}")
    return sorted(files, key=lambda item: Path(item).parts)


def _below(folder: Path) -> Iterator[str]:
    """The files below a folder, except hidden ones. Links are followed."""
    visited: set[str] = set()

    def fail(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:
            raise ConfigError(f"the folder {place} is reached twice, through a link; remove it or name the folders one by one")
        visited.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if _is_hidden(name):
                continue
            path = Path(place, name)
            if not path.is_file():
                raise ConfigError(f"{path} is not a file that can be read (a link to nothing?); remove it or use a glob")
            yield str(path)


def _near(path: PurePath) -> str:
    """A hint on what exists instead, in the last folder that exists: the nearest name, else some names."""
    real = (folder for folder in path.parents if not storage.is_remote(folder) or bucket_and_name(folder)[0])
    parent = next((folder for folder in real if not glob.has_magic(str(folder)) and storage.is_folder(folder)), None)
    if parent is None:
        return ""
    names = [item.name for item in storage.list_folder(parent) if not item.name.startswith(".")]
    missing = path.relative_to(parent).parts[0]
    if not glob.has_magic(missing) and (hint := _alike(missing, names)):
        return f" In {parent}:{hint}"
    return f" {parent} holds {some_of(names, 5)}." if names else f" The folder {parent} is empty."


def _alike(missing: str, names: Sequence[str]) -> str:
    """`suggest` from the names that are similar up to their first dot; a shared suffix would make all .tsv files similar."""
    stem = normalize("NFC", missing.partition(".")[0])
    stems = {name: normalize("NFC", name.partition(".")[0]) for name in names}
    near = [name for name in names if SequenceMatcher(None, stem, stems[name]).ratio() >= _LEAST_ALIKE]
    return suggest(missing, near)
