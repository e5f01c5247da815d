"""`tpulm cloud smoke` against the emulator: as Google answers, and as the emulator once did."""

from __future__ import annotations

import threading

import pytest

from tpulm import storage
from tpulm.cloud import setup, smoke
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.launch import offered
from tpulm.cloud.settings import load
from tpulm.cloud.tpu_api import TpuApi
from tpulm.emulator import Emulator, MachineSettings, as_it_was
from tpulm.errors import ConfigError

PROJECT = "tpulm-emulator"


@pytest.fixture
def machines() -> MachineSettings:
    return MachineSettings(environment={"TPULM_LOOK_SECONDS": "0.2", "TPULM_BOOT_SECONDS": "5"})


@pytest.fixture
def old() -> str:
    """The behaviour that the emulator still has."""
    return ""


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch, old: str, request: pytest.FixtureRequest) -> Emulator:
    monkeypatch.setenv(as_it_was.VARIABLE, old)
    found: Emulator = request.getfixturevalue("gcs")
    found.tpu.set(create_seconds=0.5, delete_seconds=0.1)
    return found


def lines_of(emulator: Emulator, **options: object) -> tuple[dict[str, smoke.Line], smoke.Smoke]:
    api = TpuApi(PROJECT)
    settings = load(project=PROJECT, accelerator="v5litepod-1", bucket="runs", **{"budget": 2.0, **options})
    setup.apply(setup.steps(settings))
    lines: dict[str, smoke.Line] = {}
    made = smoke.Smoke(offered(settings, api), api, GoogleRest(PROJECT), lambda line: lines.update({line.what: line}), 0.2)
    made.run()
    assert (emulator.tpu.nodes(), emulator.tpu.queued_resources()) == ({}, {})
    assert not storage.walk(made.workdir)
    return lines, made


def test_every_line_is_as_google_answers(emulator: Emulator):
    lines, made = lines_of(emulator)
    assert {what: line.found for what, line in lines.items() if line.ok is not True} == {}
    assert list(lines)[:3] == ["price", "quota", "refusal of a zone"] and list(lines)[-1] == "nothing left"
    assert 0 < made.spent < 0.1
    text = smoke.transcript(list(lines.values()), made, about="tpulm")
    assert "ok  self-deletion: the node was gone" in text and "VM" in text
    for secret in (PROJECT, made.name, "123456789012", "gserviceaccount", "EID: 0x"):
        assert secret not in text
    assert "metadata: name: t1v-n-X-w-0, which is not the node's" in text


@pytest.mark.parametrize(
    ("old", "wrong"),
    [
        ("prices", "price"),
        ("quota-names", "quota"),
        ("refusals", "refusal of a zone"),
        ("metadata", "metadata: project"),
        ("guest-attributes", "guest attributes"),
        ("deletion", "deleting in PROVISIONING"),
    ],
)
def test_an_old_behaviour_fails_its_line(emulator: Emulator, wrong: str):
    lines, _ = lines_of(emulator)
    assert [what for what, line in lines.items() if line.ok is not True] == [wrong], lines


def test_compute_engine_deletes_a_vm_when_its_time_is_up(emulator: Emulator):
    lines: list[smoke.Line] = []
    api = TpuApi(PROJECT)
    settings = offered(load(project=PROJECT, accelerator="v5litepod-1", bucket="runs", budget=2.0), api)
    made = smoke.Smoke(settings, api, GoogleRest(PROJECT), lines.append, pause_seconds=0.05)
    timer = threading.Timer(4.0, lambda: emulator.tpu.advance(60))
    timer.start()
    line = made._compute_vm("us-central1-a")
    timer.join()
    assert line.ok and line.found.startswith("its end was told, and it was gone")
    assert emulator.compute.instances() == {}


def test_a_budget_that_buys_too_little(emulator: Emulator):
    with pytest.raises(ConfigError, match=r"--budget \$0\.01 buys"):
        lines_of(emulator, budget=0.01)
    assert emulator.tpu.nodes() == {}
