"""The corpus stage: every source is read once, and its documents are written to spills, from which parts are read.

The unit of work and of restart is a piece: a few files of one source, read, cleaned and spilled by one process. Killed at any
moment and run again, the stage reads only the unfinished pieces, and the result is the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.config import CorpusConfig
from tpulm.config.schema import PATTERNS
from tpulm.corpus.cleaning import CONTROL_CHARACTERS, MARKUP, Cleaner, languages_version
from tpulm.corpus.documents import DocumentBatch, Faults, merge_samples
from tpulm.corpus.identity import RANGE, HashPurpose, draw, holdout_threshold, joined, keys_of_texts
from tpulm.corpus.manifest import (
    FORMAT_VERSION,
    CorpusManifest,
    Counts,
    InputRecord,
    PieceRecord,
    PieceSpill,
    fingerprint_of,
    hash_json,
    is_unchanged,
    load_manifest,
    manifest_path,
    pieces_folder,
    reading_settings,
    removed_path,
    spill_path,
    verify,
)
from tpulm.corpus.near import contains, duplicates_path, keys_between, mark_near_duplicates, near_folder
from tpulm.corpus.readers import READERS, Reader, read_documents
from tpulm.corpus.readers.lines import ByteStream, InputFile, open_file
from tpulm.corpus.sources import find_files, refuse_unused_settings
from tpulm.corpus.spill import SpillReader, SpillWriter, new_spill, spill_bytes
from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import plural
from tpulm.runtime import interrupt, stage
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner, TaskProgress, WorkerPool, count_cores, report, run_here, run_tasks
from tpulm.storage.paths import printable

_PIECE_BYTES: Final = 64 << 20  # of text; small files share a piece, a large file is one piece
_SHARED_PARTS: Final = 8
_WORTH_SHARING_BYTES: Final = 2_000_000
_FEW_DOCUMENTS: Final = 10_000
_MUCH_MARKUP: Final = 0.01  # of the documents
_WORTH_A_POOL_BYTES: Final = 24 << 20  # of text; takes one core a second, as long as starting a pool


def scatter(
    config: CorpusConfig,
    workdir: str | os.PathLike[str],
    *,
    part_bytes: int,
    runner: Runner | None = None,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> CorpusManifest:
    """Write W/corpus; if it is complete already, only check that nothing has changed since.

    A complete corpus is not read again if `remove_spill` has deleted its documents, since the dataset has them. Raises
    ConfigError for missing sources, DataError for unusable input or an empty corpus, and WorkFolderMismatch if the folder holds
    another corpus. `runner` (by default a pool of processes) and `hosts`, which share the pieces, do not change the result.
    """
    manifest = load_manifest(workdir)
    if manifest is not None:
        verify(manifest, config, workdir, part_bytes=part_bytes)
        return manifest
    files = find_files(config.sources, note=progress.note)
    refuse_unused_settings(config.sources, files)
    Cleaner(config.cleaning)  # raises errors in the settings early
    pieces = cut_into_pieces(files, config, os.fspath(workdir))
    stage.sweep(pieces, hosts, also=[near_folder(workdir)])
    runner = _runner(pieces, runner)
    limits = Limits(config.max_documents, config.max_bytes)
    if limits == Limits():
        records = stage.run(pieces, "Reading the corpus", "B", runner=runner, hosts=hosts, progress=progress)
        records = stage.gather(pieces, records)
    else:
        records = _read_up_to(limits, pieces, hosts, progress)
    if config.near_duplicates is not None:
        mark_near_duplicates(records, workdir, config.near_duplicates, runner=runner, hosts=hosts, progress=progress)
    if hosts.is_first:
        _write_manifest(config, workdir, part_bytes, records, progress)
    hosts.barrier("corpus")
    manifest = load_manifest(workdir)
    assert manifest is not None, "the first host has written it"
    return manifest


def _runner(pieces: Sequence[Piece], runner: Runner | None) -> Runner:
    """By default a pool of processes, or this one if a pool is not worth it."""
    if runner is None or isinstance(runner, WorkerPool):
        workers = min(runner.workers if runner else count_cores(), len(pieces))
        if runner is not None:
            runner.warm_up()  # for later stages, if not for this one
        if workers <= 1 or sum(piece.text_bytes for piece in pieces) <= _WORTH_A_POOL_BYTES:
            return run_here
    return runner or run_tasks


def _read_up_to(limits: Limits, pieces: Sequence[Piece], hosts: Hosts, progress: Progress) -> list[PieceRecord]:
    """Read in sequence, on the first host: how much of a piece is read depends on the pieces before it."""
    if not hosts.is_first:
        hosts.barrier("corpus read")
    progress.start("Reading the corpus", sum(piece.amount for piece in pieces), "B")
    records: list[PieceRecord] = []
    with TaskProgress(progress):
        for piece in pieces:
            piece = piece._replace(limits=limits)
            if hosts.is_first and (record := piece.finished()):
                progress.advance(piece.amount)
            else:
                record = piece.build() if hosts.is_first else stage.require(piece)
            records.append(record)
            limits = limits.after(record.counts)
            if record.limit_reached:
                break
    if hosts.is_first:
        hosts.barrier("corpus read")
    return records


def _write_manifest(
    config: CorpusConfig, workdir: str | os.PathLike[str], part_bytes: int, records: Sequence[PieceRecord], progress: Progress
) -> None:
    counts = sum((record.counts for record in records), Counts())
    _report(config, counts, progress)
    if not counts.documents:
        raise DataError(_empty(config, counts))
    inputs = tuple(file for record in records for file in record.inputs)
    manifest = CorpusManifest(
        config=_without_places(config),
        part_bytes=part_bytes,
        inputs=inputs,
        counts=counts,
        num_parts=_number_of_parts(counts.bytes, part_bytes),
        holdout_below=holdout_threshold(config.holdout_fraction, *_extreme_draws(config, workdir, records)),
        limit_reached=any(record.limit_reached for record in records),
        pieces=tuple(PieceSpill(source=record.source, runs=record.runs) for record in records),
        fingerprint=fingerprint_of(config, inputs, counts),
    )
    storage.write_json(removed_path(workdir), merge_samples(record.removed for record in records))
    manifest.write(manifest_path(workdir))


def _extreme_draws(config: CorpusConfig, workdir: str | os.PathLike[str], records: Sequence[PieceRecord]) -> tuple[int, int]:
    """The smallest and the largest holdout draw of the documents; of few, of which either may be that of a near-duplicate, of
    those that stay."""
    if config.near_duplicates is None or sum(record.counts.documents for record in records) > _FEW_DOCUMENTS:
        return min(record.smallest_draw for record in records), max(record.largest_draw for record in records)
    readers = [SpillReader(spill_path(workdir, number), record.runs) for number, record in enumerate(records)]
    keys = joined(item.keys for reader in readers for item in reader.slices())
    draws = draw(keys.take(~contains(keys_between(duplicates_path(workdir), 0, RANGE), keys)), HashPurpose.HOLDOUT)
    return int(draws.min()), int(draws.max())


def _number_of_parts(text_bytes: int, part_bytes: int) -> int:
    """The number of parts. A small corpus gets 2, 4 or 8, if they stay large enough, which cores can share evenly."""
    shared = min(_SHARED_PARTS, max(1, text_bytes // _WORTH_SHARING_BYTES))
    return max(-(-text_bytes // part_bytes), 1 << shared.bit_length() - 1)


def _without_places(config: CorpusConfig) -> CorpusConfig:
    """The settings with only the last name of each path: a manifest does not depend on where the text is."""
    sources = [
        source.model_copy(update={"path": printable(PurePath(source.path).name), "data_dir": None}) for source in config.sources
    ]
    return config.model_copy(update={"sources": tuple(sources)})


def remove_spill(workdir: str | os.PathLike[str]) -> None:
    """Delete the documents, which are not needed once the dataset is complete; the manifest stays."""
    storage.remove(pieces_folder(workdir))


def _report(config: CorpusConfig, counts: Counts, progress: Progress) -> None:
    if counts.skipped:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.skipped.items())
        progress.note(f"{plural(counts.documents, 'document')} kept; left out: {reasons}")
    if counts.replaced:
        kinds = ", ".join(f"{count:,} of the kind '{kind}'" for kind, count in counts.replaced.items())
        progress.note(f"replaced by placeholders: {kinds}")
    for pattern, matches in counts.removed_matches.items():
        hint = "; if they are many, the encoding may be another one" if pattern == CONTROL_CHARACTERS else ""
        progress.note(f"deleted: {matches:,} matches of {pattern}, {counts.removed_characters[pattern]:,} characters{hint}")
    for name, count in counts.markup.items():
        if count >= _MUCH_MARKUP * counts.documents:
            progress.note(f"{count:,} of {counts.documents:,} documents contain {name}: {MARKUP[name].remedy}")
    if counts.removed_templates:
        commonest = Counter(counts.removed_templates).most_common(5)
        progress.note(
            f"taken out of sentences: {sum(counts.removed_templates.values()):,} templates and formulas, most often "
            f"{', '.join(name for name, _ in commonest)}"
        )
    if counts.removed_matches.get(PATTERNS["aozora"][0]) and any(one.documents != "file" for one in config.sources):
        progress.note(
            "the lines of dashes are deleted, but headers and footers of Aozora's files only where a document is a file: other "
            'documents keep them. Give the source documents = "file", or for a single book delete both from the file'
        )


def _empty(config: CorpusConfig, counts: Counts) -> str:
    if config.max_bytes is not None and not counts.skipped:
        return f"the corpus is empty: its first document is larger than corpus.max_bytes = {config.max_bytes:,}; raise that"
    names = ", ".join(printable(source.path) or source.format for source in config.sources)
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.skipped.items())
    setting = "encoding of the source" if "undecodable" in counts.skipped else "corpus.cleaning"
    cause = f"all documents were left out: {reasons}. Check {setting}" if reasons else "no text was found. Check corpus.sources"
    return f"the corpus is empty: {cause} ({names})"


class Limits(NamedTuple):
    """How much of the corpus may still be kept when a piece begins; None: no limit."""

    documents: int | None = None
    bytes: int | None = None

    def after(self, counts: Counts) -> Limits:
        documents = None if self.documents is None else self.documents - counts.documents
        return Limits(documents, None if self.bytes is None else self.bytes - counts.bytes)

    @property
    def reached(self) -> bool:
        return self.documents == 0 or self.bytes == 0


class Piece(NamedTuple):
    number: int
    inputs: tuple[InputFile, ...]  # of one source
    config: CorpusConfig
    workdir: str
    limits: Limits = Limits()
    readers: Mapping[str, Reader] = READERS  # a worker lacks what its parent has registered

    @property
    def files(self) -> tuple[PurePath, PurePath]:
        return self.spill, self.record

    @property
    def amount(self) -> int:
        return sum(file.bytes for file in self.inputs)

    @property
    def spill(self) -> PurePath:
        return spill_path(self.workdir, self.number)

    @property
    def record(self) -> PurePath:
        return self.spill.with_suffix(".json")

    @property
    def text_bytes(self) -> int:
        """An estimate."""
        return sum(expected_text_bytes(file) for file in self.inputs)

    def settings(self) -> str:
        """A hash of everything but the files' bytes that the spill depends on."""
        reading = [reading_settings(self.config, file.source, file) for file in self.inputs]
        cleaning = self.config.cleaning.model_dump(mode="json")
        decides = [languages_version()] if self.config.cleaning.languages else []
        return hash_json([FORMAT_VERSION, reading, cleaning, 1.0, self.limits, *decides])  # 1.0: a fraction, once a setting

    def finished(self) -> PieceRecord | None:
        """The record of the piece if an earlier attempt finished it with the same files and settings, else None."""
        record = stage.read_record(PieceRecord, self.record, settings=self.settings())
        if record is None or not stage.has_size(self.spill, spill_bytes(record.runs)):
            return None
        # A limit may have ended the reading before the last files.
        if len(record.inputs) != len(self.inputs) and not record.limit_reached:
            return None
        return record if all(map(is_unchanged, record.inputs, self.inputs)) else None

    def build(self) -> PieceRecord:
        """Read the files once and write the spill, then its record."""
        READERS.update(self.readers)
        source = self.config.sources[self.inputs[0].source]
        faults = Faults(source.on_error)
        inputs: list[InputRecord] = []
        with new_spill(self.spill) as spill:
            writer = _PieceWriter(self, spill, faults)
            for file in self.inputs:
                faults.name = file.name
                stream = open_file(file, faults, report)
                for batch in read_documents(file, source, stream, faults, report):
                    interrupt.check("files that were read to their end need not be read again")
                    report(0, documents=writer.keep(batch))
                    if writer.limit_reached:
                        break
                inputs.append(_input_record(file, stream, writer.limit_reached))
                if writer.limit_reached:
                    break
        record = writer.record(tuple(inputs))
        record.write(self.record)
        return record


def expected_text_bytes(file: InputFile) -> int:
    return file.bytes * (4 if file.compression else 1)


def cut_into_pieces(files: Iterable[InputFile], config: CorpusConfig, workdir: str) -> list[Piece]:
    groups: list[list[InputFile]] = []
    room = 0
    for file in files:
        size = expected_text_bytes(file)
        if not groups or groups[-1][0].source != file.source or size > room:
            groups.append([])
            room = _PIECE_BYTES
        groups[-1].append(file)
        room -= size
    return [Piece(number, tuple(group), config, workdir) for number, group in enumerate(groups)]


def _input_record(file: InputFile, stream: ByteStream, limit_reached: bool) -> InputRecord:
    if file.sha256:
        read_bytes, sha256 = file.bytes, file.sha256
    else:
        read_bytes, sha256 = stream.read_bytes, stream.sha256()
    if read_bytes != file.bytes and not limit_reached:
        raise DataError(f"it had {file.bytes} bytes, then {read_bytes} when read: let nothing write to it", location=file.name)
    known = {name: value for name, value in file._asdict().items() if name not in ("path", "length")}
    return InputRecord.model_validate(known | {"read_bytes": read_bytes, "sha256": sha256})


class _PieceWriter:
    """Cleans and samples batches, adds them to the spill up to the limits, and counts."""

    def __init__(self, piece: Piece, spill: SpillWriter, faults: Faults):
        self._piece = piece
        self._spill = spill
        self._faults = faults
        self._cleaner = Cleaner(piece.config.cleaning)
        self._counts = Counts()
        self._draws = (RANGE - 1, 0)
        self.limit_reached = piece.limits.reached

    def keep(self, batch: DocumentBatch) -> int:
        """Clean a batch and add it to the spill; returns how many documents are kept."""
        documents, text, sizes, characters = self._cleaner.clean(batch, self._faults.skipped)
        if not documents:
            return 0
        keys = keys_of_texts(documents, text)
        count = self._fitting(sizes)
        if count < len(documents):
            documents, characters, sizes, keys = documents[:count], characters[:count], sizes[:count], keys.take(slice(count))
        if not count:
            return 0
        self._spill.add(documents, keys)
        draws = draw(keys, HashPurpose.HOLDOUT)
        self._draws = (min(self._draws[0], int(draws.min())), max(self._draws[1], int(draws.max())))
        self._counts += Counts(documents=count, bytes=int(sizes.sum()), characters=int(characters.sum()))
        return count

    def _fitting(self, sizes: np.ndarray) -> int:
        """How many of the next documents the limits allow."""
        remaining = self._piece.limits.after(self._counts)
        count = len(sizes)
        if remaining.documents is not None:
            count = min(count, remaining.documents)
            self.limit_reached |= count == remaining.documents
        if remaining.bytes is not None:
            count = min(count, int(np.searchsorted(np.cumsum(sizes), remaining.bytes, "right")))
            self.limit_reached |= count < len(sizes) or int(sizes.sum()) == remaining.bytes
        return count

    def record(self, inputs: tuple[InputRecord, ...]) -> PieceRecord:
        left_out = {"skipped": self._faults.skipped, "removed_templates": self._faults.removed_templates}
        return PieceRecord(
            settings=self._piece.settings(),
            inputs=inputs,
            counts=self._counts + Counts.model_validate(left_out | self._cleaner.counts),
            runs=tuple(self._spill.runs),
            smallest_draw=self._draws[0],
            largest_draw=self._draws[1],
            limit_reached=self.limit_reached,
            removed=merge_samples([self._cleaner.samples.removed(), self._faults.samples.removed()]),
        )
