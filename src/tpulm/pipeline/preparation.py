"""The stages before training: corpus, tokenizer, dataset. They need no accelerator and never import JAX."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import PurePath
from typing import Any, NamedTuple

from tpulm import corpus, dataset, storage, tokenization
from tpulm.config import CleaningConfig, RunConfig, phases_of
from tpulm.config.resolve import OPTIMIZER_FILE
from tpulm.errors import ConfigError, DataError, WorkFolderMismatch
from tpulm.progress import SILENT, Progress
from tpulm.runtime import watchdog
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner, WorkerPool
from tpulm.tokenization import pipelines
from tpulm.workfolder import is_imported, is_prepared

_PROBE = "\u212a \u037e ａＢ１２\u3000a\xa0b  c\td aaaaaaaaa!!!!!!!!!"  # the first two are K and ; in every form
_UNNORMALIZED = (
    "this tokenizer does not normalize texts as corpus.cleaning normalized the corpus (unicode_form, whitespace, max_repeats): "
    "give every later text in that form, or have a tokenizer trained, which does it itself, in a new work folder"
)
_VOCABULARY_SAMPLE_BYTES = 1_000_000  # of text, to check that the vocabulary fits


def prepare_corpus(
    config: RunConfig, workdir: PurePath, *, hosts: Hosts = ALONE, runner: Runner | None = None, progress: Progress = SILENT
) -> corpus.CorpusManifest:
    if not config.corpus.sources:
        raise ConfigError(
            'the run has no text: name it in the run file, for instance\n  [corpus]\n  sources = ["texts/*.txt.gz"]\n'
            "or with --set 'corpus.sources=[\"texts/*.txt.gz\"]'"
        )
    if not is_prepared(workdir, "corpus"):
        check_named_inputs(config)
    text = corpus.scatter(
        config.corpus, workdir, part_bytes=config.data.part_bytes, runner=runner, hosts=hosts, progress=progress
    )
    if not text.holdout_below:  # before a tokenizer is trained
        times = f", {text.counts.documents:,} times" if text.counts.documents > 1 else ""
        raise DataError(
            f"the corpus is a single document{times}, so the holdout would be empty: at least two different documents are "
            "needed. Should the source's documents be 'line' or 'paragraph'? Such a change needs another --workdir, or this "
            "one without its folder corpus"
        )
    return text


def check_named_inputs(config: RunConfig) -> None:
    """Check the files that other settings name: better missed now than in an hour."""
    path = config.tokenizer.path
    if path is not None and storage.info(path) is None:
        what = "a folder; name the vocab.txt or tokenizer.json in it" if storage.exists(path) else "not there"
        raise ConfigError(f"tokenizer.path {path} is {what}")
    for name in (config.data.word_boundaries, config.tokenizer.morphemes):
        if name != "none":
            tokenization.analysers.versions(name)  # raises if the analyser's package is missing
    start = config.train.start_from
    if start is not None and not storage.exists(start):
        raise ConfigError(f"train.start_from {start} is not there; name the folder of a model, or a work folder with an export")
    if start is not None and config.train.start_optimizer and not storage.exists(storage.as_path(start) / OPTIMIZER_FILE):
        raise ConfigError(f"train.start_optimizer: {start} has no {OPTIMIZER_FILE}; set it to false for a fresh optimizer")


def prepare_tokenizer(
    config: RunConfig,
    workdir: PurePath,
    text: corpus.CorpusManifest | None,
    *,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> tokenization.Tokenization:
    """The tokenizer trained on a sample of the corpus or, without `text`, read from `tokenizer.path`; saved to W/tokenizer."""
    settings, folder = config.tokenizer, workdir / "tokenizer"
    excluded = {"path", "allow_unknown"} | ({"morphemes"} if settings.morphemes == "none" else set())
    inputs: dict[str, Any] = {"settings": settings.fingerprinted(exclude=excluded)}
    recorded = tokenization.load_manifest(folder)
    if text is not None:
        inputs["corpus"] = text.fingerprint
    else:
        if recorded is None:
            check_named_inputs(config)
        assert settings.path is not None, "else there is a corpus"
        inputs["file"] = storage.sha256(settings.path)
    if settings.morphemes == "kiwi":
        progress.note(
            "tokenizer.morphemes = 'kiwi': transformers has no tokenizer that cuts Korean into morphemes, so this one will be "
            "read by tpulm alone; data.word_boundaries = 'kiwi' masks by morphemes and keeps a tokenizer that all can load"
        )
    if settings.morphemes == "mecab" and config.corpus.cleaning.max_repeats:
        progress.note(
            "corpus.cleaning.max_repeats: this tokenizer is exported as transformers' BertJapaneseTokenizer, which cuts no "
            "repeats; give it texts in which they are cut"
        )
    if recorded and (changed := [name for name in sorted(inputs) if recorded.inputs.get(name) != inputs[name]]):
        raise WorkFolderMismatch(
            f"the tokenizer of this work folder was made from something else: {', '.join(changed)} changed since. "
            "Use another --workdir."
        )
    hosts.barrier("tokenizer begun")
    if not recorded and hosts.is_first:
        if text is not None:
            sample = corpus.sample_texts(workdir, text, settings.sample_bytes)
            trained = tokenization.train(sample, settings, cleaning=config.corpus.cleaning, progress=progress)
        else:
            trained = tokenization.load(settings.path or "", settings, progress=progress)
        tokenization.save(trained, folder, inputs=inputs, model_max_length=config.model.max_positions)
    hosts.barrier("tokenizer")
    loaded = tokenization.load(folder)
    if not is_prepared(workdir, "dataset") and not _normalizes(loaded, config.corpus.cleaning):
        progress.note(_UNNORMALIZED)
    return loaded


def _normalizes(tokenizer: tokenization.Tokenization, cleaning: CleaningConfig) -> bool:
    """Whether the tokenizer reads characters in other forms, blanks and repeats as cleaning leaves them."""
    letters = sorted({one for token in tokenizer.vocabulary() for one in token if not unicodedata.is_normalized("NFD", one)})
    known = " ".join(["é", *letters[:1_000]])
    steps = pipelines.normalizer(pipelines.normalization(cleaning))
    probe = f"{known} {unicodedata.normalize('NFD', known)} {_PROBE}"
    return steps is None or tokenizer.encode_one(probe) == tokenizer.encode_one(steps.normalize_str(probe))


class PreparedData(NamedTuple):
    """The results of the stages before training."""

    tokenizer: tokenization.Tokenization
    datasets: tuple[dataset.DatasetManifest, ...]  # one per phase


def load_prepared(config: RunConfig, workdir: PurePath) -> PreparedData:
    """What an earlier command prepared. Raises ConfigError if something is missing."""
    datasets = dataset.load_manifests(workdir, config)
    if len(datasets) < len(phases_of(config)):
        raise ConfigError(f"{workdir} has no dataset yet; 'tpulm run' or 'tpulm dataset prepare' makes it")
    return PreparedData(tokenization.load(workdir / "tokenizer"), datasets)


def prepare_data(
    config: RunConfig,
    workdir: PurePath,
    *,
    hosts: Hosts = ALONE,
    runner: Runner | None = None,
    progress: Progress = SILENT,
    ended: Callable[[str, bool], None] = lambda stage, was_done: None,
) -> PreparedData:
    """Prepare corpus, tokenizer and the rows of each phase, W/dataset and W/phase-N/dataset; then delete the corpus' spill.

    `ended` is called after each stage, with its name and whether it had been done before.
    """
    if is_imported(workdir):  # with its tokenizer; there is no corpus, and `workfolder.begin` has compared the settings
        complete = load_prepared(config, workdir)
        ended("dataset", True)
        return complete
    with WorkerPool(modules=dataset.MODULES) if runner is None else nullcontext(runner) as pool:
        had_corpus, had_tokenizer = (is_prepared(workdir, name) for name in ("corpus", "tokenizer"))
        tokenizer = None
        if config.tokenizer.path is not None:  # better to raise its errors before the text is read
            tokenizer = prepare_tokenizer(config, workdir, None, hosts=hosts, progress=progress)
            if isinstance(pool, WorkerPool) and not had_corpus:
                dataset.warm_up(pool, workdir / "tokenizer")
        watchdog.report("corpus")
        text = prepare_corpus(config, workdir, hosts=hosts, runner=pool, progress=progress)
        ended("corpus", had_corpus)
        watchdog.report("tokenizer")
        tokenizer = tokenizer or prepare_tokenizer(config, workdir, text, hosts=hosts, progress=progress)
        ended("tokenizer", had_tokenizer)
        watchdog.report("dataset")
        phases = phases_of(config)
        was_done = all(is_prepared(workdir / phase.folder, "dataset") for phase in phases)
        if not was_done:
            _check_vocabulary(config, workdir, text, tokenizer, progress)
        made = {
            folder: dataset.prepare(
                data,
                workdir / folder,
                tokenizer=tokenizer,
                tokenization_path=workdir / "tokenizer",
                corpus_manifest=text,
                corpus_workdir=workdir,
                runner=pool,
                hosts=hosts,
                progress=progress,
            )
            for folder, data in {phase.folder: phase.config.data for phase in phases}.items()
        }
        if hosts.is_first:
            corpus.remove_spill(workdir)
        ended("dataset", was_done)
        return PreparedData(tokenizer, tuple(made[phase.folder] for phase in phases))


def _check_vocabulary(
    config: RunConfig,
    workdir: PurePath,
    text: corpus.CorpusManifest,
    tokenizer: tokenization.Tokenization,
    progress: Progress,
) -> None:
    """Before hours of preparation: note, or raise ConfigError, if much of a sample of the text is unknown."""
    texts = corpus.some_texts(workdir, text, _VOCABULARY_SAMPLE_BYTES)
    unknown = tokenization.count_unknown(tokenizer, [texts])
    if unknown.fraction < tokenization.UNKNOWN_WARNING:
        return
    path, long_words = config.tokenizer.path, " and words of any length" if unknown.is_long else ""
    cure = "" if unknown.is_long else "a larger tokenizer.vocab_size, or "
    cure = f"set {cure}tokenizer.algorithm = 'bpe' or 'unigram', which write every character{long_words}"
    if path is not None:
        higher = ", with a higher max_input_chars_per_word" if unknown.is_long else ""
        cure = f"take one that fits the text{higher}, or leave tokenizer.path out to have one trained"
    message = f"{unknown} to the vocabulary{'' if path is None else f' of {path}'}: {cure}"
    if unknown.fraction >= tokenization.UNKNOWN_REFUSED and not config.tokenizer.allow_unknown:
        raise ConfigError(f"{message}. set tokenizer.allow_unknown = true to continue")
    progress.note(message)
