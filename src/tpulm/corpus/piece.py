"""A piece of the corpus: a few files of one source, read, cleaned and spilled by one process, and the unit of restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.config import CorpusConfig
from tpulm.config.validation import recorded
from tpulm.corpus.cleaning import Cleaner, languages_version
from tpulm.corpus.documents import Batch, Faults, merge_samples
from tpulm.corpus.identity import RANGE, Purpose, below, draw, keys_of_texts, threshold_of
from tpulm.corpus.manifest import (
    FORMAT_VERSION,
    Counts,
    InputRecord,
    PieceRecord,
    hash_json,
    is_unchanged,
    reading_settings,
    spill_path,
)
from tpulm.corpus.readers import read_documents
from tpulm.corpus.readers.lines import ByteStream, InputFile, open_file
from tpulm.corpus.spill import SpillWriter, new_spill, spill_bytes
from tpulm.errors import DataError
from tpulm.runtime import interrupt

_PIECE_BYTES: Final = 64 << 20  # of text; many small files share a piece, a large file is one


class Limits(NamedTuple):
    """How much of the corpus is still wanted when a piece begins; None: all of it."""

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
    files: tuple[InputFile, ...]  # of one source
    config: CorpusConfig
    workdir: str
    limits: Limits = Limits()

    @property
    def spill(self) -> PurePath:
        return spill_path(self.workdir, self.number)

    @property
    def record(self) -> PurePath:
        return self.spill.with_suffix(".json")

    @property
    def text_bytes(self) -> int:
        """A guess."""
        return sum(expected_text_bytes(file) for file in self.files)

    def settings(self) -> str:
        """A hash of what the spill depends on besides the bytes of the files."""
        reading = [reading_settings(self.config, file.source, file) for file in self.files]
        cleaning = self.config.cleaning.model_dump(mode="json")
        decides = [languages_version()] if self.config.cleaning.languages else []
        return hash_json([FORMAT_VERSION, reading, cleaning, self.config.sample_fraction, self.limits, *decides])


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


def finished(piece: Piece) -> PieceRecord | None:
    """The record of a piece that an earlier attempt finished, if its files and settings are still the same."""
    spill = storage.info(piece.spill)
    if spill is None or not storage.exists(piece.record):
        return None
    value = storage.read_json(piece.record)
    if value.get("settings") != piece.settings():
        return None
    record = recorded(PieceRecord, value, piece.record)
    if spill.size != spill_bytes(record.runs):
        return None
    # A limit may have ended the reading before the last files.
    if len(record.inputs) != len(piece.files) and not record.limit_reached:
        return None
    return record if all(map(is_unchanged, record.inputs, piece.files)) else None


def scatter_piece(
    piece: Piece, advance: Callable[[float], None] = lambda amount: None, kept: Callable[[int], None] = lambda documents: None
) -> PieceRecord:
    """Read the files once and write the spill, then its record. `advance` is told the raw bytes read, `kept` the documents."""
    source = piece.config.sources[piece.files[0].source]
    faults = Faults(source.on_error)
    inputs: list[InputRecord] = []
    with new_spill(piece.spill) as spill:
        writer = _PieceWriter(piece, spill, faults)
        for file in piece.files:
            faults.name = file.name
            stream = open_file(file, faults, advance)
            for batch in read_documents(file, source, stream, faults, advance):
                interrupt.check("files that were read to their end need not be read again")
                kept(writer.keep(batch))
                if writer.limit_reached:
                    break
            inputs.append(_input_record(file, stream, writer.limit_reached))
            if writer.limit_reached:
                break
    record = writer.record(tuple(inputs))
    storage.write_json(piece.record, record.model_dump(mode="json"))
    return record


def _input_record(file: InputFile, stream: ByteStream, limit_reached: bool) -> InputRecord:
    if file.sha256:
        read_bytes, sha256 = file.bytes, file.sha256
    else:
        read_bytes, sha256 = stream.read_bytes, stream.sha256()
    if read_bytes != file.bytes and not limit_reached:
        raise DataError(
            f"it had {file.bytes} bytes at first and {read_bytes} when read: let nothing write to it", location=file.name
        )
    known = {name: value for name, value in file._asdict().items() if name not in ("path", "length")}
    return InputRecord.model_validate(known | {"read_bytes": read_bytes, "sha256": sha256})


class _PieceWriter:
    """Takes batches to the spill: cleaned, sampled, up to the limits; and counts."""

    def __init__(self, piece: Piece, spill: SpillWriter, faults: Faults):
        self._piece = piece
        self._spill = spill
        self._faults = faults
        self._cleaner = Cleaner(piece.config.cleaning)
        self._counts = Counts()
        self._draws = (RANGE - 1, 0)
        self.limit_reached = piece.limits.reached

    def keep(self, batch: Batch) -> int:
        """How many of its documents stay."""
        documents, text, sizes, characters = self._cleaner.clean(batch, self._faults.skipped)
        if not documents:
            return 0
        keys = keys_of_texts(documents, text)
        fraction = self._piece.config.sample_fraction
        if fraction < 1.0:
            chosen = below(draw(keys, Purpose.CORPUS_SAMPLE), threshold_of(fraction))
            self._faults.skipped["sampled_out"] += int((~chosen).sum())
            documents, keys = list(compress(documents, chosen.tolist())), keys.take(chosen)
            sizes, characters = sizes[chosen], characters[chosen]
        count = self._fitting(sizes)
        if count < len(documents):
            documents, characters, sizes, keys = documents[:count], characters[:count], sizes[:count], keys.take(slice(count))
        if not count:
            return 0
        self._spill.add(documents, keys)
        draws = draw(keys, Purpose.HOLDOUT)
        self._draws = (min(self._draws[0], int(draws.min())), max(self._draws[1], int(draws.max())))
        self._counts += Counts(documents=count, bytes=int(sizes.sum()), characters=int(characters.sum()))
        return count

    def _fitting(self, sizes: np.ndarray) -> int:
        """How many of the next documents the limits allow."""
        left = self._piece.limits.after(self._counts)
        count = len(sizes)
        if left.documents is not None:
            count = min(count, left.documents)
            self.limit_reached |= count == left.documents
        if left.bytes is not None:
            count = min(count, int(np.searchsorted(np.cumsum(sizes), left.bytes, "right")))
            self.limit_reached |= count < len(sizes) or int(sizes.sum()) == left.bytes
        return count

    def record(self, inputs: tuple[InputRecord, ...]) -> PieceRecord:
        return PieceRecord(
            settings=self._piece.settings(),
            inputs=inputs,
            counts=self._counts
            + Counts(
                skipped=dict(self._faults.skipped),
                replaced=dict(self._cleaner.replaced),
                removed_matches=dict(self._cleaner.removed_matches),
                removed_characters=dict(self._cleaner.removed_characters),
            ),
            runs=tuple(self._spill.runs),
            smallest_draw=self._draws[0],
            largest_draw=self._draws[1],
            limit_reached=self.limit_reached,
            removed=merge_samples([self._cleaner.samples.removed(), self._faults.samples.removed()]),
        )
