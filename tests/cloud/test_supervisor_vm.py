"""A supervisor on a VM of its own: it outlives whoever launched the run, its own end, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from vm_rig import WORKDIR, ZONES, Cloud, agents, until

from cloud_emulator import Emulator, MachineSettings
from tpulm import storage
from tpulm.cli.app import app
from tpulm.cloud import bundle, setup, supervisor_vm
from tpulm.cloud.compute import ComputeApi
from tpulm.cloud.control import Control
from tpulm.cloud.job import Job
from tpulm.cloud.settings import CloudSettings, load
from tpulm.errors import CloudRefused, InUse, TpulmError

PROJECT = "tpulm-emulator"
W = ("--workdir", str(WORKDIR))


@pytest.fixture
def compute() -> ComputeApi:
    return ComputeApi(PROJECT, poll_seconds=0.02)


@pytest.fixture
def cloud(gcs: Emulator, tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud(gcs, tmp_path)
    yield made
    made.end()


@pytest.fixture
def machines() -> MachineSettings:
    environment = {"TPULM_LOOK_SECONDS": "0.2", "TPULM_SELF_DELETE_SECONDS": "60", "TPULM_BOOT_SECONDS": "5"}
    return MachineSettings(environment=environment)


def launched(cloud: Cloud, compute: ComputeApi, plan: dict[str, Any] | None = None, **options: Any) -> supervisor_vm.Vm:
    cloud.launch(plan, supervise="cloud", **options)
    return supervisor_vm.start(WORKDIR, cloud.settings, compute=compute)


def job() -> Job:
    return Control(WORKDIR).job()


def watched(compute: ComputeApi) -> supervisor_vm.Watch:
    found = supervisor_vm.watch(Control(WORKDIR), compute)
    assert found is not None
    return found


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cloud", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())  # however wide the terminal is


def test_a_run_goes_on_and_ends_with_nobody_here(cloud: Cloud, compute: ComputeApi) -> None:
    vm = launched(cloud, compute)
    assert cloud.gcs.compute.instances() == {vm.name: "RUNNING"}
    until(lambda: job().is_over, 120)
    assert (job().status, [attempt.ending for attempt in job().attempts]) == ("done", ["done"])
    until(lambda: not cloud.gcs.compute.instances())
    assert (cloud.tpu.nodes(), agents(cloud.gcs.url)) == ({}, [])
    log = storage.read_text(supervisor_vm.log_path(Control(WORKDIR)))
    assert "creating toy" in log or "creating bert-tiny" in log
    assert "the run is over: this VM deletes itself" in log
    found = watched(compute)
    assert (found.state, found.does) == (None, "over")
    assert found.dollars is not None and 0.0 < found.dollars < 0.01


def test_a_supervisor_that_is_killed_is_started_again(cloud: Cloud, compute: ComputeApi) -> None:
    vm = launched(cloud, compute, {"seconds": 2.0})
    until(lambda: watched(compute).holds_lease, 60)
    cloud.node()
    first = _beat()["process"]
    os.kill(first, signal.SIGKILL)
    until(lambda: _beat()["process"] not in (None, first) and watched(compute).holds_lease, 60)
    (keeper,) = [number for number in agents(cloud.gcs.url) if _runs(number, "supervise.py")]
    second = _beat()["process"]
    os.kill(keeper, signal.SIGKILL)
    until(lambda: _beat()["process"] not in (None, second), 60)
    assert not Path(f"/proc/{second}").exists(), "one supervisor at a time"
    assert cloud.gcs.compute.instances() == {vm.name: "RUNNING"}
    until(lambda: job().is_over, 120)
    assert (job().status, len(job().attempts)) == ("done", 1)
    until(lambda: not cloud.gcs.compute.instances() and not cloud.tpu.nodes())


def _beat() -> dict[str, Any]:
    return json.loads(storage.read_bytes(Control(WORKDIR).folder / "supervisor" / "beat.json"))


def _runs(number: int, program: str) -> bool:
    return program.encode() in Path(f"/proc/{number}/cmdline").read_bytes()


def test_what_a_supervisor_says_is_shown_and_taken_over_when_its_vm_is_gone(cloud: Cloud, compute: ComputeApi) -> None:
    vm = launched(cloud, compute, {"seconds": 3.0})
    assert "is to supervise, and is" in supervisor_vm.in_words(watched(compute))
    until(lambda: watched(compute).holds_lease, 60)
    cloud.node()
    code, said = run("status", *W, "--json")
    assert (code, f"the VM {vm.name} in {vm.zone} (RUNNING) supervises" in said) == (0, True), said
    until(lambda: "creating" in run("logs", *W, "--supervisor")[1])
    cloud.gcs.compute.vanish(vm.name)
    until(lambda: storage.holder(Control(WORKDIR).folder) is None)
    code, said = run("status", *W)
    assert (code, "nothing supervises this run" in said) == (0, True)
    assert "(gone) does not supervise" in said
    assert supervisor_vm.follow(Control(WORKDIR), compute, write=lambda content: None, tell=cloud.told.append) is None
    ended = cloud.begin()
    until(lambda: storage.holder(Control(WORKDIR).folder) is not None)
    with pytest.raises(InUse, match="is watched over already"):
        run("attach", *W)  # somebody else does by now, and the VM's old log says nothing of that
    assert ended().status == "done"


def test_stop_ends_the_run_and_its_supervisor(cloud: Cloud, compute: ComputeApi) -> None:
    launched(cloud, compute, {"seconds": 1.0})
    until(lambda: watched(compute).holds_lease, 60)
    cloud.node()
    code, said = run("audit", "--json", "--project", PROJECT)
    found = {item["kind"]: item for item in json.loads(said[said.index('{"') :])["findings"]}
    assert (code, found["supervisor VM"]["verdict"], found["supervisor VM"]["dollars_per_hour"]) == (0, "live", 0.0084)
    assert run("stop", *W)[0] == 0
    assert (job().status, cloud.tpu.nodes(), cloud.gcs.compute.instances()) == ("stopped", {}, {})
    assert "e2-micro" in run("cost", *W)[1]


def test_down_and_audit_end_a_vm_that_nobody_needs(cloud: Cloud, compute: ComputeApi) -> None:
    """Whose supervisor does nothing: it has no startup script."""
    cloud.launch(supervise="cloud")
    until(lambda: not agents(cloud.gcs.url))
    vm = supervisor_vm.Vm("supervisor-x", "us-central1-b", PROJECT, "e2-micro", time.time())
    idle = supervisor_vm.body(vm, job(), cloud.settings, WORKDIR, "gs://runs/none")
    idle["metadata"]["items"] = [item for item in idle["metadata"]["items"] if item["key"] != "startup-script"]
    compute.insert("us-central1-b", idle)
    assert run("audit", "--project", PROJECT)[0] == 0, "its run goes on"
    with pytest.raises(TpulmError, match=r"there still is supervisor-x in us-central1-b \(RUNNING\)"):
        run("down", *W, "--yes")
    code, said = run("audit", "--project", PROJECT)
    assert (code, "ORPHAN supervisor-x in us-central1-b" in said) == (1, True)
    assert run("audit", "--delete", "--yes", "--project", PROJECT)[0] == 0
    assert cloud.gcs.compute.instances() == {}
    assert run("down", *W, "--yes")[0] == 0
    cloud.tpu.deny("compute.instances.list")
    code, said = run("audit", "--project", PROJECT)
    assert (code, "Required 'compute.instances.list' permission" in said) == (4, True)


def test_compute_engine_deletes_a_vm_whose_time_is_up(cloud: Cloud, compute: ComputeApi) -> None:
    cloud.tpu.stock_out(ZONES[0])
    cloud.tpu.stock_out(ZONES[1])
    vm = launched(cloud, compute, deadline_hours=1.0)
    found = compute.find(vm.name, vm.zone)
    assert found is not None and found.ends_at is not None
    assert 7100 < found.ends_at - vm.created_at < 7300, "an hour more than the run may take"
    cloud.tpu.advance(7400)
    assert cloud.gcs.compute.instances() == {}
    assert watched(compute).state is None


def test_a_vm_that_cannot_get_its_bundle_deletes_itself(cloud: Cloud, compute: ComputeApi) -> None:
    cloud.launch(supervise="cloud")
    storage.remove(Control(WORKDIR).folder / "bundles")
    supervisor_vm.start(WORKDIR, cloud.settings, compute=compute)
    until(lambda: not cloud.gcs.compute.instances())


def test_another_zone_is_taken_where_there_is_no_room(cloud: Cloud, compute: ComputeApi) -> None:
    cloud.launch(supervise="cloud", zones=("us-central1-b",))
    cloud.gcs.compute.answer_next("stock-out", "us-central1-b")
    assert supervisor_vm.start(WORKDIR, cloud.settings, compute=compute).zone == "us-central1-a", "of the same region"
    cloud.gcs.compute.vanish(next(iter(cloud.gcs.compute.instances())))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("quota", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."),
        ("quota-in-operation", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."),
        ("stock-out", "does not have enough resources available"),
        ("account-denied", "does not have access to service account"),
        ("permission", "Required 'compute.instances.create' permission"),
        ("api-off", "Compute Engine API has not been used in project"),
    ],
)
def test_a_launch_without_a_vm_says_why_and_bills_nothing(cloud: Cloud, compute: ComputeApi, answer: str, words: str) -> None:
    cloud.launch(supervise="cloud")
    cloud.gcs.compute.answer_next(answer, count=20)
    with pytest.raises(CloudRefused, match=r"nothing of it bills\. 'tpulm cloud attach") as refused:
        supervisor_vm.start(WORKDIR, cloud.settings, compute=compute)
    assert words in str(refused.value)
    assert (cloud.tpu.nodes(), cloud.gcs.compute.instances()) == ({}, {})
    assert supervisor_vm.recorded(Control(WORKDIR)) is None


def test_a_lost_answer_makes_no_second_vm(cloud: Cloud, compute: ComputeApi) -> None:
    """The insertion was carried out, and asked for again: Google says that the name is taken."""
    cloud.launch(supervise="cloud")
    insert, asked = compute.insert, []

    def twice(zone: str, body: dict[str, Any]) -> bool:
        asked.append((insert(zone, body), insert(zone, body)))
        return asked[-1][1]

    compute.insert = twice  # type: ignore[method-assign]
    vm = supervisor_vm.start(WORKDIR, cloud.settings, compute=compute)
    assert (asked, list(cloud.gcs.compute.instances())) == ([(True, False)], [vm.name])
    cloud.gcs.compute.vanish(vm.name)


def settings_of(**options: Any) -> CloudSettings:
    return load(project=PROJECT, accelerator="v3-8", bucket="runs", zones=ZONES, supervise="cloud", **options)


def test_what_is_missing_is_told_before_anything_is_made(gcs: Emulator) -> None:
    settings = settings_of()
    with pytest.raises(CloudRefused, match=r"no account tpulm-supervisor@tpulm-emulator.*tpulm cloud setup --supervise cloud"):
        supervisor_vm.check(settings)
    setup.apply(setup.steps(settings))
    supervisor_vm.check(settings)
    assert setup.steps(settings) == []
    gcs.tpu.deny("compute.instances.create")
    with pytest.raises(CloudRefused, match=r"you lack compute.instances.create on the project"):
        supervisor_vm.check(settings)


def test_the_supervisors_account_gets_what_it_needs(gcs: Emulator) -> None:
    done = [step.what for step in setup.steps(settings_of())]
    email = f"tpulm-supervisor@{PROJECT}.iam.gserviceaccount.com"
    assert done[-6:] == [
        f"make the account {email}",
        "make the role tpulmSupervisor",
        f"grant the supervisor tpulmSupervisor on the project {PROJECT}",
        f"grant the supervisor roles/tpu.admin on the project {PROJECT}",
        "grant the supervisor roles/storage.objectAdmin on gs://runs",
        f"grant the supervisor roles/iam.serviceAccountUser on tpulm-worker@{PROJECT}.iam.gserviceaccount.com",
    ]
    assert not [step for step in setup.steps(load(project=PROJECT, bucket="runs", zones=ZONES)) if "supervisor" in step.what]


GUARD = """
import sys
from importlib.machinery import PathFinder
allowed = set(sys.argv[1].split(",")) | set(sys.stdlib_module_names) | {"tpulm"}
class Guard:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name.split(".")[0] in allowed or "sysconfig" in name else None
sys.meta_path[sys.meta_path.index(PathFinder)] = Guard
sys.argv = ["tpulm", "cloud", "attach", "--here", "--workdir", sys.argv[2]]
from tpulm.cli.app import main
from tpulm.cloud import launch
launch.supervisor.__kwdefaults__["pause_seconds"] = 0.2
try:
    main()
finally:
    status = open("/proc/self/status").read()  # ru_maxrss would count what the parent had
    print("peak of", int(status.split("VmHWM:")[1].split()[0]) // 1024, "MB")
"""


def test_supervising_needs_neither_jax_nor_much_memory(cloud: Cloud) -> None:
    """With nothing but what is installed on the VM: of its 1 GB, the supervisor takes a small part."""
    pins = [line.partition("==")[0] for line in bundle.supervisor_pins()]
    assert {"google-auth", "google-cloud-storage", "pydantic"} <= set(pins)
    assert not {"jax", "jaxlib", "numpy", "tensorstore", "orbax-checkpoint"} & set(pins)
    modules = [name for name, owners in metadata.packages_distributions().items() if set(map(_plain, owners)) & set(pins)]
    cloud.launch()
    done = subprocess.run(
        [sys.executable, "-c", GUARD, ",".join(modules), str(WORKDIR)], capture_output=True, text=True, timeout=200
    )
    assert job().status == "done", done.stderr
    peak = int(done.stdout.split("peak of ")[1].split()[0])
    assert peak < 200, f"{peak} MB"
    cloud.nothing_is_left()


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
