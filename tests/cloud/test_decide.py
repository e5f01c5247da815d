"""What is due next, case by case; test_lifecycles.py has random histories."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tpulm.cloud import job as jobs
from tpulm.cloud.decide import (
    Action,
    AskToStop,
    Close,
    Do,
    ForSpareNode,
    MarkForDeletion,
    Observation,
    Outcome,
    Policy,
    Promote,
    RecordEnd,
    RecordNodeState,
    Wait,
    decide,
    recorded,
    refused,
)
from tpulm.cloud.job import Job
from tpulm.cloud.provider import Refusal
from tpulm.readable import utc

POLICY = Policy()
NOW = 1_000_000.0
WORKING = Observation(state="READY", silence=(10.0,))
SAVED = Outcome(75, "Stopped", "")
LOST = Outcome(1, "PeerLost", "host 3 was lost")
REFUSED = Outcome(4, "StorageRefused", "Anonymous caller does not have storage.objects.get access")  # gcsfs issue 316
SUSPENDING, WAITING = Observation(state="SUSPENDING"), Observation(state="WAITING_FOR_RESOURCES")
NOT_KNOWN_YET = Wait("whether reviews-a1 will be created is not known yet")
SILENT_FAILURE = "the trainer ended with exit code 2 and said nothing; see 'tpulm cloud logs'"


def new(**changes: object) -> Job:
    fields = {"run": "reviews", "accelerator": "v3-8", "spot": True, "zones": ("a", "b"), "project": "p", "created_at": NOW}
    return Job.model_validate({**fields, "prices": dict.fromkeys("abc", 2.0), **changes})


def requested(**changes: object) -> Job:
    job = jobs.with_node(jobs.intended(new(), now=NOW), requested=True, since=NOW)
    return jobs.with_node(job, **changes)


def working(**changes: object) -> Job:
    return jobs.with_node(jobs.observed(requested(), "READY", now=NOW, heard=False), **changes)


def queued(state: str) -> Job:
    return requested(zones=("a",), state=state).model_copy(update={"queued": True})


def stopping(job: Job) -> Job:
    return job.model_copy(update={"wanted": "stopped"})


def after(exit_code: int, failure: str | None = None, message: str = "", **seen: Any) -> Observation:
    """A node that was just heard and whose trainer has ended."""
    return Observation(**{"state": "READY", "silence": (5.0,), "outcome": Outcome(exit_code, failure, message), **seen})


@pytest.mark.parametrize(
    ("job", "seen", "later", "expected"),
    [
        (new(), Observation(), 0, Do.RECORD_ATTEMPT),
        (new(), Observation(complete=True), 0, Close("done", "the run is complete")),
        (new(status="done"), Observation(complete=True), 0, Do.FINISHED),
        (stopping(new()), Observation(), 0, Close("stopped", "stopped on request; launching it again continues")),
        (new(not_before=NOW + 60), Observation(), 10, Wait(f"the next attempt begins at {utc(NOW + 60)}")),
        (jobs.intended(new(), now=NOW), Observation(), 0, Do.CREATE),
        (jobs.intended(new(), now=NOW), Observation(state="CREATING"), 0, Do.ADOPT),
        (jobs.intended(new(), now=NOW), Observation(silence=(10.0,)), 0, Wait("reviews-a1 is heard, and not seen yet")),
        (requested(), Observation(pending=True), 0, Wait("reviews-a1 was asked for")),
        (requested(), Observation(), 120, Wait("reviews-a1 was asked for")),
        (requested(), Observation(state="CREATING"), 0, RecordNodeState("CREATING")),
        (requested(state="CREATING"), Observation(state="CREATING"), 1700, Wait("reviews-a1 is CREATING")),
        (requested(state="CREATING"), Observation(state="CREATING", silence=(5.0,)), 9999, Wait("working")),
        (working(), WORKING, 9999, Wait("working")),
        (queued("WAITING_FOR_RESOURCES"), WAITING, 86_399, Wait("reviews-a1 is WAITING_FOR_RESOURCES")),
        (queued("CREATING"), Observation(state="CREATING"), 7199, Wait("reviews-a1 is CREATING")),
        (queued("SUSPENDING"), SUSPENDING, 60, Wait("reviews-a1 is SUSPENDING")),
        (working(), Observation(state="READY"), 60, Wait("reviews-a1 is READY")),
        (working(state="REPAIRING"), Observation(state="REPAIRING", silence=(600.0,)), 600, Wait("reviews-a1 is REPAIRING")),
        (working(), Observation(state="READY", outcome=Outcome(2, None, "")), 0, MarkForDeletion("failed", SILENT_FAILURE)),
        (working(ending="lost", detail="gone"), WORKING, 0, Do.DELETE),
        (working(ending="lost", detail="gone"), Observation(state="DELETING"), 0, Wait("reviews-a1 is being deleted")),
        (working(ending="lost", detail="gone"), Observation(), 0, RecordEnd(0.0)),
        (requested(ending="withdrawn"), Observation(), 120, NOT_KNOWN_YET),
        (requested(ending="withdrawn"), Observation(), 121, RecordEnd(0.0)),
        (requested(ending="withdrawn"), Observation(deleting=10.0), 60, RecordEnd(0.0)),
        (requested(ending="stopped"), Observation(outcome=SAVED), 60, RecordEnd(0.0)),
        (requested(ending="withdrawn", requested=False), Observation(), 121, RecordEnd(0.0)),
        (requested(ending="denied"), Observation(refusal="denied"), 10, RecordEnd(0.0)),
        (requested(ending="stopped"), Observation(pending=True), 0, NOT_KNOWN_YET),
    ],
)
def test_what_is_due(job: Job, seen: Observation, later: float, expected: Action):
    assert decide(job, seen, NOW + later, POLICY) == expected


@pytest.mark.parametrize(
    ("job", "seen", "later", "why"),
    [
        (working(), Observation(), 0, "lost"),
        (working(), Observation(state="PREEMPTED", silence=(3.0,)), 0, "preempted"),
        (working(), Observation(state="TERMINATED"), 0, "preempted"),
        (requested(state="ACTIVE"), Observation(state="SUSPENDED", silence=(3.0,)), 0, "preempted"),
        (requested(state="ACCEPTED"), Observation(state="FAILED"), 0, "cloud"),
        (requested(state="CREATING"), Observation(state="CREATING"), 1801, "slow"),
        (queued("WAITING_FOR_RESOURCES"), WAITING, 86_401, "slow"),
        (queued("PROVISIONING"), Observation(state="PROVISIONING"), 7201, "slow"),
        (queued("CREATING"), Observation(state="CREATING"), 7201, "slow"),
        (queued("SUSPENDING"), Observation(state="FAILED", refusal="cloud", refused_because="internal"), 90, "cloud"),
        (requested(), Observation(), 121, "lost"),
        (jobs.intended(new(), now=NOW), Observation(silence=(9000.0,)), 9000, "lost"),
        (requested(state="CREATING"), Observation(), 10, "lost"),
        (requested(), Observation(refusal="stock-out"), 0, "stock-out"),
        (requested(), Observation(refusal="quota"), 0, "quota"),
        (requested(), Observation(state="READY", foreign=True), 0, "taken"),
        (jobs.intended(new(), now=NOW), Observation(state="READY", foreign=True), 0, "taken"),
        (working(), Observation(state="READY", boot="installing"), 1201, "silent"),
        (working(), Observation(state="READY", silence=(181.0,)), 0, "silent"),
        (working(), Observation(state="READY", workers=4, silence=(5.0, 5.0, 200.0, 5.0)), 0, "silent"),
        (working(), Observation(state="READY", workers=4, silence=(5.0, 5.0, 5.0)), 1201, "silent"),
        (working(state="REPAIRING"), Observation(state="REPAIRING", silence=(900.0,)), 1201, "lost"),
        (working(state="SOMETHING_NEW"), Observation(state="SOMETHING_NEW"), 601, "lost"),
        (working(), after(0, complete=True), 0, "done"),
        (working(), after(0), 0, "trainer"),
        (working(), after(2, "ConfigError", "x"), 0, "failed"),
        (working(), after(1, "TrainingDiverged", "x"), 0, "failed"),
        (working(), after(1), 0, "trainer"),
        (working(), after(1, "PeerLost"), 0, "trainer"),
        (working(), after(1, "DeviceError", "busy"), 0, "trainer"),
        (working(), after(-9), 0, "trainer"),
        (working(), after(137, "ConfigError"), 0, "trainer"),
        (working(), Observation(state="READY", silence=(5.0,), outcome=REFUSED), 0, "failed"),
        (working(), Observation(state="READY", silence=(5.0,), outcome=REFUSED, newest_step=40), 0, "trainer"),
        (working(), Observation(state="READY", workers=4, silence=(125.0,) * 4, outcome=LOST), 125, "trainer"),
        (working(), Observation(state="PREEMPTED", workers=4, silence=(3.0,) * 4, outcome=LOST), 0, "preempted"),
        (working(), after(-11, state="PREEMPTED", workers=4, silence=(3.0,) * 4), 0, "preempted"),
        (working(), Observation(state="SUSPENDING", workers=4, outcome=LOST), 0, "preempted"),
        (working(), Observation(state="PREEMPTED", outcome=Outcome(2, "ConfigError", "x")), 0, "failed"),
        (working(), Observation(outcome=Outcome(-11, None, "")), 900, "trainer"),  # its VM has deleted itself
        (working(), Observation(state="READY", silence=(5.0,), outcome=SAVED), 0, "again"),
        (working(asked_because="budget"), Observation(state="READY", outcome=SAVED), 0, "budget"),
        (stopping(requested(state="CREATING")), Observation(state="CREATING"), 0, "stopped"),
        (stopping(requested(state="CREATING")), Observation(state="CREATING", silence=(500.0,)), 0, "stopped"),
        (jobs.reopened(stopping(working(asked_because="stopped"))), Observation(state="READY", outcome=SAVED), 5, "again"),
    ],
)
def test_why_a_node_is_given_up(job: Job, seen: Observation, later: float, why: str):
    action = decide(job, seen, NOW + later, POLICY)
    assert isinstance(action, MarkForDeletion) and action.why == why, action
    assert action.detail or seen.refusal
    assert seen.boot in action.detail


@pytest.mark.parametrize(
    ("why", "job", "outcome"),
    [
        ("done", working(), Outcome(0, None, "")),
        ("done", working(), Outcome(-9, None, "")),
        ("stopped", stopping(working()), SAVED),
    ],
)
def test_a_trainer_has_time_to_end_by_itself(why: jobs.Ending, job: Job, outcome: Outcome):
    """To save; and of a complete run, to close its files, and its worker to send the end of the log."""
    seen = dataclasses.replace(WORKING, complete=why == "done")
    assert decide(job, seen, NOW, POLICY) == AskToStop(why)
    job = recorded(job, AskToStop(why), seen, NOW)
    assert isinstance(decide(job, seen, NOW + 299, POLICY), Wait)
    ended, silent = dataclasses.replace(seen, outcome=outcome), dataclasses.replace(seen, silence=(200.0,))
    for found, later in ((ended, 5), (silent, 5), (seen, 301)):
        action = decide(job, found, NOW + later, POLICY)
        assert isinstance(action, MarkForDeletion) and action.why == why, found


def test_the_budget_leaves_room_to_save_and_delete():
    policy = Policy(budget=10.0)  # of 2 dollars an hour: five hours; 15 minutes of margin are half a dollar
    assert decide(working(), WORKING, NOW + 4.7 * 3600, policy) == Wait("working")
    assert decide(working(), WORKING, NOW + 4.76 * 3600, policy) == AskToStop("budget")
    spent = jobs.ended(jobs.ending(working(), "preempted", "x"), now=NOW + 4.8 * 3600, newest_step=5, pause=0.0)
    closed = decide(spent, Observation(newest_step=5), NOW + 5 * 3600, policy)
    assert isinstance(closed, Close) and closed.status == "stopped" and "$10.00" in closed.message
    late = decide(new(), Observation(), NOW, Policy(deadline=NOW + 800))
    assert isinstance(late, Close) and late.status == "stopped"


# -- zones, queues and hangs ----------------------------------------------------------------------------------------------


def after_refusal(job: Job, kind: Refusal, because: str, now: float = NOW, policy: Policy = POLICY) -> Job:
    """A new attempt whose request is refused."""
    job = recorded(job.model_copy(update={"not_before": 0.0}), Do.RECORD_ATTEMPT, Observation(), now)
    assert job.node is not None
    job = recorded(job, refused(job, job.node, kind, because, now, policy), Observation(), now)
    return recorded(job, decide(job, Observation(), now, policy), Observation(), now)


def test_zones_take_turns_on_stock_out_and_pauses_grow_by_round():
    job, pauses = new(), list[float]()
    for _ in range(6):
        job = after_refusal(job, "stock-out", "no more capacity")
        pauses.append(job.not_before - NOW)
    assert [attempt.zone for attempt in job.attempts] == ["a", "b"] * 3
    assert pauses == [0, 60, 0, 120, 0, 240] and job.fruitless == 0
    long_out = new(zones=("a",)).model_copy(update={"refusals": 5_000})
    assert after_refusal(long_out, "stock-out", "no more capacity").not_before == NOW + POLICY.longest_pause


def test_a_zone_that_refuses_is_closed_and_the_next_is_tried_at_once():
    job = after_refusal(new(zones=("a", "b", "c")), "zone", "the zone is closed")
    assert (job.closed, job.open_zones, job.not_before) == ({"a": "the zone is closed"}, ("b", "c"), NOW)
    job = after_refusal(after_refusal(job, "zone", "the type is not there"), "zone", "not permitted")
    assert [attempt.zone for attempt in job.attempts] == ["a", "b", "c"]
    action = decide(job, Observation(), NOW, POLICY)
    assert isinstance(action, Close) and action.status == "refused"
    for line in ("a: the zone is closed", "b: the type is not there", "c: not permitted"):
        assert line in action.message
    assert jobs.reopened(job).open_zones == ("a", "b", "c")


def test_a_quota_closes_its_zone_when_patience_is_over():
    job, now = after_refusal(new(), "quota", "Quota limit 'X'"), NOW
    while not job.closed:
        now += 600.0
        job = after_refusal(job, "quota", "Quota limit 'X'", now)
    assert list(job.closed) == ["b"] or list(job.closed) == ["a"]
    assert 3600 <= now - NOW <= 4800 and "Quota limit 'X' (refused for" in next(iter(job.closed.values()))
    served = after_refusal(after_refusal(new(zones=("a",)), "quota", "x"), "stock-out", "no more capacity", NOW + 3000)
    assert after_refusal(served, "quota", "x", NOW + 4000).closed == {}, "counted from the first refusal in a row"
    assert after_refusal(new(), "quota", "x", NOW, Policy(quota_patience=0.0)).closed == {"a": "x"}


def queued_job() -> Job:
    return recorded(new(queued=True, zones=("a", "b", "c")), Do.RECORD_ATTEMPT, Observation(), NOW)


def test_a_failed_queue_leaves_the_others_waiting():
    job = queued_job()
    assert [(node.name, node.zone) for node in job.nodes] == [("reviews-a1", "a"), ("reviews-a2", "b"), ("reviews-a3", "c")]
    nothing = {"reviews-a2": Observation(), "reviews-a3": Observation()}
    due = decide(job, Observation(spare=nothing), NOW, POLICY)
    assert due == Do.CREATE, "recorded before it is created, one after the other"
    job = jobs.with_node(job, requested=True, state="WAITING_FOR_RESOURCES")
    assert decide(job, Observation(state=WAITING.state, spare=nothing), NOW, POLICY) == ForSpareNode("reviews-a2", Do.CREATE)
    spare = {"reviews-a2": WAITING, "reviews-a3": WAITING}
    seen = Observation(state="FAILED", refusal="stock-out", refused_because="no more capacity", spare=spare)
    job = recorded(job, decide(job, seen, NOW, POLICY), seen, NOW)
    assert decide(job, seen, NOW, POLICY) == Promote("reviews-a2")
    job = recorded(job, Promote("reviews-a2"), seen, NOW)
    assert job.node is not None and job.node.zone == "b" and job.spare[-1].ending is None
    assert [node.ending for node in job.spare] == ["stock-out", None]


def test_a_spare_that_came_and_went_unseen_may_have_billed():
    """It waits ten minutes for its turn and deletes itself, while nobody supervises."""
    job = queued_job()
    job = jobs.with_spare(job, jobs.with_node(jobs.of_spare(job, "reviews-a2"), requested=True, state=WAITING.state))
    job = jobs.with_node(job, requested=True, state="READY", ready_at=NOW)
    later = NOW + 6 * 3600
    spare = {"reviews-a2": Observation(unseen=6 * 3600), "reviews-a3": Observation()}
    seen = Observation(state="READY", silence=(5.0,), spare=spare)
    action = decide(job, seen, later, POLICY)
    assert isinstance(action, ForSpareNode) and action.node == "reviews-a2"
    job = recorded(job, action, seen, later)
    job = recorded(job, ForSpareNode("reviews-a2", RecordEnd(0.0)), seen, later)
    assert job.attempts[-1].ending == "withdrawn" and job.attempts[-1].dollars == pytest.approx(0.5 * 2.0)


def withdrawn(job: Job, seen: Observation) -> Job:
    """To the end, in which nothing is created any more. What is seen is gone once it is deleted."""
    now = NOW
    for _ in range(40):
        action = decide(job, seen, now, POLICY)
        if isinstance(action, Wait) and all(node.ending and not node.requested for node in job.nodes):
            now += POLICY.appear + 1.0
            continue
        if action is Do.DELETE:
            seen = Observation(spare=dict.fromkeys(seen.spare, Observation()))
            continue
        if action is Do.FINISHED:
            break
        same = action.action if isinstance(action, ForSpareNode) else action
        assert not (same is Do.CREATE or isinstance(same, Wait | Promote)), action
        job = recorded(job, action, seen, now)
    assert job.nodes == ()
    return job


def test_a_stop_withdraws_what_is_queued():
    job = stopping(queued_job())
    seen = dataclasses.replace(WAITING, spare={"reviews-a2": WAITING, "reviews-a3": WAITING})
    assert withdrawn(job, seen).status == "stopped"


def test_a_stop_waits_for_what_a_killed_supervisor_may_have_asked_for():
    """Between the request and its record."""
    job = stopping(jobs.intended(new(), now=NOW - 3600))
    job = recorded(job, decide(job, Observation(), NOW, POLICY), Observation(), NOW)
    assert job.node is not None and not job.node.requested and job.node.ending == "stopped"
    assert isinstance(decide(job, Observation(), NOW + 60, POLICY), Wait)
    assert decide(job, Observation(state="CREATING"), NOW + 60, POLICY) == Do.DELETE


@pytest.mark.parametrize("other", [Observation(), WAITING, Observation(state="READY")], ids=["not asked for", "queued", "up"])
def test_a_refusal_that_lasts_withdraws_what_is_queued(other: Observation):
    job = queued_job()
    if other.state is not None:
        for name in ("reviews-a2", "reviews-a3"):
            view = jobs.with_node(jobs.of_spare(job, name), requested=True, since=NOW, state=other.state)
            job = jobs.with_spare(job, view)
    seen = Observation(spare={"reviews-a2": other, "reviews-a3": other})
    assert job.node is not None
    job = withdrawn(recorded(job, refused(job, job.node, "denied", "no", NOW, POLICY), seen, NOW), seen)
    assert (job.status, job.message) == ("refused", "no")
    assert [attempt.ending for attempt in job.attempts] == ["denied", "withdrawn", "withdrawn"]


@pytest.mark.parametrize("requested", [False, True])
def test_a_run_that_is_over_keeps_no_node(requested: bool):
    job = jobs.intended(new(), now=NOW).model_copy(update={"status": "refused", "message": "no"})
    seen = Observation()
    if requested:
        job, seen = jobs.with_node(job, requested=True, state=WAITING.state), WAITING
    job = withdrawn(job, seen)
    assert (job.status, job.message, job.attempts[-1].ending) == ("refused", "no", "withdrawn")
    job = working().model_copy(update={"status": "refused"})
    assert decide(job, WORKING, NOW, POLICY) == AskToStop("withdrawn"), "its trainer saves first"


def test_the_price_of_the_zone_counts_and_the_dearest_before():
    prices = {"a": 1.0, "b": 4.0}
    job = new(prices=prices)
    assert job.dollars_per_hour == job.most_dollars_per_hour == 4.0
    job = jobs.intended(job, now=NOW)
    assert job.dollars_per_hour == 1.0
    job = jobs.observed(jobs.with_node(job, requested=True), "READY", now=NOW, heard=False)
    assert job.dollars(NOW + 7200) == 2.0
    both = jobs.intended(new(prices=prices, queued=True), now=NOW)
    assert (both.dollars_per_hour, both.most_dollars_per_hour) == (1.0, 4.0)
    both = jobs.with_spare(both, jobs.observed(jobs.of_spare(both, "reviews-a2"), "READY", now=NOW, heard=False))
    assert both.dollars(NOW + 3600) == 4.0, "whatever is READY counts"


def at_work_again(job: Job, seen: Observation, *, newest_step: int = 0) -> Job:
    """The job at work again after what `seen` brings about, and after the pause that is due then."""
    job = recorded(job, decide(job, seen, NOW, POLICY), seen, NOW)
    gone = Observation(newest_step=newest_step)
    job = recorded(job, decide(job, gone, NOW, POLICY), gone, NOW)
    if decide(job, gone, job.not_before, POLICY) != Do.RECORD_ATTEMPT:
        return job
    return jobs.observed(jobs.with_node(jobs.intended(job, now=NOW), requested=True), "READY", now=NOW, heard=False)


def test_the_same_hang_twice_ends_the_run():
    said = "no step after 40 for 700 s; its threads' stacks are in gs://b/w/cloud/attempts/1/stacks-0.txt"
    seen = dataclasses.replace(WORKING, outcome=Outcome(1, "Hung", said, 40))
    assert decide(working(), seen, NOW, POLICY) == MarkForDeletion("hung", said, 40)
    again = at_work_again(working(), seen)
    assert (again.status, again.hangs, again.fruitless) == ("active", (40,), 1)
    elsewhere = dataclasses.replace(seen, outcome=Outcome(1, "Hung", said, 90))
    for job, observed, why in ((again, elsewhere, "hung"), (again, seen, "failed"), (jobs.reopened(again), seen, "hung")):
        action = decide(job, observed, NOW, POLICY)
        assert isinstance(action, MarkForDeletion) and action.why == why, action
        assert ("hung twice after step 40" in action.detail) == (why == "failed") and "stacks-0.txt" in action.detail


def test_chips_that_fail_are_the_machines_fault_unless_at_the_same_step():
    """The words of jax issue 9642 and marin issue 5258; before the first step a bad chip counts as any machine's fault."""
    halted = Outcome(1, "JaxRuntimeError", "INTERNAL: Core halted unexpectedly", 40)
    seen = dataclasses.replace(WORKING, outcome=halted)
    job = at_work_again(working(), seen)
    job = at_work_again(job, dataclasses.replace(WORKING, outcome=dataclasses.replace(halted, step=90)))
    assert (job.status, job.hangs, job.fruitless) == ("active", (40, 90), 2)
    job = at_work_again(job, seen)
    assert (job.status, job.message) == ("failed", f"the trainer failed twice after step 40: {halted.message}")
    early = Outcome(1, "JaxRuntimeError", "UNAVAILABLE: …/tensorflow.CoordinationService/PollForError")
    seen = dataclasses.replace(WORKING, outcome=early)
    job = at_work_again(at_work_again(working(), seen), seen)
    assert (job.status, job.hangs, job.fruitless) == ("active", (), 2)
    third = jobs.ended(jobs.ending(job, "trainer", "x"), now=NOW, newest_step=0, pause=0.0)
    closed = decide(third, Observation(), NOW, POLICY)
    assert isinstance(closed, Close) and closed.status == "failed"
    memory = dataclasses.replace(halted, message="RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")
    assert at_work_again(working(), dataclasses.replace(WORKING, outcome=memory)).status == "failed"


def test_preempted_slices_are_nobodys_fault_however_many():
    """A survivor reports its lost peer first: what that means is judged when the API has had time to say so (marin #5747)."""
    slice_ = Observation(state="READY", workers=4, silence=(3.0,) * 4, outcome=LOST)
    assert isinstance(decide(working(), slice_, NOW, POLICY), Wait)
    assert isinstance(decide(working().model_copy(update={"spot": False}), slice_, NOW, POLICY), MarkForDeletion)
    job, pauses = working(), list[float]()
    for _ in range(7):
        job = at_work_again(job, dataclasses.replace(slice_, state="PREEMPTED"))
        pauses.append(job.not_before - NOW)
    assert (job.status, job.fruitless, [attempt.ending for attempt in job.attempts]) == ("active", 0, ["preempted"] * 7)
    assert pauses == [0, 60, 120, 240, 480, 960, 1800], "only money and time bound them"
    assert job.attempts[0].zone != job.attempts[1].zone


def test_two_hangs_before_the_first_step_with_progress_between_them_are_two_machines():
    early = dataclasses.replace(WORKING, outcome=Outcome(1, "Hung", "nothing new in the stage 'start' for 3600 s"))
    job = at_work_again(working(), early)
    job = at_work_again(job, dataclasses.replace(WORKING, outcome=SAVED), newest_step=40)
    assert at_work_again(job, early, newest_step=40).status == "active"


def test_a_run_that_has_run_waits_for_quota():
    """Nothing bills meanwhile (marin issue 87)."""
    job = jobs.ended(jobs.ending(working(), "preempted", "x"), now=NOW, newest_step=40, pause=0.0)
    job = jobs.with_node(jobs.intended(job, now=NOW), requested=True, since=NOW)
    assert job.node is not None
    assert refused(job, job.node, "quota", "exceeded", NOW + 100 * 3600, POLICY) == MarkForDeletion("quota", "exceeded")


def test_what_cannot_be_deleted_is_given_up_but_not_forgotten():
    job = working(ending="preempted")
    assert decide(job, Observation(state="PREEMPTED", deleting=599.0), NOW, POLICY) == Do.DELETE
    assert decide(job, Observation(state="PREEMPTED", deleting=601.0), NOW, POLICY) == Do.GIVE_UP
    assert decide(job, Observation(state="PROVISIONING", deleting=7100.0), NOW, POLICY) == Do.DELETE, "it ends by itself"
    assert decide(stopping(job), Observation(state="PROVISIONING", deleting=601.0), NOW, POLICY) == Do.GIVE_UP
    assert recorded(job, Do.GIVE_UP, Observation(), NOW) == job


def test_what_nobody_saw_is_counted_from_before():
    """A night without a supervisor: it was READY since shortly after it was last seen coming."""
    coming = jobs.with_node(requested(), state="CREATING", since=NOW + 5)
    done = dataclasses.replace(WORKING, outcome=Outcome(0, None, ""), complete=True)
    unheard = dataclasses.replace(WORKING, silence=())
    for action, seen, now, ready_at in (
        (RecordNodeState("READY"), WORKING, NOW + 40_000, NOW + 5),
        (MarkForDeletion("done", "x"), done, NOW + 40_000, NOW + 5),
        (RecordNodeState("READY"), unheard, NOW + 9, NOW + 9),
    ):
        node = recorded(coming, action, seen, now).node
        assert node is not None and node.ready_at == ready_at
