"""Preparing the dataset: all parts in parallel, each restartable, and the manifest last."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import PurePath
from typing import Any

from tpulm import corpus, storage, tokenization
from tpulm.config import DataConfig, changes, listed
from tpulm.corpus import CorpusManifest
from tpulm.dataset.blocks import damaged
from tpulm.dataset.build import PartTask, build_part, lay, load_tokenization
from tpulm.dataset.draws import Draws, Purpose
from tpulm.dataset.encode import encode_documents
from tpulm.dataset.manifest import (
    FORMAT_VERSION,
    SPLITS,
    WORD_START,
    Counts,
    DatasetManifest,
    Encoding,
    PartRecord,
    RowFormat,
    SplitManifest,
    dataset_folder,
    digest,
    fingerprint,
    load_manifest,
    part_name,
    split_manifest,
    write_manifest,
)
from tpulm.dataset.part import Version, read_record, with_rows, write_part
from tpulm.errors import ConfigError, DataError, MissingExtra, StorageError, WorkFolderMismatch, some_of
from tpulm.progress import SILENT, DocumentRate, Progress
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner, TaskProgress, WorkerPool, run_tasks
from tpulm.tokenization import Tokenization, analysers
from tpulm.tokenization.encode import ENGINE, LIBRARY

MODULES = (__name__, "numpy.ma")  # for workers to have at the beginning; the latter NumPy imports when it is first needed
_GLANCE_BYTES = 1 << 20  # of text, laid out beforehand
_COMPARED_BYTES = 1 << 17  # of text, encoded beforehand by the library as well


def warm_up(pool: WorkerPool, tokenization_path: str | PurePath) -> None:
    """Let the processes of a pool load the tokenizer beside whatever else is done, say reading the corpus."""
    pool.warm_up(load_tokenization, str(tokenization_path))


def prepare(
    config: DataConfig,
    workdir: str | PurePath,
    *,
    tokenization_path: str | PurePath,
    corpus_manifest: CorpusManifest,
    corpus_workdir: str | PurePath | None = None,
    workers: int | None = None,
    runner: Runner | None = None,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> DatasetManifest:
    """Build what is missing of W/dataset from W/corpus; the manifest, at once if the dataset is already complete.

    The text may lie in another folder's corpus: `corpus_workdir`, by default W.

    Raises WorkFolderMismatch if W/dataset was begun from something else, DataError if a split comes out empty.
    """
    folder = dataset_folder(workdir)
    tokenizer = tokenization.load(tokenization_path)
    analyser = _analyser(config, tokenizer, workdir)
    unsaid = {"word_boundaries"} if config.word_boundaries == "none" else set[str]()
    unsaid |= {"dupe_factor"} if config.dupe_factor == 1 else set[str]()
    inputs = {
        "format_version": FORMAT_VERSION,
        "config": config.model_dump(mode="json", exclude=unsaid),
        "tokenizer": tokenizer.fingerprint,
        "corpus": corpus_manifest.fingerprint,
        **({"analyser": analyser} if analyser else {}),
    }
    if hosts.is_first:
        claim(folder, inputs, progress)
    if (complete := load_manifest(workdir)) is not None:
        return complete
    if hosts.is_first:
        sweep(folder, set())
    hosts.barrier("dataset begun")
    encoding = _encoding(tokenizer, corpus_workdir or workdir, corpus_manifest)
    rows = row_format(config, tokenizer)
    numbers, made_from = range(corpus_manifest.num_parts), digest(inputs)
    tasks = [
        PartTask(
            str(folder.parent),
            str(corpus_workdir or workdir),
            number,
            config,
            str(tokenization_path),
            tokenizer.fingerprint,
            made_from,
            rows,
            encoding.by == LIBRARY,
            analyser,
        )
        for number in hosts.share(numbers)
    ]
    if hosts.is_first and (warning := _glance(config, corpus_workdir or workdir, corpus_manifest, tokenizer, rows)):
        progress.note(f"warning, by a sample: {warning}")
    runner = runner or partial(run_tasks, workers=workers)
    records = _build(tasks, corpus_manifest.counts.bytes / len(numbers), runner, progress)
    hosts.barrier("dataset parts")
    if hosts.is_first:
        for number in set(numbers) - {task.number for task in tasks}:
            found = _read_records(folder, number, made_from)
            if len(found) < len(SPLITS):
                raise StorageError(
                    f"part {number} of {folder} is not there, though the host that made it said so; run the same command again"
                )
            for split, record in found.items():
                records[split].append(record)
        sweep(folder, {part_name(number) for number in numbers})
        _write_manifest(workdir, inputs, rows, corpus_manifest, encoding, records, progress)
    hosts.barrier("dataset")
    manifest = load_manifest(workdir)
    assert manifest is not None, "the first host has written it"
    return manifest


def prepare_texts(texts: Iterable[list[str]], folder: PurePath, config: DataConfig, tokenizer: Tokenization) -> SplitManifest:
    """Rows of other texts than the corpus, each list a part, as a split of its own: `folder`. To be scored, not trained on."""
    rows = row_format(config.model_copy(update={"word_boundaries": "none"}), tokenizer)
    records = []
    for number, documents in enumerate(texts):
        sentences = config.rows == "segments"
        tokens, counts = encode_documents(documents, tokenizer, sentences=sentences, dtype=rows.token_dtype)
        layout = lay(tokens, config, Draws(config.seed, Purpose.LAYOUT, number, SPLITS.index("holdout")))
        versions = [Version(layout, tokens.ids)]
        records.append(write_part(folder, number=number, inputs="", versions=versions, counts=counts, rows=rows))
    manifest = split_manifest("holdout", {}, rows, records)
    storage.write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return manifest


def _analyser(config: DataConfig, tokenizer: Tokenization, workdir: str | PurePath) -> dict[str, str] | None:
    """The versions of what finds words; of a complete dataset its own, if nothing is installed here."""
    name = config.word_boundaries
    if name != "none" and tokenizer.segmenter:
        raise ConfigError(
            f"data.word_boundaries is '{name}', and the tokenizer cuts texts into morphemes itself "
            f"({tokenizer.segmenter.analyser}), so that its words are morphemes already; leave data.word_boundaries out"
        )
    if tokenizer.segmenter:
        name = tokenizer.segmenter.analyser
    if name == "none":
        return None
    try:
        return analysers.versions(name)
    except MissingExtra:
        complete = load_manifest(workdir)
        if complete is None or "analyser" not in complete.inputs:
            raise
        return complete.inputs["analyser"]


def _encoding(tokenizer: Tokenization, corpus_workdir: str | PurePath, manifest: CorpusManifest) -> Encoding:
    """Compare the engine with the library on a sample of the corpus, the same one on every host."""
    if tokenizer.encoder.engine is None:
        return Encoding(by=LIBRARY)
    texts = corpus.some_texts(corpus_workdir, manifest, _COMPARED_BYTES)
    return Encoding(by=ENGINE if tokenizer.encoder.check(texts) else LIBRARY, compared=len(texts))


def _write_manifest(
    workdir: str | PurePath,
    inputs: dict[str, Any],
    rows: RowFormat,
    corpus_manifest: CorpusManifest,
    encoding: Encoding,
    records: dict[str, list[PartRecord]],
    progress: Progress,
) -> None:
    train, holdout = (split_manifest(split, inputs, rows, records[split]) for split in SPLITS)
    for split in (train, holdout):
        _refuse_empty(split, train.counts.documents + holdout.counts.documents)
    warning = _one_sentence_warning(train.counts, rows)
    _report(train, warning, progress)
    manifest = DatasetManifest(
        inputs=inputs,
        fingerprint=fingerprint(inputs, (train, holdout)),
        corpus=corpus_manifest.counts.model_dump(mode="json"),
        encoding=encoding,
        notes=(warning,) if warning else (),
        train=train,
        holdout=holdout,
    )
    write_manifest(manifest, workdir)


def verify(manifest: DatasetManifest, workdir: str | PurePath) -> None:
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


def claim(folder: PurePath, inputs: dict[str, Any], progress: Progress = SILENT) -> None:
    """Write down what this dataset is made from, before anything else; refuse a finished one that was made from something else.

    Parts of an unfinished one that are of other inputs are made again.
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


def row_format(config: DataConfig, tokenizer: Tokenization) -> RowFormat:
    return RowFormat(
        kind=config.rows,
        sequence_length=config.sequence_length,
        dtype="uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
        block_rows=config.block_rows,
        columns=(
            "tokens",
            *(["next_sentence"] if config.next_sentence else []),
            *([WORD_START] if config.word_boundaries != "none" else []),
        ),
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
    )


def _build(tasks: list[PartTask], bytes_of_part: float, runner: Runner, progress: Progress) -> dict[str, list[PartRecord]]:
    """The records of these parts by split, after building those that are not there yet."""
    records: dict[str, list[PartRecord]] = {split: [] for split in SPLITS}
    missing = []
    for task in tasks:
        found = _read_records(dataset_folder(task.workdir), task.number, task.inputs)
        if len(found) < len(SPLITS):
            missing.append(task)
            continue
        for split, record in found.items():
            records[split].append(record)
    if kept := len(tasks) - len(missing):
        progress.note(f"{kept} of {len(tasks)} parts of the dataset are already there")
    progress.start("Building the dataset", total=bytes_of_part * len(missing), unit="B")
    documents = DocumentRate(progress)
    with TaskProgress(progress) as done:
        for built in runner(build_part, ((task,) for task in missing)):
            for split, record in built.items():
                records[split].append(record)
            done.add(over=sum(record.counts.bytes for record in built.values()))
            documents.add(sum(record.counts.documents for record in built.values()))
    return records


def _read_records(folder: PurePath, number: int, inputs: str) -> dict[str, PartRecord]:
    """Of a part's splits, those that are there and whole."""
    found = {split: read_record(folder / split, number, inputs) for split in SPLITS}
    return {split: record for split, record in found.items() if record is not None}


def sweep(folder: PurePath, parts: set[str]) -> None:
    """Delete what killed attempts left half done; once `parts` are complete, also whatever else is there."""
    for split in SPLITS:
        for path in storage.list_folder(folder / split):
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


def _glance(
    config: DataConfig, corpus_workdir: str | PurePath, manifest: CorpusManifest, tokenizer: Tokenization, rows: RowFormat
) -> str:
    """What is wrong with rows of segments from a sample of the corpus; "" for nothing. Better said now than in an hour."""
    if config.rows != "segments":
        return ""
    texts = corpus.some_texts(corpus_workdir, manifest, _GLANCE_BYTES)
    tokens, counts = encode_documents(texts, tokenizer, sentences=True, dtype=rows.token_dtype)
    layout = lay(tokens, config, Draws(config.seed, Purpose.LAYOUT))
    return _one_sentence_warning(with_rows(counts, layout, rows.sequence_length), rows)


def _one_sentence_warning(counts: Counts, rows: RowFormat) -> str:
    if rows.kind != "segments" or 2 * counts.one_sentence_documents <= counts.documents:
        return ""
    in_rows = (counts.tokens + counts.copied_tokens) / max(1, counts.rows * rows.sequence_length)
    pairs = (
        f" and {counts.random_next_rows / max(1, counts.rows):.0%} of the pairs are random"
        if "next_sentence" in rows.columns
        else ""
    )
    single = counts.one_sentence_documents / counts.documents
    return (
        f"{single:.0%} of the documents are a single sentence, so text fills {in_rows:.0%} of the slots of the rows{pairs}; "
        "data.rows = 'packed' with data.next_sentence = false fills nearly all"
    )


def _report(train: SplitManifest, warning: str, progress: Progress) -> None:
    counts, versions = train.counts, train.num_versions
    progress.note(
        f"{counts.rows:,} rows of {train.rows.sequence_length} from {counts.documents:,} documents, {counts.tokens:,} tokens; "
        f"{train.padding_fraction:.1%} padding" + (f"; drawn {versions} times, for as many epochs" if versions > 1 else "")
    )
    if counts.empty_documents:
        progress.note(f"{counts.empty_documents:,} documents hold no token and are in no row")
    if warning:
        progress.note(f"warning: {warning}")
