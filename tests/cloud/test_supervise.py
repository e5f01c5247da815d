"""The loop that keeps a run alive, against a small cloud: killed anywhere, it never creates twice and leaves nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloud_emulator.recorded import answer
from tpulm.cloud.control import Control
from tpulm.cloud.decide import Finished, Policy, RecordEnd
from tpulm.cloud.job import Job, Node, reopened
from tpulm.cloud.provider import LABEL, Creation, NodeStatus, Refused, Request, Resource
from tpulm.cloud.supervise import Supervisor
from tpulm.errors import CloudRefused, StorageError, TpulmError


class Killed(BaseException):
    """What a kill -9 is here: nothing of the supervisor runs after it."""


@dataclass
class Cloud:
    """One zone's nodes; `kill_at` counts down over everything that a supervisor does there or in the bucket."""

    nodes: dict[str, str] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    hidden_looks: int = 0  # which see nothing
    kill_at: int | None = None
    refused_deletions: int = 0
    trouble: list[Exception] = field(default_factory=list)  # raised by the next looks
    before: bool = True  # whether the kill comes before the effect or after it

    def _mortal(self) -> bool:
        if self.kill_at is None:
            return False
        self.kill_at -= 1
        return self.kill_at < 0

    def create(self, request: Request) -> str:
        dies = self._mortal()
        if dies and self.before:
            raise Killed
        if self.refusals:
            raise self.refusals.pop(0)
        assert not self.nodes, "never two at once"
        if request.name not in self.nodes:
            self.nodes[request.name], self.labels[request.name] = "CREATING", dict(request.labels)
            self.created.append(request.name)
        if dies:
            raise Killed
        return f"operation of {request.name}"

    def progress(self, operation: str) -> Creation:
        return Creation()

    def look(self, name: str, zone: str) -> NodeStatus:
        if self._mortal():
            raise Killed
        if self.trouble:
            raise self.trouble.pop(0)
        if name in self.nodes and self.hidden_looks:
            self.hidden_looks -= 1
            return NodeStatus(None)
        return NodeStatus(self.nodes.get(name), self.labels.get(name, {}))

    def delete(self, name: str, zone: str) -> str:
        dies = self._mortal()
        if dies and self.before:
            raise Killed
        if self.refused_deletions:
            self.refused_deletions -= 1
            return "DeleteQueuedResource is not supported when state is PROVISIONING"
        self.nodes.pop(name, None)
        if dies:
            raise Killed
        return ""

    def boot_progress(self, name: str, zone: str) -> str:
        return "installing"

    def resources(self, zone: str) -> Iterable[Resource]:
        return [Resource("node", name, zone, state, self.labels[name], "v3-8") for name, state in self.nodes.items()]


class RunControl(Control):
    """Of a run whose checkpoints are counted; `looks` is called when they are looked for."""

    run: Run
    looks: Callable[[], object] = staticmethod(lambda: None)

    def newest_step(self) -> int:
        self.looks()
        return self.run.checkpoint

    def is_complete(self) -> bool:
        return self.run.checkpoint >= 3


@dataclass
class Run:
    """A run of three checkpoints; each round in which a node is READY makes one."""

    control: RunControl
    cloud: Cloud
    checkpoint: int = 0
    now: float = 1e9

    def go_on(self) -> None:
        self.now += 30.0
        found = self.control.read()
        node = None if found is None else found[0].node
        if node is None or node.name not in self.cloud.nodes:
            return
        if self.cloud.nodes[node.name] == "CREATING":
            self.cloud.nodes[node.name] = "READY"
            return
        self.checkpoint = min(3, self.checkpoint + 1)
        folder = self.control.attempt(node.attempt)
        folder.mkdir(parents=True, exist_ok=True)  # type: ignore[attr-defined]
        beat = {"time": self.now, "state": "training"}
        (Path(folder) / "beat-0.json").write_text(json.dumps(beat))
        if self.checkpoint >= 3:
            (Path(folder) / "end-0.json").write_text(json.dumps({"exit_code": 0, "failure": None, "message": ""}))


def supervisor(run: Run) -> Supervisor:
    def request(job: Job, node: Node) -> Request:
        return Request(
            name=node.name,
            zone=node.zone,
            accelerator=job.accelerator,
            runtime_version="tpu-ubuntu2204-base",
            spot=job.spot,
            queued=False,
            valid_seconds=60.0,
            service_account=None,
            labels={LABEL: job.run},
            metadata={},
        )

    return Supervisor(
        run.control,
        run.cloud,
        Policy(),
        request,
        clock=lambda: run.now,
        pause_seconds=0.0,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    job = {"run": "reviews", "accelerator": "v3-8", "spot": True, "zones": ("a",), "project": "p", "prices": {"a": 2.0}}
    job["created_at"] = 1e9
    control = RunControl(tmp_path)
    control.folder.mkdir()  # type: ignore[attr-defined]
    assert control.create(Job.model_validate(job)) and not control.create(Job.model_validate(job))
    control.run = Run(control, Cloud())
    return control.run


def to_the_end(run: Run) -> Job:
    for _ in range(100):
        job, action = supervisor(run).step()  # a new one each time: nothing may live in its memory
        if isinstance(action, Finished):
            return job
        run.go_on()
    pytest.fail("no end")


def test_a_run_without_trouble_is_one_attempt(run: Run):
    job = to_the_end(run)
    assert (job.status, job.attempt, run.cloud.created, run.cloud.nodes) == ("done", 1, ["reviews-a1"], {})
    assert [attempt.ending for attempt in job.attempts] == ["done"]


@pytest.mark.parametrize(("at", "before"), list(itertools.product(range(9), [True, False])))
def test_killed_at_every_call_and_restarted(run: Run, at: int, before: bool):
    run.cloud.kill_at, run.cloud.before = at, before
    with pytest.raises(Killed):
        to_the_end(run)
    run.cloud.kill_at = None
    job = to_the_end(run)
    assert (job.status, job.attempt, run.cloud.created, run.cloud.nodes) == ("done", 1, ["reviews-a1"], {})


def test_every_write_may_be_lost(run: Run, monkeypatch: pytest.MonkeyPatch):
    """Another's change of the job in between, such as a wish to stop, makes a write fail."""
    calls = itertools.count()
    write = Control.replace

    def replace(control: Control, job: Job, version: str) -> str | None:
        return write(control, job, version) if next(calls) % 2 else None

    monkeypatch.setattr(Control, "replace", replace)
    job = to_the_end(run)
    assert (job.status, job.attempt, run.cloud.created, run.cloud.nodes) == ("done", 1, ["reviews-a1"], {})


def test_a_node_that_is_not_seen_at_first_is_not_made_twice(run: Run):
    run.cloud.hidden_looks = 3
    job = to_the_end(run)
    assert (job.status, job.attempt, run.cloud.created, run.cloud.nodes) == ("done", 1, ["reviews-a1"], {})


def test_a_preempted_node_is_deleted_before_another_is_made(run: Run):
    for state in ("PREEMPTED", None):
        while "READY" not in run.cloud.nodes.values():
            supervisor(run).step()
            run.go_on()
        run.checkpoint += 1
        (name,) = run.cloud.nodes
        if state is None:
            del run.cloud.nodes[name]
        else:
            run.cloud.nodes[name] = state
        supervisor(run).step()
    job = to_the_end(run)
    assert job.status == "done" and run.cloud.nodes == {}
    assert [attempt.ending for attempt in job.attempts] == ["preempted", "lost", "done"]
    assert [(attempt.first_step, attempt.last_step) for attempt in job.attempts] == [(0, 1), (1, 2), (2, 3)]


def test_preemptions_before_the_first_checkpoint_are_not_counted(run: Run):
    """Only money and time bound them; the pauses grow, and the run goes on where a node is left to work."""
    pauses = []
    while len(run.cloud.created) < 8:
        run.cloud.nodes = dict.fromkeys(run.cloud.nodes, "PREEMPTED")
        job, action = supervisor(run).step()
        if isinstance(action, RecordEnd):
            pauses.append(action.pause)
        run.now = max(run.now, job.not_before) + 1.0
    assert pauses == [0, 60, 120, 240, 480, 960, 1800]
    run.now += 1800.0
    assert (to_the_end(run).status, run.cloud.nodes) == ("done", {})


def test_three_trainers_that_crash_end_the_run(run: Run):
    while (found := run.control.read()) is not None and not found[0].is_over:
        for name in run.cloud.nodes:
            run.cloud.nodes[name] = "READY"
            folder = Path(str(run.control.attempt(int(name[-1]))))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "end-0.json").write_text(json.dumps({"exit_code": -9, "failure": None, "message": ""}))
        supervisor(run).step()
        run.now += 600.0
    assert found is not None and found[0].status == "failed"
    assert run.cloud.created == ["reviews-a1", "reviews-a2", "reviews-a3"] and run.cloud.nodes == {}


def test_a_refusal_is_recorded_and_ends_the_run(run: Run):
    run.cloud.refusals.append(Refused("denied", "Permission 'tpu.nodes.create' denied on 'projects/p/locations/a/nodes/n'"))
    job = to_the_end(run)
    assert (job.status, run.cloud.created) == ("refused", [])
    assert "tpu.nodes.create" in job.message
    run.control.change(reopened)
    assert to_the_end(run).status == "done"


def test_a_quota_that_is_full_is_waited_for_and_then_named(run: Run):
    def quota() -> Refused:
        return Refused("quota", answer("quota")["http"]["body"]["error"]["message"])

    run.cloud.refusals += [quota(), quota()]
    assert to_the_end(run).status == "done" and run.cloud.created == ["reviews-a3"]
    run.control.change(lambda job: reopened(job.model_copy(update={"created_at": run.now})))
    run.checkpoint, run.cloud.refusals = 0, [quota() for _ in range(20)]
    begun = run.now
    while not (job := supervisor(run).step()[0]).is_over:
        run.now += 30.0
    assert job.status == "refused" and "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI" in job.message
    assert 3600 <= run.now - begun <= 3600 + 1800 + 60


def test_a_permission_that_was_there_before_is_waited_for(run: Run):
    while run.checkpoint < 1:
        supervisor(run).step()
        run.go_on()
    run.cloud.nodes.clear()
    run.cloud.refusals += [Refused("denied", answer("iam")["http"]["body"]["error"]["message"])]
    with pytest.raises(CloudRefused, match="denied on"):
        to_the_end(run)
    assert to_the_end(run).status == "done"


def test_a_deletion_that_is_refused_is_tried_until_it_is_not(run: Run):
    run.cloud.refused_deletions = 5
    job = to_the_end(run)
    assert (job.status, run.cloud.nodes) == ("done", {})


def test_what_cannot_be_deleted_is_named_and_stays_recorded(run: Run):
    run.cloud.refused_deletions = 1000
    loop = supervisor(run)
    told: list[str] = []
    run.control.looks = run.go_on
    with pytest.raises(TpulmError) as raised:
        dataclasses.replace(loop, log=told.append).run()
    assert "gcloud compute tpus tpu-vm delete reviews-a1 --zone=a --project=p" in str(raised.value)
    assert raised.value.exit_code == 1 and "could not be deleted for" in str(raised.value)
    assert any("cannot be deleted yet" in line and "PROVISIONING" in line for line in told)
    job = run.control.job()
    assert job.node is not None and (job.node.name, job.node.ending) == ("reviews-a1", "done")
    run.cloud.refused_deletions = 0
    assert to_the_end(run).status == "done"


@pytest.mark.parametrize("patience", [3600.0, 90.0])
def test_a_login_that_ends_in_the_middle(run: Run, patience: float):
    """It is waited for, with a line that says what to do; after that what still bills is named with the command."""
    loop = supervisor(run)
    told: list[str] = []

    def looks() -> None:
        if run.checkpoint == 1 and not over:
            over.append(True)
            text = answer("session-over", "credentials")["http"]["body"]["error_description"]
            run.cloud.trouble += [CloudRefused(f"the login has expired or was revoked ({text})")] * 6
        run.go_on()

    over: list[bool] = []
    run.control.looks = looks

    def clock() -> float:
        run.now += 20.0
        return run.now

    loop = dataclasses.replace(loop, log=told.append, clock=clock, policy=Policy(login_patience=patience))
    if patience > 1000:
        assert loop.run().status == "done"
        assert any("gcloud auth" in line and "invalid_rapt" in line for line in told)
    else:
        with pytest.raises(CloudRefused, match=r"may be there, and bill[^~]*gcloud compute tpus tpu-vm delete reviews-a1"):
            loop.run()


def test_a_login_that_never_worked_is_an_error_at_once(run: Run):
    run.cloud.trouble.append(CloudRefused("the login has expired"))
    with pytest.raises(CloudRefused, match="the login has expired"):
        supervisor(run).run()
    assert run.cloud.created == []


@pytest.mark.parametrize("stage", ["dataset", "evaluate", "export"])
def test_a_stage_without_steps_is_no_hang(run: Run, stage: str):
    """The worker says that it trains from the first stage to the last."""
    job = beating(run, rounds=400, step=None, stage=stage)
    assert (job.attempt, job.attempts) == (1, ())
    assert beating(run, step=40, stage="train").attempts[0].ending == "hung"


def beating(run: Run, *, rounds: int = 2000, **beat: object) -> Job:
    """After so many minutes of the same heartbeat, or when the run is over."""
    loop, job = supervisor(run), run.control.job()
    for _ in range(rounds):
        job, action = loop.step()
        if isinstance(action, Finished):
            break
        run.now += 60.0
        if job.node is None or job.node.name not in run.cloud.nodes:
            continue
        if run.cloud.nodes[job.node.name] == "CREATING":
            run.cloud.nodes[job.node.name] = "READY"
        folder = Path(str(run.control.attempt(job.node.attempt)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "beat-0.json").write_text(json.dumps({"time": run.now, "state": "training", **beat}))
    return job


def test_another_runs_node_is_left_alone(run: Run):
    run.cloud.nodes["reviews-a1"], run.cloud.labels["reviews-a1"] = "READY", {LABEL: "something-else"}
    for _ in range(6):
        supervisor(run).step()
        found = run.control.read()
        assert found is not None
        if found[0].attempt == 2:
            break
    assert run.cloud.nodes == {"reviews-a1": "READY"}
    del run.cloud.nodes["reviews-a1"]
    assert to_the_end(run).attempts[0].ending == "taken"


def test_a_second_supervisor_yields(run: Run):
    from tpulm import storage

    for supervise in (supervisor(run).run, supervisor(run).run_once):
        with storage.held(run.control.folder), pytest.raises(StorageError, match="supervised already"):
            supervise()


# -- passes: each is all there is of a supervisor, and knows what the last one saved ------------------------------------


def pause(run: Run, seconds: float, *, clock: float = 0.0) -> None:
    """Until the next pass, on a machine whose clock is `clock` seconds ahead of that of the last one."""
    run.now += seconds + clock
    path = Path(str(run.control.memory_file))
    if path.exists():
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))


def passes(run: Run, *, go_on: Callable[[], None], most: int = 50) -> Job:
    for _ in range(most):
        if supervisor(run).run_once().is_over:
            break
        go_on()
    return run.control.job()


def test_passes_take_a_run_to_its_end(run: Run):
    job = passes(run, go_on=run.go_on)
    assert (job.status, job.attempt, run.cloud.created, run.cloud.nodes) == ("done", 1, ["reviews-a1"], {})
    assert supervisor(run).run_once() == job, "nothing more to do"


@pytest.mark.parametrize("clock", [0.0, 3600.0, -3600.0])
def test_passes_notice_a_worker_that_is_silent_whatever_their_clocks(run: Run, clock: float):
    def beat(time: float) -> None:
        pause(run, 60.0, clock=clock)
        run.cloud.nodes = dict.fromkeys(run.cloud.nodes, "READY")
        folder = Path(str(run.control.attempt(1)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "beat-0.json").write_text(json.dumps({"time": time, "state": "training", "step": int(time)}))

    beats = itertools.count()
    assert passes(run, go_on=lambda: beat(next(beats)), most=6).attempts == ()
    for expected in ([], [], [], ["silent"]):  # the last heartbeat is first seen, and missed after 180 seconds
        job = supervisor(run).run_once()
        assert [attempt.ending for attempt in job.attempts] + [node.ending for node in job.nodes if node.ending] == expected
        pause(run, 61.0, clock=clock)


def test_passes_try_again_to_delete_what_could_not_be_deleted(run: Run):
    while run.checkpoint < 3:
        supervisor(run).run_once()
        run.go_on()
    run.cloud.refused_deletions, refused = 45, 0
    for _ in range(70):
        try:
            if supervisor(run).run_once().is_over:
                break
        except TpulmError as error:
            assert "gcloud compute tpus tpu-vm delete reviews-a1" in str(error)
            refused += 1
        pause(run, 61.0)
    assert (refused, run.cloud.nodes, run.control.job().status) == (4, {}, "done")


def test_a_damaged_memory_is_none(run: Run):
    Path(str(run.control.memory_file)).write_text("{")
    assert passes(run, go_on=run.go_on).status == "done"


def test_the_loop_ends_with_the_run(run: Run):
    run.cloud.nodes, loop = {}, supervisor(run)
    told: list[str] = []
    run.control.looks = run.go_on
    job = dataclasses.replace(loop, log=told.append).run()
    assert job.status == "done"
    assert told[0].startswith("creating reviews-a1, a spot v3-8, in a") and told[-1] == "reviews-a1 is gone"


@pytest.mark.parametrize("text", ['{"format": 1, "run": "x", "colour": "blue"}', '{"format": 3, "run": "x"}'])
def test_a_job_of_another_format_is_told(run: Run, text: str):
    Path(run.control.path).write_text(text)
    with pytest.raises(StorageError, match=r"job.json is not a job of format 2"):
        run.control.read()


def test_steps_that_stop_though_heartbeats_come(run: Run):
    """The second line, should the agent itself not find out."""
    job = beating(run, step=40)
    assert [attempt.ending for attempt in job.attempts] == ["hung", "failed"]
    assert job.status == "failed" and "hung twice after step 40" in job.message
    assert all(5400 < attempt.ended_at - attempt.intended_at < 6000 for attempt in job.attempts)
