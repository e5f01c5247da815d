"""What is due next for a run in the cloud: a pure function of what is recorded, what is seen, and the time.

The supervisor applies one action, records it, looks again, and asks again. It may be killed between any two of these: what was
recorded is enough to go on, since a resource is recorded before it is created and until it is seen to be gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpulm.cloud import job as jobs
from tpulm.cloud.job import FINAL, Ending, Job, Node, Status
from tpulm.readable import dollars

Refusal = Literal["stock-out", "quota", "denied", "invalid", "taken", "cloud"]


@dataclass(frozen=True)
class Policy:
    """Bounds, in seconds and dollars."""

    create: float = 1800.0  # from the request until a node is READY or a worker is heard
    boot: float = 1200.0  # from READY until every worker is heard
    stale: float = 180.0  # from a worker's last heartbeat until it counts as dead
    repair: float = 1200.0  # that maintenance may take
    unknown: float = 600.0  # that a state without a meaning may last
    save: float = 300.0  # that a trainer has to save and stop when asked
    teardown: float = 600.0  # that deleting may take; with `save`, the margin before budget and deadline
    fruitless: int = 3  # attempts in a row without a new checkpoint
    pause: float = 60.0  # before an attempt after one that was refused; doubled for each refusal
    longest_pause: float = 1800.0
    budget: float | None = None  # dollars of the whole run
    deadline: float | None = None  # seconds since 1970

    @property
    def margin(self) -> float:
        """Seconds before budget and deadline at which a run is ended."""
        return self.save + self.teardown


@dataclass(frozen=True)
class Outcome:
    """What an attempt's trainer ended with, as its agent told."""

    exit_code: int  # negative: the signal that killed it
    failure: str | None  # the kind of the typed failure record, if there is one
    message: str


@dataclass(frozen=True)
class Seen:
    """What is seen of a job's node, and of the run, at one moment."""

    state: str | None = None  # of the node or of its queued resource; None: there is none of that name
    pending: bool = False  # the request to create it is still being worked on
    foreign: bool = False  # it carries the label of another run
    refusal: Refusal | None = None  # the request to create it was answered with this, or its operation ended so
    refused_because: str = ""
    workers: int = 1  # how many it has
    silence: tuple[float, ...] = ()  # seconds since the last heartbeat of each worker that was heard in this attempt
    outcome: Outcome | None = None
    newest_step: int = 0  # of a committed checkpoint
    complete: bool = False  # the run's last result is there


# -- actions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Nothing to do yet."""

    why: str


@dataclass(frozen=True)
class Intend:
    """Record a new attempt."""


@dataclass(frozen=True)
class Create:
    """Ask the cloud for the recorded node; asking again for one that is there does nothing."""


@dataclass(frozen=True)
class Adopt:
    """The node is there although nobody recorded that it was asked for: an earlier supervisor did."""


@dataclass(frozen=True)
class Note:
    """Record the state that the node is seen in."""

    state: str


@dataclass(frozen=True)
class AskToStop:
    """Have the trainer save and stop."""

    because: Ending


@dataclass(frozen=True)
class Condemn:
    """Record that the node is to be deleted, and why."""

    why: Ending
    detail: str


@dataclass(frozen=True)
class Delete:
    """Ask the cloud to delete the node; asking again does nothing."""


@dataclass(frozen=True)
class Bury:
    """The node is gone: record the end of its attempt."""

    pause: float  # before the next one


@dataclass(frozen=True)
class Close:
    """The run is over, and nothing of it is left."""

    status: Status
    message: str


@dataclass(frozen=True)
class Rest:
    """It was over already."""


Action = Wait | Intend | Create | Adopt | Note | AskToStop | Condemn | Delete | Bury | Close | Rest

_GONE = frozenset(["PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "HIDING", "HIDDEN"])
_QUEUE_ENDED = frozenset(["SUSPENDING", "SUSPENDED", "FAILED"])
_COMING = frozenset(["CREATING", "STARTING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
_MENDING = frozenset(["REPAIRING", "RESTARTING"])
_NOT_THE_RUNS = frozenset([None, "PeerLost", "StorageError", "StorageUnavailable"])  # failure records with exit code 1
_USERS = frozenset([2, 3, 4])  # exit codes that say: the run, its data, its permissions


def decide(job: Job, seen: Seen, now: float, policy: Policy) -> Action:
    if job.node is None:
        return _without_node(job, seen, now, policy)
    if job.node.ending is not None:
        return _deleting(job, job.node, job.node.ending, seen, now, policy)
    if not job.node.requested:
        return _intended(job, job.node, seen)
    return _with_node(job, job.node, seen, now, policy)


def recorded(job: Job, action: Action, seen: Seen, now: float) -> Job:
    """The job after an action. Of one that asks the cloud for something: after the cloud took it."""
    match action:
        case Intend():
            return jobs.intended(job, now=now)
        case Create() | Adopt():
            return jobs.with_node(job, requested=True, since=now)
        case Note(state):
            return jobs.seen(job, state, now=now, heard=bool(seen.silence))
        case AskToStop(because):
            return jobs.asked_to_stop(job, because, now=now)
        case Condemn(why, detail):
            return jobs.ending(job, why, detail, heard=bool(seen.silence) or seen.outcome is not None)
        case Bury(pause):
            return jobs.ended(job, now=now, newest_step=seen.newest_step, pause=pause)
        case Close(status, message):
            return jobs.closed(job, status, message)
        case Wait() | Delete() | Rest():
            return job


def _without_node(job: Job, seen: Seen, now: float, policy: Policy) -> Action:
    if job.status != "active":
        return Rest()
    if seen.complete:
        return Close("done", "the run is complete")
    if job.wanted != "running":
        return Close("stopped", "stopped on request; launching it again continues")
    if reason := _out_of_means(job, now, policy):
        return Close("stopped", reason[1])
    if job.fruitless >= policy.fruitless:
        last = job.attempts[-1]
        return Close(
            "failed",
            f"{job.fruitless} attempts in a row ended without a new checkpoint; the last one, {last.node}: {last.detail}",
        )
    if now < job.not_before:
        return Wait(f"the next attempt is in {job.not_before - now:.0f} s")
    return Intend()


def _intended(job: Job, node: Node, seen: Seen) -> Action:
    if seen.state is not None:
        return Condemn("taken", f"{node.name} exists in {node.zone} and belongs to another run") if seen.foreign else Adopt()
    if job.wanted != "running":
        return Condemn("stopped", "stopped on request before anything was created")
    return Create()


def _deleting(job: Job, node: Node, why: Ending, seen: Seen, now: float, policy: Policy) -> Action:
    if seen.state is not None and not seen.foreign:
        return Wait(f"{node.name} is being deleted") if seen.state == "DELETING" else Delete()
    if seen.pending:
        return Wait(f"whether {node.name} will be created is not known yet")
    return Bury(0.0 if why in FINAL else _pause(job, why, policy))


def _pause(job: Job, why: Ending, policy: Policy) -> float:
    """Seconds: doubled for each round of all zones that found no capacity; none between zones, or after a preemption."""
    if why in ("stock-out", "slow"):
        rounds, rest = divmod(job.refusals + 1, len(job.zones))
        return 0.0 if rest else min(policy.pause * 2.0 ** (rounds - 1), policy.longest_pause)
    if why in ("cloud", "taken", "silent", "trainer"):
        return min(policy.pause * 2.0**job.fruitless, policy.longest_pause)
    return 0.0


def _with_node(job: Job, node: Node, seen: Seen, now: float, policy: Policy) -> Action:
    if seen.refusal is not None:
        return Condemn(seen.refusal, seen.refused_because)
    if seen.foreign:
        return Condemn("taken", f"{node.name} exists in {node.zone} and belongs to another run")
    if seen.complete and (seen.outcome is not None or not _answers(seen, policy)):
        return Condemn("done", "the run is complete")
    if seen.outcome is not None:
        return Condemn(*_judged(job, node, seen.outcome))
    if (state := seen.state) is None:
        if seen.pending and now - node.intended_at <= policy.create:
            return Wait(f"{node.name} was asked for")
        return Condemn("lost", f"{node.name} is gone from {node.zone}")
    if state in _GONE:
        return Condemn("preempted", f"{node.name} is {state}")
    if state in _QUEUE_ENDED:
        return Condemn("preempted" if seen.silence else "cloud", f"the queued resource of {node.name} is {state}")
    if state == "DELETING":
        return Condemn("lost", f"{node.name} is being deleted by someone else")
    if state != node.state:
        return Note(state)
    if asked := _asked_to_stop(job, node, seen, now, policy):
        return asked
    return _lives(node, seen, now, policy)


def _asked_to_stop(job: Job, node: Node, seen: Seen, now: float, policy: Policy) -> Action | None:
    """What follows from a run that is complete, a wish, the budget or the deadline."""
    reason: tuple[Ending, str] | None = None
    if seen.complete:  # its trainer has yet to close its files and its worker to send the log
        reason = "done", "the run is complete"
    elif job.wanted != "running":
        reason = "stopped", "stopped on request; launching it again continues"
    else:
        reason = _out_of_means(job, now, policy)
    if reason is None:
        return None
    if not _answers(seen, policy):
        return Condemn(*reason)
    if node.asked_to_stop is None:
        return AskToStop(reason[0])
    if now - node.asked_to_stop > policy.save:
        return Condemn(reason[0], f"{reason[1]} (its trainer did not answer within {policy.save:.0f} s)")
    return Wait("the trainer ends by itself" if seen.complete else "the trainer saves and stops")


def _answers(seen: Seen, policy: Policy) -> bool:
    """Whether anything lives there that could save and stop."""
    return bool(seen.silence) and max(seen.silence) <= policy.stale


def _out_of_means(job: Job, now: float, policy: Policy) -> tuple[Ending, str] | None:
    if policy.deadline is not None and now + policy.margin >= policy.deadline:
        return "deadline", "the deadline is reached; a later one continues"
    if policy.budget is not None:
        needed = job.dollars(now) + policy.margin / 3600 * job.dollars_per_hour
        if needed >= policy.budget:
            return (
                "budget",
                f"the budget of {dollars(policy.budget)} is used up ({dollars(job.dollars(now))}); a larger one continues",
            )
    return None


def _judged(job: Job, node: Node, outcome: Outcome) -> tuple[Ending, str]:
    """Whose fault a trainer's end was. Death by a signal, 134 and 137, and an end that left no record, is never the user's."""
    code, message = outcome.exit_code, outcome.message
    if code == 0:
        return "trainer", "the trainer ended as if it were done, and the run has no export"
    if code == 75:
        return (node.asked_because or ("stopped" if job.wanted != "running" else "again")), message or "saved and stopped"
    if code in _USERS or (code == 1 and outcome.failure not in _NOT_THE_RUNS):
        return "failed", message or f"the trainer ended with exit code {code} and said nothing; see 'tpulm cloud logs'"
    by = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return "trainer", f"the trainer ended ({by})" + (f": {message}" if message else "")


def _lives(node: Node, seen: Seen, now: float, policy: Policy) -> Action:
    """Of a node that should be working: is it?"""
    waited, state = now - node.since, seen.state or ""
    dead = [silence for silence in seen.silence if silence > policy.stale]
    heard = f"{len(seen.silence)} of {seen.workers} workers were heard"
    why: Ending = "lost"
    if state in _MENDING:
        bound, detail = policy.repair, f"{node.name} was {state} for more than {policy.repair:.0f} s"
    elif dead:
        return Condemn("silent", f"{len(dead)} of {seen.workers} workers were not heard for {max(dead):.0f} s")
    elif state in _COMING:
        if seen.silence:  # it works, whatever the cloud says
            return Wait("working")
        waited, why = now - node.intended_at, "slow"
        bound, detail = policy.create, f"{node.name} was still {state} after {policy.create:.0f} s"
    elif state == "READY":
        if len(seen.silence) >= seen.workers:
            return Wait("working")
        why, bound, detail = "silent", policy.boot, f"{heard} within {policy.boot:.0f} s of READY"
    else:
        bound, detail = policy.unknown, f"{node.name} was {state} for more than {policy.unknown:.0f} s"
    return Condemn(why, detail) if waited > bound else Wait(f"{node.name} is {state}")
