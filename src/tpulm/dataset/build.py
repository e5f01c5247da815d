"""One part of the corpus becomes one part of each split. The same function serves a process pool and a cluster."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tpulm import corpus, tokenization
from tpulm.config import DataConfig
from tpulm.corpus import CorpusManifest
from tpulm.dataset.causal import lay_causal
from tpulm.dataset.draws import Draws, Purpose
from tpulm.dataset.encode import encode_documents
from tpulm.dataset.manifest import SPLITS, PartRecord, RowFormat, dataset_folder
from tpulm.dataset.packing import lay_packed
from tpulm.dataset.part import Version, write_part
from tpulm.dataset.rows import EMPTY, Layout, Tokens, reorder, shuffle
from tpulm.dataset.segments import lay_segments
from tpulm.dataset.words import WordEncoder
from tpulm.errors import WorkFolderMismatch
from tpulm.runtime.workers import report
from tpulm.tokenization import Tokenization, analysers


class PartTask(NamedTuple):
    workdir: str
    corpus_workdir: str  # the folder that holds the text, as corpus/
    number: int
    config: DataConfig
    tokenization_path: str
    tokenizer: str  # its fingerprint
    inputs: str  # digest of inputs.json
    rows: RowFormat
    by_library: bool = False  # encoded without the engine
    analyser: dict[str, str] | None = None  # versions of the packages that find word boundaries, where that is wanted


def build_part(task: PartTask) -> dict[str, PartRecord]:
    """Read, tokenize, lay out, shuffle and write part `task.number` of both splits; the records by split."""
    with _without_cycle_search():
        return _build_part(task)


def _build_part(task: PartTask) -> dict[str, PartRecord]:
    part = corpus.read_part(task.corpus_workdir, _corpus_manifest(task.corpus_workdir, task.inputs), task.number)
    tokenizer = _tokenization(task.tokenization_path, task.tokenizer)
    if task.by_library:
        tokenizer.encoder.engine = None
    words = _word_encoder(task, tokenizer)
    folder = dataset_folder(task.workdir)
    by_weight = {"left_out_by_weight": part.left_out, "added_by_weight": part.added}
    copies = {"duplicates": part.duplicates, "near_duplicates": part.near_duplicates}
    of_part = {"train": {**copies, **by_weight}, "holdout": {}}
    records = {}
    for place, (split, documents) in enumerate(zip(SPLITS, (part.train, part.holdout), strict=True)):
        numbers = (task.number, place)
        sentences = task.config.rows == "segments"
        tokens, counts = encode_documents(
            documents,
            tokenizer,
            sentences=sentences,
            dtype=task.rows.token_dtype,
            words=words,
            at_once=analysers.CHARACTERS_AT_ONCE if words or tokenizer.segmenter else None,
            advance=report,
        )
        documents.clear()
        records[split] = write_part(
            folder / split,
            number=task.number,
            inputs=task.inputs,
            versions=_versions(tokens, task.config, numbers, task.config.dupe_factor if split == "train" else 1),
            counts=counts.model_copy(update=of_part[split]),
            rows=task.rows,
            removed=part.removed if split == "train" else {},
        )
    return records


def _versions(tokens: Tokens, config: DataConfig, numbers: tuple[int, ...], count: int) -> Iterator[Version]:
    """So many times the rows of the same documents, differently drawn: pairs and lengths, or the order of the documents."""
    for version in range(count):
        own = (*numbers, version) if version else numbers
        if version and config.rows != "segments":
            order = Draws(config.seed, Purpose.DOCUMENT_ORDER, *own).permutation(tokens.document_ends.size)
            documents = shuffle(tokens, order)
        else:
            documents = tokens
        layout = lay(documents, config, Draws(config.seed, Purpose.LAYOUT, *own))
        rows = Draws(config.seed, Purpose.ROW_ORDER, *own).permutation(layout.num_rows)
        yield Version(reorder(layout, rows), documents.ids, documents.word_start)


def lay(tokens: Tokens, config: DataConfig, draws: Draws) -> Layout:
    if not tokens.ids.size:
        return EMPTY
    if config.rows == "packed":
        return lay_packed(tokens, sequence_length=config.sequence_length)
    if config.rows == "causal":
        return lay_causal(tokens, sequence_length=config.sequence_length)
    return lay_segments(
        tokens,
        sequence_length=config.sequence_length,
        short_fraction=config.short_fraction,
        single_segment_fraction=config.single_segment_fraction,
        next_sentence=config.next_sentence,
        draws=draws,
    )


@contextlib.contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Python's collector off: it would walk over the part's lists again and again, a sixth of the time, and find no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load_tokenization(path: str) -> None:
    """Have the tokenizer in this process by the time its first part comes."""
    _loaded(path).encode([])


def _tokenization(path: str, fingerprint: str) -> Tokenization:
    """Raises WorkFolderMismatch where it is another tokenizer than the dataset was begun with."""
    if _loaded(path).fingerprint != fingerprint:  # a process may live on, and find something else at the same place
        _loaded.cache_clear()
    if (found := _loaded(path)).fingerprint != fingerprint:
        raise WorkFolderMismatch(
            f"{path} holds another tokenizer (fingerprint {found.fingerprint[:12]}) than the dataset was begun with "
            f"({fingerprint[:12]}); put the first one back, or delete the dataset and run again"
        )
    return found


@lru_cache(maxsize=1)
def _loaded(path: str) -> Tokenization:
    return tokenization.load(path)


def _word_encoder(task: PartTask, tokenizer: Tokenization) -> WordEncoder | None:
    """Raises WorkFolderMismatch where this machine has another version than the one that began the dataset."""
    name = tokenizer.segmenter.analyser if tokenizer.segmenter else task.config.word_boundaries
    if name == "none":
        return None
    if (here := analysers.versions(name)) != task.analyser:
        raise WorkFolderMismatch(
            f"this machine has {here} to find words, the dataset was begun with {task.analyser}; install the same versions"
        )
    return None if tokenizer.segmenter else _words(task.tokenization_path, task.tokenizer, name)


@lru_cache(maxsize=1)
def _words(path: str, fingerprint: str, name: analysers.Name) -> WordEncoder:
    return WordEncoder(_tokenization(path, fingerprint), name)


@lru_cache(maxsize=1)
def _corpus_manifest(workdir: str, inputs: str) -> CorpusManifest:
    manifest = corpus.load_manifest(workdir)
    assert manifest is not None, "prepare() got the manifest from this folder"
    return manifest
