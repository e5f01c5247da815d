"""The work folder as a whole: its configuration, who may work in it, and the results of the stages.

W/run.json           the run's configuration
W/results/NAME.json  the results of training, evaluation, export, samples, report and pairs, each with its own checksum
W/failures/          a record of each failure

A work folder may start with an imported dataset and its tokenizer (see W/dataset/inputs.json); runs continue from there.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.config import Change, RunConfig, canonical_json, changes, from_json, listed, phases_of
from tpulm.config.schema import OPEN_ENDED
from tpulm.errors import ConfigError, Damaged, PeerLost, Stopped, StorageError, WorkFolderMismatch, some_of
from tpulm.progress import SILENT, Progress
from tpulm.runtime import interrupt
from tpulm.runtime.failures import record_failure
from tpulm.runtime.hosts import ALONE, Hosts, Membership, join

_RUN_FILE = "run.json"
_LOSS_IS_KNOWN_SECONDS = 2.0  # after a device connection breaks, until the loss of its host is known
_SETTINGS_OF_THE_END = {"train.steps", "train.optimizer.warmup_steps", "train.optimizer.decay_steps"}
_RESULTS = ("train", "evaluation", "samples", "export", "report")
REVISIONS = "revisions"  # the folder of the models that were kept by words
REVISION = re.compile(r"chck_\d+M?")  # their names
FORECAST = PurePath("pilots/forecast.json")  # what small runs said of the run
_CARD = "README.md"  # of an export
_MANIFEST = "manifest.json"  # of a folder that was prepared
_STAGES = ("corpus", "tokenizer", "dataset", "checkpoints", "results", "export")


def open_run(workdir: str | PurePath) -> RunConfig:
    """The configuration of a work folder. Raises ConfigError if there is none."""
    path = storage.as_path(workdir) / _RUN_FILE
    if not storage.exists(path):
        raise ConfigError(f"{workdir} is not a work folder: it has no {_RUN_FILE}; 'tpulm run RUN.toml --workdir W' makes one")
    return from_json(storage.read_bytes(path), str(path))


def begin(config: RunConfig, workdir: str | PurePath, progress: Progress = SILENT) -> PurePath:
    """Create the work folder, or check that it belongs to this configuration, and write run.json. The caller holds the folder.

    A setting may change while nothing depends on it, or if it does not affect the result; the end of training
    (`_SETTINGS_OF_THE_END`), if the learning rates so far would have been the same. Raises WorkFolderMismatch listing all
    other changes.
    """
    folder = storage.as_path(workdir)
    if imported := is_imported(folder):
        if config.corpus.sources and not is_prepared(folder, "dataset"):  # an import that failed
            for name in ("dataset", "tokenizer"):
                storage.remove(folder / name)
            imported = False
        else:
            _agree_with_import(config, folder)
    if storage.exists(folder / _RUN_FILE):
        before, existing = open_run(folder), _existing_stages(folder)
        changed = changes(before.model_dump(mode="json"), config.model_dump(mode="json"))
        depend = [_stages_depending_on(change, before, existing, imported=imported) for change in changed]
        bound = [change for change, names in zip(changed, depend, strict=True) if names]
        newest = max(storage.committed_steps(folder / "checkpoints"), default=None)
        if bound and (reason := reason_end_cannot_move(before, config, bound, newest)) is not None:
            parts = [name for name in existing if any(name in names for names in depend)]
            if "dataset" in parts:
                parts += [path.name for path in storage.list_folder(folder) if path.name.startswith("phase-")]
                if "corpus" in existing and "corpus" not in parts:
                    parts.insert(0, "corpus")  # whose documents were deleted once the rows were complete
            raise WorkFolderMismatch(
                f"{folder} was begun with another configuration (there -> now):\n{listed(bound)}\n{reason}"
                f"Set it back, use another --workdir, or delete {', '.join(parts)} in this one to make them again."
            )
        if "checkpoints" not in existing and not all(change.is_free for change in changed):
            for name in ("metrics", "tensorboard"):  # of an attempt with other settings, which left nothing else
                storage.remove(folder / name)
        if changed and existing:
            progress.note(f"changed since the last attempt: {some_of([str(change) for change in changed], most=10)}")
    elif not imported and (foreign := [name for name in _STAGES if storage.exists(folder / name)]):
        raise WorkFolderMismatch(f"{folder} has no {_RUN_FILE} but holds {', '.join(foreign)}; use an empty folder")
    storage.write_atomic(folder / _RUN_FILE, canonical_json(config))
    _drop_stale_results(config, folder, progress)
    return folder


def _drop_stale_results(config: RunConfig, folder: PurePath, progress: Progress) -> None:
    """Delete the results whose own file or whose product is missing or damaged, so that their stages are done again; say so.

    The model card is the user's to edit. A run that is evaluated and exported needs no checkpoint any more; any other goes on
    from a sound one, and all stages after training are done again.
    """
    results = dict[str, dict[str, Any]]()

    def forget(name: str, why: str) -> None:
        progress.note(f"{why}: made again")
        storage.remove(_result_path(folder, name))
        results.pop(name, None)

    for name in _RESULTS:
        try:
            results |= {} if (result := read_result(folder, name)) is None else {name: result}
        except Damaged:
            forget(name, f"{_result_path(folder, name)} is damaged")
    if "train" in results and results["train"]["steps"] != config.train.steps:
        storage.remove(folder / "results")  # training continues, and later stages are redone
        return
    for name in ("export", "report"):
        for file, wrong in storage.differences(folder / name, results.get(name, {}).get("files", {})):
            if PurePath(file).name != _CARD or "missing" in wrong:
                forget(name, f"{folder / name / file} {wrong}")
                break
            progress.note(f"{folder / name / file} was edited and stays as it is; delete it to have it written again")
    if results.get("export", {}).get("samples") and "samples" not in results:
        forget("export", f"{_result_path(folder, 'samples')} is gone, of which the report tells")
    if "train" not in results:
        if not storage.committed_steps(folder / "checkpoints"):  # training starts from scratch
            storage.remove(folder / "results")
            storage.remove(folder / REVISIONS)
        return
    steps = results["train"]["steps"]
    done = [results.get(name, {}).get("step") == steps for name in ("evaluation", "export")]
    checkpoint = folder / "checkpoints" / str(steps)
    if all(done) and storage.exists(folder / "export"):
        return
    if (damage := storage.find_damage(checkpoint)) is not None:
        progress.note(f"{checkpoint}, the end of training, is gone or damaged ({damage}): training goes on from what is there")
        storage.remove(folder / "results")


def newer_checkpoint(workdir: PurePath) -> int | None:
    """The step of the newest checkpoint, if W/export is of an earlier one, or another mean of checkpoints."""
    newest, exported = max(storage.committed_steps(workdir / "checkpoints"), default=0), read_result(workdir, "export")
    is_current = exported is not None and exported["step"] >= newest and same_average(open_run(workdir), exported)
    return newest if newest and not is_current else None


def is_of(config: RunConfig, settings: Mapping[str, Any]) -> bool:
    """Whether a run with these settings, as JSON, computes the same."""
    return all(change.is_free for change in changes(settings, config.model_dump(mode="json")))


def averaging(config: RunConfig) -> dict[str, list[int]]:
    """Recorded with what is made of a mean of checkpoints, their steps: another mean is another model."""
    checkpoint = config.train.checkpoint
    return {} if checkpoint.average_last is None else {"average_last": list(checkpoint.averaged_steps(config.train.steps))}


def same_average(config: RunConfig, result: Mapping[str, Any]) -> bool:
    return result.get("average_last") == averaging(config).get("average_last")


def is_prepared(workdir: PurePath, stage: str) -> bool:
    """Whether W/corpus, W/tokenizer or a phase's W/…/dataset is complete: its manifest, which is written last, is there."""
    return storage.exists(workdir / stage / _MANIFEST)


def _existing_stages(folder: PurePath) -> list[str]:
    """The stages that have results, in order."""
    exists = {name: is_prepared(folder, name) for name in ("corpus", "tokenizer", "dataset")}
    exists["checkpoints"] = bool(storage.committed_steps(folder / "checkpoints"))
    return [name for name in _STAGES if exists.get(name, storage.exists(folder / name))]


def _stages_depending_on(change: Change, before: RunConfig, existing: Sequence[str], *, imported: bool) -> list[str]:
    """The existing results that depend on a setting."""
    group = change.name.split(".")[0].split("[")[0]
    first = {"corpus": "corpus", "tokenizer": "tokenizer", "data": "dataset", "phases": "dataset"}.get(group, "checkpoints")
    first = "checkpoints" if imported else "corpus" if change.name == "data.part_bytes" else first
    if change.is_free:
        return []
    of_elsewhere = {"tokenizer"} if first == "corpus" and before.tokenizer.path else set[str]()
    return [name for name in _STAGES[_STAGES.index(first) :] if name in existing and name not in of_elsewhere]


def reason_end_cannot_move(before: RunConfig, now: RunConfig, bound: Sequence[Change], newest: int | None) -> str | None:
    """Why these changes cannot be made: a line, or "" if there is no more to say; None if they can.

    The end of the run may change if the learning rates up to the newest checkpoint, of step `newest`, are those of a run that
    was planned this way from the beginning.
    """
    if not {change.name for change in bound} <= _SETTINGS_OF_THE_END:
        return ""
    (first, steps), (then, planned) = ((one.train.optimizer, one.train.steps) for one in (before, now))
    stable = min(steps - first.decay(steps), planned - then.decay(planned))
    if newest is None:
        return "There is no checkpoint to go on from.\n"
    if len(now.phases) > 1 and steps != planned:
        return "The phases are shares of train.steps.\n"
    if first.schedule not in OPEN_ENDED and steps != planned:
        return (
            f"The learning rate was planned for {steps:,} steps (train.optimizer.schedule is '{first.schedule}'). To train a "
            f"finished model further, begin another run with --init and its folder.\n"
        )
    if planned < newest:
        return f"Checkpoint {newest:,} is already there.\n"
    if (warmup := first.warmup(steps)) != then.warmup(planned):
        return (
            f"The warm-up would have {then.warmup(planned):,} steps, not {warmup:,}: keep it with --set "
            f"train.optimizer.warmup_steps={warmup}.\n"
        )
    if first.schedule == "wsd" and newest > stable:
        return f"Checkpoint {newest:,} is beyond step {stable:,}, from which on the learning rate decays.\n"
    return None


@dataclass(frozen=True)
class WorkFolder:
    """A work folder that this process works in, alone or as one of several hosts."""

    path: PurePath
    hosts: Hosts


@contextlib.contextmanager
def working_in(
    config: RunConfig,
    workdir: str | PurePath,
    *,
    stage: str | None = None,
    member: Membership | None = None,
    progress: Progress = SILENT,
) -> Iterator[WorkFolder]:
    """Hold the work folder, with signals handled; a failure inside is recorded in it.

    With several hosts all of them call this, and the first one holds the folder for all.
    """
    path = storage.as_path(workdir)
    with interrupt.handled(), joined(path, member, run=canonical_json(config), stage=stage, progress=progress) as hosts:
        if hosts.is_first:
            storage.check_writable(path)
        with held(path, stage, hosts, progress, begin=lambda: begin(config, path, progress)):
            yield WorkFolder(path, hosts)


@contextlib.contextmanager
def joined(
    folder: PurePath, member: Membership | None, *, run: str, stage: str | None, progress: Progress = SILENT
) -> Iterator[Hosts]:
    """All hosts that do `run` in one folder; a host that must end because another is lost leaves a failure record there."""

    def record(error: PeerLost | Stopped) -> None:
        if storage.is_folder(folder):  # if nothing was begun, leave nothing
            record_failure(folder, error, stage=stage, host=None if member is None else member.index)

    with join(member, run=f"{folder} {run}", record=record, progress=progress) as hosts:
        yield hosts


@contextlib.contextmanager
def importing_into(workdir: str | PurePath) -> Iterator[PurePath]:
    """Hold a folder for importing a dataset into it. Raises WorkFolderMismatch if it holds the results of other work."""
    folder = storage.check_writable(workdir)
    if not is_imported(folder) and (existing := _existing_stages(folder)):
        raise WorkFolderMismatch(f"{folder} holds {', '.join(existing)}, and no imported dataset; import into an empty folder")
    with interrupt.handled(), held(folder, "import"):
        yield folder


def is_imported(workdir: str | PurePath) -> bool:
    """Whether the folder's dataset is imported, or its import has begun, so that there is no text."""
    path = storage.as_path(workdir) / "dataset" / "inputs.json"
    return storage.exists(path) and "imported" in storage.read_json(path)


def _agree_with_import(config: RunConfig, folder: PurePath) -> None:
    """Raise ConfigError, before anything is written, unless these settings fit the imported rows."""
    if not is_prepared(folder, "dataset"):
        raise ConfigError(f"the import into {folder} is not finished; run the same 'tpulm dataset import-tfrecord' again")
    path = folder / "dataset" / _MANIFEST
    try:
        rows = storage.read_json(path)["train"]["rows"]
        if type(rows["sequence_length"]) is not int or not isinstance(rows["kind"], str):
            raise TypeError
        imported = {
            "sequence_length": rows["sequence_length"],
            "rows": rows["kind"],
            "next_sentence": "next_sentence" in rows["columns"] and config.has_next_sentence_head,
            "word_boundaries": "none",
            "dupe_factor": 1,
        }
    except (KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged or was edited; import the records again into an empty folder") from error
    wrong = [(name, value, getattr(config.data, name)) for name, value in imported.items()]
    wrong = [(name, json.dumps(value), json.dumps(ours)) for name, value, ours in wrong if value != ours]
    if wrong:
        settings = ", ".join(f"data.{name} = {value} (not {ours})" for name, value, ours in wrong)
        options = " ".join(f"--set data.{name}={value.strip(chr(34))}" for name, value, _ in wrong)
        raise ConfigError(f"the rows imported into {folder} need {settings}; set it in the run file, or give {options}")
    if len({phase.folder for phase in phases_of(config)}) > 1:
        raise ConfigError(
            f"{folder} holds imported rows of one length, and the run has phases of several; train in one phase with "
            "--set 'phases=[]'"
        )
    unread = [
        name for name, value in (("corpus.sources", config.corpus.sources), ("tokenizer.path", config.tokenizer.path)) if value
    ]
    if unread:
        raise ConfigError(
            f"{folder} holds an imported dataset with its tokenizer, so {' and '.join(unread)} would not be read; leave it "
            "out, or use another --workdir"
        )


@contextlib.contextmanager
def held(
    folder: PurePath,
    stage: str | None,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
    *,
    begin: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Hold the folder, the first host for all; that host calls `begin` first. A failure inside is recorded."""
    with storage.held(folder, note=progress.note) if hosts.is_first else contextlib.nullcontext():
        if hosts.is_first:
            begin()
        hosts.barrier("work folder")
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            lost = None if isinstance(error, (Stopped, PeerLost)) else hosts.lost(wait_seconds=_LOSS_IS_KNOWN_SECONDS)
            record_failure(folder, lost or error, stage=stage, host=hosts.index if hosts.are_several else None)
            if lost is not None:  # the failure here is a consequence
                raise lost from error
            raise


def read_result(workdir: PurePath, name: str) -> dict[str, Any] | None:
    """The result of a stage, or None if it has not finished. Raises Damaged, but not after `begin`."""
    path = _result_path(workdir, name)
    return storage.read_json(path) if storage.exists(path) else None


def read_results(workdir: PurePath) -> dict[str, dict[str, Any]]:
    """The results that there are, by name. Raises like `read_result`."""
    found = {name: read_result(workdir, name) for name in (*_RESULTS, "pairs")}
    return {name: result for name, result in found.items() if result is not None}


def write_result(workdir: PurePath, name: str, values: dict[str, Any], *, product: PurePath | None = None) -> None:
    """Record the result of a stage, and the files of the folder `product` that it made, with their checksums."""
    files = {} if product is None else {"files": storage.listing(product)}
    storage.write_json(_result_path(workdir, name), {**values, **files}, sealed=True)


def _result_path(workdir: PurePath, name: str) -> PurePath:
    return workdir / "results" / f"{name}.json"
