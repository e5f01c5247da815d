"""The stages before training: corpus, tokenizer, dataset. They need no accelerator and never import JAX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tpulm import corpus, dataset, storage, tokenization
from tpulm.config import RunConfig, phases_of
from tpulm.config.starting import OPTIMIZER_FILE
from tpulm.errors import ConfigError, WorkFolderMismatch
from tpulm.hosts import ALONE, Hosts
from tpulm.progress import SILENT, Progress
from tpulm.workers import Runner, WorkerPool
from tpulm.workfolder import is_imported

_VOCABULARY_SAMPLE_BYTES = 1_000_000  # of text, to see whether the vocabulary fits


def prepare_corpus(
    config: RunConfig, workdir: PurePath, *, hosts: Hosts = ALONE, runner: Runner | None = None, progress: Progress = SILENT
) -> corpus.CorpusManifest:
    if not config.corpus.sources:
        raise ConfigError(
            'the run has no text: name it in the run file, for instance\n  [corpus]\n  sources = ["texts/*.txt.gz"]\n'
            "or with --set 'corpus.sources=[\"texts/*.txt.gz\"]'"
        )
    if corpus.load_manifest(workdir) is None:
        _check_named_inputs(config)
    return corpus.scatter(
        config.corpus, workdir, part_bytes=config.data.part_bytes, runner=runner, hosts=hosts, progress=progress
    )


def _check_named_inputs(config: RunConfig) -> None:
    """Whatever else the settings name had better be missed now than in an hour."""
    path = config.tokenizer.path
    if path is not None and storage.info(path) is None:
        what = "a folder; name the vocab.txt or tokenizer.json in it" if storage.exists(path) else "not there"
        raise ConfigError(f"tokenizer.path {path} is {what}")
    for name in (config.data.word_boundaries, config.tokenizer.morphemes):
        if name != "none":
            tokenization.analysers.versions(name)  # or the analyser's package would be missed in an hour
    start = config.train.start_from
    if start is not None and not storage.exists(start):
        raise ConfigError(f"train.start_from {start} is not there; name the folder of a model, or a work folder with an export")
    if start is not None and config.train.start_optimizer and not storage.exists(storage.as_path(start) / OPTIMIZER_FILE):
        raise ConfigError(f"train.start_optimizer: {start} has no {OPTIMIZER_FILE}; set it to false for a fresh optimiser")


def prepare_tokenizer(
    config: RunConfig, workdir: PurePath, *, hosts: Hosts = ALONE, runner: Runner | None = None, progress: Progress = SILENT
) -> tokenization.Tokenization:
    """Trained on a sample of the corpus, or, before that is read, taken from `tokenizer.path`; saved to W/tokenizer."""
    folder = workdir / "tokenizer"
    if is_imported(workdir):
        return tokenization.load(folder)
    wanted = config.tokenizer
    unsaid = {"path", "allow_unknown"} | ({"morphemes"} if wanted.morphemes == "none" else set())
    inputs: dict[str, Any] = {"settings": wanted.model_dump(mode="json", exclude=unsaid)}
    recorded, manifest = tokenization.load_manifest(folder), None
    if wanted.path is None:
        manifest = prepare_corpus(config, workdir, hosts=hosts, runner=runner, progress=progress)
        inputs["corpus"] = manifest.fingerprint
    else:
        if recorded is None:
            _check_named_inputs(config)
        inputs["file"] = storage.sha256(wanted.path)
    if wanted.morphemes == "kiwi":
        progress.note(
            "tokenizer.morphemes = 'kiwi': transformers has no tokenizer that cuts Korean into morphemes, so this one will be "
            "read by tpulm alone; data.word_boundaries = 'kiwi' masks by morphemes and keeps a tokenizer that all can load"
        )
    is_done = _is_done("the tokenizer", recorded, inputs)
    hosts.barrier("tokenizer begun")
    if not is_done and hosts.is_first:
        if manifest is not None:
            texts = corpus.sample_texts(workdir, manifest, wanted.sample_bytes)
            made = tokenization.train(texts, wanted, progress=progress)
        else:
            assert wanted.path is not None, "else there is a corpus"
            made = tokenization.load(wanted.path, wanted)
        tokenization.save(made, folder, inputs=inputs, model_max_length=config.model.max_positions)
    hosts.barrier("tokenizer")
    return tokenization.load(folder)


def prepare_dataset(
    config: RunConfig, workdir: PurePath, *, hosts: Hosts = ALONE, runner: Runner | None = None, progress: Progress = SILENT
) -> dataset.DatasetManifest:
    """The rows of W/dataset, and of the later phases' own; the corpus' spill is deleted when all are complete.

    Gives the first phase's.
    """
    if is_imported(workdir) and (imported := dataset.load_manifest(workdir)) is not None:
        return imported  # `workfolder.begin` has compared it with the settings
    if runner is not None:
        return _prepare_dataset(config, workdir, hosts, runner, progress)
    with WorkerPool(modules=dataset.MODULES) as pool:
        return _prepare_dataset(config, workdir, hosts, pool, progress)


def _prepare_dataset(
    config: RunConfig, workdir: PurePath, hosts: Hosts, runner: Runner, progress: Progress
) -> dataset.DatasetManifest:
    prepare_tokenizer(config, workdir, hosts=hosts, runner=runner, progress=progress)
    if isinstance(runner, WorkerPool) and corpus.load_manifest(workdir) is None:  # the tokenizer was given
        dataset.warm_up(runner, workdir / "tokenizer")
    text = prepare_corpus(config, workdir, hosts=hosts, runner=runner, progress=progress)
    if not is_prepared(config, workdir):
        _check_vocabulary(config, workdir, text, progress)
    made = [
        dataset.prepare(
            phase.config.data,
            workdir / phase.folder,
            tokenization_path=workdir / "tokenizer",
            corpus_manifest=text,
            corpus_workdir=workdir,
            runner=runner,
            hosts=hosts,
            progress=progress,
        )
        for phase in phases_of(config)
    ]
    if hosts.is_first:
        corpus.remove_spill(workdir)
    return made[0]


def _check_vocabulary(config: RunConfig, workdir: PurePath, text: corpus.CorpusManifest, progress: Progress) -> None:
    """Before hours of preparing: note, or raise ConfigError, where much of a sample of the text is unknown."""
    tokenizer = tokenization.load(workdir / "tokenizer")
    found = tokenization.count_unknown(tokenizer, [corpus.some_texts(workdir, text, _VOCABULARY_SAMPLE_BYTES)])
    if found.fraction < tokenization.UNKNOWN_WARNING:
        return
    path = config.tokenizer.path
    cure = (
        "set a larger tokenizer.vocab_size, or tokenizer.algorithm = 'bpe' or 'unigram', which write every character"
        if path is None
        else "take one that fits the text, or leave tokenizer.path out to have one trained"
    )
    said = f"{found} to the vocabulary{'' if path is None else f' of {path}'}: {cure}"
    if found.fraction >= tokenization.UNKNOWN_REFUSED and not config.tokenizer.allow_unknown:
        raise ConfigError(f"{said}. tokenizer.allow_unknown = true goes on with it")
    progress.note(said)


def is_prepared(config: RunConfig, workdir: PurePath) -> bool:
    """Whether all phases have their rows."""
    return all(dataset.load_manifest(workdir / phase.folder) is not None for phase in phases_of(config))


def _is_done(what: str, manifest: Mapping[str, Any] | None, inputs: Mapping[str, Any]) -> bool:
    """Whether a stage's manifest is there and was made from these inputs; raises WorkFolderMismatch for other inputs."""
    if manifest is None:
        return False
    changed = [name for name in sorted(inputs) if manifest["inputs"].get(name) != inputs[name]]
    if changed:
        raise WorkFolderMismatch(
            f"{what} of this work folder was made from something else: {', '.join(changed)} changed since. "
            "Use another --workdir."
        )
    return True
