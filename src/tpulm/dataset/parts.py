"""The preparation engine: parts of rows from a source, each complete or absent, in parallel, and the manifest last.

Whatever the source of rows (`prepare.TextSource`, `importing.RecordSource`), a restart after a kill builds only the missing
parts, in the processes of one machine, on several hosts, or on a cluster.
"""

from __future__ import annotations

import base64
import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np

from tpulm import storage
from tpulm.config import changes, listed
from tpulm.dataset import store
from tpulm.dataset.layouts import RowLayout, fill
from tpulm.dataset.manifest import (
    FORMAT_VERSION,
    SPLITS,
    WORD_START,
    Counts,
    DatasetManifest,
    ObjectRecord,
    PartRecord,
    RowFormat,
    SplitManifest,
    array_path,
    dataset_folder,
    digest,
    load_manifest,
    part_name,
    split_manifest,
)
from tpulm.errors import WorkFolderMismatch, some_of
from tpulm.progress import SILENT, Progress
from tpulm.runtime import stage
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner
from tpulm.special_tokens import SpecialTokens

_RECORD = "part.json"
_NO_WORDS = SpecialTokens(pad=0, unknown=0, cls=0, sep=0, mask=0)  # their values in "word_start"


class Version(NamedTuple):
    """One version of a part's rows: a layout of its tokens."""

    layout: RowLayout
    tokens: np.ndarray  # [T]
    word_start: np.ndarray | None = None  # int8 [T]


class SplitRows(NamedTuple):
    """A part's rows of one split, in one or more versions, which are made lazily."""

    split: str
    versions: Iterable[Version]
    counts: Counts  # of the text
    removed: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Source(Protocol):
    """Where rows come from. Sources are pickled with each part's task."""

    def read(self, number: int, rows: RowFormat) -> Iterator[SplitRows]:
        """The rows of a part, first of train, then of the holdout."""
        ...


class PartTask(NamedTuple):
    """One part of both splits."""

    folder: str  # W/dataset
    number: int
    inputs: str  # digest of inputs.json
    rows: RowFormat
    source: Source
    amount: float

    @property
    def files(self) -> list[PurePath]:
        return [storage.as_path(self.folder) / split / part_name(self.number) for split in SPLITS]

    def finished(self) -> dict[str, PartRecord] | None:
        """The records by split, if both exist, are complete by their sizes, and made from these inputs."""
        records: dict[str, PartRecord] = {}
        for split, folder in zip(SPLITS, self.files, strict=True):
            record = stage.read_record(PartRecord, folder / _RECORD, format_version=FORMAT_VERSION, inputs=self.inputs)
            sizes = {name: info.size for name, info in storage.walk(folder).items()} if record else {}
            if record is None or not {name: info.bytes for name, info in record.objects.items()}.items() <= sizes.items():
                return None
            records[split] = record
        return records

    def build(self) -> dict[str, PartRecord]:
        with _without_cycle_search():
            return {
                batch.split: write_part(storage.as_path(self.folder) / batch.split, self.number, self.inputs, batch, self.rows)
                for batch in self.source.read(self.number, self.rows)
            }


class Splits(NamedTuple):
    train: SplitManifest
    holdout: SplitManifest


def begin(
    workdir: str | PurePath, inputs: dict[str, Any], *, hosts: Hosts = ALONE, progress: Progress = SILENT
) -> DatasetManifest | None:
    """Claim W/dataset for these inputs; return the manifest if the dataset is complete.

    Raises WorkFolderMismatch if a complete dataset was made from other inputs.
    """
    folder = dataset_folder(workdir)
    if hosts.is_first:
        _claim(folder, inputs, progress)
    return load_manifest(workdir)


def build_splits(
    workdir: str | PurePath,
    inputs: dict[str, Any],
    rows: RowFormat,
    source: Source,
    num_parts: int,
    *,
    total: float,
    unit: str,
    runner: Runner,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> Splits | None:
    """Build this host's share of the missing parts; return the splits on the first host, None elsewhere.

    All parts together are `total` units of work.
    """
    folder, made_from = str(dataset_folder(workdir)), digest(inputs)
    tasks = [PartTask(folder, number, made_from, rows, source, total / num_parts) for number in range(num_parts)]
    stage.sweep(tasks, hosts)
    built = stage.run(tasks, "Building the dataset", unit, runner=runner, hosts=hosts, progress=progress)
    if not hosts.is_first:
        return None
    parts = stage.gather(tasks, built)
    stage.sweep(tasks)
    records = {split: [part[split] for part in parts] for split in SPLITS}
    return Splits(*(split_manifest(dataset_folder(workdir) / split, split, inputs, rows, records[split]) for split in SPLITS))


def write_part(split_folder: PurePath, number: int, inputs: str, batch: SplitRows, rows: RowFormat) -> PartRecord:
    """Write the rows, in one or more versions, and their record into a temporary folder, then move it into place.

    Memory: one version, a shard of its rows, and TensorStore's copy of the shard.
    """
    with storage.built_aside(split_folder / part_name(number), last=_RECORD) as temporary:
        storage.make_folder(temporary)
        written, checksums = list[Counts](), dict[str, str]()
        for version in batch.versions:
            if version.layout.num_rows:
                for column in rows.columns:
                    path = array_path(column, len(written))
                    checksums[path] = _write_column(temporary / path, column, version, rows)
            written.append(with_rows(batch.counts, version.layout, rows.sequence_length))
        record = PartRecord(
            inputs=inputs,
            number=number,
            counts=written[0],
            objects={
                name: ObjectRecord(bytes=info.size, sha256=storage.sha256(temporary / name))
                for name, info in storage.walk(temporary).items()
            },
            removed=dict(batch.removed),
            checksums=checksums,
            redrawn_rows=tuple(drawn.rows for drawn in written[1:]),
        )
        record.write(temporary / _RECORD)
    return record


@contextlib.contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Disable Python's cycle collector: it would traverse the part's lists repeatedly (a sixth of the time) for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _claim(folder: PurePath, inputs: dict[str, Any], progress: Progress) -> None:
    """Record what this dataset is made from, before anything else. Raises WorkFolderMismatch if a complete one was made from
    other inputs; an incomplete one's parts from other inputs are built again.
    """
    path = folder / "inputs.json"
    recorded = storage.read_json(path) if storage.exists(path) else None
    if recorded == inputs:
        return
    lines = [str(change).removeprefix("config.") for change in changes(recorded or inputs, inputs)]
    if lines and storage.exists(folder / "manifest.json"):
        option, made = (
            ("--to", f"{folder} to make it") if "imported" in inputs else ("--workdir", f"{folder} and its corpus to make them")
        )
        raise WorkFolderMismatch(
            f"{folder} was made from other inputs (there -> now):\n{listed(lines)}\n"
            f"Set them back, use another {option}, or delete {made} again."
        )
    if lines:
        progress.note(f"{folder} was begun from other inputs, and is begun again: {some_of(lines)}")
    storage.write_json(path, inputs)


def with_rows(counts: Counts, layout: RowLayout, sequence_length: int) -> Counts:
    """The counts of the text, completed with those of its rows."""
    in_rows = int(layout.length.sum())
    slots = layout.num_rows * sequence_length
    return counts.model_copy(
        update={
            "rows": layout.num_rows,
            "copied_tokens": in_rows - counts.tokens,
            "random_next_rows": 0 if layout.random_next is None else int(layout.random_next.sum()),
            "padding": slots - in_rows - int(layout.closes.sum()) - int(layout.opens.sum()),
        }
    )


def _write_column(path: PurePath, column: str, version: Version, rows: RowFormat) -> str:
    """Write the array; return the checksums of its rows (`PartRecord.checksums`)."""
    layout, tokens, word_start = version
    dtype, step = rows.column_dtype(column), rows.read_rows
    sums = [google_crc32c.Checksum() for _ in range(0, layout.num_rows, step)]

    def values(first: int, last: int) -> np.ndarray:
        if column == "tokens":
            return fill(layout, first, last, tokens, rows.sequence_length, rows.special)
        if column == WORD_START:
            assert word_start is not None
            return fill(layout, first, last, word_start, rows.sequence_length, _NO_WORDS)
        assert layout.random_next is not None
        return layout.random_next[first:last].astype(dtype)

    def summed(first: int, last: int) -> np.ndarray:
        block = values(first, last)
        for number in range(first // step, -(-last // step)):  # a shard may end within what is read at once
            begin, end = max(first, number * step), min(last, (number + 1) * step)
            sums[number].update(block[begin - first : end - first].tobytes())
        return block

    store.write_array(
        path, summed, num_rows=layout.num_rows, row_shape=rows.column_shape(column), dtype=dtype, block_rows=rows.block_rows
    )
    return base64.b64encode(b"".join(one.digest() for one in sums)).decode()
