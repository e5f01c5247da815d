"""The loop that keeps a run alive, against a small cloud: killed anywhere, it never creates twice and leaves nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cloud_rig import job_of, request_of

from cloud_emulator.recorded import answer
from tpulm import storage
from tpulm.cloud.control import Control
from tpulm.cloud.decide import Do, Outcome, Policy
from tpulm.cloud.job import Ending, Job, Node, intended, with_node
from tpulm.cloud.provider import LABEL, Creation, NodeStatus, Refused, Request
from tpulm.cloud.supervise import Supervisor
from tpulm.errors import CloudRefused, StorageError, TpulmError, Unavailable


class Killed(BaseException):
    """What a kill -9 is here: nothing of the supervisor runs after it."""


@dataclass
class Cloud:
    """One zone's nodes; `kill_at` counts down over everything that a supervisor does there or in the bucket."""

    nodes: dict[str, str] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    kill_at: int | None = None
    refuses_deletions: bool = False
    trouble: list[Exception] = field(default_factory=list)  # raised by the next looks
    before: bool = True  # whether the kill comes before the effect or after it

    @contextlib.contextmanager
    def _mortal(self) -> Iterator[None]:
        """Around an effect, before or after which the supervisor is killed when its turn has come."""
        dies = self.kill_at == 0
        self.kill_at = None if self.kill_at is None else self.kill_at - 1
        if dies and self.before:
            raise Killed
        yield
        if dies:
            raise Killed

    def create(self, request: Request) -> str:
        with self._mortal():
            if self.refusals:
                raise self.refusals.pop(0)
            assert not self.nodes, "never two at once"
            self.nodes[request.name] = "CREATING"
            self.created.append(request.name)
        return f"operation of {request.name}"

    def progress(self, operation: str) -> Creation:
        return Creation()

    def node_status(self, name: str, zone: str) -> NodeStatus:
        with self._mortal():
            if self.trouble:
                raise self.trouble.pop(0)
        return NodeStatus(self.nodes.get(name), {LABEL: "reviews"})

    def delete(self, name: str, zone: str) -> str:
        with self._mortal():
            if self.refuses_deletions:
                return "DeleteQueuedResource is not supported when state is PROVISIONING"
            self.nodes.pop(name, None)
        return ""

    def boot_progress(self, name: str, zone: str) -> str:
        return "installing"


class Run(Control):
    """A run of three checkpoints; each round in which a node is READY makes one. `looks` is called when they are looked for."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        Path(str(self.folder)).mkdir()
        self.cloud, self.checkpoint, self.now = Cloud(), 0, 1e9
        self.looks: Callable[[], object] = lambda: None
        job = job_of(run="reviews", zones=("a",), project="p", prices={"a": 2.0}, created_at=1e9)
        assert self.create(job) and not self.create(job)

    def newest_step(self) -> int:
        self.looks()
        return self.checkpoint

    def is_complete(self) -> bool:
        return self.checkpoint >= 3

    def go_on(self) -> None:
        self.now += 30.0
        node = self.job().node
        if node is None or node.name not in self.cloud.nodes:
            return
        if self.cloud.nodes[node.name] == "CREATING":
            self.cloud.nodes[node.name] = "READY"
            return
        self.checkpoint = min(3, self.checkpoint + 1)
        folder = self.attempt(node.attempt)
        storage.write_json(folder / "beat-0.json", {"time": self.now, "state": "training"})
        if self.is_complete():
            storage.write_json(folder / "end-0.json", {"exit_code": 0, "failure": None, "message": ""})


def supervisor(run: Run) -> Supervisor:
    def request(job: Job, node: Node) -> Request:
        return request_of(node.name, zone=node.zone)

    return Supervisor(run, run.cloud, Policy(), request, clock=lambda: run.now, pause_seconds=0.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


# -- objects that VMs write ---------------------------------------------------------------------------------------------


def test_what_a_vm_wrote_and_cannot_be_read(run: Run):
    """A heartbeat that says nothing is one all the same, and an end nobody's fault."""
    garbage = [b"", b'{"time": 17', b"[]", b"{}", b'{"time": "soon"}', b"\xff\xfe", b"null"]
    for content in (*garbage, b'{"exit_code": null}', b'{"exit_code": 1, "failure": ["x"]}', b'{"exit_code": true}'):
        for name in ("beat-0.json", "beat-x.json", "beat-1.json.tmp", "beat--1.json", "end-0.json", "end-x.json"):
            storage.write_atomic(run.attempt(1) / name, content)
        assert run.heartbeats(1) == [] and set(run.heartbeat_versions(1)) == {0}
        assert run.outcome(1) == Outcome(1, None, "the VM's report of its end cannot be read"), content


def test_what_somebody_changed_while_it_looked_stays(run: Run):
    """Such as the wish to stop, of 'tpulm cloud stop'."""
    run.looks = lambda: run.change(lambda job: job.model_copy(update={"wanted": "stopped"}))
    changed, _ = supervisor(run).step()
    assert changed.wanted == "running" and changed.node is not None
    assert run.job().wanted == "stopped" and run.job().node is None


def test_silence_is_measured_by_one_clock(run: Run):
    """Whatever the VMs' clocks say."""
    loop, silence = supervisor(run), []
    job = with_node(intended(run.job(), now=1000.0), requested=True, state="READY")
    for now, beat in ((1000.0, 8200.0), (1050.0, None), (1100.0, -6000.0), (1130.0, None)):
        if beat is not None:
            storage.write_json(run.attempt(1) / "beat-0.json", {"time": beat})
        silence.append(loop.observe(job, now).silence)
    assert silence == [(0.0,), (50.0,), (0.0,), (30.0,)]


def to_the_end(run: Run) -> Job:
    for _ in range(100):
        job, action = supervisor(run).step()  # a new one each time: nothing may live in its memory
        if action is Do.FINISHED:
            return job
        run.go_on()
    pytest.fail("no end")


def is_one_attempt(run: Run, job: Job) -> bool:
    return (job.status, job.attempt, run.cloud.created, run.cloud.nodes) == ("done", 1, ["reviews-a1"], {})


@pytest.mark.parametrize(("at", "before"), list(itertools.product(range(9), [True, False])))
def test_killed_at_every_call_and_restarted(run: Run, at: int, before: bool):
    run.cloud.kill_at, run.cloud.before = at, before
    with pytest.raises(Killed):
        to_the_end(run)
    run.cloud.kill_at = None
    assert is_one_attempt(run, to_the_end(run))


def test_every_write_may_be_lost(run: Run, monkeypatch: pytest.MonkeyPatch):
    """Another's change of the job in between, such as a wish to stop, makes a write fail."""
    calls = itertools.count()
    write = Control.replace

    def replace(control: Control, job: Job, version: str) -> str | None:
        return write(control, job, version) if next(calls) % 2 else None

    monkeypatch.setattr(Control, "replace", replace)
    assert is_one_attempt(run, to_the_end(run))


def test_a_permission_that_was_there_before_is_waited_for(run: Run):
    while run.checkpoint < 1:
        supervisor(run).step()
        run.go_on()
    run.cloud.nodes.clear()
    run.cloud.refusals += [Refused("denied", answer("iam")["http"]["body"]["error"]["message"])]
    with pytest.raises(CloudRefused, match="denied on"):
        to_the_end(run)
    assert to_the_end(run).status == "done"


def test_what_cannot_be_deleted_is_named_and_stays_recorded(run: Run):
    run.cloud.refuses_deletions = True
    loop = supervisor(run)
    told: list[str] = []
    run.looks = run.go_on
    with pytest.raises(TpulmError) as raised:
        dataclasses.replace(loop, log=told.append).run()
    assert "gcloud compute tpus tpu-vm delete reviews-a1 --zone=a --project=p" in str(raised.value)
    assert raised.value.exit_code == 1 and "could not be deleted" in str(raised.value)
    assert any("cannot be deleted yet" in line and "PROVISIONING" in line for line in told)
    job = run.job()
    assert job.node is not None and (job.node.name, job.node.ending) == ("reviews-a1", "done")
    run.cloud.refuses_deletions = False
    assert to_the_end(run).status == "done"


@pytest.mark.parametrize("ending", ["withdrawn", None])
def test_a_spare_nodes_zone_that_does_not_answer_delays_nothing_elsewhere(
    run: Run, monkeypatch: pytest.MonkeyPatch, ending: Ending | None
):
    """Given up, or still in a queue: the node that works is replaced, and the other one stays recorded until it is seen."""
    look = run.cloud.node_status

    def node_status(name: str, zone: str) -> NodeStatus:
        if zone == "b":
            raise Unavailable("503")
        return look(name, zone)

    monkeypatch.setattr(run.cloud, "node_status", node_status)
    zones = {"zones": ("a", "b"), "queued": True, "attempt": 2}
    spare = Node(name="reviews-a2", zone="b", attempt=2, intended_at=1e9, requested=True, ending=ending)
    node = Node(name="reviews-a1", zone="a", attempt=1, intended_at=1e9, requested=True, state="READY")
    run.change(lambda job: job.model_copy(update={**zones, "node": node, "spare": (spare,)}))
    loop = supervisor(run)
    with pytest.raises(Unavailable):
        for _ in range(20):
            loop.step()
    job = run.job()
    assert [attempt.ending for attempt in job.attempts] == ["lost"] and spare in job.nodes


@pytest.mark.parametrize(("at", "patience", "ends_well"), [(1, 3600.0, True), (1, 90.0, False), (0, 3600.0, False)])
def test_a_login_that_ends(run: Run, at: int, patience: float, ends_well: bool):
    """In the middle it is waited for; after that, what still bills is named with the command. At first it is an error."""
    over, told = [CloudRefused("the login has expired (invalid_rapt)")] * 6, list[str]()

    def look() -> None:
        if run.checkpoint == at:
            run.cloud.trouble += over
            over.clear()
        run.go_on()

    def clock() -> float:
        run.now += 20.0
        return run.now

    run.looks = look
    loop = dataclasses.replace(supervisor(run), log=told.append, clock=clock, policy=Policy(login_patience=patience))
    if ends_well:
        assert loop.run().status == "done" and sum("invalid_rapt" in line for line in told) == 1  # told once
    else:
        with pytest.raises(CloudRefused, match="invalid_rapt") as raised:
            loop.run()
        assert "gcloud compute tpus tpu-vm delete reviews-a1" in str(raised.value) and len(run.cloud.created) == at


# -- passes: each is all there is of a supervisor, and knows what the last one saved ------------------------------------


def pause(run: Run, seconds: float, *, clock: float = 0.0) -> None:
    """Until the next pass, on a machine whose clock is `clock` seconds ahead of that of the last one."""
    run.now += seconds + clock
    path = Path(str(run.memory_file))
    if path.exists():
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))


def passes(run: Run, *, go_on: Callable[[], None], most: int = 50) -> Job:
    for _ in range(most):
        if supervisor(run).run_once().is_over:
            break
        go_on()
    return run.job()


def test_passes_take_a_run_to_its_end(run: Run):
    Path(str(run.memory_file)).write_text("{")  # a damaged one is none
    job = passes(run, go_on=run.go_on)
    assert is_one_attempt(run, job)
    assert supervisor(run).run_once() == job, "nothing more to do"


@pytest.mark.parametrize("clock", [0.0, 3600.0, -3600.0])
def test_passes_notice_a_worker_that_is_silent_whatever_their_clocks(run: Run, clock: float):
    def beat(time: float) -> None:
        pause(run, 60.0, clock=clock)
        run.cloud.nodes = dict.fromkeys(run.cloud.nodes, "READY")
        storage.write_json(run.attempt(1) / "beat-0.json", {"time": time, "state": "training", "step": int(time)})

    beats = itertools.count()
    assert passes(run, go_on=lambda: beat(next(beats)), most=6).attempts == ()
    for expected in ([], [], [], ["silent"]):  # the last heartbeat is first seen, and missed after 180 seconds
        job = supervisor(run).run_once()
        assert [attempt.ending for attempt in job.attempts] + [node.ending for node in job.nodes if node.ending] == expected
        pause(run, 61.0, clock=clock)


@pytest.mark.parametrize("text", ['{"format": 1, "run": "x", "colour": "blue"}', '{"format": 3, "run": "x"}'])
def test_a_job_of_another_format_is_told(run: Run, text: str):
    Path(run.path).write_text(text)
    with pytest.raises(StorageError, match=r"job\.json"):
        run.read()
