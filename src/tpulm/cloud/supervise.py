"""The loop that keeps a run alive: look, decide, act, record; one action at a time.

It may be killed at any line and restarted, here or on another machine: a resource is in the job before it is created. A lease
on W/cloud excludes a second supervisor; if the lease is lost, compare-and-swap on the job's version does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tpulm import storage
from tpulm.cloud import job as jobs
from tpulm.cloud.control import Control
from tpulm.cloud.decide import (
    Action,
    Create,
    Delete,
    Finished,
    GiveUp,
    OfSpare,
    Pace,
    Policy,
    RecordAttempt,
    Seen,
    Wait,
    decide,
    in_words,
    recorded,
    refused,
)
from tpulm.cloud.job import Job, Node
from tpulm.cloud.provider import LABEL, Provider, Refused, Request, deletion_command
from tpulm.errors import CloudRefused, InUse, StorageError, StorageRefused, TpulmError, Unavailable
from tpulm.readable import duration
from tpulm.runtime import interrupt


@dataclass(frozen=True)
class Supervisor:
    control: Control
    provider: Provider
    policy: Policy
    request: Callable[[Job, Node], Request]
    tell: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.time
    pause_seconds: float = 10.0  # between looks while there is nothing to do
    _heard: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)  # (attempt, worker) -> heartbeat, since when
    _steps: dict[int, _Steps] = field(default_factory=dict)  # by attempt
    _there: dict[str, float] = field(default_factory=dict)  # node -> when this process last saw it
    _deleting: dict[str, float] = field(default_factory=dict)  # node -> when this process first requested its deletion
    _told: list[str] = field(default_factory=list)  # the last line, if any

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
                    self._say(f"{error} (it is tried on; the run itself does not need this process)")
                    action = Wait("an answer")
                except (CloudRefused, StorageRefused) as error:
                    refused_since = refused_since or self.clock()
                    waited = self.clock() - refused_since
                    if not worked or waited >= self.policy.login_patience:
                        raise type(error)(f"{error}\n{self._what_may_bill()}") from error
                    self._say(
                        f"{error}\nIt is tried on for {duration(self.policy.login_patience - waited)}; log in again on this "
                        "machine, and it goes on. The run itself does not need this process"
                    )
                    storage.forget_clients()
                    action = Wait("a login")
                else:
                    refused_since, worked = None, worked or (job.node is not None and not isinstance(action, RecordAttempt))
                    if isinstance(action, Finished):
                        return job
                    if isinstance(action, GiveUp):
                        raise TpulmError(f"{self._deleting_takes_long(job)}\n{left(job)}")
                interrupt.check(self._when_interrupted())
                if isinstance(action, Wait | Delete):
                    interrupt.sleep(self.pause_seconds)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        try:
            with storage.held(self.control.folder, note=self.tell):
                yield
        except InUse as error:
            raise InUse(
                f"{self.control.folder.parent} is watched over already, by {error.owner}; 'tpulm cloud status' and "
                "'tpulm cloud logs -f' show how it goes",
                owner=error.owner,
            ) from error

    def step(self) -> tuple[Job, Action]:
        """One look and one action."""
        job, version = self._read()
        now = self.clock()
        seen = self.look(job, now)
        action = decide(job, seen, now, self.policy)
        self._say(in_words(job, action))
        changed = self._act(job, action, seen, now)
        if changed != job:
            self.control.replace(changed, version)  # fails if somebody changed it meanwhile; the next look reads theirs
        return changed, action

    def look(self, job: Job, now: float) -> Seen:
        """The state of a job's nodes and of its run."""
        spare = {node.name: self._look(job, node, now) for node in job.spare}
        if job.node is None:
            return Seen(newest_step=self.control.newest_step(), complete=self.control.is_complete(), spare=spare)
        seen = self._look(job, job.node, now)  # before the result: an outcome must not be seen without the result it leads to
        return replace(seen, newest_step=self.control.newest_step(), complete=self.control.is_complete(), spare=spare)

    def _look(self, job: Job, node: Node, now: float) -> Seen:
        creation = self.provider.progress(node.operation)
        sight = self.provider.look(node.name, node.zone)
        refusal = creation.refused or sight.refused
        unseen = now - self._there.get(node.name, node.since or node.intended_at)
        if sight.state is not None:
            self._there[node.name] = now
        silence = self._silence(node.attempt, now)
        is_ready = sight.state == "READY" and node.ending is None
        unheard = is_ready and len(silence) < sight.workers and node.state == "READY" and now - node.since > self.policy.boot
        return Seen(
            state=sight.state,
            pending=creation.pending,
            foreign=sight.state is not None and sight.labels.get(LABEL) != job.run,
            refusal=refusal.kind if refusal else None,
            refused_because=str(refusal or ""),
            workers=sight.workers,
            silence=silence,
            outcome=self.control.outcome(node.attempt),
            pace=self._pace(node.attempt, now) if is_ready and silence else Pace(),
            boot=self.provider.boot_progress(node.name, node.zone) if unheard else "",
            created_at=None if sight.created_at is None else min(sight.created_at, now),
            unseen=unseen,
            deleting=now - self._deleting.get(node.name, now),
        )

    def _pace(self, attempt: int, now: float) -> Pace:
        """The pace by one worker's heartbeats, since all make the same steps; by this machine's clock, as silence is."""
        beat = self.control.beat(attempt, min(self.control.heard(attempt), default=0))
        if beat is None or (beat.state, beat.stage) != ("training", "train"):  # in other stages it makes no steps
            self._steps.pop(attempt, None)
            return Pace()
        known = self._steps.get(attempt)
        if known is None or known.newest != beat.step:
            first = known or _Steps(beat.step, now, beat.step, now)
            known = self._steps[attempt] = replace(first, newest=beat.step, since=now)
        return Pace(beat.step, now - known.since, known.seconds_per_step)

    def _silence(self, attempt: int, now: float) -> tuple[float, ...]:
        """For each worker heard, seconds since its newest heartbeat was first seen here, as VMs' clocks may differ."""
        found = []
        for worker, version in self.control.heard(attempt).items():
            known, since = self._heard.get((attempt, worker), (None, now))
            if version != known:
                since = now
                self._heard[attempt, worker] = (version, now)
            found.append(max(0.0, now - since))
        return tuple(found)

    def _act(self, job: Job, action: Action, seen: Seen, now: float) -> Job:
        if isinstance(action, Delete):
            self._delete(job, seen, now)
        if isinstance(action, OfSpare) and isinstance(action.action, Create):
            view = jobs.of_spare(job, action.node)
            return jobs.with_spare(job, self._create(view, action.action, seen.spare[action.node], now))
        if isinstance(action, Create):
            return self._create(job, action, seen, now)
        return recorded(job, action, seen, now)

    def _create(self, job: Job, action: Action, seen: Seen, now: float) -> Job:
        assert job.node is not None
        try:
            operation = self.provider.create(self.request(job, job.node))
        except Refused as error:
            if error.kind == "denied" and any(attempt.ready_at is not None for attempt in job.attempts):
                raise CloudRefused(f"the TPU API refused: {error}") from error  # it was allowed before, and may be again
            action = refused(job, job.node, error.kind, str(error), now, self.policy)
            self._say(in_words(job, action))
            return recorded(job, action, seen, now)
        return jobs.with_node(recorded(job, action, seen, now), operation=operation)

    def _delete(self, job: Job, seen: Seen, now: float) -> None:
        """Delete every existing node that is given up. What cannot be deleted now is retried at the next look."""
        for node in job.nodes:
            its = seen if node is job.node else seen.spare[node.name]
            if node.ending is not None and its.state not in (None, "DELETING") and not its.foreign:
                self._deleting.setdefault(node.name, now)
                if why := self.provider.delete(node.name, node.zone):
                    self._say(f"{node.name} cannot be deleted yet, and is tried again: {why}")

    def _deleting_takes_long(self, job: Job) -> str:
        names = [node.name for node in job.nodes if node.ending is not None]
        since = min((self._deleting[name] for name in names if name in self._deleting), default=self.clock())
        return f"{' and '.join(names)} could not be deleted for {duration(self.clock() - since)}"

    def _when_interrupted(self) -> str:
        with contextlib.suppress(TpulmError):
            job, _ = self._read()
            if any(node.ending is not None for node in job.nodes):
                return f"what is being deleted may still be there, and bill. {left(job)}\n'tpulm cloud attach' goes on"
        return "the run goes on in the cloud; 'tpulm cloud attach' takes it up again"

    def _what_may_bill(self) -> str:
        with contextlib.suppress(TpulmError):
            job, _ = self._read()
            if not job.nodes:
                return "nothing of the run was left in the cloud when it was last looked at"
            named = " and ".join(f"{node.name} in {node.zone}" for node in job.nodes)
            return (
                f"{named} of {job.project} may be there, and bill; with the permission 'tpulm cloud attach' goes on, or "
                f"'tpulm cloud down' ends it. {left(job)}"
            )
        return "what may bill is found by 'tpulm cloud audit'"

    def _read(self) -> tuple[Job, str]:
        found = self.control.read()
        if found is None:
            raise StorageError(f"{self.control.path} is gone; what the run had in the cloud is found by 'tpulm cloud audit'")
        return found

    def _say(self, line: str) -> None:
        """Report a line, unless it repeats the last one."""
        if line and [line] != self._told:
            self._told[:] = [line]
            self.tell(line)


@dataclass(frozen=True)
class _Steps:
    """An attempt's progress since this process began to watch it."""

    first: int | None
    begun: float
    newest: int | None
    since: float  # when the newest one was first seen

    @property
    def seconds_per_step(self) -> float:
        """0.0 before a step is made."""
        made = (self.newest or 0) - (self.first or 0)
        return (self.since - self.begun) / made if made > 0 else 0.0


def left(job: Job) -> str:
    """The gcloud commands that delete what may be left of a run."""
    project = job.project or "PROJECT"
    commands = [f"    {deletion_command(node.name, node.zone, project, queued=job.queued)}" for node in job.nodes]
    return "This ends it without tpulm:\n" + "\n".join(commands)
