"""Whole lives of runs by a fast clock: the real supervisor, decisions and job, in a cloud where everything may happen.

    TPULM_LIFECYCLES=1000 .venv/bin/pytest -n0 -s tests/cloud/test_lifecycles.py

prints what happened, by kind. What Google does is played here; the emulator is for its words.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from cloud_rig import SETTINGS, job_of

from tpulm.cloud.decide import Do, Outcome, Wait
from tpulm.cloud.job import FAULTS, Job
from tpulm.cloud.launch import policy_of, request_for
from tpulm.cloud.provider import Creation, NodeStatus, Refusal, Refused, Request, refusal_of_code
from tpulm.cloud.supervise import Supervisor, SupervisorState
from tpulm.errors import CloudRefused, TpulmError, Unavailable

LIVES = int(os.environ.get("TPULM_LIFECYCLES", "40"))
POLL = 30.0  # seconds between two looks
ZONES: tuple[str, ...] = ("us-central1-a", "us-central1-b", "europe-west4-a")
PRICES: dict[str, float] = dict(zip(ZONES, (2.0, 3.0, 5.0), strict=True))  # dollars an hour
STEP_SECONDS, CHECKPOINT_STEPS = 2.0, 300
SELF_DELETE_SECONDS, GRACE_SECONDS, SPARE_WAIT_SECONDS, SPARE_SECONDS = 900.0, 240.0, 300.0, 600.0  # as agent.py has them
UNNEEDED_SECONDS = 60.0  # until a VM that was never needed, or is not any more, deletes itself
MONTH = 30 * 86_400.0
RESERVED = "Insufficient reserved capacity. Contact customer support to increase your reservation."  # skypilot issue 4579
QUOTA = "Quota limit 'TPUV3sPreemptible' has been exceeded."


class Killed(BaseException):
    """A supervisor is killed, in the middle of a request or between two."""


@dataclass
class Vm:
    request: Request
    attempt: int
    ready_at: float | None = None
    gone_at: float | None = None  # from when it does not bill
    comes_at: float = 0.0
    state: str = "CREATING"
    failure: tuple[Refusal, str] | None = None  # of its operation or queued resource
    undeletable_until: float = 0.0
    hidden_until: float = 0.0  # a get right after a create may answer 404
    boots_at: float = 0.0
    preempted_at: float = 0.0  # is to be
    shown_at: float | None = None  # when the API shows that
    silent_at: float = float("inf")  # its agent dies
    step: float = 0.0
    idle_since: float | None = None
    unneeded: bool = False
    valid_until: float = float("inf")
    stopping_at: float | None = None
    beat: float | None = None
    outcome: Outcome | None = None


@dataclass
class World:
    """A provider, the objects in the bucket, and the VMs, all in memory."""

    chance: random.Random
    trouble: float
    steps: int
    now: float = 1_000_000.0
    job: Job | None = None
    version: int = 0
    vms: dict[str, Vm] = field(default_factory=dict)
    past: list[Vm] = field(default_factory=list)
    failed: dict[str, Refused] = field(default_factory=dict)  # operations
    newest: int = 0
    complete: bool = False
    hang_at: int | None = None
    closed: frozenset[str] = frozenset()
    workers: int = 1  # of each VM
    no_quota: tuple[float, float] = (0.0, 0.0)  # from when to when
    lost: set[int] = field(default_factory=set)  # attempts whose preemption a survivor reported first
    dollars: float = 0.0
    unwatched: bool = False  # for hours a VM had neither an agent nor a supervisor, and nothing could keep to the budget
    events: Counter[str] = field(default_factory=Counter)

    # -- what a supervisor reads and writes ------------------------------------------------------------------------------

    folder = PurePosixPath("W/cloud")
    path = PurePosixPath("W/cloud/job.json")

    def read(self) -> tuple[Job, str] | None:
        assert self.job is not None
        return self.job, str(self.version)

    def replace(self, job: Job, version: str) -> str | None:
        if version != str(self.version):
            return None
        self.job, self.version = job, self.version + 1
        return str(self.version)

    def newest_step(self) -> int:
        return self.newest

    def is_complete(self) -> bool:
        return self.complete

    def heartbeat_versions(self, attempt: int) -> dict[int, int]:
        vm = self._of(attempt)
        return {} if vm is None or vm.beat is None else dict.fromkeys(range(self.workers), int(vm.beat))

    def outcome(self, attempt: int) -> Outcome | None:
        vm = self._of(attempt)
        return None if vm is None else vm.outcome

    def _of(self, attempt: int) -> Vm | None:
        return next((vm for vm in [*self.vms.values(), *self.past] if vm.attempt == attempt), None)

    # -- the provider ----------------------------------------------------------------------------------------------------

    def _hit(self, what: str, share: float = 1.0) -> bool:
        hit = self.chance.random() < self.trouble * share
        self.events[what] += hit
        return hit

    def _between(self) -> None:
        if self._hit("supervisor killed", 0.02):
            raise Killed
        if self._hit("no answer", 0.05):
            raise Unavailable("no answer")
        if self._hit("login refused", 0.02):
            raise CloudRefused("the login has expired")

    def create(self, request: Request) -> str:
        self._between()
        if request.name in self.vms:
            return ""
        assert request.queued or not self.vms, "never two at once"
        if request.zone in self.closed:
            self.events["zone refused"] += 1
            raise Refused("zone", f"Permission denied on 'locations/{request.zone}' (or it may not exist).")
        if self.no_quota[0] <= self.now < self.no_quota[1]:
            self.events["hours without quota"] += 1
            raise Refused("quota", QUOTA)
        if self._hit("quota", 0.1):
            raise Refused("quota", QUOTA)
        vm = Vm(request, int(request.metadata["tpulm-attempt"]))
        wait = self.chance.uniform(0, 20 * 3600) if request.queued and self._hit("waits in the queue") else 0.0
        vm.comes_at = self.now + wait + self.chance.uniform(60, 400)
        if request.queued:
            vm.state = "WAITING_FOR_RESOURCES"
        failures: tuple[tuple[Refusal, str, float], ...] = (
            ("stock-out", "stock-out", 1.0),
            (refusal_of_code(8, RESERVED), RESERVED, 0.3),
            ("preempted", "preempted while it was created", 0.2),
            ("cloud", "internal error", 0.05),
        )
        for kind, what, share in failures:
            if vm.failure is None and self._hit(what, share):
                vm.failure = kind, what
        vm.boots_at = vm.comes_at + self.chance.uniform(30, 200)
        vm.preempted_at = vm.comes_at + self.chance.expovariate(self.trouble / 7200) if self.trouble else float("inf")
        if self._hit("agent dies", 0.05):
            vm.silent_at = vm.boots_at + self.chance.uniform(0, 7200)
        if self._hit("deletion refused for a while", 0.1):
            vm.undeletable_until = self.now + self.chance.uniform(0, 2 * 3600)
        if self._hit("hidden at first", 0.3):
            vm.hidden_until = self.now + self.chance.uniform(0, 100)
        self.vms[request.name] = vm
        self._between()  # the answer may be lost
        return request.name

    def progress(self, operation: str) -> Creation:
        vm = self.vms.get(operation)
        pending = vm is not None and not vm.request.queued and self.now < vm.comes_at
        return Creation(pending, self.failed.get(operation))

    def node_status(self, name: str, zone: str) -> NodeStatus:
        self._between()
        vm = self.vms.get(name)
        if vm is None or self.now < vm.hidden_until:
            return NodeStatus(None)
        refused = Refused(*vm.failure) if vm.failure and vm.state == "FAILED" else None
        return NodeStatus(vm.state, dict(vm.request.labels), self.workers, refused, created_at=vm.comes_at - 60)

    def delete(self, name: str, zone: str) -> str:
        self._between()
        vm = self.vms.get(name)
        if vm is not None and self.now < vm.undeletable_until:
            return "DeleteQueuedResource is not supported when state is PROVISIONING"
        if vm is not None:
            self._end(name)
        self._between()
        return ""

    def boot_progress(self, name: str, zone: str) -> str:
        return ""

    # -- time ------------------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += POLL
            for name in list(self.vms):
                self._live(name, self.vms[name])
            billed = [vm for vm in self.vms.values() if vm.ready_at is not None and vm.gone_at is None]
            self.dollars += sum(PRICES[vm.request.zone] * POLL / 3600 for vm in billed)

    def _end(self, name: str) -> None:
        vm = self.vms.pop(name)
        vm.gone_at = self.now
        self.past.append(vm)

    def _live(self, name: str, vm: Vm) -> None:
        if vm.ready_at is None:
            if self.now < vm.comes_at:
                return
            if vm.failure is not None:
                if vm.request.queued:
                    vm.state = "FAILED"  # and it holds its name
                else:
                    self.failed[name] = Refused(*vm.failure)
                    self._end(name)
                return
            vm.ready_at, vm.state = self.now, "READY"
        if vm.gone_at is not None:
            return
        if self.now >= vm.preempted_at:
            if vm.shown_at is None:
                self._preempt(name, vm)
            elif self.now >= vm.shown_at:
                vm.state, vm.gone_at = "SUSPENDED" if vm.request.queued else "PREEMPTED", self.now
            return
        if self.now >= vm.boots_at and self.now < vm.silent_at:
            self._agent(name, vm)

    def _preempt(self, name: str, vm: Vm) -> None:
        """With notice, in which it saves, or without; of several hosts one tells of it before the API."""
        self.events["preempted"] += 1
        node = self.job.node if self.job else None
        trains = node is not None and node.attempt == vm.attempt and node.ending is None and vm.outcome is None
        trains = trains and vm.step > 0 and self.now < vm.silent_at
        if trains and self._hit("preempted with notice"):
            self.newest = max(self.newest, int(vm.step))
        if self._hit("vanished", 0.5):
            self._end(name)
            return
        vm.shown_at = self.now
        if trains and self.workers > 1 and self._hit("peer lost", 2.0):
            vm.outcome, vm.shown_at = Outcome(1, "PeerLost", "host 3 was lost"), self.now + self.chance.uniform(0, 60)
            self.lost.add(vm.attempt)

    def _agent(self, name: str, vm: Vm) -> None:
        """As agent.py does: it trains while its attempt counts, and deletes its own VM in the end."""
        assert self.job is not None and vm.ready_at is not None
        node = self.job.node
        counts = node is not None and node.attempt == vm.attempt and node.ending is None
        vm.valid_until = min(vm.valid_until, float(vm.request.metadata["tpulm-valid-until"]))
        if counts and self.job.budget is not None:
            left = self.job.budget - sum(attempt.dollars for attempt in self.job.attempts)
            for spare in self.job.spare:
                seconds = max(0.0, vm.boots_at - (spare.ready_at or vm.boots_at)) + SPARE_SECONDS
                left -= PRICES[spare.zone] * seconds / 3600
            vm.valid_until = min(vm.valid_until, vm.boots_at + left / PRICES[vm.request.zone] * 3600 - 2 * GRACE_SECONDS)
        waits = any(spare.attempt == vm.attempt and spare.ending is None for spare in self.job.spare)
        if vm.outcome is None and counts and vm.idle_since is None:
            self._train(vm, node)
            if self.now > vm.valid_until and vm.stopping_at is None:
                vm.stopping_at = self.now
        elif waits and vm.idle_since is None and self.now < vm.boots_at + SPARE_WAIT_SECONDS:
            vm.beat = self.now
        elif vm.idle_since is None:
            vm.idle_since, vm.unneeded = self.now, vm.outcome is None
        patience = UNNEEDED_SECONDS if vm.unneeded else SELF_DELETE_SECONDS
        is_idle = vm.idle_since is not None and self.now > vm.idle_since + patience
        over = vm.stopping_at is not None and self.now > vm.stopping_at + GRACE_SECONDS
        if over or self.now > vm.valid_until + GRACE_SECONDS or is_idle:
            self.events["deleted itself"] += 1
            self._end(name)

    def _train(self, vm: Vm, node: Any) -> None:
        if vm.step == 0.0 and self._hit("chip busy", 0.1):  # marin issue 4783
            vm.outcome = Outcome(1, "DeviceError", "TPU initialization failed: open(/dev/vfio/0): Device or resource busy")
        if vm.step == 0.0 and self._hit("download fails again and again", 0.03):  # uv issue 1912
            vm.outcome = Outcome(1, None, "cannot prepare the VM: request or response body error: operation timed out")
        if vm.outcome is not None:
            return
        if vm.step < self.newest:
            vm.step = self.newest
        hung = self.hang_at is not None and vm.step + POLL / STEP_SECONDS >= self.hang_at
        vm.beat = self.now
        if hung:
            if self.now > vm.boots_at + 3600:
                self.events["hang"] += 1
                vm.outcome = Outcome(1, "Hung", f"no step after {int(vm.step)}", int(vm.step))
                if self.chance.random() < 0.7:
                    self.hang_at = None  # it was that machine's
            return
        vm.step += POLL / STEP_SECONDS
        if vm.step - self.newest >= CHECKPOINT_STEPS:
            self.newest = int(vm.step)
        if self._hit("trainer dies", 0.001):
            vm.outcome = Outcome(-9, None, "")
        elif self._hit("chips fail", 0.001):  # jax issue 9642
            vm.outcome = Outcome(1, "JaxRuntimeError", "INTERNAL: Core halted unexpectedly", int(vm.step))
        elif self.newest and self._hit("permission refused in passing", 0.001):  # gcsfs issue 316
            vm.outcome = Outcome(4, "StorageRefused", "Anonymous caller does not have storage.objects.get access")
        if vm.outcome is not None:
            return
        if node.asked_to_stop is not None or vm.stopping_at is not None or (self.job and self.job.wanted != "running"):
            self.newest, vm.outcome = int(vm.step), Outcome(75, None, "saved and stopped")
        elif vm.step >= self.steps:
            self.newest, self.complete, vm.outcome = self.steps, True, Outcome(0, None, "")


def live(seed: int) -> tuple[World, Job, float | None]:
    """From the launch to the end, whatever happens."""
    chance = random.Random(seed)
    budget = chance.choice([None, 20.0, 60.0])
    queued = chance.random() < 0.4
    trouble, steps = chance.choice([0.0, 0.1, 0.3, 0.7]), chance.choice([2_000, 20_000])
    deadline = chance.choice([None, 48.0, 400.0]) if trouble < 0.7 else 400.0
    settings = SETTINGS.model_copy(update={"zones": ZONES, "queued": queued, "budget": budget, "deadline_hours": deadline})
    world = World(chance, trouble, steps)
    if world.trouble and chance.random() < 0.3:
        world.closed = frozenset(chance.sample(ZONES, chance.randint(1, 3)))
    if world.trouble and chance.random() < 0.3:
        world.hang_at = chance.randrange(world.steps)
    world.workers = chance.choice([1, 4])
    if world.trouble and chance.random() < 0.3:
        begin = world.now + chance.uniform(0, 20 * 3600)
        world.no_quota = (begin, begin + chance.uniform(1, 6) * 3600)
    world.job = job_of(queued=queued, zones=ZONES, prices=PRICES, budget=budget, created_at=world.now)

    saved = ""  # the supervisors' memory

    def supervisor() -> Supervisor:
        """On any machine: it knows what the last one saved, by JSON."""
        return Supervisor(
            world,  # type: ignore[arg-type]
            world,
            replace(policy_of(settings, world.read()[0]), attempts_without_progress=5),  # type: ignore[index]
            lambda job, node: request_for(
                job, node, settings, workdir=PurePosixPath("gs://runs/toy"), bundle_path="gs://runs/bundle.tar.gz"
            ),
            clock=lambda: world.now,
            memory=SupervisorState.model_validate_json(saved or "{}"),
        )

    pass_seconds = chance.choice([None, None, 60.0, 300.0])  # between passes, each all there is of a supervisor; None: it loops
    begun, current, wants_stop = world.now, supervisor(), chance.random() < 0.1
    while world.now < begun + 2 * MONTH:
        try:
            job, action = current.step()
        except Killed:
            away = chance.choice([0.0, 300.0, 6 * 3600.0])
            world.unwatched |= any(vm.silent_at < world.now + away for vm in world.vms.values()) and away > 300
            world.pass_time(away)
            current = supervisor()
            continue
        except (Unavailable, CloudRefused):
            world.pass_time(pass_seconds or POLL)
            current = supervisor() if pass_seconds else current
            continue
        except TpulmError:  # somebody, or the next pass, goes on later
            world.events["gave up deleting"] += 1
            world.pass_time(pass_seconds or 3600.0)
            saved = current.memory.of(world.job).model_dump_json()
            current = supervisor()
            continue
        if action is Do.FINISHED:
            return world, job, budget
        if wants_stop and world.now > begun + 1800 and job.wanted == "running":
            world.replace(job.model_copy(update={"wanted": "stopped"}), str(world.version))
            wants_stop = False
        waits = isinstance(action, Wait) or action is Do.DELETE
        world.pass_time((pass_seconds or POLL) if waits else 0.0)
        if pass_seconds and waits:
            world.events["passes"] += 1
            saved = current.memory.of(job).model_dump_json()
            current = supervisor()
    raise AssertionError(f"seed {seed}: not over after two months, after {world.job.attempt} attempts: {world.job.node}")


def test_nothing_bills_at_the_end_and_the_budget_holds():
    statuses, events = Counter[str](), Counter[str]()
    for seed in range(LIVES):
        world, job, budget = live(seed)
        about = seed, job.status, job.message, job.nodes, job.attempts[-3:], world.dollars, job.dollars(world.now), budget
        assert world.vms == {}, about  # neither a VM nor its agent, nor a husk that holds quota
        assert sorted(attempt.number for attempt in job.attempts) == list(range(1, job.attempt + 1))
        assert job.nodes == () and job.status != "active", about
        assert not any(attempt.ending in FAULTS for attempt in job.attempts if attempt.number in world.lost), about
        assert not any("reserved" in why for why in job.closed.values()), (seed, job.closed)
        has_run = any(attempt.ready_at is not None for attempt in job.attempts)
        assert not (has_run and job.status == "refused" and "Quota" in job.message), about
        if budget is not None and not world.unwatched:
            assert world.dollars <= budget + POLL / 3600 * max(PRICES.values()) + 1e-6, about  # of a sum of many
        if world.trouble == 0.0 and budget is None:
            assert job.status in ("done", "stopped"), about
        statuses[job.status] += 1
        events.update(world.events)
        events["unwatched"] += world.unwatched
        events["attempts"] += len(job.attempts)
        events["endings: " + ", ".join(sorted({attempt.ending for attempt in job.attempts}))] += 1
    assert statuses["done"] > LIVES / 4
    assert LIVES < 40 or all(events.values()), [kind for kind, count in events.items() if not count]
    assert LIVES < 40 or {"zone refused", "hang", "preempted", "deleted itself", "hours without quota"} <= events.keys()
    print(f"\n{LIVES} lives: {dict(statuses)}")
    print("\n".join(f"{count:8,}  {kind}" for kind, count in events.most_common()))
