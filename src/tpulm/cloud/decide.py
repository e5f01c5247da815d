"""The next action for a run in the cloud: a pure function of what is recorded, what is seen, and the time.

The supervisor takes one action, records it, looks again, and decides again. It may be killed at any point: the record suffices
to continue, since a resource is recorded before it is created and until it is seen to be gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tpulm.cloud import job as jobs
from tpulm.cloud.job import FINAL, NO_CAPACITY, Ending, Job, Node, Status
from tpulm.cloud.provider import Refusal
from tpulm.readable import dollars, duration, utc


class Do(Enum):
    """Actions that need no more than their name."""

    RECORD_ATTEMPT = auto()  # a new one
    CREATE = auto()  # request the recorded node; requesting an existing one does nothing
    ADOPT = auto()  # record a node that exists without a recorded request: an earlier supervisor created it
    DELETE = auto()  # request the deletion of all nodes that are given up; requesting it again does nothing
    GIVE_UP = auto()  # report that a node cannot be deleted, and leave it recorded
    FINISHED = auto()  # the run was already over


@dataclass(frozen=True)
class Wait:
    """Nothing to do yet."""

    why: str


@dataclass(frozen=True)
class RecordNodeState:
    """Record the node's new state."""

    state: str


@dataclass(frozen=True)
class AskToStop:
    """Ask the trainer to save and stop."""

    because: Ending


@dataclass(frozen=True)
class MarkForDeletion:
    """Record that the node is to be deleted, and why."""

    why: Ending
    detail: str
    step: int | None = None  # at which it hung, or its chips failed


@dataclass(frozen=True)
class Promote:
    """Make a spare node the one that counts."""

    node: str


@dataclass(frozen=True)
class ForSpareNode:
    """An action for a spare node."""

    node: str
    action: Do | RecordNodeState | MarkForDeletion | RecordEnd


@dataclass(frozen=True)
class RecordEnd:
    """The node is gone: record the end of its attempt."""

    pause: float  # before the next one


@dataclass(frozen=True)
class Close:
    """The run is over, and nothing of it is left."""

    status: Status
    message: str


Action = Do | Wait | RecordNodeState | AskToStop | MarkForDeletion | Promote | ForSpareNode | RecordEnd | Close


@dataclass(frozen=True)
class Policy:
    """Limits, in seconds and dollars."""

    create: float = 1800.0  # from the request until a node is READY or a worker is heard
    appear: float = 120.0  # from the request until a node is visible: Google's lists and gets may lag behind
    queue: float = 86_400.0  # for which a queued resource may wait
    provision: float = 7200.0  # for which one may be PROVISIONING, or refuse to be deleted in that state
    boot: float = 1200.0  # from READY until every worker is heard
    stale: float = 180.0  # from a worker's last heartbeat until it counts as dead
    repair: float = 1200.0  # for which maintenance may last
    unknown: float = 600.0  # for which an unknown state may last
    save: float = 300.0  # in which a trainer must save and stop when asked
    teardown: float = 600.0  # for which a deletion may take; with `save`, the margin before budget and deadline
    attempts_without_progress: int = 3  # attempts in a row without a new checkpoint or an external cause
    pause: float = 60.0  # before the attempt after a refusal; doubled with each further one
    longest_pause: float = 1800.0
    quota_patience: float = 3600.0  # for which a zone may refuse for lack of quota, until it is closed
    login_patience: float = 43_200.0  # for which a login that worked before may be refused
    budget: float | None = None  # dollars of the whole run
    deadline: float | None = None  # seconds since 1970

    @property
    def margin(self) -> float:
        """Seconds before budget or deadline at which a run is ended."""
        return self.save + self.teardown


@dataclass(frozen=True)
class Outcome:
    """How an attempt's trainer ended, as reported by its agent."""

    exit_code: int  # negative: the signal that killed it
    failure: str | None  # the kind of its failure record, if there is one
    message: str
    step: int | None = None  # the newest one; None: before the first


@dataclass(frozen=True)
class Observation:
    """What is seen of a job's node, and of the run, at one moment."""

    state: str | None = None  # of the node or of its queued resource; None: neither exists
    pending: bool = False  # the request to create it is still being processed
    foreign: bool = False  # it carries the label of another run
    refusal: Refusal | None = None  # how the request to create it, or its operation, failed
    refused_because: str = ""
    workers: int = 1  # of the node
    silence: tuple[float, ...] = ()  # seconds since the last heartbeat of each worker heard in this attempt
    outcome: Outcome | None = None
    newest_step: int = 0  # of a committed checkpoint
    complete: bool = False  # the run's final result exists
    boot: str = ""  # how far the boot came, if the node says so
    created_at: float | None = None  # of the node, by the cloud's clock
    unseen: float = 0.0  # seconds since the node was last seen to exist; nobody may have supervised since
    deleting: float = 0.0  # seconds since this supervisor first requested its deletion
    spare: Mapping[str, Observation | None] = field(default_factory=dict)  # by the spare node's name; None: no answer


_GONE_STATES = frozenset(["PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "HIDING", "HIDDEN"])
_TAKEN_STATES = _GONE_STATES | {"SUSPENDING", "SUSPENDED"}
_READY_STATES = frozenset(["READY", "ACTIVE"])
_QUEUED_STATES = frozenset(["ACCEPTED", "WAITING_FOR_RESOURCES"])  # in a queue
_CREATING_STATES = _QUEUED_STATES | {"CREATING", "STARTING", "PROVISIONING", "ACTIVE"}
_REPAIR_STATES = frozenset(["REPAIRING", "RESTARTING"])
# Failure records with exit code 1 that do not blame the run.
_EXTERNAL_FAILURES = frozenset([None, "DeviceError", "PeerLost", "StorageError", "StorageUnavailable"])
_CHIP_FAILURES = frozenset(["JaxRuntimeError", "XlaRuntimeError"])  # nor do these, with one of XLA's statuses:
_CHIP_STATUS = re.compile("INTERNAL|UNAVAILABLE|ABORTED|UNKNOWN|DEADLINE_EXCEEDED|DATA_LOSS|CANCELLED")
_USER_EXIT_CODES = frozenset([2, 3, 4])  # exit codes that blame the run, its data or its permissions


def decide(job: Job, observed: Observation, now: float, policy: Policy) -> Action:
    """The action due for the node; for the spare nodes while the node only waits or is being deleted."""
    if not _is_over(job) and (job.node is None or job.node.ending is not None):
        looked_at = ((node.name, observed.spare.get(node.name, Observation())) for node in job.spare if node.ending is None)
        alive = {name: seen for name, seen in looked_at if seen is not None}
        if alive:
            return Promote(next((name for name, seen in alive.items() if _is_up(seen)), next(iter(alive))))
    action = _of_node(job, observed, now, policy)
    if job.spare and (isinstance(action, Wait) or action in (Do.DELETE, Do.GIVE_UP)):
        return _for_spare_nodes(job, observed, now, policy, action)
    return action


def recorded(job: Job, action: Action, observed: Observation, now: float) -> Job:
    """The job after an action; for a request to the cloud, after the cloud accepted it."""
    heard, created_at = bool(observed.silence), observed.created_at
    match action:
        case Do.RECORD_ATTEMPT:
            return jobs.intended(job, now=now)
        case Do.CREATE:
            return jobs.with_node(job, requested=True, since=now)
        case Do.ADOPT:  # it may have been billed since long before this look
            return jobs.with_node(job, requested=True, since=job.node and job.node.intended_at)
        case RecordNodeState(state):
            return jobs.observed(job, state, now=now, unseen=observed.unseen, heard=heard, created_at=created_at)
        case AskToStop(because):
            return jobs.with_node(job, asked_to_stop=now, asked_because=because)
        case MarkForDeletion(why, detail, step):
            heard = heard or observed.outcome is not None
            came_and_went = why in ("lost", "preempted") or (why == "withdrawn" and observed.state is None)
            billed_from = now - min(observed.unseen, jobs.UNHEARD_SECONDS) if came_and_went else None
            marked = jobs.ending(job, why, detail, heard=heard, created_at=created_at, billed_from=billed_from, step=step)
            if job.node and not job.node.requested and why in ("stopped", "withdrawn"):
                return jobs.with_node(marked, since=now)  # a supervisor may have requested it until now, and been killed
            return marked
        case Promote(name):
            return jobs.promoted(job, name)
        case ForSpareNode(name, RecordEnd()):
            return jobs.dropped(job, name, now=now)
        case ForSpareNode(name, same):
            seen = observed.spare.get(name) or Observation()
            return jobs.with_spare(job, recorded(jobs.of_spare(job, name), same, seen, now))
        case RecordEnd(pause):
            return jobs.ended(job, now=now, newest_step=observed.newest_step, pause=pause)
        case Close(status, message):
            assert not job.nodes
            return job.model_copy(update={"status": status, "message": message})
        case Wait() | Do.DELETE | Do.GIVE_UP | Do.FINISHED:
            return job


def refused(job: Job, node: Node, kind: Refusal, because: str, now: float, policy: Policy) -> MarkForDeletion:
    """The action after a refusal. Lack of quota is often transient: preempted nodes and other users hold some of it."""
    since = job.quota_since.get(node.zone, node.intended_at)
    has_run = any(attempt.ready_at is not None for attempt in job.attempts)  # it waits for its deadline: nothing bills
    if kind == "quota" and now - since >= policy.quota_patience and not has_run:
        waited = f" (refused for {duration(now - since)})" if now > since else ""
        return MarkForDeletion("zone", because + waited)
    return MarkForDeletion(kind, because)


def _of_node(job: Job, observed: Observation, now: float, policy: Policy) -> Action:
    if job.node is None:
        action = _without_node(job, observed, now, policy)
        over = isinstance(action, Close) or action is Do.FINISHED
        return Wait("what was queued elsewhere is being deleted") if job.spare and over else action
    if job.node.ending is not None:
        return _deleting(job, job.node, job.node.ending, observed, now, policy)
    if not job.node.requested:
        return _intended(job, job.node, observed, policy)
    return _with_node(job, job.node, observed, now, policy)


def _for_spare_nodes(job: Job, observed: Observation, now: float, policy: Policy, action: Action) -> Action:
    """Keep the first node that is up of those queued in several zones. `action` is the one due for the node itself."""
    served = job.node is not None and job.node.ending is None and _is_up(observed)
    over = _is_over(job) or job.wanted != "running" or observed.complete or _exhausted_limit(job, now, policy)
    for node in job.spare:
        of_spare = observed.spare.get(node.name, Observation())
        if of_spare is None:  # its zone does not answer: it may exist
            continue
        due: Action
        if node.ending is None and (served or over):
            why = f"{job.node.name} in {job.node.zone} came first" if served and job.node else "the run does not need it"
            due = MarkForDeletion("withdrawn", why)
        elif node.ending is None and _is_up(of_spare):
            return Promote(node.name)
        else:
            due = _of_node(jobs.of_spare(job, node.name), of_spare, now, policy)
        match due:
            case Do.RECORD_ATTEMPT | Do.CREATE | Do.ADOPT | RecordNodeState() | MarkForDeletion() | RecordEnd():
                return ForSpareNode(node.name, due)
            case Do.DELETE:
                action = action if action is Do.GIVE_UP else due
            case Do.GIVE_UP:  # while the run continues elsewhere, keep trying
                action = due if job.node is None else Do.DELETE
            case _:
                pass
    return action


def _is_over(job: Job) -> bool:
    """Whether no attempt will follow, though nodes may be left."""
    return job.status != "active" or (job.node is not None and job.node.ending in FINAL)


def _is_up(observed: Observation) -> bool:
    return not observed.foreign and (observed.state in _READY_STATES or bool(observed.silence))


def _without_node(job: Job, observed: Observation, now: float, policy: Policy) -> Action:
    if job.status != "active":
        return Do.FINISHED
    if observed.complete:
        return Close("done", "the run is complete")
    if job.wanted != "running":
        return Close("stopped", "stopped on request; launching it again continues")
    if reason := _exhausted_limit(job, now, policy):
        return Close("stopped", reason[1])
    if not job.open_zones:
        reasons = [f"{zone}: {job.closed[zone]}" for zone in job.zones]
        return Close("refused", reasons[0] if len(reasons) == 1 else "no zone takes the run:\n" + "\n".join(reasons))
    if job.fruitless >= policy.attempts_without_progress:
        last = job.attempts[-1]
        return Close(
            "failed",
            f"{job.fruitless} attempts in a row ended without a new checkpoint; the last one, {last.node}: {last.detail}",
        )
    if now < job.not_before:
        return Wait(f"the next attempt begins at {utc(job.not_before)}")
    return Do.RECORD_ATTEMPT


def _intended(job: Job, node: Node, observed: Observation, policy: Policy) -> Action:
    if observed.state is not None and observed.foreign:
        return MarkForDeletion("taken", f"{node.name} exists in {node.zone} and belongs to another run")
    if observed.state is not None:
        return Do.ADOPT
    if observed.silence or observed.outcome is not None:  # a supervisor created it, and was killed before it recorded that
        if _answers(observed, policy):
            return Wait(f"{node.name} is heard, and not seen yet")
        return MarkForDeletion("lost", f"{node.name} is gone from {node.zone}")
    if job.status != "active":
        return MarkForDeletion("withdrawn", f"the run is over ({job.status})")
    if job.wanted != "running":
        return MarkForDeletion("stopped", "stopped on request before anything was created")
    return Do.CREATE


def _deleting(job: Job, node: Node, why: Ending, observed: Observation, now: float, policy: Policy) -> Action:
    if observed.state is not None and not observed.foreign:
        patience = policy.provision if observed.state in _CREATING_STATES and job.wanted == "running" else policy.teardown
        if observed.deleting > patience:
            return Do.GIVE_UP
        return Wait(f"{node.name} is being deleted") if observed.state == "DELETING" else Do.DELETE
    if observed.pending or _may_appear(node, observed, now, policy):
        return Wait(f"whether {node.name} will be created is not known yet")
    return RecordEnd(0.0 if why in FINAL else _pause(job, why, observed, policy))


def _may_appear(node: Node, observed: Observation, now: float, policy: Policy) -> bool:
    """Whether a missing node may still appear: it may have been requested, was not refused, and never seen."""
    came = node.state or observed.deleting or observed.outcome is not None
    return not came and observed.refusal is None and now - node.since <= policy.appear


def _pause(job: Job, why: Ending, observed: Observation, policy: Policy) -> float:
    """Seconds to the next attempt: doubled per round of all zones without capacity, and while attempts make no checkpoint."""
    if why in NO_CAPACITY:
        rounds, rest = divmod(job.refusals + 1, 1 if job.queued else max(1, len(job.open_zones)))
        if rest:
            return 0.0
        doublings = rounds - 1
    elif why == "zone":
        return 0.0
    else:
        doublings = 0 if observed.newest_step > job.newest_step else job.idle
        if why not in ("cloud", "taken", "silent", "trainer"):
            if doublings == 0:
                return 0.0
            doublings -= 1
    return min(policy.pause * 2.0 ** min(doublings, 30), policy.longest_pause)


def _with_node(job: Job, node: Node, observed: Observation, now: float, policy: Policy) -> Action:
    if observed.refusal is not None:
        return refused(job, node, observed.refusal, observed.refused_because, now, policy)
    if observed.foreign:
        return MarkForDeletion("taken", f"{node.name} exists in {node.zone} and belongs to another run")
    if observed.complete and (observed.outcome is not None or not _answers(observed, policy)):
        return MarkForDeletion("done", "the run is complete")
    state, outcome = observed.state, observed.outcome
    if outcome is not None and not _is_external(outcome, observed.newest_step):
        return _judged(job, node, outcome)
    if outcome is not None and state not in _TAKEN_STATES:
        # A survivor of a preempted slice loses its peer, or crashes, before the API shows the preemption.
        if job.spot and observed.workers > 1 and max(observed.silence, default=policy.appear) < policy.appear:
            return Wait(f"whether {node.name} is being preempted is not known yet")
        return _ended(job, outcome)
    if state is None:
        if (observed.pending and now - node.intended_at <= policy.create) or _may_appear(node, observed, now, policy):
            return Wait(f"{node.name} was asked for")
        return MarkForDeletion("lost", f"{node.name} is gone from {node.zone}")
    if state in _GONE_STATES:
        return MarkForDeletion("preempted", f"{node.name} is {state}")
    if state == "SUSPENDED" or (state == "SUSPENDING" and (observed.silence or outcome)):
        return MarkForDeletion("preempted", f"the queued resource of {node.name} is {state}")
    if state == "FAILED":
        return MarkForDeletion("cloud", f"the queued resource of {node.name} is {state}, and does not say why")
    if state == "DELETING":
        return MarkForDeletion("lost", f"{node.name} is being deleted by someone else")
    if state != node.state:
        return RecordNodeState(state)
    if action := _asked_to_stop(job, node, observed, now, policy):
        return action
    return _supervise_running(job, node, observed, now, policy)


def _asked_to_stop(job: Job, node: Node, observed: Observation, now: float, policy: Policy) -> Action | None:
    """The action if the run is over or complete, was asked to stop, or is out of budget or time; else None."""
    reason: tuple[Ending, str] | None = None
    if job.status != "active":
        reason = "withdrawn", f"the run is over ({job.status})"
    elif observed.complete:  # its trainer still has to close its files, and its worker to upload the log
        reason = "done", "the run is complete"
    elif job.wanted != "running":
        reason = "stopped", "stopped on request; launching it again continues"
    else:
        reason = _exhausted_limit(job, now, policy)
    if reason is None:
        return None
    if not _answers(observed, policy):
        return MarkForDeletion(*reason)
    if node.asked_to_stop is None:
        return AskToStop(reason[0])
    if now - node.asked_to_stop > policy.save:
        return MarkForDeletion(reason[0], f"{reason[1]} (its trainer did not answer within {policy.save:.0f} s)")
    return Wait("the trainer ends by itself" if observed.complete else "the trainer saves and stops")


def _answers(observed: Observation, policy: Policy) -> bool:
    """Whether workers were heard, all of them recently."""
    return bool(observed.silence) and max(observed.silence) <= policy.stale


def _exhausted_limit(job: Job, now: float, policy: Policy) -> tuple[Ending, str] | None:
    """The deadline or the budget, if the run has reached it, with the message; else None."""
    if policy.deadline is not None and now + policy.margin >= policy.deadline:
        return "deadline", "the deadline is reached; a later one continues"
    if policy.budget is not None:
        spent = job.dollars(now)
        if spent + policy.margin / 3600 * job.most_dollars_per_hour >= policy.budget:
            return "budget", f"the budget of {dollars(policy.budget)} is used up ({dollars(spent)}); a larger one continues"
    return None


def _is_external(outcome: Outcome, newest_step: int) -> bool:
    """Whether a machine, another host or Google ended the trainer. A signal, 134, 137, and exit code 1 without a failure record
    never blame the run; nor does a lack of permission once the run has a checkpoint.
    """
    code, failure = outcome.exit_code, outcome.failure
    if code in (0, 75) or failure == "Hung":
        return False
    if code in _USER_EXIT_CODES:
        return code == 4 and newest_step > 0
    return code != 1 or failure in _EXTERNAL_FAILURES or _is_of_the_chips(outcome)


def _is_of_the_chips(outcome: Outcome) -> bool:
    return outcome.failure in _CHIP_FAILURES and _CHIP_STATUS.match(outcome.message) is not None


def _judged(job: Job, node: Node, outcome: Outcome) -> MarkForDeletion:
    """What follows from an end that is the run's own."""
    code, message = outcome.exit_code, outcome.message
    if code == 0:
        return MarkForDeletion("trainer", "the trainer ended as if it were done, and the run has no export")
    if code == 75:
        why = node.asked_because or ("stopped" if job.wanted != "running" else "again")
        return MarkForDeletion(why, message or "saved and stopped")
    if outcome.failure == "Hung":
        return _once(job, "hung", outcome.step, message or "the trainer made no new step")
    message = message or f"the trainer ended with exit code {code} and said nothing; see 'tpulm cloud logs'"
    return MarkForDeletion("failed", message)


def _ended(job: Job, outcome: Outcome) -> MarkForDeletion:
    """What follows from an end that is not the run's fault, as far as is known."""
    code, message = outcome.exit_code, outcome.message
    if _is_of_the_chips(outcome) and outcome.step is not None:
        return _once(job, "trainer", outcome.step, message)
    by = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return MarkForDeletion("trainer", f"the trainer ended ({by})" + (f": {message}" if message else ""))


def _once(job: Job, why: Ending, step: int | None, message: str) -> MarkForDeletion:
    """One such end may be a machine's fault; a second one at the same step is the run's."""
    if step not in job.hangs:
        return MarkForDeletion(why, message, step)
    where = "before its first step" if step is None else f"after step {step}"
    return MarkForDeletion("failed", f"the trainer {'hung' if why == 'hung' else 'failed'} twice {where}: {message}")


def _supervise_running(job: Job, node: Node, observed: Observation, now: float, policy: Policy) -> Action:
    """The action for a node that should be working."""
    waited, state = now - node.since, observed.state or ""
    dead = [silence for silence in observed.silence if silence > policy.stale]
    heard = f"{len(observed.silence)} of {observed.workers} workers were heard"
    why: Ending = "lost"
    if state in _REPAIR_STATES:
        bound, detail = policy.repair, f"{node.name} was {state} for more than {policy.repair:.0f} s"
    elif dead:
        return MarkForDeletion("silent", f"{len(dead)} of {observed.workers} workers were not heard for {max(dead):.0f} s")
    elif state in _CREATING_STATES and not observed.silence:  # with a heartbeat it works, whatever the cloud says
        why, bound = "slow", policy.create
        if state in _QUEUED_STATES:
            bound = policy.queue
        elif job.queued:
            bound = policy.provision
        if state in _QUEUED_STATES or not job.queued:
            waited = now - node.intended_at
        detail = f"{node.name} was still {state} after {duration(bound)}"
    elif state in _CREATING_STATES or (state == "READY" and len(observed.silence) >= observed.workers):
        return Wait("working")  # whether its trainer hangs, the agent says
    elif state == "READY":
        why, bound, detail = "silent", policy.boot, f"{heard} within {policy.boot:.0f} s of READY"
        if observed.boot:
            detail += f"; it got as far as '{observed.boot}'"
    else:
        bound, detail = policy.unknown, f"{node.name} was {state} for more than {policy.unknown:.0f} s"
    return MarkForDeletion(why, detail) if waited > bound else Wait(f"{node.name} is {state}")


def describe(job: Job, action: Action) -> str:
    """An action, for people; "" if there is nothing to tell."""
    node = job.node
    match action:
        case Wait(why):
            return why
        case ForSpareNode(name, same):
            return describe(jobs.of_spare(job, name), same)
        case Promote(name):
            return f"{name} takes over"
        case Do.CREATE if node is not None:
            how = "queueing for" if job.queued else "creating"
            return f"{how} {node.name}, a {'spot ' * job.spot}{job.accelerator}, in {node.zone}"
        case Do.ADOPT if node is not None:
            return f"{node.name} in {node.zone} is there already: taken over"
        case RecordNodeState(state) if node is not None:
            return f"{node.name} is {state}"
        case AskToStop("done"):
            return "the run is complete; its trainer ends"
        case AskToStop(because):
            return f"asking the trainer to save and stop ({because})"
        case MarkForDeletion(_, detail):
            return detail
        case Do.DELETE:
            return f"deleting {' and '.join(node.name for node in job.nodes if node.ending is not None)}"
        case RecordEnd() if node is not None:
            return f"{node.name} is gone"
        case Close(status, message):
            return f"{status}: {message}"
        case _:
            return ""
