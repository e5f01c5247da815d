"""Resumable work: units whose results stay on disk, shared out over hosts and worker processes.

Killed at any moment and run again, a stage works only on the units that are not finished, and its result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from tpulm import storage
from tpulm.config.validation import validate_own
from tpulm.errors import StorageError
from tpulm.progress import SILENT, Progress
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.workers import Runner, TaskProgress, run_here

Result = TypeVar("Result")
Of = TypeVar("Of", covariant=True)
Kind = TypeVar("Kind", bound=BaseModel)


class Record(BaseModel):
    """A sealed file of a work folder: a manifest, or what is recorded of a unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def write(self, path: PurePath, **given: Any) -> None:
        storage.write_json(path, self.model_dump(mode="json", **given), sealed=True)


class Unit(Protocol[Of]):
    """Work that needs no other unit of its stage. Units are pickled, and so are their results, which are never false."""

    @property
    def files(self) -> Sequence[PurePath]: ...  # or folders that it writes; the last one completes it

    @property
    def amount(self) -> float: ...  # of work, in the stage's unit of progress

    def finished(self) -> Of | None: ...  # the result, if an earlier attempt finished the same unit

    def build(self) -> Of: ...  # do the work, which may `workers.report` amounts


def sweep(units: Sequence[Unit[Any]], hosts: Hosts = ALONE, *, also: Iterable[PurePath] = ()) -> None:
    """Before or after the work: leave in the units' folders only the units' files and those `also` given."""
    files = {path for unit in units for path in unit.files} | {*also}
    if hosts.is_first:
        for folder in sorted({path.parent for path in files}):
            for path in storage.list_folder(storage.make_folder(folder)):
                if path not in files:
                    storage.remove(path)
    hosts.barrier("units begun")


def run(
    units: Sequence[Unit[Result]],
    description: str,
    unit: str,
    *,
    runner: Runner,
    hosts: Hosts = ALONE,
    progress: Progress = SILENT,
) -> dict[int, Result]:
    """Finish this host's share of the units, the largest first, and wait for the other hosts; return its results by number."""
    mine = hosts.share(range(len(units)))
    results = {number: outcome for number in mine if (outcome := units[number].finished())}
    missing = [number for number in mine if number not in results]
    if runner is not run_here:
        missing.sort(key=lambda number: -units[number].amount)
    if results and missing:
        progress.note(f"{description}: {len(results)} of {len(mine)} parts are already there")
    progress.start(description, sum(units[number].amount for number in missing), unit)
    with TaskProgress(progress) as done:
        for number, result in runner(_build, ((number, units[number]) for number in missing)):
            results[number] = result
            done.add(over=units[number].amount)
    hosts.barrier(description)
    return results


def gather(units: Sequence[Unit[Result]], own: Mapping[int, Result]) -> list[Result]:
    """The results of all units in order: `own`, and those of the other hosts, which have finished. Raises StorageError."""
    return [own[number] if number in own else require(unit) for number, unit in enumerate(units)]


def require(unit: Unit[Result]) -> Result:
    """The result of a unit that another host has finished. Raises StorageError if it is not there."""
    if result := unit.finished():
        return result
    raise StorageError(f"{unit.files[-1]} is not there, though the host that made it said so; run the same command again")


def read_record(kind: type[Kind], path: PurePath, **made_from: object) -> Kind | None:
    """The record at `path`; None if there is none, or one with other values of `made_from`. Raises StorageError for damage."""
    if not storage.exists(path):
        return None
    value = storage.read_json(path)
    return validate_own(kind, value, path) if made_from.items() <= value.items() else None


def has_size(path: PurePath, size: int) -> bool:
    info = storage.info(path)
    return info is not None and info.size == size


def _build(number: int, unit: Unit[Result]) -> tuple[int, Result]:
    return number, unit.build()
