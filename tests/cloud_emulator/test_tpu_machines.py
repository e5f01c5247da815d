"""Machines: what runs on them, what they are told, and that nothing of them is left."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from rig import Rig

from cloud_emulator import Emulator, MachineSettings
from tpulm.runtime.hosts import Membership, membership
from waiting import is_alive, until

HIDING = """#!/bin/bash
env -i setsid sleep 1001 &
(setsid bash -c 'sleep 1002 & sleep 1003' & disown)
nohup sleep 1004 > /dev/null &
python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1005)'
echo up
wait
"""
TENANT = "[a-z][0-9a-f]{16}-tp"
HIDDEN = 6  # at least: the script, and what it started


def alive(processes: set[int]) -> set[int]:
    return set(filter(is_alive, processes))


def test_the_environment_of_a_startup_script(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    rig.create(script="#!/bin/sh\nenv\npwd\necho TPULM'='x; exit 3")
    said = rig.said("exit status 3")
    machine = rig.tpu.machine("run-a1")
    assert f"HOSTNAME={machine.metadata.get('instance/name')}" in said
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert found["HOME"] == str(machine.home) and str(machine.home) in said.splitlines()
    assert found["STORAGE_EMULATOR_HOST"] == rig.emulator.url and found["JAX_PLATFORMS"] == "cpu"
    assert found["CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM"] == f"{rig.emulator.url}/_iam/"
    assert "device_count=1" in found["XLA_FLAGS"] and "PYTEST_CURRENT_TEST" not in found
    assert "NO_GCE_CHECK" not in found and "GOOGLE_CLOUD_PROJECT" not in found and "HTTP_PROXY" not in found
    monkeypatch.setenv("GCE_METADATA_HOST", found["GCE_METADATA_HOST"])
    assert membership() is None, "a single host works alone"


def test_every_worker_knows_the_others(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    rig.create(kind="v5litepod-16", zone="us-west4-a")
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    addresses = [end.ip_address for end in rig.client.get_node(name=f"{rig.at('us-west4-a')}/nodes/run-a1").network_endpoints]
    for worker in range(4):
        monkeypatch.setenv("GCE_METADATA_HOST", f"{addresses[worker]}:8479")
        assert membership() == Membership(f"{addresses[0]}:8476", 4, worker)


def test_googles_credentials_come_from_the_metadata_server(rig: Rig):
    program = """
import google.auth, google.auth.transport.requests, socket
find, asked = socket.getaddrinfo, set()
socket.getaddrinfo = lambda host, *more, **named: asked.add(host) or find(host, *more, **named)
credentials, project = google.auth.default()
credentials.refresh(google.auth.transport.requests.Request())
print(type(credentials).__module__, project, credentials.token, credentials.service_account_email, credentials.universe_domain)
from google.cloud import storage
client = storage.Client()
client.bucket("runs").blob("a").upload_from_string(b"1")
import fsspec
assert fsspec.filesystem("gs").cat("runs/a") == b"1"
print("asked", "others" if any(not host.startswith("127.") for host in asked) else "these alone")
"""
    rig.emulator.create_bucket("runs")
    rig.create(
        script=f"#!/bin/bash\npython3 - <<'END'\n{program}\nEND", service_account={"email": "vm@x.iam.gserviceaccount.com"}
    )
    said = rig.said("asked")
    project = rig.tpu.machine("run-a1").metadata.get("project/project-id")
    assert f"google.auth.compute_engine.credentials {project} emulated vm@x.iam.gserviceaccount.com googleapis.com" in said
    assert "asked these alone" in said


@pytest.mark.parametrize("end", ["delete", "kill", "preempt", "vanish", "stop"])
def test_no_process_is_left(rig: Rig, end: str):
    rig.create(script=HIDING)
    rig.said("up")
    machine = rig.tpu.machine("run-a1")
    until(lambda: len(machine.processes()) >= HIDDEN, machine.processes)
    processes = machine.processes()
    ends: dict[str, Callable[[], object]] = {"delete": rig.delete, "stop": rig.emulator.stop}
    ends |= {"kill": lambda: rig.tpu.kill("run-a1"), "vanish": lambda: rig.tpu.vanish("run-a1")}
    ends |= {"preempt": lambda: rig.tpu.preempt("run-a1", 0.05)}
    ends[end]()
    if end == "preempt":
        until(lambda: rig.state() == "PREEMPTED")
    assert not alive(processes)
    assert machine.folder.exists() == (end in ("kill", "preempt"))


def test_no_process_is_left_when_the_emulator_is_killed(tmp_path: Path):
    program = f"""
import json, sys, time
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from rig import Rig
from cloud_emulator import Emulator
with Emulator() as emulator:
    rig = Rig(emulator)
    for name in ("run-a1", "run-a2"):
        rig.create(name, script={HIDING!r})
    machines = [rig.tpu.machine(name) for name in ("run-a1", "run-a2")]
    while min(len(machine.processes()) for machine in machines) < {HIDDEN} or not all("up" in m.console() for m in machines):
        time.sleep(0.05)
    rig.tpu.freeze("run-a2")
    found = sorted(set().union(*(machine.processes() for machine in machines)))
    print(json.dumps([found, str(machines[0].folder.parent.parent)]), flush=True)
    time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        processes, folder = json.loads(child.stdout.readline())
        assert alive(set(processes)) == set(processes)
        child.send_signal(signal.SIGKILL)
        child.wait()
    until(lambda: not alive(set(processes)), lambda: alive(set(processes)))
    until(lambda: not Path(folder).exists())


def test_another_python_no_internet_and_more_devices(tmp_path: Path):
    other = tmp_path / "python3.10"
    other.write_text('#!/bin/sh\necho "this is Python 3.10: $*"\n')
    other.chmod(0o755)
    settings = MachineSettings(python=other, internet=False, devices=4, environment={"WORD": "extra"})
    with Emulator(project="my-own-project", machines=settings) as emulator:
        rig = Rig(emulator)
        place = "projects/my-own-project/locations/us-central1-a"
        script = (
            f"#!/bin/bash\npython3 -V\nenv\n{sys.executable} -c 'import urllib.request as u; u.urlopen(\"http://example.com\")'"
        )
        rig.client.create_node(parent=place, node_id="run-a1", node=rig.node(script=script))
        until(lambda: rig.tpu.nodes()["run-a1"] == "READY")
        said = rig.said("exit status 1")
        rig.client.transport.close()
    assert "this is Python 3.10: -V" in said and "device_count=4" in said and "WORD=extra" in said
    assert "Connection refused" in said


def test_the_protocol_of_the_metadata_server(rig: Rig):
    rig.create(labels={"run": "x"}, metadata={"word": "mine", "startup-script": "true"})
    root = f"http://{rig.get().network_endpoints[0].ip_address}:8479/computeMetadata/v1"

    def ask(path: str, **parameters: object) -> requests.Response:
        flavor = {"Metadata-Flavor": "Google"}
        return requests.get(f"{root}/{path}", params=parameters, headers=flavor, timeout=20, allow_redirects=False)  # type: ignore[arg-type]

    assert requests.get(f"{root}/instance/id", timeout=20).status_code == 403
    assert ask("instance/zone").text.endswith("/zones/us-central1-a") and ask("instance/id").text.isdecimal()
    assert re.fullmatch("t1v-n-[0-9a-f]{8}-w-0", ask("instance/name").text)
    assert re.fullmatch(TENANT, ask("project/project-id").text)
    assert ask("instance/attributes/accelerator-type").text == "v3-8" and ask("instance/attributes/word").text == "mine"
    assert ask("instance/attributes/none").status_code == 404
    lines = ask("instance/attributes/tpu-env").text.splitlines()
    told = ["ACCELERATOR_TYPE: 'v3-8'", "CONSUMER_PROJECT_ID: 'tpulm-emulator'", "NODE_ID: 'run-a1'", "ZONE: 'us-central1-a'"]
    assert {*told, "WORKER_ID: '0'", "TOPOLOGY: '2x2'", "CHIPS_PER_HOST_BOUNDS: '2,2,1'", "PREEMPTIBLE: 'true'"} <= set(lines)
    assert lines == sorted(lines), "as recorded"
    assert "attributes/" in ask("instance/").text.split() and ask("instance").status_code == 301
    everything = ask("instance/", recursive="true").json()
    assert everything["attributes"]["startup-script"] == "true" and everything["maintenanceEvent"] == "NONE"
    assert "token" not in everything["serviceAccounts"]["default"]


def test_every_slice_has_the_same_ports_to_itself(rig: Rig):
    first, second = (rig.create(name).network_endpoints[0].ip_address for name in ("run-a1", "run-a2"))
    with (
        socket.create_server((first, 8476)),
        socket.create_server((second, 8476)) as server,
        socket.create_connection((second, 8476), timeout=10) as line,
    ):
        accepted, address = server.accept()
        accepted.close()
        assert address == line.getsockname()
