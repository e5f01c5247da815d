"""The work folder as a whole: whose it is, who may work in it, and the results of the stages.

W/run.json           the configuration it was begun with
W/results/NAME.json  what training, evaluation and export gave
W/failures/          a record of each failure

A work folder may begin with an imported dataset and its tokenizer (W/dataset/inputs.json says so); runs continue from there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tpulm import interrupt, storage
from tpulm.config import RunConfig, canonical_json, differences, from_json, phases_of
from tpulm.errors import ConfigError, PeerLost, Stopped, StorageError, WorkFolderMismatch
from tpulm.failures import record_failure
from tpulm.hosts import ALONE, Hosts, Membership, join
from tpulm.progress import SILENT, Progress

_RUN_FILE = "run.json"
_LOSS_IS_KNOWN_SECONDS = 2.0  # after a connection between devices broke, the loss of the host behind it
_STAGES = ("corpus", "tokenizer", "dataset", "checkpoints", "results", "export")


def open_run(workdir: str | PurePath) -> RunConfig:
    """The configuration a work folder was begun with. Raises ConfigError where there is none."""
    path = storage.as_path(workdir) / _RUN_FILE
    if not storage.exists(path):
        raise ConfigError(f"{workdir} is not a work folder: it has no {_RUN_FILE}; 'tpulm run RUN.toml --workdir W' makes one")
    return from_json(storage.read_bytes(path), str(path))


def begin(config: RunConfig, workdir: str | PurePath) -> PurePath:
    """The work folder, made or recognised as this configuration's. Raises WorkFolderMismatch listing what differs."""
    folder = storage.check_writable(workdir)
    if is_imported(folder):
        _agree_with_import(config, folder)
    if storage.exists(folder / _RUN_FILE):
        changes = differences(open_run(folder), config)
        if changes and any(storage.exists(folder / name) for name in _STAGES):  # else nothing was made of the old settings
            listed = "\n".join(f"  {line}" for line in changes)
            raise WorkFolderMismatch(
                f"{folder} was begun with another configuration (there -> now):\n{listed}\n"
                "Use another --workdir, or the same settings to continue."
            )
    elif not is_imported(folder):
        foreign = [name for name in _STAGES if storage.exists(folder / name)]
        if foreign:
            raise WorkFolderMismatch(f"{folder} has no {_RUN_FILE} but holds {', '.join(foreign)}; use an empty folder")
    storage.write_atomic(folder / _RUN_FILE, canonical_json(config))
    return folder


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
    """The work folder, held by this process, signals handled; a failure inside is recorded in it.

    With several hosts all of them come here, and the first one holds the folder for all.
    """
    with interrupt.handled():
        if member is None:
            with _held(begin(config, workdir), stage, ALONE, progress) as folder:
                yield WorkFolder(folder, ALONE)
            return
        path = storage.as_path(workdir)

        def record(error: PeerLost | Stopped) -> None:
            record_failure(path, error, stage=stage, host=member.index)

        with join(member, run=f"{path} {canonical_json(config)}", record=record, progress=progress) as hosts:
            folder = begin(config, workdir) if hosts.is_first else path
            hosts.barrier("work folder")
            with _held(folder, stage, hosts, progress):
                yield WorkFolder(folder, hosts)


@contextlib.contextmanager
def importing_into(workdir: str | PurePath) -> Iterator[PurePath]:
    """The same for a folder into which a dataset is imported. Raises WorkFolderMismatch if it holds anything else's work."""
    folder = storage.check_writable(workdir)
    if not is_imported(folder):
        found = [name for name in (_RUN_FILE, *_STAGES) if storage.exists(folder / name)]
        if found:
            raise WorkFolderMismatch(f"{folder} holds {', '.join(found)}, and no imported dataset; import into an empty folder")
    with interrupt.handled(), _held(folder, "import", ALONE, SILENT) as held:
        yield held


def is_imported(workdir: str | PurePath) -> bool:
    """Whether the folder's dataset was imported, or its import has begun, so that there is no text."""
    path = storage.as_path(workdir) / "dataset" / "inputs.json"
    return storage.exists(path) and "imported" in storage.read_json(path)


def _agree_with_import(config: RunConfig, folder: PurePath) -> None:
    """Raise ConfigError, before anything is written, unless these settings fit the imported rows."""
    path = folder / "dataset" / "manifest.json"
    if not storage.exists(path):
        raise ConfigError(f"the import into {folder} is not finished; run the same 'tpulm dataset import-tfrecord' again")
    try:
        rows = storage.read_json(path)["train"]["rows"]
        imported = {
            "sequence_length": rows["sequence_length"],
            "rows": rows["kind"],
            "next_sentence": "next_sentence" in rows["columns"],
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
def _held(folder: PurePath, stage: str | None, hosts: Hosts, progress: Progress) -> Iterator[PurePath]:
    with storage.held(folder, note=progress.note) if hosts.is_first else contextlib.nullcontext():
        try:
            yield folder
        except (Exception, KeyboardInterrupt) as error:
            lost = None if isinstance(error, (Stopped, PeerLost)) else hosts.lost(wait_seconds=_LOSS_IS_KNOWN_SECONDS)
            record_failure(folder, lost or error, stage=stage, host=hosts.index if hosts.are_several else None)
            if lost is not None:  # what failed here failed because of it
                raise lost from error
            raise


def read_result(workdir: PurePath, name: str) -> dict[str, Any] | None:
    """What a stage left, or None where it has not finished."""
    path = _result_path(workdir, name)
    return storage.read_json(path) if storage.exists(path) else None


def write_result(workdir: PurePath, name: str, values: dict[str, Any]) -> None:
    storage.write_json(_result_path(workdir, name), values)


def _result_path(workdir: PurePath, name: str) -> PurePath:
    return workdir / "results" / f"{name}.json"
