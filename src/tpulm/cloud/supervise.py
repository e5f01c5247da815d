"""The loop that keeps a run alive: look, decide, act, record; one action at a time.

It may be killed at any line and restarted, here or on another machine: a resource is in the job before it is created. A lease
on W/cloud excludes a second supervisor; if the lease is lost, compare-and-swap on the job's version does. What one look must
know of earlier ones is kept in W/cloud/supervisor.json between supervisors, so that one that only makes a single pass notices,
too, that a worker is silent or a deletion is refused. Whether a trainer hangs, its VM's agent finds out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pydantic import BaseModel

from tpulm import storage
from tpulm.cloud import job as jobs
from tpulm.cloud.control import Control
from tpulm.cloud.decide import (
    Action,
    Do,
    ForSpareNode,
    Observation,
    Policy,
    Wait,
    decide,
    describe,
    recorded,
    refused,
)
from tpulm.cloud.job import Job, Node
from tpulm.cloud.provider import LABEL, Provider, Refused, Request, deletion_command
from tpulm.errors import CloudRefused, InUse, StorageError, StorageRefused, TpulmError, Unavailable
from tpulm.readable import duration, utc
from tpulm.runtime import interrupt
from tpulm.storage.lease import LEASE


class SupervisorState(BaseModel):
    """What earlier looks saw, and when, in seconds since 1970 by this machine's clock."""

    heartbeats: dict[str, tuple[int, float]] = {}  # "ATTEMPT/WORKER" -> the version of its heartbeat, first seen when
    last_seen: dict[str, float] = {}  # node -> when it was last seen to exist
    deletion_requested: dict[str, float] = {}  # node -> when its deletion was first requested
    saved_at: float = 0.0

    def of(self, job: Job, *, moved: float = 0.0) -> SupervisorState:
        """Without attempts and nodes that are gone; every moment `moved` by so many seconds."""
        nodes, attempts = {node.name for node in job.nodes}, {node.attempt for node in job.nodes}
        return SupervisorState(
            heartbeats={
                key: (version, since + moved)
                for key, (version, since) in self.heartbeats.items()
                if int(key.partition("/")[0]) in attempts
            },
            last_seen={name: at + moved for name, at in self.last_seen.items() if name in nodes},
            deletion_requested={name: at + moved for name, at in self.deletion_requested.items() if name in nodes},
            saved_at=self.saved_at + moved,
        )


@dataclass
class Supervisor:
    control: Control
    provider: Provider
    policy: Policy
    request: Callable[[Job, Node], Request]
    log: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.time
    pause_seconds: float = 10.0  # between looks while there is nothing to do
    memory: SupervisorState = field(default_factory=SupervisorState)
    _logged: str = ""  # the last line
    _unanswered: TpulmError | None = None  # of the last look at a spare node

    def run_once(self) -> Job:
        """Take every action that is due now. The run is over, or another pass is needed after a while.

        Raises InUse if another process supervises, Unavailable if there is no answer, CloudRefused and StorageError for what
        waiting cannot fix, and TpulmError for a node that cannot be deleted.
        """
        with self._held():
            while True:
                job, action = self.step()
                if isinstance(action, Wait) or action in (Do.DELETE, Do.FINISHED):
                    return job
                interrupt.check(self._when_interrupted())

    def run(self) -> Job:
        """Supervise until the run is over, or this process is asked to stop (Stopped), which leaves the run as it is.

        Waits while the cloud does not answer, and up to `login_patience` while it no longer accepts the login. Raises
        CloudRefused and StorageError for what waiting cannot fix, and TpulmError for a node that cannot be deleted.
        """
        refused_since: float | None = None
        worked = False  # whether the cloud has answered a request about a node of the run
        with self._held():
            while True:
                try:
                    job, action = self.step()
                except Unavailable as error:  # after minutes of retries
                    self._log(f"{error}. Retrying. The run continues without this process.")
                    action = Wait("an answer")
                except (CloudRefused, StorageRefused) as error:
                    refused_since = refused_since or self.clock()
                    waited = self.clock() - refused_since
                    if not worked or waited >= self.policy.login_patience:
                        raise type(error)(f"{error}\n{self._describe_what_may_bill()}") from error
                    self._log(
                        f"{error}\nRetrying until {utc(refused_since + self.policy.login_patience)}. Run 'gcloud auth "
                        "application-default login'. The run continues without this process."
                    )
                    storage.forget_clients()
                    action = Wait("a login")
                else:
                    refused_since, worked = None, worked or (job.node is not None and action is not Do.RECORD_ATTEMPT)
                    if action is Do.FINISHED:
                        return job
                interrupt.check(self._when_interrupted())
                if isinstance(action, Wait) or action is Do.DELETE:
                    interrupt.sleep(self.pause_seconds)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        try:
            with storage.held(self.control.folder, note=self.log):
                self._recall()
                try:
                    yield
                finally:
                    with contextlib.suppress(TpulmError):
                        memory = self.memory.of(self._read()[0]).model_copy(update={"saved_at": self.clock()})
                        storage.write_atomic(self.control.memory_file, memory.model_dump_json())
        except InUse as error:
            raise InUse(
                f"{self.control.folder.parent} is supervised already, by {error.owner}; 'tpulm cloud status' and "
                "'tpulm cloud logs -f' show how it goes",
                owner=error.owner,
            ) from error

    def _recall(self) -> None:
        """Read the last supervisor's memory. Its clock may differ from this machine's: that of the bucket, which dates the
        memory and our new lease, says how long ago it was saved."""
        with contextlib.suppress(StorageError, ValueError):  # none yet, or a damaged one
            memory = SupervisorState.model_validate_json(storage.read_bytes(self.control.memory_file))
            saved, leased = storage.info(self.control.memory_file), storage.info(self.control.folder / LEASE)
            if saved is not None:
                now_ns = leased.modified_ns if leased is not None else time.time_ns()  # a folder of this machine is only locked
                seconds = max(0.0, (now_ns - saved.modified_ns) / 1e9)
                self.memory = memory.of(self._read()[0], moved=self.clock() - seconds - memory.saved_at)

    def step(self) -> tuple[Job, Action]:
        """One look and one action. Raises TpulmError for nodes that could not be deleted in time, and Unavailable or
        CloudRefused for a spare node whose zone does not answer, once nothing else is due."""
        job, version = self._read()
        now = self.clock()
        observed = self.observe(job, now)
        action = decide(job, observed, now, self.policy)
        if action is Do.GIVE_UP:  # the next supervisor or pass tries again
            names = [node.name for node in job.nodes if node.ending is not None]
            since = min((self.memory.deletion_requested.pop(name, now) for name in names), default=now)
            raise TpulmError(
                f"{' and '.join(names)} could not be deleted for {duration(now - since)}\n{deletion_commands(job)}"
            )
        if isinstance(action, Wait) and self._unanswered is not None:
            raise self._unanswered
        self._log(describe(job, action))
        changed = self._act(job, action, observed, now)
        if changed != job:
            self.control.replace(changed, version)  # fails if somebody changed it meanwhile; the next look reads theirs
        return changed, action

    def observe(self, job: Job, now: float) -> Observation:
        """The state of a job's nodes and of its run."""
        self._unanswered = None
        spare = {node.name: self._observe_spare(job, node, now) for node in job.spare}
        if job.node is None:
            return Observation(newest_step=self.control.newest_step(), complete=self.control.is_complete(), spare=spare)
        observed = self._observe_node(job, job.node, now)  # before the result, so that an outcome comes with its result
        return replace(observed, newest_step=self.control.newest_step(), complete=self.control.is_complete(), spare=spare)

    def _observe_spare(self, job: Job, node: Node, now: float) -> Observation | None:
        try:
            return self._observe_node(job, node, now)
        except (Unavailable, CloudRefused) as error:  # the run goes on in other zones
            self._unanswered = error
            return None

    def _observe_node(self, job: Job, node: Node, now: float) -> Observation:
        creation = self.provider.progress(node.operation)
        status = self.provider.node_status(node.name, node.zone)
        refusal = creation.refused or status.refused
        unseen = now - self.memory.last_seen.get(node.name, node.since or node.intended_at)
        if status.state is not None:
            self.memory.last_seen[node.name] = now
        silence = self._silence(node.attempt, now)
        is_ready = status.state == "READY" and node.ending is None
        unheard = is_ready and len(silence) < status.workers and node.state == "READY" and now - node.since > self.policy.boot
        return Observation(
            state=status.state,
            pending=creation.pending,
            foreign=status.state is not None and status.labels.get(LABEL) != job.run,
            refusal=refusal.kind if refusal else None,
            refused_because=str(refusal or ""),
            workers=status.workers,
            silence=silence,
            outcome=self.control.outcome(node.attempt),
            boot=self.provider.boot_progress(node.name, node.zone) if unheard else "",
            created_at=None if status.created_at is None else min(status.created_at, now),
            unseen=unseen,
            deleting=now - self.memory.deletion_requested.get(node.name, now),
        )

    def _silence(self, attempt: int, now: float) -> tuple[float, ...]:
        """For each worker heard, seconds since its newest heartbeat was first seen here, as VMs' clocks may differ."""
        silence = []
        for worker, version in self.control.heartbeat_versions(attempt).items():
            known, since = self.memory.heartbeats.get(key := f"{attempt}/{worker}", (None, now))
            if version != known:
                since = now
                self.memory.heartbeats[key] = (version, now)
            silence.append(max(0.0, now - since))
        return tuple(silence)

    def _act(self, job: Job, action: Action, observed: Observation, now: float) -> Job:
        if action is Do.DELETE:
            self._delete(job, observed, now)
        if isinstance(action, ForSpareNode) and action.action is Do.CREATE:
            view = jobs.of_spare(job, action.node)
            seen = observed.spare[action.node] or Observation()
            return jobs.with_spare(job, self._create(view, seen, now))
        if action is Do.CREATE:
            return self._create(job, observed, now)
        return recorded(job, action, observed, now)

    def _create(self, job: Job, observed: Observation, now: float) -> Job:
        assert job.node is not None
        try:
            operation = self.provider.create(self.request(job, job.node))
        except Refused as error:
            if error.kind == "denied" and any(attempt.ready_at is not None for attempt in job.attempts):
                raise CloudRefused(f"the TPU API refused: {error}") from error  # it was allowed before, and may be again
            action = refused(job, job.node, error.kind, str(error), now, self.policy)
            self._log(describe(job, action))
            return recorded(job, action, observed, now)
        return jobs.with_node(recorded(job, Do.CREATE, observed, now), operation=operation)

    def _delete(self, job: Job, observed: Observation, now: float) -> None:
        """Delete every existing node that is given up. What cannot be deleted now is retried at the next look."""
        failed: TpulmError | None = None
        for node in job.nodes:
            seen = observed if node is job.node else observed.spare[node.name]
            exists = seen is not None and seen.state not in (None, "DELETING") and not seen.foreign
            if node.ending is not None and exists:
                self.memory.deletion_requested.setdefault(node.name, now)
                try:
                    why = self.provider.delete(node.name, node.zone)
                except (Unavailable, CloudRefused) as error:  # the others are deleted first
                    why, failed = "", error
                if why:
                    self._log(f"{node.name} cannot be deleted yet, and is tried again: {why}")
        if failed is not None:
            raise failed

    def _when_interrupted(self) -> str:
        with contextlib.suppress(TpulmError):
            job, _ = self._read()
            if any(node.ending is not None for node in job.nodes):
                return (
                    f"what is being deleted may still be there, and bill. {deletion_commands(job)}\n"
                    "'tpulm cloud supervise' continues"
                )
        return "the run continues in the cloud; 'tpulm cloud supervise' supervises it again"

    def _describe_what_may_bill(self) -> str:
        with contextlib.suppress(TpulmError):
            job, _ = self._read()
            if not job.nodes:
                return "nothing of the run was left in the cloud when it was last checked"
            named = " and ".join(f"{node.name} in {node.zone}" for node in job.nodes)
            return (
                f"{named} of {job.project} may be there, and bill; with the permission 'tpulm cloud supervise' continues, "
                f"or 'tpulm cloud down' ends it. {deletion_commands(job)}"
            )
        return "what may bill is found by 'tpulm cloud audit'"

    def _read(self) -> tuple[Job, str]:
        versioned = self.control.read()
        if versioned is None:
            raise StorageError(f"{self.control.path} is gone; what the run had in the cloud is found by 'tpulm cloud audit'")
        return versioned

    def _log(self, line: str) -> None:
        """Log a line, unless it repeats the last one."""
        if line and line != self._logged:
            self._logged = line
            self.log(line)


def deletion_commands(job: Job) -> str:
    """The gcloud commands that delete what may be left of a run."""
    commands = [f"    {deletion_command(node.name, node.zone, job.project, queued=job.queued)}" for node in job.nodes]
    return "This ends it without tpulm:\n" + "\n".join(commands)
