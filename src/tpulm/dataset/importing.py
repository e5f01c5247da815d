"""Importing a dataset: TFRecords written by Google's scripts become W/dataset, whose rows are then like any others.

There are three restartable passes: scan the frames of all files, which finds truncated ones; read ranges of them, each into
a piece on disk; build the parts, where equal rows meet and one of them is kept. A row's part and position follow from its hash,
and its split from its file's content or, with a single file, from its hash too. So neither names nor order of the files matter:
the same files give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from tpulm import storage, tokenization
from tpulm.config import DataConfig
from tpulm.config.validation import validate_own
from tpulm.corpus.identity import HASH, HashPurpose, below, draw, holdout_threshold
from tpulm.dataset.batches import evaluation_batches
from tpulm.dataset.layouts import RowLayout
from tpulm.dataset.manifest import (
    FORMAT_VERSION,
    SPLITS,
    Counts,
    DatasetManifest,
    RowFormat,
    SplitManifest,
    dataset_folder,
    digest,
    write_manifest,
)
from tpulm.dataset.parts import SplitRows, Splits, Version, begin, build_splits
from tpulm.dataset.prepare import loaded_tokenization, row_format, small_holdout
from tpulm.dataset.pretraining_records import Kind, Shape, layout_of, read_rows, shape_of
from tpulm.dataset.record_ranges import ImportedRange, RangeTask, keys_in, row_dtype, rows_of_part
from tpulm.dataset.tfrecord import Survey, read_records, survey
from tpulm.errors import ConfigError, DataError
from tpulm.progress import SILENT, Progress
from tpulm.runtime import interrupt, stage
from tpulm.runtime.workers import WorkerPool, run_here
from tpulm.tokenization import Tokenization, Vocabulary

RANGE_BYTES: Final = 64 << 20  # of TFRecord, a few seconds' work
PART_BYTES: Final = 128 << 20  # of TFRecord; its rows take a quarter of that
_BLOCK_ROWS: Final = DataConfig().block_rows
_WORTH_A_POOL_BYTES: Final = 24 << 20  # two seconds' work on one core
_GRAM: Final = 8  # ids
_MUCH_MORE: Final = 2  # times the fraction that was to be held out
_INDEPENDENT: Final = 0.2  # of a text's n-grams also occur elsewhere, in any language, by chance and by quotation
_ROWS_AT_ONCE: Final = 4096
_GRAMS: Final = 4 << 20  # compared per split, at most


def import_tfrecords(
    paths: Sequence[str],
    workdir: str | PurePath,
    *,
    kind: Kind,
    tokenizer: Tokenization,
    holdout_fraction: float = 0.01,
    hold_out: Literal["files", "rows"] = "files",
    workers: int | None = None,
    progress: Progress = SILENT,
) -> DatasetManifest:
    """Fill W/tokenizer and W/dataset from the records of the files; return the manifest, at once if the dataset is complete.

    Raises DataError naming file, record and byte for anything wrong with a record, ConfigError for an invalid fraction,
    WorkFolderMismatch if a complete W/dataset was made from other inputs.
    """
    if not 0.0 < holdout_fraction < 1.0:
        raise ConfigError(f"the holdout fraction is {holdout_fraction}; it must lie between 0 and 1, such as 0.01")
    rows, shape = _peek(paths, kind, tokenizer)
    files = _survey(paths, progress)
    held = _held_files(files, holdout_fraction) if hold_out == "files" else []
    inputs = _inputs(files, shape, tokenizer, holdout_fraction, held)
    if (complete := begin(workdir, inputs, progress=progress)) is not None:
        return complete
    pieces = dataset_folder(workdir) / "pieces"
    tasks = _range_tasks(files, shape, rows, digest(inputs), pieces, held)
    num_records = sum(file.records for file in files)
    size = sum(task.span.bytes for task in tasks)
    with WorkerPool(workers) if workers != 1 and size > _WORTH_A_POOL_BYTES else nullcontext(run_here) as runner:
        stage.sweep(tasks)
        records = stage.gather(tasks, stage.run(tasks, "Reading the records", "B", runner=runner, progress=progress))
        smallest, largest = min(record.smallest_draw for record in records), max(record.largest_draw for record in records)
        holdout_below = 0 if held else holdout_threshold(holdout_fraction, smallest, largest)
        path = storage.as_path(workdir) / "tokenizer"
        tokenization.save(tokenizer, path, inputs={"imported": kind})
        splits = build_splits(
            workdir,
            inputs,
            rows,
            RecordSource(str(pieces), str(path), tokenizer.fingerprint, digest(inputs), holdout_below),
            tasks[0].num_parts,
            total=num_records,
            unit="row",
            runner=runner,
            progress=progress,
        )
    assert splits is not None, "there is one host"
    _refuse_empty(*splits, held)
    shared = _shared_share(splits, progress)
    corpus = {
        "imported": kind,
        "files": len(files),
        "records": num_records,
        "duplicates": splits.train.counts.duplicates,
        "held_out_files": held,
        "holdout_shared_8_grams": shared,
    }
    manifest = write_manifest(workdir, *splits, corpus=corpus, notes=(_holdout_note(files, held, shared),))
    storage.remove(pieces)
    _report(manifest, holdout_fraction, progress)
    return manifest


class RecordSource(NamedTuple):
    """The distinct rows of all pieces for a part, divided between the splits. Memory: the part's rows, twice."""

    pieces: str  # the folder of the ranges
    tokenization_path: str
    tokenizer: str  # its fingerprint
    inputs: str  # digest of inputs.json
    holdout_below: int  # the threshold of holdout draws

    def read(self, number: int, rows: RowFormat) -> Iterator[SplitRows]:
        """The part's rows by split. Rows with equal ids and label occur once; rows with equal ids are in the same split."""
        matrix, of_held_file = rows_of_part(_pieces(self.pieces, self.inputs), number, row_dtype(rows))
        key = matrix[["high", "low", "random_next"]]
        first = np.ones(len(matrix), bool)
        first[1:] = key[1:] != key[:-1]
        duplicates = len(matrix) - int(first.sum())
        held_out = below(draw(keys_in(matrix), HashPurpose.HOLDOUT), self.holdout_below) | of_held_file
        if len(matrix):  # equal ids stay together: a row that is also in a training file is trained on
            starts = np.flatnonzero(keys_in(matrix).are_new())
            held_out = np.repeat(np.logical_and.reduceat(held_out, starts), np.diff(starts, append=len(matrix)))
        matrix, held_out = matrix[first], held_out[first]
        for split, chosen, left_out in zip(SPLITS, (~held_out, held_out), (duplicates, 0), strict=True):
            some = matrix[chosen]
            tokens = np.ascontiguousarray(some["tokens"])
            random_next = some["random_next"].astype(bool) if "next_sentence" in rows.columns else None
            layout = layout_of(tokens, random_next, rows.special)
            counts = _count(tokens.reshape(-1), layout, loaded_tokenization(self.tokenization_path, self.tokenizer))
            counts = counts.model_copy(update={"duplicates": left_out})
            yield SplitRows(split, [Version(layout, tokens.reshape(-1))], counts)


def _count(tokens: np.ndarray, layout: RowLayout, tokenizer: Tokenization) -> Counts:
    """Counts of the text as decoded from the segments; the characters of unknown words are lost."""
    ends = layout.start + layout.length
    texts = [tokenizer.decode(tokens[first:end]) for first, end in zip(layout.start.tolist(), ends.tolist(), strict=True)]
    return Counts(
        bytes=sum(len(text.encode()) for text in texts),
        characters=sum(map(len, texts)),
        tokens=int(layout.length.sum()),
        unknown_tokens=int(np.count_nonzero(tokens == tokenizer.special.unknown)),
    )


@lru_cache(maxsize=1)
def _pieces(folder: str, inputs: str) -> list[tuple[PurePath, ImportedRange]]:
    """The rows of each range and their record; the folder holds nothing else."""
    records = [path for path in storage.list_folder(folder) if path.suffix == ".json"]
    return [(path.with_suffix(".npy"), validate_own(ImportedRange, storage.read_json(path), path)) for path in records]


def _peek(paths: Sequence[str], kind: Kind, tokenizer: Tokenization) -> tuple[RowFormat, Shape]:
    """The format that the first record implies, checked, so that a wrong vocabulary or format fails now and not in an hour."""
    for path in paths:
        record = next(read_records(path), None)
        if record is None:
            continue
        shape = shape_of(record, path, kind)
        shortest, longest = 8, 65_536  # as data.sequence_length allows
        if not shortest <= shape.sequence_length <= longest:
            raise DataError(f"its rows have {shape.sequence_length} tokens, not {shortest} to {longest:,}", location=path)
        config = DataConfig(
            sequence_length=shape.sequence_length, next_sentence=shape.next_sentence, block_rows=_BLOCK_ROWS, rows="segments"
        )
        rows = row_format(config, tokenizer)
        read_rows([record], path, shape, Vocabulary(rows.vocab_size, rows.special))
        return rows, shape
    raise DataError("no file holds a record: all are empty", location=", ".join(paths[:3]) + (" …" if len(paths) > 3 else ""))


def _survey(paths: Sequence[str], progress: Progress) -> list[Survey]:
    """All files, sorted by fingerprint, so that a piece's number does not depend on file names."""
    progress.start("Looking through the records", sum(info.size for info in map(storage.info, paths) if info), "B")
    files = []
    for path in paths:
        files.append(survey(path, range_bytes=RANGE_BYTES, advance=progress.advance))
        interrupt.check("nothing was begun")
    if empty := sum(not file.records for file in files):
        progress.note(f"{empty:,} of {len(files):,} files hold no record")
    return sorted(files, key=lambda file: file.fingerprint)


def _held_files(files: Sequence[Survey], fraction: float) -> list[str]:
    """Fingerprints of the held-out files: at most `fraction` of the rows, or the smallest file; none if there is a single file.

    The files come sorted by fingerprint, which is a random order.
    """
    rows: dict[str, int] = {}  # copies of a file share a fingerprint
    for file in files:
        if file.records:
            rows[file.fingerprint] = rows.get(file.fingerprint, 0) + file.records
    if len(rows) < 2:
        return []
    held, room = [], fraction * sum(rows.values())
    for name, count in rows.items():
        if count <= room:
            held.append(name)
            room -= count
    return held or [min(rows, key=lambda name: rows[name])]


def _inputs(
    files: Sequence[Survey], shape: Shape, tokenizer: Tokenization, holdout_fraction: float, held: Sequence[str]
) -> dict[str, Any]:
    """What the dataset is made from. `workfolder` recognizes an import by "imported"."""
    return {
        "format_version": FORMAT_VERSION,
        "hash": HASH,
        "imported": shape.kind,
        "holdout_fraction": holdout_fraction,
        "held_out": digest(list(held)) if held else "rows",
        "sizes": {"range_bytes": RANGE_BYTES, "part_bytes": PART_BYTES, "block_rows": _BLOCK_ROWS},
        "tokenizer": tokenizer.fingerprint,
        "files": {
            "count": len(files),
            "records": sum(file.records for file in files),
            "sha256": digest([file.fingerprint for file in files]),
        },
    }


def _range_tasks(
    files: Sequence[Survey], shape: Shape, rows: RowFormat, inputs: str, pieces: PurePath, held: Sequence[str]
) -> list[RangeTask]:
    ranges = [(file, span) for file in files for span in file.ranges]
    num_parts = -(-sum(span.bytes for _, span in ranges) // PART_BYTES)
    return [
        RangeTask(
            str(pieces), number, file.path, file.fingerprint, span, shape, rows, num_parts, inputs, file.fingerprint in held
        )
        for number, (file, span) in enumerate(ranges)
    ]


def _refuse_empty(train: SplitManifest, holdout: SplitManifest, held: Sequence[str]) -> None:
    if train.counts.rows and holdout.counts.rows:
        return
    if held and train.counts.rows > 1:
        raise DataError("every row of the files to be held out stands in others too; take --hold-out rows in a new folder")
    raise DataError(
        f"the records hold {train.counts.rows + holdout.counts.rows} different rows ({train.counts.duplicates:,} exact "
        "duplicates are left out), and two are needed. Name more files, and begin in a new work folder"
    )


def _report(manifest: DatasetManifest, holdout_fraction: float, progress: Progress) -> None:
    counts = manifest.train.counts
    records, held_out = manifest.corpus["records"], manifest.holdout.counts.rows
    progress.note(
        f"{counts.rows:,} rows of {manifest.train.rows.sequence_length} to train on and {held_out:,} held out, from "
        f"{records:,} records; {counts.duplicates:,} exact duplicates left out; {manifest.train.padding_fraction:.1%} padding"
    )
    progress.note(manifest.notes[0])
    share = held_out / max(1, counts.rows + held_out)
    if manifest.corpus["held_out_files"] and share > _MUCH_MORE * holdout_fraction:
        progress.note(
            f"{share:.0%} of the rows are held out, not {holdout_fraction:.0%}: the smallest file has that many. "
            "--hold-out rows, in a new folder, holds out single rows, as many as asked for"
        )
    advice = "name more files, or give --holdout-fraction {}, in a new folder"
    if small := small_holdout(manifest.train, manifest.holdout, advice):
        progress.note(small)


def _holdout_note(files: Sequence[Survey], held: Sequence[str], shared: float) -> str:
    count = len({file.fingerprint for file in files if file.records})
    if held:
        share = sum(file.records for file in files if file.fingerprint in held)
        share /= sum(file.records for file in files)
        how = f"{len(held):,} of {count:,} files are held out, {share:.1%} of the records"
    else:
        how = "single rows are held out, not files"
    flattering = ": the holdout is not independent, and scores on it flatter (dupe_factor repeats each document)"
    return (
        f"{how}; {shared:.1%} of the {_GRAM}-grams of the held-out rows stand in training rows too"
        f"{flattering if shared >= _INDEPENDENT else ''}"
    )


def _shared_share(splits: Splits, progress: Progress) -> float:
    """The fraction of the holdout's n-grams of ids that also occur in training rows.

    In large datasets only n-grams with a small hash are compared, the same ones in both splits.
    """
    train, holdout = splits
    slots = train.rows.sequence_length * max(train.counts.rows, holdout.counts.rows)
    below = np.uint64(min(2**64 - 1, _GRAMS * 2**64 // slots))
    progress.start("Comparing the splits", train.counts.rows, "row")
    held = np.concatenate([np.empty(0, np.uint64), *_grams(holdout, below, SILENT)])
    if not len(held):
        return 0.0
    known, of_held = np.unique(held, return_inverse=True)
    is_shared = np.zeros(len(known), bool)
    for grams in _grams(train, below, progress):
        place = np.minimum(np.searchsorted(known, grams), len(known) - 1)
        is_shared[place[known[place] == grams]] = True
    return float(is_shared[of_held].mean())


def _grams(split: SplitManifest, below: np.uint64, progress: Progress) -> Iterator[np.ndarray]:
    """Hashes below a threshold of the n-grams without special tokens, for `_ROWS_AT_ONCE` rows at a time."""
    special = np.array([split.rows.special.pad, split.rows.special.cls, split.rows.special.sep])
    for batch in evaluation_batches(split, batch_size=_ROWS_AT_ONCE):
        ids = batch["tokens"].astype(np.uint64)
        width = ids.shape[1] - _GRAM + 1
        if width < 1:
            return
        text = ~np.isin(batch["tokens"], special)
        grams, whole = np.zeros((len(ids), width), np.uint64), np.ones((len(ids), width), bool)
        for place in range(_GRAM):
            grams = (grams ^ ids[:, place : place + width]) * np.uint64(0x9E3779B97F4A7C15)
            grams ^= grams >> np.uint64(29)
            whole &= text[:, place : place + width]
        yield grams[whole & (grams < below)]
        progress.advance(len(ids))
        interrupt.check()
