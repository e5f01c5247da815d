"""The loop that keeps a run alive, against a small cloud: killed anywhere, it never creates twice and leaves nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpulm.cloud.control import Control
from tpulm.cloud.decide import Policy, Rest
from tpulm.cloud.job import Job, Node, reopened
from tpulm.cloud.provider import LABEL, Creation, Refused, Request, Resource, Sight
from tpulm.cloud.supervise import Supervisor
from tpulm.errors import StorageError


class Killed(BaseException):
    """What a kill -9 is here: nothing of the supervisor runs after it."""


@dataclass
class Cloud:
    """One zone's nodes; `kill_at` counts down over everything that a supervisor does there or in the bucket."""

    nodes: dict[str, str] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    kill_at: int | None = None
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

    def look(self, name: str, zone: str) -> Sight:
        if self._mortal():
            raise Killed
        return Sight(self.nodes.get(name), self.labels.get(name, {}))

    def delete(self, name: str, zone: str) -> None:
        dies = self._mortal()
        if dies and self.before:
            raise Killed
        self.nodes.pop(name, None)
        if dies:
            raise Killed

    def resources(self, zone: str) -> Iterable[Resource]:
        return [Resource("node", name, zone, state, self.labels[name], "v3-8") for name, state in self.nodes.items()]


@dataclass
class Run:
    """A run of three checkpoints; each round in which a node is READY makes one."""

    control: Control
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
        newest_step=lambda: run.checkpoint,
        complete=lambda: run.checkpoint >= 3,
        clock=lambda: run.now,
        pause_seconds=0.0,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    job = {"run": "reviews", "accelerator": "v3-8", "spot": True, "zones": ("a",), "dollars_per_hour": 2.0, "created_at": 1e9}
    control = Control(tmp_path)
    control.folder.mkdir()  # type: ignore[attr-defined]
    assert control.create(Job.model_validate(job)) and not control.create(Job.model_validate(job))
    return Run(control, Cloud())


def to_the_end(run: Run) -> Job:
    for _ in range(100):
        job, action = supervisor(run).step()  # a new one each time: nothing may live in its memory
        if isinstance(action, Rest):
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


def test_three_attempts_without_a_checkpoint_end_the_run(run: Run):
    while (found := run.control.read()) is not None and not found[0].is_over:
        run.cloud.nodes = dict.fromkeys(run.cloud.nodes, "PREEMPTED")
        supervisor(run).step()
        run.now += 600.0
    assert found is not None and found[0].status == "failed"
    assert run.cloud.created == ["reviews-a1", "reviews-a2", "reviews-a3"] and run.cloud.nodes == {}


def test_a_refusal_is_recorded_and_ends_the_run(run: Run):
    run.cloud.refusals.append(Refused("quota", "Quota limit 'TPUS_PER_PROJECT' has been exceeded. Limit: 0 in region r."))
    job = to_the_end(run)
    assert (job.status, run.cloud.created) == ("refused", [])
    assert "Limit: 0" in job.message
    run.control.change(reopened)
    assert to_the_end(run).status == "done"


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

    with storage.held(run.control.folder), pytest.raises(StorageError, match="is watched over already"):
        supervisor(run).run()


def test_the_loop_ends_with_the_run(run: Run):
    run.cloud.nodes, loop = {}, supervisor(run)
    told: list[str] = []

    def newest() -> int:
        run.go_on()
        return run.checkpoint

    job = dataclasses.replace(loop, newest_step=newest, tell=told.append).run()
    assert job.status == "done"
    assert told[0].startswith("creating reviews-a1, a spot v3-8, in a") and told[-1] == "reviews-a1 is gone"


def test_a_job_of_another_format_is_told(run: Run):
    Path(run.control.path).write_text('{"format": 1, "run": "x", "colour": "blue"}')
    with pytest.raises(StorageError, match=r"job.json is not a job of format 1"):
        run.control.read()
