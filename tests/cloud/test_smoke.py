"""`tpulm cloud smoke` against the emulator: as Google answers, and as the emulator once did."""

from __future__ import annotations

import threading
import time

import pytest

from tpulm import storage
from tpulm.cloud import setup, smoke
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.launch import offered
from tpulm.cloud.provider import Request, Sight
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


class Contrary(TpuApi):
    """One that hides, refuses or breaks off something; `asked` are the deletions."""

    def __init__(self, hidden_seconds: float = 0.0, breaks: bool = False, knows_types: bool = True):
        super().__init__(PROJECT)
        self.hidden_seconds, self.breaks, self.knows_types = hidden_seconds, breaks, knows_types
        self.created: dict[str, float] = {}
        self.asked: list[tuple[str, str]] = []

    def types(self, zone: str) -> set[str]:
        if self.knows_types:
            return super().types(zone)
        return set() if zone == "us-west1-c" else {"v5litepod-1"}  # it is offered there, too

    def create(self, request: Request) -> str:
        assert request.metadata["startup-script"], "whatever comes up can delete itself"
        self.created[request.name] = time.monotonic()
        return super().create(request)

    def look(self, name: str, zone: str) -> Sight:
        early = time.monotonic() - self.created.get(name, -1e9) < self.hidden_seconds
        return Sight(None) if early else super().look(name, zone)

    def delete(self, name: str, zone: str) -> str:
        self.asked.append((name, zone))
        if self.breaks and name.endswith("-q"):
            raise KeyboardInterrupt
        return super().delete(name, zone)


def smoked(emulator: Emulator, api: TpuApi, **options: object) -> tuple[dict[str, smoke.Line], smoke.Smoke]:
    settings = load(project=PROJECT, accelerator="v5litepod-1", bucket="runs", budget=2.0, zones=("us-central1-a",))
    setup.apply(setup.steps(settings))
    lines: dict[str, smoke.Line] = {}
    tell = lambda line: lines.update({line.what: line})  # noqa: E731
    return lines, smoke.Smoke(settings, api, GoogleRest(PROJECT), tell, 0.1, appear_seconds=3.0, **options)  # type: ignore[arg-type]


def test_a_zone_that_should_refuse_and_does_not_leaves_nothing(emulator: Emulator):
    lines, made = smoked(emulator, api := Contrary(knows_types=False))
    made.run()
    assert lines["refusal of a zone"].ok is False and lines["nothing left"].ok
    assert {zone for _, zone in api.asked} == {"us-west1-c", "us-central1-a"}
    assert (emulator.tpu.nodes(), emulator.tpu.queued_resources()) == ({}, {})


def test_what_cannot_be_seen_at_first_is_deleted_nevertheless(emulator: Emulator):
    lines, made = smoked(emulator, Contrary(hidden_seconds=2.0))
    emulator.tpu.set(create_seconds=1.0)
    made.run()
    assert lines["nothing left"].ok
    assert (emulator.tpu.nodes(), emulator.tpu.queued_resources()) == ({}, {})


def test_breaking_off_tells_what_may_be_left(emulator: Emulator):
    lines, made = smoked(emulator, Contrary(breaks=True))
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert lines["nothing left"].ok is False
    command = f"queued-resources delete {made.name}-q --zone=us-central1-a --project={PROJECT} --force --quiet"
    assert command in lines["nothing left"].found
    assert made.spent > 0


def test_a_vm_that_never_boots_is_deleted_before_the_next_line(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(smoke, "LONGEST_SECONDS", 5.0)
    monkeypatch.setattr(smoke, "LEAST_SECONDS", 1.0)
    info = storage.info
    monkeypatch.setattr(storage, "info", lambda path: None if path.name == "facts.json" else info(path))
    lines, made = smoked(emulator, api := Contrary())
    asked_before: list[bool] = []
    queued = made._queued

    def look_then_queue(*arguments: object) -> smoke.Line:
        asked_before.append((made.name, "us-central1-a") in api.asked)
        return queued(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(made, "_queued", look_then_queue)
    made.run()
    assert lines["boot"].ok is False and asked_before == [True]


def test_a_transcript_hides_numbers_addresses_and_networks():
    said = "123456789 of lab-net, 2001:db8::8a2e:370:7334, fe80::1, 1:2:3:4:5:6:7:8"
    assert smoke.hidden(said, {"lab-net": "NETWORK"}) == "NUMBER of NETWORK, ADDRESS, ADDRESS, ADDRESS"
    harmless = "at 12:34:56 2026-11-23T10:00:00Z 12345678 bytes"
    assert smoke.hidden(harmless, {}) == harmless


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
