"""From the sources of a configuration to their files, in an order that depends only on names.

A folder means all files below it, a glob the files that it matches (`**` descends), a dataset the files of its split; hidden
files, and those about the data such as README.md, are ignored. Sources keep the order of the configuration; files of one source
are sorted by name, or as in the dataset. A file that is reached twice is an error: its weight and format would be ambiguous.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from tpulm import storage
from tpulm.config import CleaningConfig, SourceConfig
from tpulm.config.schema import DATASETS
from tpulm.corpus.cleaning import Cleaner
from tpulm.corpus.documents import CORPUS, OPTIONS, Faults, Wording
from tpulm.corpus.paths import find_paths, missing_shards, name_within
from tpulm.corpus.readers import FORMATS, READERS, read_documents
from tpulm.corpus.readers.lines import Compression, InputFile, find_codec, open_file, suffixes
from tpulm.corpus.readers.wikipedia import stream_offsets
from tpulm.errors import ConfigError, Unavailable, some_of
from tpulm.storage.paths import printable

_RANGE_BYTES: Final = 64 << 20  # of a compressed dump: about a minute of one core
_UNREAD: Final = {
    **dict.fromkeys((".tar", ".tgz", ".tbz2", ".txz"), "is an archive; unpack it (tar -xf {}) and name the files in it"),
    **dict.fromkeys((".zip", ".7z", ".rar"), "is an archive; unpack it (7z x {}, or unzip) and name the files in it"),
    ".lz4": "is compressed in a way that is not read; decompress it (lz4 -d), or use gzip, bzip2, xz or zstd",
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "is a spreadsheet; save it as 'CSV UTF-8' (File > Save As), and name that file"),
    **dict.fromkeys(
        (".doc", ".docx", ".odt", ".rtf", ".hwp", ".hwpx"), "is a word processor's document; save it as plain text"
    ),
    **dict.fromkeys((".ppt", ".pptx", ".odp"), "is a presentation; save its text as plain text"),
    **dict.fromkeys((".pdf", ".epub"), "is not text; extract its text first (pdftotext or pandoc does it)"),
    **dict.fromkeys((".html", ".htm"), "is HTML; extract its text first"),
}


def find_files(
    sources: Sequence[SourceConfig],
    *,
    away: set[int] | None = None,
    note: Callable[[str], None] = lambda message: None,
    wording: Wording = CORPUS,
) -> list[InputFile]:
    """Every file of every source; datasets are prepared if necessary. `note` receives the names of ignored files.

    With `away`, for a corpus that was read before, nothing is prepared or downloaded; sources that this machine does not have,
    or cannot access now (no network, or a missing package), are left out, and their indices added to the set. Raises
    ConfigError for what is missing, matches nothing, or is reached twice, and Unavailable if the Hub does not respond.
    """
    if not sources:
        raise ConfigError("corpus.sources is empty: name at least one file, folder or glob, such as sources = ['text/*.txt']")
    files: list[InputFile] = []
    reached: dict[str, InputFile] = {}
    for index, source in enumerate(sources):
        try:
            of_source = _files_of(source, index, note, wording, first_time=away is None)
        except (ConfigError, Unavailable) as error:
            if away is None or (isinstance(error, Unavailable) and source.format not in DATASETS):
                raise
            away.add(index)
            continue
        missing = [] if source.format == "tfds" else missing_shards([file.path for file in of_source], source.path)
        if missing:  # a part of a split of tfds has not all shards
            note(f"{printable(source.path)} lacks shards, and is read without them: {printable(some_of(missing))}")
        for file in of_source:
            if file.format != "python":
                is_elsewhere = storage.is_remote(file.path) or file.path.startswith("hub:")
                where = file.path if is_elsewhere else os.path.realpath(file.path)
                other = reached.setdefault(f"{where} {source.split}" if source.format in DATASETS else where, file)
                if other is not file:
                    raise ConfigError(_reached_twice(other, file, sources))
            files.extend(_byte_ranges(file))
    return files


def _files_of(
    source: SourceConfig, index: int, note: Callable[[str], None], wording: Wording, *, first_time: bool
) -> list[InputFile]:
    encoding = find_codec(source.encoding)
    reader = READERS.get(source.format)
    if reader is not None and reader.find is not None:
        return reader.find(source, index, first_time)
    return [
        InputFile(
            path, name_within(path, source.path), index, *_kind(path, source, wording), encoding, info.size, info.modified_ns
        )
        for path, info in find_paths(source.path, note).items()
    ]


def refuse_unused_settings(sources: Sequence[SourceConfig], files: Sequence[InputFile]) -> None:
    """Raise ConfigError for a setting of a source that none of its files uses."""
    for index, source in enumerate(sources):
        formats = sorted({file.format for file in files if file.source == index})
        for name in ("documents", "text_field", "templates"):
            if source.is_set(name) and not any(name in READERS[form].settings for form in formats):
                raise ConfigError(f"{name} does not apply to '{printable(source.path)}', read as {' and '.join(formats)}")


def _byte_ranges(file: InputFile) -> list[InputFile]:
    """The file itself, or byte ranges of a large dump that several processes can read at once."""
    if file.format != "wikipedia" or file.compression != "bzip2":
        return [file]
    edges = [0, *stream_offsets(file.path, file.bytes, _RANGE_BYTES), file.bytes]
    return [
        file._replace(offset=first, bytes=last - first, length=None if last == file.bytes else last - first)
        for first, last in itertools.pairwise(edges)
    ]


def _reached_twice(first: InputFile, second: InputFile, sources: Sequence[SourceConfig]) -> str:
    where = [f"sources[{file.source}] ('{printable(sources[file.source].path)}')" for file in (first, second)]
    also = "" if first.path == second.path else f", as {second.name}"
    return (
        f"{first.name} is reached twice: by {where[0]}{also and f' as {first.name}'} and by {where[1]}{also}. "
        "Its text would count twice; change corpus.sources so that each file belongs to one of them."
    )


def refuse_unread(path: str, otherwise: str = "") -> None:
    """Raise ConfigError for a file that must be converted first, by its name; `otherwise` ends the message."""
    if advice := _UNREAD.get(suffixes(path)[0]):
        raise ConfigError(f"{path} {advice.format(shlex.quote(path))}{otherwise}")


def _kind(path: str, source: SourceConfig, wording: Wording) -> tuple[str, Compression | None]:
    """Format and compression by name: an unknown suffix is an error, no suffix (wiki_00) means text."""
    suffix, compression = suffixes(path)
    path = printable(path)
    form: str | None = source.format
    if form == "auto":
        plain = not suffix or suffix[1:].isdigit()
        form = "text" if plain else "wikipedia" if suffix.startswith(".xml") else FORMATS.get(suffix)
        if form is None:
            refuse_unread(path, _or_leave_out(path, source))
            others = ", ".join(name for name, reader in READERS.items() if reader.find is None and name != "text")
            raise ConfigError(
                f"{path}: the suffix '{suffix}' does not tell its format. For this source "
                f"{wording.format.format('text')} ({others}), or use a glob that leaves the file out. "
                f"Known suffixes: {', '.join(FORMATS)}, .xml."
            )
    if form == "parquet" and compression:
        raise ConfigError(f"{path}: Parquet compresses by itself and is not read through {compression}; decompress it first")
    return form, compression


def _or_leave_out(path: str, source: SourceConfig) -> str:
    """How to read the others of a folder or glob without this file."""
    if PurePath(path) == PurePath(printable(source.path)):
        return ""
    return f", or leave it out: name the others by their suffix, such as {PurePath(path).parent}/*.txt"


def read_texts(
    sources: Sequence[SourceConfig], cleaning: CleaningConfig | None = None, skipped: Counter[str] | None = None
) -> Iterator[list[str]]:
    """The documents of sources that a command is given, cleaned if requested, in order, in batches of about a megabyte.

    They are never deduplicated, and those left out are counted in `skipped`. Raises as `scatter` does for missing or unreadable
    sources.
    """
    cleaner = None if cleaning is None else Cleaner(cleaning)
    for file in find_files(sources, wording=OPTIONS):
        source = sources[file.source]
        faults = Faults(source.on_error, file.name, OPTIONS)
        faults.skipped = faults.skipped if skipped is None else skipped
        for batch in read_documents(file, source, open_file(file, faults), faults):
            if cleaner is None:
                yield batch.documents()
            else:
                yield [document.decode() for document in cleaner.clean(batch, faults.skipped).documents]
