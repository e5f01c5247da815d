"""The manifests of a prepared dataset: counts, checksums, and what it was made from.

W/dataset/inputs.json                     what every part is made from, written first
W/dataset/{train,holdout}/part-00000/     part.json and the arrays, those of version 1 and later in subfolders; complete as
                                          soon as it exists
W/dataset/{train,holdout}/manifest.json   a split: everything needed to read it
W/dataset/manifest.json                   the whole, written last
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tpulm import storage
from tpulm.config import RunConfig, phases_of
from tpulm.config.validation import validate_own
from tpulm.corpus.manifest import Sums
from tpulm.errors import Damaged
from tpulm.runtime.stage import Record
from tpulm.special_tokens import SpecialTokens

FORMAT_VERSION = 1
SPLITS: tuple[Literal["train", "holdout"], ...] = ("train", "holdout")
WORD_START = "word_start"
READ_ROWS = 512  # or fewer, in whole blocks
_SHARES = (0.1, 0.5, 0.9, 1.0)  # quantiles of document lengths that are reported


class Counts(Sums):
    """Counts of a part or a split; with several versions (data.dupe_factor), of the first. Content tokens are those of the
    text, without [CLS], [SEP] and [PAD], each counted once.
    """

    documents: int = 0  # without exact duplicates; copies by weight included; 0 where rows were imported
    duplicates: int = 0  # documents, or imported rows, left out; those of the holdout are counted with train
    near_duplicates: int = 0  # documents left out as near-copies; counted likewise
    left_out_by_weight: int = 0
    added_by_weight: int = 0
    empty_documents: int = 0  # without tokens; counted in `documents`, in no row
    one_sentence_documents: int = 0  # counted for rows of kind "segments" only
    bytes: int = 0  # UTF-8
    characters: int = 0
    blanks: int = 0  # of the characters; 0, like unknown_characters, if an earlier tpulm counted or rows were imported
    words: int = 0  # as white space parts them; 0 likewise
    tokens: int = 0  # content tokens
    unknown_characters: int = 0  # within unknown tokens, whose mean size is measured on some of them
    unknown_tokens: int = 0
    copied_tokens: int = 0  # repeated in rows: in random second segments, and at the beginnings of causal rows
    rows: int = 0
    random_next_rows: int = 0
    padding: int = 0  # slots of the rows
    character_lengths: dict[int, int] = {}  # of documents, from `rounded_up`; empty if an earlier tpulm counted
    token_lengths: dict[int, int] = {}

    @property
    def unknown_fraction(self) -> float:
        """The fraction of visible characters within unknown tokens; of content tokens if characters were not counted."""
        if self.unknown_characters:
            return min(1.0, self.unknown_characters / max(1, self.characters - self.blanks))
        return self.unknown_tokens / max(1, self.tokens)

    def length_quantiles(self, lengths: dict[int, int]) -> tuple[tuple[float, int], ...]:
        """(fraction of the documents, their maximum length) from one of the two tables above; () if not all were counted."""
        if not self.documents or sum(lengths.values()) != self.documents:
            return ()
        bounds = sorted(lengths)
        upto = np.cumsum([lengths[bound] for bound in bounds])
        return tuple((share, bounds[int(np.searchsorted(upto, share * self.documents))]) for share in _SHARES)


def rounded_up(lengths: np.ndarray) -> dict[int, int]:
    """A histogram of lengths (int64 [N]), each rounded up to four significant binary digits: by up to 1/8."""
    zeros = np.maximum(np.frexp(lengths)[1] - 4, 0)
    bounds, counts = np.unique(-(-lengths >> zeros) << zeros, return_counts=True)
    return dict(zip(bounds.tolist(), counts.tolist(), strict=True))


class ObjectRecord(Record):
    bytes: int
    sha256: str


class PartRecord(Record):
    """One part of a split; `objects` by path inside the part's folder.

    Three things tell damage, none of which reads a dataset twice: the manifests have checksums of their own; the whole's
    fingerprint is of all objects' digests; and `checksums` are of the rows, by array, and compared as they are read: base64 of
    the big-endian CRC-32C of each `RowFormat.read_rows` rows. Datasets of older versions have none.
    """

    format_version: int = FORMAT_VERSION
    inputs: str  # digest of inputs.json
    number: int
    counts: Counts
    objects: dict[str, ObjectRecord]
    removed: dict[str, tuple[str, ...]] = {}  # samples of duplicates, by kind
    checksums: dict[str, str] = {}
    redrawn_rows: tuple[int, ...] = ()  # rows in versions 1, 2, … of the text (data.dupe_factor); `counts` is of version 0

    @property
    def name(self) -> str:
        return part_name(self.number)

    @property
    def version_rows(self) -> tuple[int, ...]:
        return (self.counts.rows, *self.redrawn_rows)


class Encoding(Record):
    """What encoded the text: the library, or an engine whose ids for `compared` documents were compared with the library's."""

    by: str
    compared: int = 0


class RowFormat(Record):
    """The shape of the arrays, the same in all parts."""

    kind: Literal["segments", "packed", "causal"]
    sequence_length: int
    dtype: Literal["uint16", "uint32"]
    block_rows: int
    columns: tuple[str, ...]
    vocab_size: int
    special: SpecialTokens

    @property
    def read_rows(self) -> int:
        """Rows that are read, and compared with a checksum, at once."""
        return self.block_rows * max(1, READ_ROWS // self.block_rows)

    @property
    def token_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    def column_shape(self, column: str) -> tuple[int, ...]:
        return () if column == "next_sentence" else (self.sequence_length,)

    def column_dtype(self, column: str) -> np.dtype:
        return self.token_dtype if column == "tokens" else np.dtype(np.int8)


class SplitManifest(Record):
    folder: str = Field(default="", exclude=True)  # that holds the parts; not in the file
    format_version: int = FORMAT_VERSION
    split: Literal["train", "holdout"]
    inputs: dict[str, Any]
    rows: RowFormat
    counts: Counts
    padding_fraction: float
    tokens_per_character: float
    parts: tuple[PartRecord, ...]

    @property
    def text_fraction(self) -> float:
        """The fraction of token slots that are not padding."""
        return 1.0 - self.padding_fraction

    @property
    def num_versions(self) -> int:
        return len(self.parts[0].version_rows)


class DatasetManifest(Record):
    """Both splits; `corpus` repeats the counts of the corpus or the import: what was read, and what was left out and why."""

    format_version: int = FORMAT_VERSION
    inputs: dict[str, Any]
    fingerprint: str  # of the inputs and of every object
    corpus: dict[str, Any]
    encoding: Encoding | None = None  # None: rows were imported, or encoded by an earlier tpulm
    notes: tuple[str, ...] = ()  # warnings for users of the dataset
    train: SplitManifest
    holdout: SplitManifest


def part_name(number: int) -> str:
    return f"part-{number:05d}"


def array_path(column: str, version: int) -> str:
    """The path of a column's array inside a part's folder."""
    return f"version-{version}/{column}.zarr" if version else f"{column}.zarr"


def dataset_folder(workdir: str | PurePath) -> PurePath:
    return storage.as_path(workdir) / "dataset"


def digest(value: Any) -> str:
    """Hex SHA-256 of the value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def split_manifest(
    folder: PurePath, split: Literal["train", "holdout"], inputs: dict[str, Any], rows: RowFormat, parts: Iterable[PartRecord]
) -> SplitManifest:
    parts = tuple(sorted(parts, key=lambda part: part.number))
    counts = sum((part.counts for part in parts), Counts())
    slots = counts.rows * rows.sequence_length
    return SplitManifest(
        folder=str(folder),
        split=split,
        inputs=inputs,
        rows=rows,
        counts=counts,
        padding_fraction=counts.padding / max(1, slots),
        tokens_per_character=counts.tokens / max(1, counts.characters),
        parts=parts,
    )


def _fingerprint(inputs: dict[str, Any], splits: Iterable[SplitManifest]) -> str:
    objects = {
        f"{split.split}/{part.name}/{path}": found.sha256
        for split in splits
        for part in split.parts
        for path, found in part.objects.items()
    }
    return digest({"inputs": inputs, "objects": objects})


def write_manifest(
    workdir: str | PurePath,
    train: SplitManifest,
    holdout: SplitManifest,
    *,
    corpus: dict[str, Any],
    encoding: Encoding | None = None,
    notes: tuple[str, ...] = (),
) -> DatasetManifest:
    """Write the splits' manifests, then the whole's: a dataset is complete when W/dataset/manifest.json exists."""
    folder = dataset_folder(workdir)
    for split in (train, holdout):
        split.write(folder / split.split / "manifest.json")
    manifest = DatasetManifest(
        inputs=train.inputs,
        fingerprint=_fingerprint(train.inputs, (train, holdout)),
        corpus=corpus,
        encoding=encoding,
        notes=notes,
        train=train,
        holdout=holdout,
    )
    manifest.write(folder / "manifest.json", exclude={"train": {"parts"}, "holdout": {"parts"}})
    return manifest


def load_manifests(workdir: PurePath, config: RunConfig) -> tuple[DatasetManifest, ...]:
    """The manifest of each phase of a run, of those whose dataset is complete; phases with the same data share one."""
    folders = [phase.folder for phase in phases_of(config)]
    made = {folder: load_manifest(workdir / folder) for folder in dict.fromkeys(folders)}
    return tuple(manifest for folder in folders if (manifest := made[folder]) is not None)


def load_manifest(workdir: str | PurePath) -> DatasetManifest | None:
    """The manifest of a complete dataset, or None. Raises Damaged if it is not that of the two splits."""
    path = dataset_folder(workdir) / "manifest.json"
    if not all(storage.exists(folder / "manifest.json") for folder in (path.parent, *(path.parent / one for one in SPLITS))):
        return None
    whole = storage.read_json(path)
    for split in SPLITS:
        whole[split] = load_split(path.parent / split)
    manifest = validate_own(DatasetManifest, whole, path)
    if manifest.fingerprint != _fingerprint(manifest.inputs, (manifest.train, manifest.holdout)):
        raise Damaged(f"{path} is not of the parts in {' and '.join(SPLITS)}: they are of another dataset")
    return manifest


def load_split(folder: str | PurePath) -> SplitManifest:
    """The manifest of W/dataset/train or W/dataset/holdout."""
    path = storage.as_path(folder) / "manifest.json"
    return validate_own(SplitManifest, storage.read_json(path) | {"folder": str(path.parent)}, path)
