"""The work folder as a whole: whose it is, who may work in it, and the results of the stages.

W/run.json           the configuration it was begun with
W/results/NAME.json  what training, evaluation and export gave
W/failures/          a record of each failure
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpulm import interrupt, storage
from tpulm.config import RunConfig, canonical_json, differences, from_json
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
    if storage.exists(folder / _RUN_FILE):
        changes = differences(open_run(folder), config)
        if changes:
            listed = "\n".join(f"  {line}" for line in changes)
            raise WorkFolderMismatch(
                f"{folder} was begun with another configuration (there -> now):\n{listed}\n"
                "Use another --workdir, or the same settings to continue."
            )
    else:
        foreign = [name for name in _STAGES if storage.exists(folder / name)]
        if foreign:
            raise WorkFolderMismatch(f"{folder} has no {_RUN_FILE} but holds {', '.join(foreign)}; use an empty folder")
    storage.write_atomic(folder / _RUN_FILE, canonical_json(config))
    return folder


@contextlib.contextmanager
def working_in(config: RunConfig, workdir: str | Path, *, stage: str | None = None) -> Iterator[Path]:
    """The work folder, held by this process, signals handled; a failure inside is recorded in it."""
    folder = begin(config, workdir)
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
