"""What is known of a run in the cloud, as one immutable value: the object CONTROL/job.json, replaced by compare-and-swap.

A resource is recorded here before it is created and until it is seen to be gone, so that whoever reads the job knows of all
that may be billing. Every change of a job is one of the functions below; `decide` says which one is due.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1

Wanted = Literal["running", "stopped"]
Status = Literal["active", "done", "failed", "refused", "stopped"]
Ending = Literal[
    "done",  # the run is complete
    "stopped",  # somebody asked for it
    "budget",
    "deadline",
    "failed",  # an error of the run's own: trying again would end the same way
    "preempted",
    "lost",  # the node is gone, or one of its workers is
    "silent",  # no heartbeat in time
    "trainer",  # the trainer was killed, with nothing that says the run is to blame
    "again",  # the trainer saved and stopped although nobody asked: a notice of preemption
    "stock-out",
    "slow",  # not created in time
    "quota",
    "denied",
    "invalid",  # the request itself
    "taken",  # another's resource has this name
    "cloud",  # the cloud's own failure
]
NO_FAULT: frozenset[Ending] = frozenset(["stock-out", "slow", "taken"])  # nothing ran: not counted as a fruitless attempt
FINAL: dict[Ending, Status] = {
    "done": "done",
    "stopped": "stopped",
    "budget": "stopped",
    "deadline": "stopped",
    "failed": "failed",
    "quota": "refused",
    "denied": "refused",
    "invalid": "refused",
}


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Zone = Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]


class Node(_Value):
    """A TPU node, or the queued resource it comes from, that may exist. Times are seconds since 1970."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    zone: Zone
    attempt: int
    intended_at: float
    requested: bool = False  # the cloud was asked to create it; until then it may be asked
    operation: str = ""  # the cloud's name for that request
    state: str = ""  # as last seen; "" before
    since: float = 0.0  # when that state was first seen
    ready_at: float | None = None  # billing from here, as far as is known
    asked_to_stop: float | None = None  # when its trainer was asked to save and stop
    asked_because: Ending | None = None
    ending: Ending | None = None  # why it is being deleted
    detail: str = ""  # for people


class Attempt(_Value):
    """One that has ended."""

    number: int
    node: str
    zone: str
    intended_at: float
    ready_at: float | None
    ended_at: float
    ending: Ending
    detail: str
    first_step: int
    last_step: int
    dollars: float


class Job(_Value):
    format: int = FORMAT
    run: str  # the label of everything that belongs to it
    accelerator: str
    spot: bool
    zones: Annotated[tuple[Zone, ...], Field(min_length=1)]
    project: str = ""  # where its nodes are
    dollars_per_hour: Annotated[float, Field(ge=0.0)]
    created_at: float
    wanted: Wanted = "running"
    status: Status = "active"
    message: str = ""
    attempt: int = 0  # the newest one's number; workers of older ones are fenced out
    node: Node | None = None
    next_zone: int = 0  # of `zones`
    refusals: int = 0  # attempts in a row that found no capacity
    not_before: float = 0.0  # of the next attempt
    fruitless: int = 0  # attempts in a row that ended without a new checkpoint
    newest_step: int = 0  # of a committed checkpoint, when the newest attempt began, or since
    attempts: tuple[Attempt, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.status != "active" and self.node is None

    def dollars(self, now: float) -> float:
        """So far, by the catalogue's price; what runs counted to `now`."""
        running = 0.0 if self.node is None else _dollars(self.node, now, self.dollars_per_hour)
        return math.fsum([running, *(attempt.dollars for attempt in self.attempts)])


def _dollars(node: Node, now: float, per_hour: float) -> float:
    return 0.0 if node.ready_at is None else max(0.0, now - node.ready_at) / 3600 * per_hour


# -- changes ------------------------------------------------------------------------------------------------------------


def intended(job: Job, *, now: float) -> Job:
    """A new attempt in the next zone, recorded before the cloud is asked for anything."""
    number = job.attempt + 1
    node = Node(name=f"{job.run}-a{number}", zone=job.zones[job.next_zone % len(job.zones)], attempt=number, intended_at=now)
    return job.model_copy(update={"attempt": number, "node": node})


def with_node(job: Job, **changes: object) -> Job:
    assert job.node is not None
    return job.model_copy(update={"node": job.node.model_copy(update=changes)})


def seen(job: Job, state: str, *, now: float, heard: bool) -> Job:
    """The node was seen in another state than before. `heard`: its workers were, too: it was READY before it was looked at."""
    assert job.node is not None
    ready_at = job.node.ready_at
    if state == "READY" and ready_at is None:
        ready_at = job.node.since or job.node.intended_at if heard else now
    return with_node(job, state=state, since=now, ready_at=ready_at)


def asked_to_stop(job: Job, because: Ending, *, now: float) -> Job:
    return with_node(job, asked_to_stop=now, asked_because=because)


def ending(job: Job, why: Ending, detail: str, *, heard: bool = False) -> Job:
    """The node is to be deleted, whatever is seen of it later. `heard`: its workers were, so that it was READY."""
    assert job.node is not None
    ready_at = job.node.ready_at
    if heard and ready_at is None:
        ready_at = job.node.since or job.node.intended_at
    return with_node(job, ending=why, detail=detail, ready_at=ready_at)


def ended(job: Job, *, now: float, newest_step: int, pause: float) -> Job:
    """The node is seen to be gone; `pause` is how long the next attempt waits, in seconds."""
    node = job.node
    assert node is not None and node.ending is not None
    attempt = Attempt(
        number=node.attempt,
        node=node.name,
        zone=node.zone,
        intended_at=node.intended_at,
        ready_at=node.ready_at,
        ended_at=now,
        ending=node.ending,
        detail=node.detail,
        first_step=job.newest_step,
        last_step=max(newest_step, job.newest_step),
        dollars=_dollars(node, now, job.dollars_per_hour),
    )
    no_capacity = node.ending in ("stock-out", "slow")
    fruitful = attempt.last_step > attempt.first_step
    fruitless = job.fruitless if node.ending in NO_FAULT else 0 if fruitful else job.fruitless + 1
    status = FINAL.get(node.ending, job.status)
    return job.model_copy(
        update={
            "node": None,
            "attempts": (*job.attempts, attempt),
            "newest_step": attempt.last_step,
            "next_zone": (job.next_zone + no_capacity) % len(job.zones),
            "refusals": job.refusals + 1 if no_capacity else 0,
            "fruitless": fruitless,
            "not_before": now + pause,
            "status": status,
            "message": node.detail if status != "active" else job.message,
        }
    )


def reopened(job: Job) -> Job:
    """One that was over, or is to be, goes on. A trainer that was asked to stop does, and another attempt follows."""
    changes = {"wanted": "running", "status": "active", "message": "", "fruitless": 0, "refusals": 0}
    job = job.model_copy(update=changes)
    return job if job.node is None else with_node(job, asked_to_stop=None, asked_because=None)


def closed(job: Job, status: Status, message: str) -> Job:
    """Over, with nothing left in the cloud."""
    assert job.node is None
    return job.model_copy(update={"status": status, "message": message})
