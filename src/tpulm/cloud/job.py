"""The state of a run in the cloud as one immutable value: the object CONTROL/job.json, replaced by compare-and-swap.

A resource is recorded here before it is created and until it is seen to be gone, so a job lists everything of the run that may
bill. Every change of a job is one of the functions below; `decide` says which one is due.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 2

Status = Literal["active", "done", "failed", "refused", "stopped"]
Ending = Literal[
    "done",  # the run is complete
    "stopped",  # somebody asked for it
    "budget",
    "deadline",
    "failed",  # an error of the run itself: trying again would end the same way
    "preempted",
    "lost",  # the node is gone, or one of its workers is
    "silent",  # no heartbeat in time
    "hung",  # heartbeats, but no new step
    "trainer",  # the trainer was killed, and nothing blames the run
    "again",  # the trainer saved and stopped although nobody asked: a notice of preemption
    "stock-out",
    "slow",  # not created in time
    "quota",
    "zone",  # the zone is closed to the project, or to this type
    "denied",
    "invalid",  # the request itself
    "taken",  # another run's resource has this name
    "cloud",  # an internal error of the cloud
    "withdrawn",  # another zone's queue served first
]
NO_CAPACITY: frozenset[Ending] = frozenset(["stock-out", "slow", "quota"])
FAULTS: frozenset[Ending] = frozenset(["silent", "hung", "trainer", "cloud"])  # a run may have only a few in a row
POOR: frozenset[Ending] = frozenset(["preempted", "trainer"])  # without a new checkpoint: little capacity, or bad machines
NEXT_ZONE: frozenset[Ending] = frozenset([*NO_CAPACITY, "zone", "cloud"])
# Within this time a VM is heard or deletes itself: one that gets no bundle after 30 minutes, an idle one after 15.
UNHEARD_SECONDS = 1800.0
FINAL: dict[Ending, Status] = {
    "done": "done",
    "stopped": "stopped",
    "budget": "stopped",
    "deadline": "stopped",
    "failed": "failed",
    "denied": "refused",
    "invalid": "refused",
}


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Zone = Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
Price = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Node(_Value):
    """A TPU node, or the queued resource it comes from, that may exist. Times are seconds since 1970."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    zone: Zone
    attempt: int
    intended_at: float
    requested: bool = False  # whether the cloud was asked to create it
    operation: str = ""  # the cloud's name for that request
    state: str = ""  # as last seen; "" before
    since: float = 0.0  # when that state was first seen
    ready_at: float | None = None  # billed from then, as far as is known
    asked_to_stop: float | None = None  # when its trainer was asked to save and stop
    asked_because: Ending | None = None
    ending: Ending | None = None  # why it is being deleted
    detail: str = ""  # for people


class Attempt(_Value):
    """An attempt that has ended."""

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
    format: Literal[2] = FORMAT
    run: str  # the label of all its resources
    accelerator: str
    spot: bool
    queued: bool = False  # through queued resources, in all open zones at once
    zones: Annotated[tuple[Zone, ...], Field(min_length=1)]
    project: str  # where its nodes are
    prices: dict[Zone, Price] = Field(default_factory=dict)  # dollars per hour of the whole slice; missing: not known
    budget: float | None = None  # dollars; a VM keeps to it by itself, even without a supervisor
    created_at: float
    wanted: Literal["running", "stopped"] = "running"
    status: Status = "active"
    message: str = ""
    attempt: int = 0  # the newest one's number
    node: Node | None = None  # the one whose workers count; others are fenced off
    spare: tuple[Node, ...] = ()  # waiting in other zones' queues, or being deleted
    closed: dict[Zone, str] = Field(default_factory=dict)  # zone that refuses the run -> why
    quota_since: dict[Zone, float] = Field(default_factory=dict)  # zone -> since when it has refused for lack of quota
    next_zone: int = 0  # index into `zones`
    refusals: int = 0  # attempts in a row that found no capacity
    not_before: float = 0.0  # when the next attempt may begin
    idle: int = 0  # attempts in a row that began but made no new checkpoint
    fruitless: int = 0  # those of them without an external cause
    hangs: tuple[int | None, ...] = ()  # the steps at which attempts hung or their chips failed; None: before the first
    newest_step: int = 0  # of a committed checkpoint, when the newest attempt began, or since
    attempts: tuple[Attempt, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.status != "active" and not self.nodes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that may exist."""
        return self.spare if self.node is None else (self.node, *self.spare)

    @property
    def begun(self) -> tuple[Attempt | Node, ...]:
        """What has billed or may: the attempts that have ended, spare nodes that came up, and the node, which is last."""
        spare = [node for node in self.spare if node.ready_at is not None]
        return (*self.attempts, *spare, *([] if self.node is None else [self.node]))

    @property
    def open_zones(self) -> tuple[str, ...]:
        """Zones that have not refused the run, the next one first."""
        start = self.next_zone % len(self.zones)
        return tuple(zone for zone in (*self.zones[start:], *self.zones[:start]) if zone not in self.closed)

    @property
    def current(self) -> int:
        """The attempt whose workers count, else the newest; 0: none has begun."""
        return self.attempt if self.node is None else self.node.attempt

    def price(self, zone: str) -> float:
        """Dollars per hour; 0 where none is known, which a budget rules out."""
        return self.prices.get(zone, 0.0)

    @property
    def dollars_per_hour(self) -> float:
        """The node's price; before there is one, the price of the most expensive zone it may come up in."""
        if self.node is not None:
            return self.price(self.node.zone)
        return max(map(self.price, self.open_zones or self.zones))

    @property
    def most_dollars_per_hour(self) -> float:
        """The price of all billed nodes, or of the most expensive node if that is more."""
        billing = math.fsum(self.price(node.zone) for node in self.nodes if node.ready_at is not None)
        return max([billing, *(self.price(node.zone) for node in self.nodes)]) if self.nodes else self.dollars_per_hour

    def dollars(self, now: float) -> float:
        """Spent so far, at the prices of the launch; running nodes are counted up to `now`."""
        running = [self._dollars(node, now) for node in self.nodes]
        return math.fsum([*running, *(attempt.dollars for attempt in self.attempts)])

    def _dollars(self, node: Node, now: float) -> float:
        return 0.0 if node.ready_at is None else max(0.0, now - node.ready_at) / 3600 * self.price(node.zone)


# -- changes ------------------------------------------------------------------------------------------------------------


def intended(job: Job, *, now: float) -> Job:
    """Record a new attempt in the next zone, or one in the queue of each, before the cloud is asked for anything."""
    zones = job.open_zones if job.queued else job.open_zones[:1]
    numbers = range(job.attempt + 1, job.attempt + 1 + len(zones))
    nodes = [
        Node(name=f"{job.run}-a{number}", zone=zone, attempt=number, intended_at=now)
        for number, zone in zip(numbers, zones, strict=True)
    ]
    return job.model_copy(update={"attempt": numbers[-1], "node": nodes[0], "spare": (*job.spare, *nodes[1:])})


def with_node(job: Job, **changes: object) -> Job:
    assert job.node is not None
    return job.model_copy(update={"node": job.node.model_copy(update=changes)})


def observed(job: Job, state: str, *, now: float, heard: bool, created_at: float | None = None, unseen: float = 0.0) -> Job:
    """The node was seen in a new state. `heard`: its workers were heard, so it was READY before this look."""
    assert job.node is not None
    ready_at = job.node.ready_at
    if state == "READY" and ready_at is None:
        ready_at = _earliest(job.node, created_at) if heard else now - min(unseen, UNHEARD_SECONDS)
    return with_node(job, state=state, since=now, ready_at=ready_at)


def _earliest(node: Node, created_at: float | None) -> float:
    """Since when a node that nobody saw become READY may be billed: it may have waited in a queue for hours."""
    return max(node.since or node.intended_at, created_at or 0.0)


def ending(
    job: Job,
    why: Ending,
    detail: str,
    *,
    heard: bool = False,
    created_at: float | None = None,
    billed_from: float | None = None,
    step: int | None = None,
) -> Job:
    """The node is to be deleted, whatever is seen of it later.

    `heard`: its workers were heard, so it was READY; otherwise it may have been READY from `billed_from` on.
    """
    assert job.node is not None
    ready_at = job.node.ready_at
    if ready_at is None and (job.node.requested or heard):
        ready_at = _earliest(job.node, created_at) if heard else billed_from
    if why == "zone":
        job = job.model_copy(update={"closed": {**job.closed, job.node.zone: detail}})
    if why == "hung" or step is not None:
        job = job.model_copy(update={"hangs": (*job.hangs, step)})
    return with_node(job, ending=why, detail=detail, ready_at=ready_at)


def ended(job: Job, *, now: float, newest_step: int, pause: float) -> Job:
    """The node is seen to be gone; `pause` is how long the next attempt waits, in seconds."""
    node = job.node
    assert node is not None and node.ending is not None
    job = _archived(job, node, now=now, newest_step=newest_step)
    fruitful, outside = job.newest_step > job.attempts[-1].first_step, node.ending in NO_CAPACITY | {"zone", "taken"}
    idle_attempts = 0 if fruitful else job.idle + (not outside)
    next_zone = job.next_zone
    if node.zone in job.zones:
        next_zone = job.zones.index(node.zone) + (node.ending in NEXT_ZONE or (node.ending in POOR and not fruitful))
    return job.model_copy(
        update={
            "node": None,
            "next_zone": next_zone % len(job.zones),
            "refusals": job.refusals + 1 if node.ending in NO_CAPACITY else 0,
            "idle": idle_attempts,
            "hangs": tuple(step for step in job.hangs if step is not None) if fruitful else job.hangs,
            "fruitless": 0 if fruitful else job.fruitless + (node.ending in FAULTS),
            "not_before": now + pause,
            "status": FINAL.get(node.ending, job.status),
            "message": node.detail if node.ending in FINAL else job.message,
        }
    )


def _archived(job: Job, node: Node, *, now: float, newest_step: int) -> Job:
    """The job with the attempt of a deleted node among those that have ended."""
    assert node.ending is not None
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
        dollars=job._dollars(node, now),
    )
    quota_since = {zone: since for zone, since in job.quota_since.items() if zone != node.zone}
    if node.ending == "quota":
        quota_since[node.zone] = job.quota_since.get(node.zone, node.intended_at)
    changes = {"attempts": (*job.attempts, attempt), "newest_step": attempt.last_step, "quota_since": quota_since}
    return job.model_copy(update=changes)


def reopened(job: Job) -> Job:
    """Continue a run that was over or stopping. A trainer that was asked to stop still stops; a new attempt follows."""
    changes = {"wanted": "running", "status": "active", "message": "", "fruitless": 0, "idle": 0, "refusals": 0}
    job = job.model_copy(update={**changes, "closed": {}, "quota_since": {}, "hangs": ()})
    return job if job.node is None else with_node(job, asked_to_stop=None, asked_because=None)


# -- spare nodes --------------------------------------------------------------------------------------------------------


def of_spare(job: Job, name: str) -> Job:
    """The job as if this spare node were its only one."""
    return job.model_copy(update={"node": _split(job, name)[0], "spare": ()})


def _split(job: Job, name: str) -> tuple[Node, tuple[Node, ...]]:
    """The spare node of this name, and the others."""
    return next(node for node in job.spare if node.name == name), tuple(node for node in job.spare if node.name != name)


def with_spare(job: Job, view: Job) -> Job:
    """The job with its spare node updated from `view`, which `of_spare` gave."""
    spare = tuple(view.node if view.node and node.name == view.node.name else node for node in job.spare)
    return job.model_copy(update={"spare": spare, "closed": view.closed})


def dropped(job: Job, name: str, *, now: float) -> Job:
    """A spare node is seen to be gone. It made no steps."""
    node, rest = _split(job, name)
    return _archived(job, node, now=now, newest_step=job.newest_step).model_copy(update={"spare": rest})


def promoted(job: Job, name: str) -> Job:
    """A spare node becomes the one that counts; the previous one, if any, is fenced off."""
    node, rest = _split(job, name)
    return job.model_copy(update={"node": node, "spare": rest if job.node is None else (job.node, *rest)})
