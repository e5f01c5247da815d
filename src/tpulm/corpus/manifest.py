"""The corpus manifest: what was read and kept, where the spill is, and whether sources or settings have changed since."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final, Self

from pydantic import RootModel

from tpulm import storage
from tpulm.config import CorpusConfig, RunConfig, differences, listed
from tpulm.config.validation import validate_own
from tpulm.corpus.documents import Faults, SamplesByReason
from tpulm.corpus.readers import READERS
from tpulm.corpus.readers.lines import ByteStream, InputFile
from tpulm.corpus.sources import find_files
from tpulm.corpus.spill import SortedRun
from tpulm.errors import WorkFolderMismatch
from tpulm.runtime.stage import Record, read_record
from tpulm.storage.paths import printable

FORMAT_VERSION: Final = 4  # 4: the holdout split depends only on letters and digits


class Sums(Record):
    """Counts and tables of counts, which are added field by field."""

    def __add__(self, other: Self) -> Self:
        def total(one: Any, two: Any) -> Any:
            if isinstance(one, int):
                return one + two
            return {name: one.get(name, 0) + two.get(name, 0) for name in sorted({*one, *two})}

        return type(self)(**{name: total(value, getattr(other, name)) for name, value in self})


class InputRecord(Record):
    """One file as it was read."""

    within: str  # its path within its source's folder, or the fixed part of its glob, whose own location is not recorded
    source: int
    format: str
    compression: str | None
    encoding: str
    offset: int = 0  # where its byte range begins, if it is part of a large dump
    bytes: int  # of the raw file, or byte range
    read_bytes: int  # fewer when a limit ended the reading
    sha256: str  # of the bytes read
    modified_ns: int  # not part of the corpus's identity


class Counts(Sums):
    """Documents kept, including exact duplicates; documents left out, by reason; replacements in all documents, by kind;
    deletions, by pattern; and what is missing from sentences of wikis, by template."""

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    skipped: dict[str, int] = {}
    replaced: dict[str, int] = {}
    removed_matches: dict[str, int] = {}
    removed_characters: dict[str, int] = {}
    removed_templates: dict[str, int] = {}
    markup: dict[str, int] = {}  # documents that are no plain text yet, by what shows it
    languages: dict[str, int] = {}  # of documents as recognized, including those left out; empty without a language filter


class PieceRecord(Record):
    """Consecutive files of one source, and their spill."""

    settings: str  # hash of everything but the files that the content depends on
    inputs: tuple[InputRecord, ...]
    counts: Counts
    runs: tuple[SortedRun, ...]
    smallest_draw: int  # holdout draws of its documents; see identity.holdout_threshold
    largest_draw: int
    limit_reached: bool
    removed: SamplesByReason = {}  # samples of what was left out or replaced, by reason

    @property
    def source(self) -> int:
        return self.inputs[0].source


class PieceSpill(Record):
    source: int
    runs: tuple[SortedRun, ...]


class CorpusManifest(Record):
    format_version: int = FORMAT_VERSION
    config: CorpusConfig
    part_bytes: int
    inputs: tuple[InputRecord, ...]
    counts: Counts
    num_parts: int
    holdout_below: int  # the threshold of holdout draws
    limit_reached: bool  # max_documents or max_bytes ended the reading
    pieces: tuple[PieceSpill, ...]
    fingerprint: str  # of all that determines the documents: file contents in order, and settings; no paths or times


def pieces_folder(workdir: str | os.PathLike[str]) -> PurePath:
    return storage.as_path(workdir) / "corpus" / "pieces"


def spill_path(workdir: str | os.PathLike[str], piece: int) -> PurePath:
    return pieces_folder(workdir) / f"{piece:06d}.spill"


def manifest_path(workdir: str | os.PathLike[str]) -> PurePath:
    return storage.as_path(workdir) / "corpus" / "manifest.json"


def removed_path(workdir: str | os.PathLike[str]) -> PurePath:
    """The file with samples of what was left out, by reason."""
    return storage.as_path(workdir) / "corpus" / "removed.json"


def load_removed(workdir: str | os.PathLike[str]) -> SamplesByReason:
    path = removed_path(workdir)
    return validate_own(RootModel[SamplesByReason], storage.read_json(path), path).root if storage.exists(path) else {}


def load_manifest(workdir: str | os.PathLike[str]) -> CorpusManifest | None:
    """The manifest, or None if the corpus stage has not finished."""
    return read_record(CorpusManifest, manifest_path(workdir))


_OF_OTHERS = {"languages", "removed_templates", "markup"}  # counts that follow from the text and the settings


def fingerprint_of(config: CorpusConfig, inputs: tuple[InputRecord, ...], counts: Counts) -> str:
    value = {
        "format_version": FORMAT_VERSION,
        "inputs": [
            {**reading_settings(config, record.source, record), "bytes": record.read_bytes, "sha256": record.sha256}
            for record in inputs
        ],
        "settings": config.fingerprinted(exclude={"sources"}),
        "counts": counts.model_dump(mode="json", exclude=_OF_OTHERS),
    }
    return hash_json(value)


def reading_settings(config: CorpusConfig, source: int, file: InputFile | InputRecord) -> dict[str, Any]:
    """The settings that determine how the bytes of a file become documents, and how often they count."""
    names = READERS[file.format].settings
    settings = config.sources[source].model_dump(mode="json", include={*names, "on_error", "weight"})
    return {**settings, "format": file.format, "compression": file.compression, "encoding": file.encoding}


def hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def verify(manifest: CorpusManifest, config: CorpusConfig, workdir: str | os.PathLike[str], *, part_bytes: int) -> None:
    """Raise WorkFolderMismatch if the settings or the files differ from those of the manifest.

    It is not a mismatch if a source is not found (the work folder may have moved to another machine, which has those in buckets
    alone), if the version of Python, and with it Python's text, differs, or if a dataset cannot be accessed now. Contents are
    compared, not paths.
    """
    away: set[int] = set()
    files = find_files(config.sources, away=away)
    changes: list[object] = list(_settings_changes(manifest, config, part_bytes))
    if files:
        changes.extend(_file_changes(manifest, config, files, away))
    if changes:
        raise WorkFolderMismatch(
            f"{os.fspath(workdir)} was begun with another corpus (there -> now):\n{listed(changes)}\n"
            "Use another --workdir, or delete this one to begin again."
        )


def _settings_changes(manifest: CorpusManifest, config: CorpusConfig, part_bytes: int) -> Iterator[object]:
    # The sources are compared file by file: neither their location nor the pattern that names them matters.
    old, new = (RunConfig(corpus=item.model_copy(update={"sources": ()})) for item in (manifest.config, config))
    yield from differences(old, new)
    if manifest.part_bytes != part_bytes:
        yield f"data.part_bytes: {manifest.part_bytes} -> {part_bytes}"


def _file_changes(
    manifest: CorpusManifest, config: CorpusConfig, files: Sequence[InputFile], away: Collection[int]
) -> Iterator[str]:
    before, now = len(manifest.config.sources), len(config.sources)
    if away and before != now:
        lacking = ", ".join(printable(config.sources[source].path) for source in sorted(away))
        yield f"number of sources: {before} -> {now}, of which {lacking} cannot be looked at here"
        return
    records = [record for record in manifest.inputs if record.source not in away]
    if manifest.limit_reached:
        files = files[: len(records)]
    if len(files) != len(records):
        read, found = {record.within for record in records}, {file.within for file in files}
        yield f"number of files: {len(records)} -> {len(files)}"
        yield from (f"new: {path}" for path in sorted(found - read))
        yield from (f"gone: {path}" for path in sorted(read - found))
        return
    for record, file in zip(records, files, strict=True):
        old = reading_settings(manifest.config, record.source, record)
        new = reading_settings(config, file.source, file)
        name = file.name if file.within == record.within else f"{file.name} (was {record.within})"
        yield from (f"{name}, {key}: {old.get(key)} -> {new.get(key)}" for key in new if old.get(key) != new.get(key))
        if old == new and file.format != "python" and not is_unchanged(record, file):
            yield f"{file.name}: {_difference(record, file)}"


def _difference(record: InputRecord, file: InputFile) -> str:
    if file.format == "hub" and file.sha256:
        return f"its dataset changed on the Hub, {record.sha256} -> {file.sha256}; revision = '{record.sha256}' reads it"
    return f"its content is not what it was (was {record.bytes} bytes, is {file.bytes})"


def is_unchanged(record: InputRecord, file: InputFile) -> bool:
    """Whether a file still has the bytes that were read: by name, size and time if these are equal, else by its hash."""
    if file.sha256:
        return record.sha256 == file.sha256
    if record.offset != file.offset:
        return False
    if (record.within, record.bytes, record.modified_ns) == (file.within, file.bytes, file.modified_ns):
        return True
    read_in_full = record.read_bytes == record.bytes
    if (file.bytes != record.bytes) if read_in_full else (file.bytes < record.read_bytes):
        return False
    beginning = ByteStream(file.path, None, Faults("stop"), offset=file.offset, length=record.read_bytes)
    beginning.exhaust()
    return beginning.sha256() == record.sha256
