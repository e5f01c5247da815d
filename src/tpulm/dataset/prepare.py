"""Preparing the dataset: all parts in parallel, each restartable, and the manifest last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpulm import storage, tokenization
from tpulm.config import DataConfig
from tpulm.corpus import CorpusManifest
from tpulm.dataset.blocks import damaged
from tpulm.dataset.build import PartTask, build_part
from tpulm.dataset.manifest import (
    FORMAT_VERSION,
    SPLITS,
    DatasetManifest,
    PartRecord,
    RowFormat,
    SpecialIds,
    SplitManifest,
    dataset_folder,
    digest,
    fingerprint,
    load_manifest,
    part_name,
    split_manifest,
    write_manifest,
)
from tpulm.dataset.part import read_record
from tpulm.errors import DataError, WorkFolderMismatch
from tpulm.progress import SILENT, Progress
from tpulm.tokenization import Tokenization
from tpulm.workers import run_tasks

_MOSTLY_RANDOM = 0.6


def prepare(
    config: DataConfig,
    workdir: str | Path,
    *,
    tokenization_path: str | Path,
    corpus_manifest: CorpusManifest,
    corpus_workdir: str | Path | None = None,
    workers: int | None = None,
    progress: Progress = SILENT,
) -> DatasetManifest:
    """Build what is missing of W/dataset from W/corpus; the manifest, at once if the dataset is already complete.

    The text may lie in another folder's corpus: `corpus_workdir`, by default W.

    Raises WorkFolderMismatch if W/dataset was begun from something else, DataError if a split comes out empty.
    """
    folder = dataset_folder(workdir)
    tokenizer = tokenization.load(tokenization_path)
    inputs = {
        "format_version": FORMAT_VERSION,
        "config": config.model_dump(mode="json"),
        "tokenizer": tokenizer.fingerprint,
        "corpus": corpus_manifest.fingerprint,
    }
    claim(folder, inputs)
    if (complete := load_manifest(workdir)) is not None:
        return complete
    rows = row_format(config, tokenizer)
    text = str(corpus_workdir or workdir)
    records = _build(folder, text, config, tokenization_path, corpus_manifest, digest(inputs), rows, workers, progress)
    train, holdout = (split_manifest(split, inputs, rows, records[split]) for split in SPLITS)
    for split in (train, holdout):
        _refuse_empty(split, train.counts.documents + holdout.counts.documents)
    _report(train, progress)
    manifest = DatasetManifest(
        inputs=inputs,
        fingerprint=fingerprint(inputs, (train, holdout)),
        corpus=corpus_manifest.counts.model_dump(mode="json"),
        train=train,
        holdout=holdout,
    )
    write_manifest(manifest, workdir)
    return manifest


def verify(manifest: DatasetManifest, workdir: str | Path) -> None:
    """Compare every object with its checksum; StorageError names the first part that differs."""
    for split in (manifest.train, manifest.holdout):
        for part in split.parts:
            folder = dataset_folder(workdir) / split.split / part.name
            for name, recorded in part.objects.items():
                if not storage.exists(folder / name):
                    raise damaged(folder, f"{name} is missing")
                found = storage.sha256(folder / name)
                if found != recorded.sha256:
                    raise damaged(folder, f"{name} has sha256 {found}, expected {recorded.sha256}")


def claim(folder: Path, inputs: dict[str, Any]) -> None:
    """Write down what this dataset is made from, before anything else; refuse a folder that was begun from something else."""
    path = folder / "inputs.json"
    if not storage.exists(path):
        storage.write_json(path, inputs)
        return
    recorded = storage.read_json(path)
    if recorded != inputs:
        changes = "; ".join(_changes(recorded, inputs))
        raise WorkFolderMismatch(
            f"{folder} was begun from other inputs: {changes}. Choose another --workdir, or delete {folder} to prepare it anew"
        )


def _changes(old: Any, new: Any, name: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            change
            for key in sorted(old.keys() | new.keys())
            for change in _changes(old.get(key), new.get(key), f"{name}.{key}" if name else key)
        ]
    label = name.replace("config.", "data.", 1) if name.startswith("config.") else name
    return [] if old == new else [f"{label} was {old}, is now {new}"]


def row_format(config: DataConfig, tokenizer: Tokenization) -> RowFormat:
    special = tokenizer.special
    return RowFormat(
        kind=config.rows,
        sequence_length=config.sequence_length,
        dtype="uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
        block_rows=config.block_rows,
        columns=("tokens", "next_sentence") if config.next_sentence else ("tokens",),
        vocab_size=tokenizer.vocab_size,
        special=SpecialIds(pad=special.pad, unknown=special.unknown, cls=special.cls, sep=special.sep, mask=special.mask),
    )


def _build(
    folder: Path,
    corpus_workdir: str,
    config: DataConfig,
    tokenization_path: str | Path,
    corpus_manifest: CorpusManifest,
    inputs: str,
    rows: RowFormat,
    workers: int | None,
    progress: Progress,
) -> dict[str, list[PartRecord]]:
    """The records of all parts by split, after building those that are not there yet."""
    sweep(folder, set())
    records: dict[str, list[PartRecord]] = {split: [] for split in SPLITS}
    missing = []
    for number in range(corpus_manifest.num_parts):
        found = {split: read_record(folder / split, number, inputs) for split in SPLITS}
        if any(record is None for record in found.values()):
            missing.append(number)
            continue
        for split, record in found.items():
            records[split] += [record] if record else []
    if kept := corpus_manifest.num_parts - len(missing):
        progress.note(f"{kept} of {corpus_manifest.num_parts} parts of the dataset are already there")
    progress.start(
        "Building the dataset", total=corpus_manifest.counts.bytes * len(missing) / corpus_manifest.num_parts, unit="B"
    )
    workdir, path = str(folder.parent), str(tokenization_path)
    tasks = ((PartTask(workdir, corpus_workdir, number, config, path, inputs, rows),) for number in missing)
    for built in run_tasks(build_part, tasks, workers=workers):
        for split, record in built.items():
            records[split].append(record)
        progress.advance(sum(record.counts.bytes for record in built.values()))
    sweep(folder, {part_name(number) for number in range(corpus_manifest.num_parts)})
    return records


def sweep(folder: Path, parts: set[str]) -> None:
    """Delete what killed attempts left half done; once `parts` are complete, also whatever else is there."""
    for split in SPLITS:
        for path in storage.make_folder(folder / split).iterdir():
            if path.name.endswith(storage.TEMPORARY_SUFFIX) or (parts and path.name not in parts):
                storage.remove(path)


def _refuse_empty(split: SplitManifest, documents: int) -> None:
    if split.counts.rows:
        return
    name, fraction = {
        "train": ("training set", "lower corpus.holdout_fraction or add text"),
        "holdout": ("holdout", "raise corpus.holdout_fraction or add text: at least two different documents are needed"),
    }[split.split]
    empty = split.counts.documents
    what = f"its {empty} documents hold no token" if empty else f"all {documents} documents went elsewhere"
    raise DataError(f"the {name} is empty ({what}); {fraction}, and begin in a new work folder")


def _report(train: SplitManifest, progress: Progress) -> None:
    counts = train.counts
    progress.note(
        f"{counts.rows:,} rows of {train.rows.sequence_length} from {counts.documents:,} documents, {counts.tokens:,} tokens; "
        f"{train.padding_fraction:.1%} padding"
    )
    if counts.empty_documents:
        progress.note(f"{counts.empty_documents:,} documents hold no token and are in no row")
    if (share := counts.random_next_rows / counts.rows) > _MOSTLY_RANDOM:
        progress.note(
            f"{share:.0%} of the rows have a random second segment: most documents are too short for a real one, "
            "so next_sentence will teach little here"
        )
