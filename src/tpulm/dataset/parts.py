"""The preparation engine: parts of rows from a source, each complete or absent, in parallel, and the manifest last.

Whatever the source of rows (`prepare.TextSource`, `importing.RecordSource`), a restart after a kill builds only the missing
parts, in the processes of one machine, on several hosts, or on a cluster.
"""

from __future__ import annotations

import base64
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np

from tpulm import storage
from tpulm.config import changes, listed
from tpulm.dataset import store
from tpulm.dataset.layouts import Layout, Marks, fill
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
    parse,
    part_name,
    split_manifest,
)
from tpulm.errors import StorageError, WorkFolderMismatch, some_of
from tpulm.progress import SILENT, DocumentRate, Progress
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner, TaskProgress

_RECORD = "part.json"
_NO_WORDS = Marks(pad=0, cls=0, sep=0)  # the values of [PAD], [CLS] and [SEP] in "word_start"


class Version(NamedTuple):
    """One version of a part's rows: a layout of its tokens."""

    layout: Layout
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
    folder: str  # W/dataset
    number: int
    inputs: str  # digest of inputs.json
    rows: RowFormat
    source: Source


class Splits(NamedTuple):
    train: SplitManifest
    holdout: SplitManifest


def begin(
    workdir: str | PurePath, inputs: dict[str, Any], *, hosts: Hosts = ALONE, progress: Progress = SILENT
) -> DatasetManifest | None:
    """Claim W/dataset for these inputs and clean it up; return the manifest if the dataset is complete.

    Raises WorkFolderMismatch if a complete dataset was made from other inputs.
    """
    folder = dataset_folder(workdir)
    if hosts.is_first:
        _claim(folder, inputs, progress)
    if (complete := load_manifest(workdir)) is not None:
        return complete
    if hosts.is_first:
        _sweep(folder, set())
    hosts.barrier("dataset begun")
    return None


def build_splits(
    workdir: str | PurePath,
    inputs: dict[str, Any],
    rows: RowFormat,
    source: Source,
    num_parts: int,
    *,
    total: float,
    unit: str,
    work_done: Callable[[Counts], float],
    runner: Runner,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> Splits | None:
    """Build this host's share of the missing parts; return the splits on the first host, None elsewhere.

    All parts together are `total` units of work; `work_done` gives those of one part from its counts.
    """
    folder, made_from = dataset_folder(workdir), digest(inputs)
    tasks = [PartTask(str(folder), number, made_from, rows, source) for number in hosts.share(range(num_parts))]
    records: dict[str, list[PartRecord]] = {split: [] for split in SPLITS}
    missing = []
    for task in tasks:
        found = _read_records(folder, task.number, made_from)
        if len(found) < len(SPLITS):
            missing.append(task)
            continue
        for split, record in found.items():
            records[split].append(record)
    if kept := len(tasks) - len(missing):
        progress.note(f"{kept} of {len(tasks)} parts of the dataset are already there")
    progress.start("Building the dataset", total=total / num_parts * len(missing), unit=unit)
    documents = DocumentRate(progress)
    with TaskProgress(progress) as done:
        for built in runner(build_part, ((task,) for task in missing)):
            for split, record in built.items():
                records[split].append(record)
            done.add(over=sum(work_done(record.counts) for record in built.values()))
            documents.add(sum(record.counts.documents for record in built.values()))
    hosts.barrier("dataset parts")
    if not hosts.is_first:
        return None
    for number in set(range(num_parts)) - {task.number for task in tasks}:
        found = _read_records(folder, number, made_from)
        if len(found) < len(SPLITS):
            raise StorageError(
                f"part {number} of {folder} is not there, though the host that made it said so; run the same command again"
            )
        for split, record in found.items():
            records[split].append(record)
    _sweep(folder, {part_name(number) for number in range(num_parts)})
    return Splits(*(split_manifest(split, inputs, rows, records[split]) for split in SPLITS))


def build_part(task: PartTask) -> dict[str, PartRecord]:
    """Read and write one part of both splits; return its records by split."""
    folder = storage.as_path(task.folder)
    with _without_cycle_search():
        return {
            found.split: write_part(
                folder / found.split,
                number=task.number,
                inputs=task.inputs,
                versions=found.versions,
                counts=found.counts,
                rows=task.rows,
                removed=found.removed,
            )
            for found in task.source.read(task.number, task.rows)
        }


def write_part(
    split_folder: PurePath,
    *,
    number: int,
    inputs: str,
    versions: Iterable[Version],
    counts: Counts,
    rows: RowFormat,
    removed: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> PartRecord:
    """Write the rows, in one or more versions, and their record into a temporary folder, then move it into place.

    Memory: one version, a shard of its rows, and TensorStore's copy of the shard. `counts` are those of the text.
    """
    with storage.built_aside(split_folder / part_name(number), last=_RECORD) as temporary:
        storage.make_folder(temporary)
        written, checksums = list[Counts](), dict[str, str]()
        for version in versions:
            if version.layout.num_rows:
                for column in rows.columns:
                    path = array_path(column, len(written))
                    checksums[path] = _write_column(temporary / path, column, version, rows)
            written.append(with_rows(counts, version.layout, rows.sequence_length))
        record = PartRecord(
            inputs=inputs,
            number=number,
            counts=written[0],
            objects={
                name: ObjectRecord(bytes=found.size, sha256=storage.sha256(temporary / name))
                for name, found in storage.walk(temporary).items()
            },
            removed=dict(removed),
            checksums=checksums,
            redrawn_rows=tuple(drawn.rows for drawn in written[1:]),
        )
        storage.write_json(temporary / _RECORD, record.model_dump(mode="json"), sealed=True)
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


def _read_record(split_folder: PurePath, number: int, inputs: str) -> PartRecord | None:
    """The record of a part that exists, complete by its sizes, and made from these inputs; else None."""
    folder = split_folder / part_name(number)
    path, there = folder / _RECORD, storage.walk(folder)
    if _RECORD not in there:
        return None
    value = storage.read_json(path)
    if (value.get("format_version"), value.get("inputs")) != (FORMAT_VERSION, inputs):
        return None
    record: PartRecord = parse(PartRecord, value, path)
    for name, found in record.objects.items():
        if name not in there or there[name].size != found.bytes:
            return None
    return record


def _read_records(folder: PurePath, number: int, inputs: str) -> dict[str, PartRecord]:
    """The records of a part, by split, where the part is complete."""
    found = {split: _read_record(folder / split, number, inputs) for split in SPLITS}
    return {split: record for split, record in found.items() if record is not None}


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
        raise WorkFolderMismatch(
            f"{folder} was made from other inputs (there -> now):\n{listed(lines)}\n"
            f"Set them back, use another --workdir, or delete {folder} and its corpus to make them again."
        )
    if lines:
        progress.note(f"{folder} was begun from other inputs, and is begun again: {some_of(lines)}")
    storage.write_json(path, inputs)


def _sweep(folder: PurePath, parts: set[str]) -> None:
    """Delete temporary files of killed attempts; with the complete `parts` given, also everything else."""
    for split in SPLITS:
        for path in storage.list_folder(folder / split):
            if path.name.endswith(storage.TEMPORARY_SUFFIX) or (parts and path.name not in parts):
                storage.remove(path)


def with_rows(counts: Counts, layout: Layout, sequence_length: int) -> Counts:
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
    dtype = rows.column_dtype(column)
    marks = Marks(rows.special.pad, rows.special.cls, rows.special.sep)

    def values(first: int, last: int) -> np.ndarray:
        if column == "tokens":
            return fill(layout, first, last, tokens, rows.sequence_length, marks)
        if column == WORD_START:
            assert word_start is not None
            return fill(layout, first, last, word_start, rows.sequence_length, _NO_WORDS)
        assert layout.random_next is not None
        return layout.random_next[first:last].astype(dtype)

    store.write_array(
        path,
        values,
        num_rows=layout.num_rows,
        row_shape=rows.column_shape(column),
        dtype=dtype,
        block_rows=rows.block_rows,
    )
    step, last = rows.read_rows, layout.num_rows
    sums = [google_crc32c.value(values(first, min(first + step, last)).tobytes()) for first in range(0, last, step)]
    return base64.b64encode(np.array(sums, ">u4").tobytes()).decode()
