"""Faults of nodes and of requests, injected."""

from __future__ import annotations

import google.api_core.exceptions as refusals
import pytest
import requests
from rig import Rig

from cloud_emulator.errors import EmulatorError
from waiting import until

LASTING = """#!/bin/bash
trap '{}' TERM
echo up
while true; do sleep 0.05; done
"""
POLITE, DEAF = LASTING.format("echo goodbye; exit 0"), LASTING.format("")


@pytest.mark.parametrize(("script", "grace_seconds", "last"), [(POLITE, 60, "goodbye"), (DEAF, 0.3, "up")])
def test_a_preemption_with_notice(rig: Rig, script: str, grace_seconds: float, last: str):
    rig.create(script=script)
    rig.said("up")
    machine = rig.tpu.machine("run-a1")
    rig.tpu.preempt("run-a1", grace_seconds)
    assert machine.metadata.get("instance/preempted") == "TRUE" and rig.state() == "READY"
    until(lambda: rig.state() == "PREEMPTED")
    assert last in rig.tpu.console("run-a1") and not machine.processes()
    assert [event.what for event in rig.tpu.history()][-2:] == ["notified", "preempted"]
    with pytest.raises(EmulatorError, match="PREEMPTED"):
        rig.tpu.kill("run-a1")


def test_a_preemption_without_notice_and_a_node_that_vanishes(rig: Rig):
    rig.create(script=POLITE)
    rig.said("up")
    rig.tpu.kill("run-a1")
    assert rig.state() == "PREEMPTED" and "goodbye" not in rig.tpu.console("run-a1")
    rig.create("run-a2", spot=False)
    machine = rig.tpu.machine("run-a2")
    rig.tpu.set_state("run-a2", "UNKNOWN")
    assert rig.state("run-a2") == "UNKNOWN"
    with pytest.raises(EmulatorError, match="'LOST'"):
        rig.tpu.set_state("run-a2", "LOST")
    rig.tpu.kill("run-a2")
    assert rig.state("run-a2") == "TERMINATED"
    rig.tpu.vanish("run-a2")
    with pytest.raises(refusals.NotFound):
        rig.get("run-a2")
    assert not machine.folder.exists()


def test_workers_that_boot_late_die_and_freeze(rig: Rig):
    late = {"late_seconds": 600, "late_worker": 1}
    assert requests.post(f"{rig.emulator.url}/_control/tpu/set", json=late, timeout=20).ok
    rig.create(kind="v5litepod-16", zone="us-west4-a", script=POLITE)
    machines = [rig.tpu.machine("run-a1", worker) for worker in range(4)]
    assert [machine.is_on for machine in machines] == [True, False, True, True]
    rig.tpu.advance(601)
    until(lambda: all("up" in machine.console() for machine in machines))
    rig.tpu.kill_worker("run-a1", 2)
    assert [bool(machine.processes()) for machine in machines] == [True, True, False, True]
    rig.tpu.freeze("run-a1", 3)
    assert all(_process_state(process) == "T" for process in machines[3].processes())
    rig.tpu.thaw("run-a1", 3)
    assert any(_process_state(process) != "T" for process in machines[3].processes())
    assert rig.tpu.nodes() == {"run-a1": "READY"}
    with pytest.raises(EmulatorError, match="worker 4"):
        rig.tpu.kill_worker("run-a1", 4)
    rig.tpu.freeze("run-a1", 0)
    rig.tpu.kill("run-a1")
    assert not any(machine.processes() for machine in machines)


def _process_state(process: int) -> str:
    with open(f"/proc/{process}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(") ")[2][0]


def test_maintenance_runs_the_startup_script_again(rig: Rig):
    rig.create(script="#!/bin/bash\necho x >> $HOME/boots; echo boot $(wc -l < $HOME/boots); sleep 1000")
    rig.said("boot 1")
    rig.tpu.maintenance("run-a1")
    assert rig.tpu.machine("run-a1").metadata.get("instance/maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE"
    assert rig.get().health.name == "UNHEALTHY_MAINTENANCE"
    rig.tpu.repair("run-a1", seconds=60, state="RESTARTING")
    assert rig.state() == "RESTARTING" and not rig.tpu.machine("run-a1").processes()
    rig.tpu.advance(61)
    assert rig.state() == "READY" and rig.tpu.machine("run-a1").metadata.get("instance/maintenance-event") == "NONE"
    rig.said("boot 2")


def test_orders_over_http(rig: Rig):
    rig.create()
    control = f"{rig.emulator.url}/_control/tpu"
    done = requests.post(f"{control}/kill", json={"node": "run-a1"}, timeout=20)
    assert done.json()["nodes"] == {"run-a1": "PREEMPTED"}
    requests.post(f"{control}/set", json={"create_seconds": 500}, timeout=20)
    rig.begin("run-a2")
    requests.post(f"{control}/advance", json={"seconds": 501}, timeout=20)
    assert requests.get(f"{control}/status", timeout=20).json()["nodes"]["run-a2"] == "READY"
    assert [event["what"] for event in requests.get(f"{control}/history", timeout=20).json()][:2] == ["created", "ready"]
    assert requests.get(f"{control}/console/run-a2/0", timeout=20).text == ""
    requests.post(f"{control}/faults", json={"error_rate": 1}, timeout=20)
    assert requests.get(f"{rig.emulator.url}/v2/{rig.place}/nodes", timeout=20).status_code == 503
    assert rig.emulator.faults.injected == {}, "Cloud Storage has its own"
    requests.delete(f"{control}/faults", timeout=20)
    for action, arguments, message in [
        ("kil", {}, "Did you mean 'kill'"),
        ("kill", {"node": "run-b"}, "there is no node 'run-b'"),
        ("kill", {"name": "run-a2"}, "node: Missing required argument; name: Unexpected keyword"),
        ("advance", {"seconds": "soon"}, "seconds: Input should be a valid number"),
        ("set", {"create_second": 1}, "Did you mean 'create_seconds'"),
        ("set", {"create_seconds": -1}, "greater than or equal to 0"),
        ("set_quota", {"accelerator": "v3-9", "limit": 1}, "Did you mean 'v3-8'"),
    ]:
        refused = requests.post(f"{control}/{action}", json=arguments, timeout=20)
        assert refused.status_code in (400, 404) and message in refused.json()["error"]["message"]
