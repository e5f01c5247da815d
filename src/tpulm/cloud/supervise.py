"""The loop that keeps a run alive: look, decide, act, record; one action at a time.

It may be killed between any two lines and started again, here or on another machine: what is billing is in the job before it is
created. Two at once are kept apart by a lease on W/cloud, and by the job's version should the lease be lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tpulm import interrupt, storage
from tpulm.cloud import job as jobs
from tpulm.cloud.control import Control
from tpulm.cloud.decide import (
    Action,
    Adopt,
    AskToStop,
    Bury,
    Close,
    Condemn,
    Create,
    Delete,
    Note,
    Policy,
    Rest,
    Seen,
    Wait,
    decide,
    recorded,
)
from tpulm.cloud.job import Job, Node
from tpulm.cloud.provider import LABEL, Provider, Refused, Request
from tpulm.errors import CloudRefused, InUse, StorageError, StorageRefused, TpulmError, Unavailable


@dataclass(frozen=True)
class Supervisor:
    control: Control
    provider: Provider
    policy: Policy
    request: Callable[[Job, Node], Request]
    newest_step: Callable[[], int]  # of a committed checkpoint; 0: none
    complete: Callable[[], bool]  # whether the run's last result is there
    tell: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.time
    pause_seconds: float = 10.0  # between looks while there is nothing to do
    _heard: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)  # (attempt, worker) -> heartbeat, since when
    _told: list[str] = field(default_factory=list)  # the last line, if any

    def run(self) -> Job:
        """Until the run is over, or this process is asked to stop, which leaves the run as it is (Stopped).

        A cloud that does not answer is waited for. Raises CloudRefused and StorageError for what waiting does not mend.
        """
        with self._held():
            while True:
                try:
                    job, action = self.step()
                except Unavailable as error:  # for minutes, so that whoever watches may want to know
                    self._say(f"{error} (it is tried on; the run itself does not need this process)")
                    action = Wait("an answer")
                except (CloudRefused, StorageRefused) as error:
                    raise type(error)(f"{error}\n{self._what_may_bill()}") from error
                else:
                    if isinstance(action, Rest):
                        return job
                interrupt.check("the run goes on in the cloud; 'tpulm cloud attach' takes it up again")
                if isinstance(action, Wait | Delete):
                    _sleep(self.pause_seconds)

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
            self.control.replace(changed, version)  # or somebody changed it meanwhile: the next look is at theirs
        return changed, action

    def look(self, job: Job, now: float) -> Seen:
        """What is to be seen of a job."""
        if (node := job.node) is None:
            return Seen(newest_step=self.newest_step(), complete=self.complete())
        creation = self.provider.progress(node.operation)
        sight = self.provider.look(node.name, node.zone)
        outcome = self.control.outcome(node.attempt)  # before what it leads to, or its end would come without a result
        return Seen(
            state=sight.state,
            pending=creation.pending,
            foreign=sight.state is not None and sight.labels.get(LABEL) != job.run,
            refusal=creation.refused.kind if creation.refused else None,
            refused_because=str(creation.refused or ""),
            workers=sight.workers,
            silence=self._silence(node.attempt, now),
            outcome=outcome,
            newest_step=self.newest_step(),
            complete=self.complete(),
        )

    def _silence(self, attempt: int, now: float) -> tuple[float, ...]:
        """Of each worker that was heard: since its newest heartbeat was first seen here. VMs may have other clocks."""
        found = []
        for worker, version in self.control.heard(attempt).items():
            known, since = self._heard.get((attempt, worker), (None, now))
            if version != known:
                since = now
                self._heard[attempt, worker] = (version, now)
            found.append(max(0.0, now - since))
        return tuple(found)

    def _act(self, job: Job, action: Action, seen: Seen, now: float) -> Job:
        node = job.node
        if isinstance(action, Create) and node is not None:
            try:
                operation = self.provider.create(self.request(job, node))
            except Refused as refused:
                return jobs.ending(job, refused.kind, str(refused))
            return jobs.with_node(recorded(job, action, seen, now), operation=operation)
        if isinstance(action, Delete) and node is not None:
            self.provider.delete(node.name, node.zone)
        return recorded(job, action, seen, now)

    def _what_may_bill(self) -> str:
        with contextlib.suppress(TpulmError):
            job, _ = self._read()
            if job.node is None:
                return "nothing of the run was left in the cloud when it was last looked at"
            return (
                f"{job.node.name} in {job.node.zone} of {job.project} may be there, and bill; with the permission "
                "'tpulm cloud attach' goes on, or 'tpulm cloud down' ends it"
            )
        return "what may bill is found by 'tpulm cloud audit'"

    def _read(self) -> tuple[Job, str]:
        found = self.control.read()
        if found is None:
            raise StorageError(f"{self.control.path} is gone; what the run had in the cloud is found by 'tpulm cloud audit'")
        return found

    def _say(self, line: str) -> None:
        """Once, until something else is said."""
        if line and [line] != self._told:
            self._told[:] = [line]
            self.tell(line)


def in_words(job: Job, action: Action) -> str:
    """An action, for people."""
    node = job.node
    match action:
        case Wait(why):
            return why
        case Create() if node is not None:
            return f"creating {node.name}, a {'spot ' * job.spot}{job.accelerator}, in {node.zone}"
        case Adopt() if node is not None:
            return f"{node.name} in {node.zone} is there already: taken over"
        case Note(state) if node is not None:
            return f"{node.name} is {state}"
        case AskToStop("done"):
            return "the run is complete; its trainer ends"
        case AskToStop(because):
            return f"asking the trainer to save and stop ({because})"
        case Condemn(_, detail):
            return detail
        case Delete() if node is not None:
            return f"deleting {node.name}"
        case Bury() if node is not None:
            return f"{node.name} is gone"
        case Close(status, message):
            return f"{status}: {message}"
        case _:
            return ""


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while not interrupt.requested() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
