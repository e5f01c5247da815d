"""The objects in W/cloud that control a run in the cloud: read and written by any machine, the agents' VMs included.

run.json, settings.json   what is run, and where
job.json                  the job, only replaced by compare-and-swap
supervisor.json           what the last supervisor saw, and when
attempts/N/beat-I.json    worker I of attempt N is alive: {"time", "state"}, and for people {"step", "stage"}
attempts/N/end-I.json     its trainer has ended: {"exit_code", "failure", "message", "step"}
attempts/N/stacks-I.txt   what its threads were doing when it hung
attempts/N/log-I.txt      what its trainer printed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from tpulm import storage
from tpulm.cloud.decide import Outcome
from tpulm.cloud.job import FORMAT, Job
from tpulm.errors import EXIT_STOPPED, ConfigError, StorageError
from tpulm.workfolder import read_result


@dataclass(frozen=True)
class Heartbeat:
    worker: int
    time: float  # seconds since 1970
    state: str  # "starting", "training", …


class Control:
    """The control objects of one work folder."""

    def __init__(self, workdir: str | PurePath):
        self.folder = storage.as_path(workdir) / "cloud"
        self.path = self.folder / "job.json"
        self.run_file = self.folder / "run.json"  # what the workers run
        self.settings_file = self.folder / "settings.json"  # where to run, and the bundle's path
        self.memory_file = self.folder / "supervisor.json"  # what supervisors hand on to each other

    def launched_with(self) -> dict[str, Any]:
        """The settings of the launch and the bundle's path; empty if missing or unreadable."""
        return read_object(self.settings_file) if storage.exists(self.settings_file) else {}

    def is_complete(self) -> bool:
        """Whether the run's final result exists."""
        return read_result(self.folder.parent, "export") is not None

    def newest_step(self) -> int:
        """The step of the newest committed checkpoint; 0 if there is none."""
        return max(storage.committed_steps(self.folder.parent / "checkpoints"), default=0)

    def find(self) -> Job | None:
        """The job; None if the work folder has none."""
        versioned = self.read()
        return None if versioned is None else versioned[0]

    def job(self) -> Job:
        """The job. Raises ConfigError if the work folder has none."""
        job = self.find()
        if job is None:
            raise self.no_run()
        return job

    def read(self) -> tuple[Job, str] | None:
        """The job and its version; None if the work folder has none."""
        versioned = storage.read_versioned(self.path)
        if versioned is None:
            return None
        try:
            return Job.model_validate_json(versioned[0]), versioned[1]
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StorageError(
                f"{self.path} is not a job of format {FORMAT}: {where}: {first['msg']}; use the version of tpulm that wrote "
                "it; what may bill is found by 'tpulm cloud audit'"
            ) from error

    def create(self, job: Job) -> bool:
        """Write the job; False if there is one already."""
        return storage.create_if_absent(self.path, _text(job))

    def replace(self, job: Job, version: str) -> str | None:
        """Compare-and-swap; returns the new version, or None if somebody changed the job since `version`."""
        return storage.replace_version(self.path, _text(job), version)

    def change(self, how: Callable[[Job], Job]) -> Job:
        """Apply a change, retried if the job changes meanwhile. Raises ConfigError if there is no job."""
        while True:
            versioned = self.read()
            if versioned is None:
                raise self.no_run()
            changed = how(versioned[0])
            if changed == versioned[0] or self.replace(changed, versioned[1]) is not None:
                return changed

    def no_run(self) -> ConfigError:
        return ConfigError(f"{self.folder.parent} has no run in the cloud; 'tpulm cloud launch' begins one")

    def attempt(self, number: int) -> PurePath:
        return self.folder / "attempts" / str(number)

    def heartbeats(self, attempt: int) -> list[Heartbeat]:
        """The newest heartbeat of each worker; unreadable ones are left out."""
        folder = self.attempt(attempt)
        records = {worker: read_object(folder / f"beat-{worker}.json") for worker in self.heartbeat_versions(attempt)}
        return [
            Heartbeat(worker, record["time"], str(record.get("state", "")))
            for worker, record in records.items()
            if isinstance(record.get("time"), int | float)
        ]

    def heartbeat_versions(self, attempt: int) -> dict[int, int]:
        """Worker -> the version of its heartbeat, which changes with each one, whatever the clocks say."""
        return self._of_workers(attempt, "beat")

    def outcome(self, attempt: int) -> Outcome | None:
        """How the trainers ended, if known. The first worker, which saves and exports last, decides on success; any worker may
        report a failure, and the most specific report counts."""
        folder = self.attempt(attempt)
        ends = {worker: _outcome(read_object(folder / f"end-{worker}.json")) for worker in self._of_workers(attempt, "end")}
        bad = [outcome for outcome in ends.values() if outcome.exit_code not in (0, EXIT_STOPPED)]
        specific = {None: 0, "PeerLost": 1}  # survivors of a lost peer fail, too, with such a record or exit code 134
        return max(bad, key=lambda outcome: specific.get(outcome.failure, 2), default=ends.get(0))

    def newest_attempt(self) -> int:
        """The newest attempt with objects in the bucket; 0: none."""
        names = [path.name for path in storage.list_folder(self.folder / "attempts")]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _of_workers(self, attempt: int, kind: str) -> dict[int, int]:
        files = storage.walk(self.attempt(attempt), beginning=f"{kind}-")
        matches = {name: re.fullmatch(rf"{kind}-(\d{{1,6}})\.json", name) for name in files}
        return dict(sorted((int(match[1]), files[name].modified_ns) for name, match in matches.items() if match))


def read_object(path: PurePath) -> dict[str, Any]:
    """A JSON object that a VM has written; empty if it cannot be parsed."""
    try:
        content = storage.parse_json(storage.read_bytes(path))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _outcome(record: Mapping[str, Any]) -> Outcome:
    code, failure, step = record.get("exit_code"), record.get("failure"), record.get("step")
    if type(code) is not int or not isinstance(failure, str | None):  # nor a bool
        return Outcome(1, None, "the VM's report of its end cannot be read")
    return Outcome(code, failure, str(record.get("message", "")), step if type(step) is int else None)


def _text(job: Job) -> str:
    return job.model_dump_json(indent=2) + "\n"
