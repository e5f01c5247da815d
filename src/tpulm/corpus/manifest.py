"""What the corpus stage leaves behind for good: what was read, what was kept, and where the spill is."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import PurePath
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, RootModel

from tpulm import storage
from tpulm.config import CorpusConfig
from tpulm.config.validation import recorded
from tpulm.corpus.samples import Removed
from tpulm.corpus.sources import InputFile
from tpulm.corpus.spill import Run
from tpulm.errors import StorageError

FORMAT_VERSION: Final = 4  # 4: what is held out goes by letters and digits


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class InputRecord(Record):
    """One file as it was read."""

    within: str  # its name in the folder, or below the fixed part of the glob, that its source is; where that lay is not kept
    source: int
    format: str
    compression: str | None
    encoding: str
    offset: int = 0  # where it begins in the file, of a large dump that is read in stretches
    bytes: int  # of the raw file, or stretch
    read_bytes: int  # fewer when a limit ended the reading
    sha256: str  # of the bytes read
    modified_ns: int  # not part of the corpus's identity


class Counts(Record):
    """Of documents kept, exact duplicates included; of those left out, by reason; of what was replaced in all, by kind; and of
    what was deleted, by pattern."""

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    skipped: dict[str, int] = {}
    replaced: dict[str, int] = {}
    removed_matches: dict[str, int] = {}
    removed_characters: dict[str, int] = {}

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            documents=self.documents + other.documents,
            bytes=self.bytes + other.bytes,
            characters=self.characters + other.characters,
            skipped=_sum(self.skipped, other.skipped),
            replaced=_sum(self.replaced, other.replaced),
            removed_matches=_sum(self.removed_matches, other.removed_matches),
            removed_characters=_sum(self.removed_characters, other.removed_characters),
        )


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in sorted({*first, *second})}


class PieceRecord(Record):
    """A stretch of files of one source, and its spill."""

    settings: str  # hash of everything but the files that its content depends on
    inputs: tuple[InputRecord, ...]
    counts: Counts
    runs: tuple[Run, ...]
    smallest_draw: int  # holdout draws of its documents; see identity.holdout_threshold
    largest_draw: int
    limit_reached: bool
    removed: Removed = {}  # samples of what was left out or replaced, by reason

    @property
    def source(self) -> int:
        return self.inputs[0].source


class PieceSpill(Record):
    source: int
    runs: tuple[Run, ...]


class CorpusManifest(Record):
    format_version: int
    config: CorpusConfig
    part_bytes: int
    inputs: tuple[InputRecord, ...]
    counts: Counts
    num_parts: int
    holdout_below: int  # the threshold of holdout draws
    limit_reached: bool  # max_documents or max_bytes ended the reading
    pieces: tuple[PieceSpill, ...]
    fingerprint: str  # of all that determines the documents: file contents in order and settings, no paths and no times


def pieces_folder(workdir: str | os.PathLike[str]) -> PurePath:
    return storage.as_path(workdir) / "corpus" / "pieces"


def spill_path(workdir: str | os.PathLike[str], piece: int) -> PurePath:
    return pieces_folder(workdir) / f"{piece:06d}.spill"


def manifest_path(workdir: str | os.PathLike[str]) -> PurePath:
    return storage.as_path(workdir) / "corpus" / "manifest.json"


def removed_path(workdir: str | os.PathLike[str]) -> PurePath:
    """Samples of what was left out, by reason."""
    return storage.as_path(workdir) / "corpus" / "removed.json"


def load_removed(workdir: str | os.PathLike[str]) -> Removed:
    path = removed_path(workdir)
    return recorded(RootModel[Removed], storage.read_json(path), path).root if storage.exists(path) else {}


def load_manifest(workdir: str | os.PathLike[str]) -> CorpusManifest | None:
    """The manifest, or None where the corpus stage has not finished."""
    path = manifest_path(workdir)
    if not storage.exists(path):
        return None
    value = storage.read_json(path)
    version = value.get("format_version")
    if version != FORMAT_VERSION:
        raise StorageError(
            f"{path} has format version {version}, this tpulm reads {FORMAT_VERSION} and would hold out other documents; "
            "begin in a new work folder, or go on with the tpulm that began this one"
        )
    return recorded(CorpusManifest, value, path)


def fingerprint_of(config: CorpusConfig, inputs: tuple[InputRecord, ...], counts: Counts) -> str:
    value = {
        "format_version": FORMAT_VERSION,
        "inputs": [
            {**reading_settings(config, record.source, record), "bytes": record.read_bytes, "sha256": record.sha256}
            for record in inputs
        ],
        "settings": config.model_dump(mode="json", exclude={"sources"}),
        "counts": counts.model_dump(mode="json"),
    }
    return hash_json(value)


_READING: Final[dict[str, set[str]]] = {
    "text": {"documents"},
    "python": set(),
    "wikipedia": set(),
    "tfds": {"text_field", "split"},
    "hub": {"text_field", "split", "config", "streaming"},
}


def reading_settings(config: CorpusConfig, source: int, file: InputFile | InputRecord) -> dict[str, Any]:
    """What decides how the bytes of a file become documents, and how often they count."""
    names = _READING.get(file.format, {"text_field"})
    settings = config.sources[source].model_dump(mode="json", include={*names, "on_error", "weight"})
    return {**settings, "format": file.format, "compression": file.compression, "encoding": file.encoding}


def hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
