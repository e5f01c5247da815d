"""Preparing the dataset from text: tokenizing the scattered parts of the corpus into rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from tpulm import corpus, tokenization
from tpulm.config import DataConfig
from tpulm.corpus import CorpusManifest
from tpulm.dataset.encode import WordEncoder, encode_documents
from tpulm.dataset.layouts import EMPTY, RowLayout, TokenizedDocuments, lay_causal, lay_packed, reorder, shuffle
from tpulm.dataset.manifest import (
    FORMAT_VERSION,
    SPLITS,
    WORD_START,
    Counts,
    DatasetManifest,
    Encoding,
    RowFormat,
    SplitManifest,
    digest,
    load_manifest,
    split_manifest,
    write_manifest,
)
from tpulm.dataset.parts import SplitRows, Version, begin, build_splits, with_rows, write_part
from tpulm.dataset.random_streams import RandomStream, StreamPurpose
from tpulm.dataset.segments import lay_segments
from tpulm.errors import ConfigError, DataError, MissingExtra, WorkFolderMismatch
from tpulm.progress import SILENT, Progress
from tpulm.readable import plural
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner, WorkerPool, report
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Tokenization, analysers
from tpulm.tokenization.encode import ENGINE, LIBRARY

MODULES = (__name__, "numpy.ma")  # preloaded in workers; NumPy would import the latter lazily
_GLANCE_BYTES = 1 << 20  # of sample text that is laid out first
_FEW_TOKENS = 5_000  # of a holdout: 15 % of them are 750, of which a share of 30 % has a standard error of 1.7 points
_COMPARED_BYTES = 1 << 17  # of sample text that the library encodes too
# At their defaults they are no input, so that datasets from before they existed stay complete.
_LATER_SETTINGS = ("word_boundaries", "dupe_factor", "split_sentences")


def warm_up(pool: WorkerPool, tokenization_path: str | PurePath) -> None:
    """Load the tokenizer in a pool's processes in the background, e.g. while the corpus is read."""
    pool.warm_up(_load_tokenization, str(tokenization_path))


def prepare(
    config: DataConfig,
    workdir: str | PurePath,
    *,
    tokenizer: Tokenization,
    tokenization_path: str | PurePath,
    corpus_manifest: CorpusManifest,
    corpus_workdir: str | PurePath | None = None,
    runner: Runner,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> DatasetManifest:
    """Build what is missing of W/dataset from W/corpus; return the manifest, at once if the dataset is already complete.

    `tokenization_path` is where workers load the tokenizer. The corpus may be that of another work folder, `corpus_workdir`
    (default: W).

    Raises WorkFolderMismatch if a complete W/dataset was made from other inputs, DataError if a split is empty.
    """
    analyser = _analyser(config, tokenizer, workdir)
    excluded = {name for name in _LATER_SETTINGS if getattr(config, name) == DataConfig.model_fields[name].default}
    inputs = {
        "format_version": FORMAT_VERSION,
        "config": config.model_dump(mode="json", exclude=excluded),
        "tokenizer": tokenizer.fingerprint,
        "corpus": corpus_manifest.fingerprint,
        **({"analyser": analyser} if analyser else {}),
    }
    if (complete := begin(workdir, inputs, hosts=hosts, progress=progress)) is not None:
        return complete
    text = str(corpus_workdir or workdir)
    encoding = _encoding(tokenizer, text, corpus_manifest)
    rows = row_format(config, tokenizer)
    source = TextSource(
        text, config, str(tokenization_path), tokenizer.fingerprint, digest(inputs), encoding.by == LIBRARY, analyser
    )
    if hosts.is_first and (warning := _early_warning(config, text, corpus_manifest, tokenizer, rows)):
        progress.note(f"warning, by a sample: {warning}")
    splits = build_splits(
        workdir,
        inputs,
        rows,
        source,
        corpus_manifest.num_parts,
        total=corpus_manifest.counts.bytes,
        unit="B",
        runner=runner,
        hosts=hosts,
        progress=progress,
    )
    if splits is not None:
        for split in splits:
            _refuse_empty(split, splits.train.counts.documents + splits.holdout.counts.documents)
        if small := small_holdout(*splits, "add text, or set corpus.holdout_fraction = {}"):
            progress.note(small)
        warning = _one_sentence_warning(splits.train.counts, rows)
        _report(splits.train, warning, progress)
        counts, notes = corpus_manifest.counts.model_dump(mode="json"), (warning,) if warning else ()
        write_manifest(workdir, *splits, corpus=counts, encoding=encoding, notes=notes)
    hosts.barrier("dataset")
    manifest = load_manifest(workdir)
    assert manifest is not None, "the first host has written it"
    return manifest


def prepare_texts(texts: Iterable[list[str]], folder: PurePath, config: DataConfig, tokenizer: Tokenization) -> SplitManifest:
    """Write texts other than the corpus as a separate split in `folder`, each list a part; to be scored, not trained on."""
    rows = row_format(config.model_copy(update={"word_boundaries": "none"}), tokenizer)
    records = []
    for number, documents in enumerate(texts):
        sentences, apart = config.rows == "segments", config.split_sentences
        tokens, counts = encode_documents(documents, tokenizer, sentences=sentences, apart=apart, dtype=rows.token_dtype)
        layout = _lay(tokens, config, RandomStream(config.seed, StreamPurpose.LAYOUT, number, SPLITS.index("holdout")))
        records.append(write_part(folder, number, "", SplitRows("holdout", [Version(layout, tokens.ids)], counts), rows))
    return split_manifest(folder, "holdout", {}, rows, records)


def write_random_rows(folder: PurePath, num_rows: int, sequence_length: int, block_rows: int) -> SplitManifest:
    """Write a split of random tokens, to measure read throughput: two parts of full rows; smaller ids are more frequent."""
    special = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
    rows = RowFormat(
        kind="packed",
        sequence_length=sequence_length,
        dtype="uint16",
        block_rows=block_rows,
        columns=("tokens",),
        vocab_size=32_000,
        special=special,
    )
    records = []
    for number in range(2):
        draws = RandomStream(0, StreamPurpose.LAYOUT, number)
        size = num_rows // 2 * (sequence_length - 2)
        ids = np.floor(5 + 31_995 ** draws.uniform(size)).astype(np.uint16)
        ends = np.arange(1, num_rows // 2 + 1) * (sequence_length - 2)
        layout = lay_packed(TokenizedDocuments(ids, ends, ends), sequence_length=sequence_length)
        layout = reorder(layout, draws.permutation(layout.num_rows))
        counts = Counts(documents=ends.size, tokens=size, characters=size)
        records.append(write_part(folder, number, "", SplitRows("train", [Version(layout, ids)], counts), rows))
    return split_manifest(folder, "train", {}, rows, records)


class TextSource(NamedTuple):
    """The documents of the corpus, tokenized, laid out in rows and shuffled."""

    corpus_workdir: str  # the folder that holds the text, as corpus/
    config: DataConfig
    tokenization_path: str
    tokenizer: str  # fingerprint
    inputs: str  # digest of inputs.json
    by_library: bool = False  # encoded without the engine
    analyser: dict[str, str] | None = None  # versions of the packages that find word boundaries, if used

    def read(self, number: int, rows: RowFormat) -> Iterator[SplitRows]:
        part = corpus.read_part(self.corpus_workdir, _corpus_manifest(self.corpus_workdir, self.inputs), number)
        tokenizer = loaded_tokenization(self.tokenization_path, self.tokenizer)
        if self.by_library:
            tokenizer.encoder.engine = None
        words = _word_encoder(self, tokenizer)
        of_train = {
            "duplicates": part.duplicates,
            "near_duplicates": part.near_duplicates,
            "left_out_by_weight": part.left_out,
            "added_by_weight": part.added,
        }
        for place, (split, documents) in enumerate(zip(SPLITS, (part.train, part.holdout), strict=True)):
            tokens, counts = encode_documents(
                documents,
                tokenizer,
                sentences=self.config.rows == "segments",
                apart=self.config.split_sentences,
                dtype=rows.token_dtype,
                words=words,
                at_once=analysers.CHARACTERS_AT_ONCE if words or tokenizer.segmenter else None,
                advance=report,
            )
            documents.clear()
            is_train = split == "train"
            versions = _versions(tokens, self.config, (number, place), self.config.dupe_factor if is_train else 1)
            counts = counts.model_copy(update=of_train if is_train else {})
            yield SplitRows(split, versions, counts, part.removed if is_train else {})


def _versions(tokens: TokenizedDocuments, config: DataConfig, numbers: tuple[int, ...], count: int) -> Iterator[Version]:
    """`count` versions of the rows of the same documents, with other random pairs and lengths, or document order."""
    for version in range(count):
        own = (*numbers, version) if version else numbers
        if version and config.rows != "segments":
            order = RandomStream(config.seed, StreamPurpose.DOCUMENT_ORDER, *own).permutation(tokens.document_ends.size)
            documents = shuffle(tokens, order)
        else:
            documents = tokens
        layout = _lay(documents, config, RandomStream(config.seed, StreamPurpose.LAYOUT, *own))
        rows = RandomStream(config.seed, StreamPurpose.ROW_ORDER, *own).permutation(layout.num_rows)
        yield Version(reorder(layout, rows), documents.ids, documents.word_start)


def _lay(tokens: TokenizedDocuments, config: DataConfig, draws: RandomStream) -> RowLayout:
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


def _load_tokenization(path: str) -> None:
    """Load the tokenizer in this process, before its first part comes."""
    _loaded(path).encode([])


def loaded_tokenization(path: str, fingerprint: str) -> Tokenization:
    """The tokenizer at `path`. Raises WorkFolderMismatch if it is not the one that the dataset was begun with."""
    if _loaded(path).fingerprint != fingerprint:  # cached by a long-lived process, and replaced since
        _loaded.cache_clear()
    if (tokenization := _loaded(path)).fingerprint != fingerprint:
        raise WorkFolderMismatch(
            f"{path} holds another tokenizer (fingerprint {tokenization.fingerprint[:12]}) than the dataset was begun with "
            f"({fingerprint[:12]}); put the first one back, or delete the dataset and run again"
        )
    return tokenization


@lru_cache(maxsize=1)
def _loaded(path: str) -> Tokenization:
    return tokenization.load(path)


def _word_encoder(source: TextSource, tokenizer: Tokenization) -> WordEncoder | None:
    """What finds words, if anything does. Raises WorkFolderMismatch if the analyser's version here is not the dataset's."""
    name = tokenizer.segmenter.analyser if tokenizer.segmenter else source.config.word_boundaries
    if name == "none":
        return None
    if (here := analysers.versions(name)) != source.analyser:
        raise WorkFolderMismatch(
            f"this machine has {here} to find words, the dataset was begun with {source.analyser}; install the same versions"
        )
    return None if tokenizer.segmenter else _words(source.tokenization_path, source.tokenizer, name)


@lru_cache(maxsize=1)
def _words(path: str, fingerprint: str, name: analysers.Name) -> WordEncoder:
    return WordEncoder(loaded_tokenization(path, fingerprint), name)


@lru_cache(maxsize=1)
def _corpus_manifest(workdir: str, inputs: str) -> CorpusManifest:
    manifest = corpus.load_manifest(workdir)
    assert manifest is not None, "prepare() got the manifest from this folder"
    return manifest


def _analyser(config: DataConfig, tokenizer: Tokenization, workdir: str | PurePath) -> dict[str, str] | None:
    """The versions of the word analyser's packages; if they are not installed, those of a complete dataset."""
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
    """Choose engine or library by comparing them on a sample of the corpus, the same on every host."""
    if tokenizer.encoder.engine is None:
        return Encoding(by=LIBRARY)
    texts = corpus.some_texts(corpus_workdir, manifest, _COMPARED_BYTES)
    return Encoding(by=ENGINE if tokenizer.encoder.check(texts) else LIBRARY, compared=len(texts))


def _refuse_empty(split: SplitManifest, documents: int) -> None:
    if split.counts.rows:
        return
    name, fraction = {
        "train": ("training set", "lower corpus.holdout_fraction or add text"),
        "holdout": ("holdout", "raise corpus.holdout_fraction or add text: at least two different documents are needed"),
    }[split.split]
    empty = split.counts.documents
    what = f"{plural(empty, 'document')} without a token" if empty else f"of {plural(documents, 'document')} it has none"
    raise DataError(f"the {name} is empty ({what}); {fraction}, and begin in a new work folder")


def small_holdout(train: SplitManifest, holdout: SplitManifest, advice: str) -> str:
    """A note on a holdout that says little, or ""; {} in the advice is the fraction to hold out."""
    tokens, rows = holdout.counts.tokens, holdout.counts.rows
    if tokens >= _FEW_TOKENS:
        return ""
    share = min(0.5, 1.1 * _FEW_TOKENS / (tokens + train.counts.tokens))
    return (
        f"the holdout is {plural(rows, 'row')} with {plural(tokens, 'token')}, so few that chance moves its scores by "
        f"points: {advice.format(f'{share:.2g}')}"
    )


def _early_warning(
    config: DataConfig, corpus_workdir: str | PurePath, manifest: CorpusManifest, tokenizer: Tokenization, rows: RowFormat
) -> str:
    """An early warning about rows of kind "segments", from a sample of the corpus; "" if there is none."""
    if config.rows != "segments":
        return ""
    texts = corpus.some_texts(corpus_workdir, manifest, _GLANCE_BYTES)
    tokens, counts = encode_documents(texts, tokenizer, sentences=True, dtype=rows.token_dtype)
    layout = _lay(tokens, config, RandomStream(config.seed, StreamPurpose.LAYOUT))
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
    copies = {"exact": counts.duplicates, "near": counts.near_duplicates}
    left_out = "".join(f", without {count:,} {kind} duplicates" for kind, count in copies.items() if count)
    progress.note(
        f"{counts.rows:,} rows of {train.rows.sequence_length} from {counts.documents:,} documents{left_out}, "
        f"{counts.tokens:,} tokens; "
        f"{train.padding_fraction:.1%} padding" + (f"; drawn {versions} times, for as many epochs" if versions > 1 else "")
    )
    if counts.empty_documents:
        progress.note(f"{counts.empty_documents:,} documents hold no token and are in no row")
    if warning:
        progress.note(warning)
