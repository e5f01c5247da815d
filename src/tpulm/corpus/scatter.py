"""The corpus stage: every source is read once, and its documents are spilled where parts can be cut from them.

Killed at any moment and run again, it reads only the pieces that were not finished, and the result is the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Final

from tpulm import storage
from tpulm.config import CorpusConfig
from tpulm.corpus.cleaning import Cleaner
from tpulm.corpus.documents import merge_samples
from tpulm.corpus.identity import RANGE, holdout_threshold
from tpulm.corpus.manifest import (
    FORMAT_VERSION,
    CorpusManifest,
    Counts,
    PieceRecord,
    PieceSpill,
    fingerprint_of,
    load_manifest,
    manifest_path,
    pieces_folder,
    removed_path,
    spill_path,
    verify,
)
from tpulm.corpus.near import mark_near_duplicates, near_folder
from tpulm.corpus.piece import Limits, Piece, cut_into_pieces, finished, scatter_piece
from tpulm.corpus.readers import READERS, Reader
from tpulm.corpus.sources import find_files
from tpulm.errors import DataError, StorageError
from tpulm.progress import SILENT, DocumentRate, Progress
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner, TaskProgress, WorkerPool, count_cores, report, run_tasks
from tpulm.storage.paths import printable

_SHARED_PARTS: Final = 8
_WORTH_SHARING_BYTES: Final = 2_000_000
_WORTH_A_POOL_BYTES: Final = 24 << 20  # of text; a second's work on one core, as long as starting a pool takes


def scatter(
    config: CorpusConfig,
    workdir: str | os.PathLike[str],
    *,
    part_bytes: int,
    workers: int | None = None,
    runner: Runner | None = None,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> CorpusManifest:
    """Fill W/corpus; where that was finished before, only check that nothing changed since.

    What was finished may have lost its documents to `remove_spill` (see `has_spill`): they are not read again, since the
    dataset has them. Raises ConfigError for sources that are not there, DataError for input that cannot be used or an empty
    corpus, and WorkFolderMismatch if the folder holds another corpus. `workers`, `runner` (by default a pool of so many
    processes) and `hosts`, which share the pieces, do not change the result.
    """
    manifest = load_manifest(workdir)
    if manifest is not None:
        verify(manifest, config, workdir, part_bytes=part_bytes)
        return manifest
    files = find_files(config.sources)
    Cleaner(config.cleaning)  # what is wrong with the settings had better be said now
    pieces = cut_into_pieces(files, config, os.fspath(workdir))
    if hosts.is_first:
        _remove_leftovers(storage.make_folder(pieces_folder(workdir)), pieces)
    hosts.barrier("corpus begun")
    limited = config.max_documents is not None or config.max_bytes is not None
    mine = hosts.share(pieces) if not limited else pieces if hosts.is_first else []
    progress.start("Reading the corpus", sum(map(_raw_bytes, mine)), "B")
    records = _read_in_order(mine, config, progress) if limited else _read_in_parallel(mine, config, workers, runner, progress)
    hosts.barrier("corpus read")
    if hosts.are_several and len(records) < len(pieces):
        records = _of_all_hosts(pieces, records)
    if config.near_duplicates is not None:
        mark_near_duplicates(
            records, workdir, config.near_duplicates, runner=runner, workers=workers, hosts=hosts, progress=progress
        )
    if hosts.is_first:
        _write_manifest(config, workdir, part_bytes, records, progress)
    hosts.barrier("corpus")
    manifest = load_manifest(workdir)
    assert manifest is not None, "the first host has written it"
    return manifest


def _of_all_hosts(pieces: Sequence[Piece], records: Sequence[PieceRecord]) -> list[PieceRecord]:
    """With a limit the first host has read all there is; else the others have left their records beside its own."""
    if any(record.limit_reached for record in records):
        return list(records)
    found = [finished(piece) for piece in pieces]
    for piece, record in zip(pieces, found, strict=True):
        if record is None:
            raise StorageError(f"{piece.record} is not there, though the host that made it said so; run the same command again")
    return [record for record in found if record is not None]


def _write_manifest(
    config: CorpusConfig,
    workdir: str | os.PathLike[str],
    part_bytes: int,
    records: Sequence[PieceRecord],
    progress: Progress,
) -> None:
    counts = sum((record.counts for record in records), Counts())
    _report(counts, progress)
    if not counts.documents:
        raise DataError(_empty(config, counts))
    inputs = tuple(file for record in records for file in record.inputs)
    manifest = CorpusManifest(
        format_version=FORMAT_VERSION,
        config=_without_places(config),
        part_bytes=part_bytes,
        inputs=inputs,
        counts=counts,
        num_parts=_number_of_parts(counts.bytes, part_bytes),
        holdout_below=holdout_threshold(
            config.holdout_fraction,
            min((record.smallest_draw for record in records), default=RANGE - 1),
            max((record.largest_draw for record in records), default=0),
        ),
        limit_reached=any(record.limit_reached for record in records),
        pieces=tuple(PieceSpill(source=record.source, runs=record.runs) for record in records),
        fingerprint=fingerprint_of(config, inputs, counts),
    )
    storage.write_json(removed_path(workdir), merge_samples(record.removed for record in records))
    storage.write_json(manifest_path(workdir), manifest.model_dump(mode="json"))


def _number_of_parts(text_bytes: int, part_bytes: int) -> int:
    """Of a small corpus as many as two, four or eight cores can share evenly, which do not get too small by that."""
    shared = min(_SHARED_PARTS, max(1, text_bytes // _WORTH_SHARING_BYTES))
    return max(-(-text_bytes // part_bytes), 1 << shared.bit_length() - 1)


def _without_places(config: CorpusConfig) -> CorpusConfig:
    """The settings with the last name of each path alone: a manifest is the same wherever its text lay."""
    sources = [
        source.model_copy(update={"path": printable(PurePath(source.path).name), "data_dir": None}) for source in config.sources
    ]
    return config.model_copy(update={"sources": tuple(sources)})


def has_spill(workdir: str | os.PathLike[str], manifest: CorpusManifest) -> bool:
    """Whether the documents are still there."""
    return all(storage.exists(spill_path(workdir, index)) for index in range(len(manifest.pieces)))


def remove_spill(workdir: str | os.PathLike[str]) -> None:
    """Delete the documents, which nobody needs once the dataset is complete; the manifest stays."""
    storage.remove(pieces_folder(workdir))


def _remove_leftovers(folder: PurePath, pieces: Sequence[Piece]) -> None:
    """Half-written files of a killed attempt, and pieces that this corpus does not have."""
    expected = {near_folder("").name, *(path.name for piece in pieces for path in (piece.spill, piece.record))}
    for path in storage.list_folder(folder):
        if path.name not in expected:
            storage.remove(path)


def _read_in_parallel(
    pieces: Sequence[Piece], config: CorpusConfig, workers: int | None, runner: Runner | None, progress: Progress
) -> list[PieceRecord]:
    """In a pool of processes, or one after another where that is not worth it."""
    records = {piece.number: record for piece in pieces if (record := finished(piece)) is not None}
    waiting = [piece for piece in pieces if piece.number not in records]
    if runner is None or isinstance(runner, WorkerPool):
        workers = min(runner.workers if runner else workers or count_cores(), len(waiting))
        if runner is not None and waiting:
            runner.warm_up()  # for the stages to come, if not for this one
        if workers <= 1 or sum(piece.text_bytes for piece in waiting) <= _WORTH_A_POOL_BYTES:
            return _read_in_order(pieces, config, progress)
        runner = runner or partial(run_tasks, workers=workers)
    progress.advance(sum(_raw_bytes(piece) for piece in pieces if piece.number in records))
    documents = DocumentRate(progress)
    largest_first = sorted(waiting, key=lambda piece: -piece.text_bytes)
    with TaskProgress(progress) as tasks:
        for number, record in runner(_numbered, [(piece, READERS) for piece in largest_first]):
            records[number] = record
            tasks.add(over=sum(file.bytes for file in record.inputs))
            documents.add(record.counts.documents)
    return [records[piece.number] for piece in pieces]


def _numbered(piece: Piece, readers: Mapping[str, Reader]) -> tuple[int, PieceRecord]:
    READERS.update(readers)  # a worker has not registered what its parent has
    return piece.number, scatter_piece(piece, report)


def _read_in_order(pieces: Sequence[Piece], config: CorpusConfig, progress: Progress) -> list[PieceRecord]:
    """With a limit, how much of a piece is read depends on the pieces before it."""
    limits, documents = Limits(config.max_documents, config.max_bytes), DocumentRate(progress)
    records: list[PieceRecord] = []
    for piece in pieces:
        piece = piece._replace(limits=limits)
        record = finished(piece)
        if record is None:
            record = scatter_piece(piece, progress.advance, documents.add)
        else:
            progress.advance(_raw_bytes(piece))
        records.append(record)
        limits = limits.after(record.counts)
        if record.limit_reached:
            break
    return records


def _raw_bytes(piece: Piece) -> int:
    return sum(file.bytes for file in piece.files)


def _report(counts: Counts, progress: Progress) -> None:
    if counts.skipped:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.skipped.items())
        progress.note(f"{counts.documents:,} documents kept; left out: {reasons}")
    if counts.replaced:
        kinds = ", ".join(f"{count:,} of the kind '{kind}'" for kind, count in counts.replaced.items())
        progress.note(f"replaced by placeholders: {kinds}")
    for pattern, matches in counts.removed_matches.items():
        progress.note(f"deleted: {matches:,} matches of {pattern}, {counts.removed_characters[pattern]:,} characters")


def _empty(config: CorpusConfig, counts: Counts) -> str:
    if config.max_bytes is not None and not counts.skipped:
        return f"the corpus is empty: its first document is larger than corpus.max_bytes = {config.max_bytes:,}; raise that"
    names = ", ".join(printable(source.path) or source.format for source in config.sources)
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.skipped.items())
    found = (
        f"all documents were left out: {reasons}. Check corpus.cleaning"
        if reasons
        else "no text was found. Check corpus.sources"
    )
    return f"the corpus is empty: {found} ({names})"
