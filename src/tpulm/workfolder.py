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
from pathlib import Path
from typing import Any

from tpulm import interrupt, storage
from tpulm.config import RunConfig, canonical_json, differences, from_json, phases_of
from tpulm.errors import ConfigError, WorkFolderMismatch
from tpulm.failures import record_failure

_RUN_FILE = "run.json"
_STAGES = ("corpus", "tokenizer", "dataset", "checkpoints", "results", "export")


def open_run(workdir: str | Path) -> RunConfig:
    """The configuration a work folder was begun with. Raises ConfigError where there is none."""
    path = storage.as_path(workdir) / _RUN_FILE
    if not storage.exists(path):
        raise ConfigError(f"{workdir} is not a work folder: it has no {_RUN_FILE}; 'tpulm run RUN.toml --workdir W' makes one")
    return from_json(storage.read_bytes(path), str(path))


def begin(config: RunConfig, workdir: str | Path) -> Path:
    """The work folder, made or recognised as this configuration's. Raises WorkFolderMismatch listing what differs."""
    folder = storage.check_writable(workdir)
    if is_imported(folder):
        _agree_with_import(config, folder)
    if storage.exists(folder / _RUN_FILE):
        changes = differences(open_run(folder), config)
        if changes:
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


@contextlib.contextmanager
def working_in(config: RunConfig, workdir: str | Path, *, stage: str | None = None) -> Iterator[Path]:
    """The work folder, held by this process, signals handled; a failure inside is recorded in it."""
    with _held(begin(config, workdir), stage) as folder:
        yield folder


@contextlib.contextmanager
def importing_into(workdir: str | Path) -> Iterator[Path]:
    """The same for a folder into which a dataset is imported. Raises WorkFolderMismatch if it holds anything else's work."""
    folder = storage.check_writable(workdir)
    if not is_imported(folder):
        found = [name for name in (_RUN_FILE, *_STAGES) if storage.exists(folder / name)]
        if found:
            raise WorkFolderMismatch(f"{folder} holds {', '.join(found)}, and no imported dataset; import into an empty folder")
    with _held(folder, "import") as held:
        yield held


def is_imported(workdir: str | Path) -> bool:
    """Whether the folder's dataset was imported, or its import has begun, so that there is no text."""
    path = storage.as_path(workdir) / "dataset" / "inputs.json"
    return storage.exists(path) and "imported" in storage.read_json(path)


def _agree_with_import(config: RunConfig, folder: Path) -> None:
    """Raise ConfigError, before anything is written, unless these settings fit the imported rows."""
    path = folder / "dataset" / "manifest.json"
    if not storage.exists(path):
        raise ConfigError(f"the import into {folder} is not finished; run the same 'tpulm dataset import-tfrecord' again")
    rows = storage.read_json(path)["train"]["rows"]
    imported = {
        "sequence_length": rows["sequence_length"],
        "rows": rows["kind"],
        "next_sentence": "next_sentence" in rows["columns"],
    }
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
def _held(folder: Path, stage: str | None) -> Iterator[Path]:
    with storage.held(folder), interrupt.handled():
        try:
            yield folder
        except (Exception, KeyboardInterrupt) as error:
            record_failure(folder, error, stage=stage)
            raise


def read_result(workdir: Path, name: str) -> dict[str, Any] | None:
    """What a stage left, or None where it has not finished."""
    path = _result_path(workdir, name)
    return storage.read_json(path) if storage.exists(path) else None


def write_result(workdir: Path, name: str, values: dict[str, Any]) -> None:
    storage.write_json(_result_path(workdir, name), values)


def _result_path(workdir: Path, name: str) -> Path:
    return workdir / "results" / f"{name}.json"
