"""`tpulm cloud smoke` against the emulator: as Google is expected to answer, and otherwise."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cloud_emulator import Emulator, MachineSettings
from cloud_emulator.machines import Machine
from tpulm import storage
from tpulm.cloud import bundle, setup, smoke
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.launch import offered
from tpulm.cloud.provider import NodeStatus, Refused, Request
from tpulm.cloud.settings import CloudSettings, load
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, ConfigError

PROJECT = "tpulm-emulator"
ZONES = ("us-central1-a", "us-west4-a")


@pytest.fixture
def machines() -> MachineSettings:
    return MachineSettings(environment={"TPULM_LOOK_SECONDS": "0.2", "TPULM_BOOT_SECONDS": "5"})


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle, which is the same in all tests, without uv: nothing is installed."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "uv").touch()
    with patch.object(bundle, "fetch_uv", lambda _: folder / "uv"):
        return bundle.build(folder)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, packed: Path, gcs: Emulator) -> Emulator:
    monkeypatch.setattr(bundle, "build", lambda folder, **options: Path(shutil.copy(packed, folder)))
    gcs.tpu.set(create_seconds=0.5, delete_seconds=0.1)
    return gcs


Made = tuple[smoke.Smoke, dict[str, smoke.SmokeCheck]]


def smoke_of(settings: CloudSettings, api: TpuApi, **options: Any) -> Made:
    """In a project that is set up, with what will be its lines."""
    setup.apply(setup.steps(setup.examine(settings)))
    lines: dict[str, smoke.SmokeCheck] = {}
    tell = lambda line: lines.update({line.what: line})  # noqa: E731
    return smoke.Smoke(settings, api, GoogleRest(PROJECT), tell, **options), lines


def run_of(quick: Emulator, **options: object) -> Made:
    api = TpuApi(PROJECT)
    settings = load(project=PROJECT, accelerator="v5litepod-1", bucket="runs", **{"budget": 2.0, **options})
    made, lines = smoke_of(offered(settings, api), api, pause_seconds=0.2, appear_seconds=0.0)
    made.run()
    assert (quick.tpu.nodes(), quick.tpu.queued_resources()) == ({}, {})
    assert not storage.walk(made.workdir)
    return made, lines


def test_every_line_is_as_google_answers(quick: Emulator):
    made, lines = run_of(quick)
    assert {what: line.found for what, line in lines.items() if line.ok is not True} == {}
    assert list(lines)[:3] == ["price", "quota", "refusal of a zone"] and list(lines)[-1] == "nothing left"
    assert 0 < made.spent < 0.1
    text = smoke.transcript(list(lines.values()), made, about="tpulm")
    assert "ok  self-deletion: the node was gone" in text and "VM" in text
    for secret in (PROJECT, made.name, "123456789012", "gserviceaccount", "EID: 0x"):
        assert secret not in text
    assert "metadata: name: t1v-n-X-w-0, which is not the node's" in text


@pytest.mark.slow
def test_each_other_answer_fails_its_line(quick: Emulator):
    quick.tpu.answer_next("quota")
    quick.tpu.answer_next("not-found", count=None, requests="GET guest attributes")
    quick.tpu.set(tenant_project=False, force_in_provisioning=True)
    _, lines = run_of(quick)
    wrong = {what for what, line in lines.items() if line.ok is not True}
    assert wrong == {"refusal of a zone", "metadata: project", "guest attributes", "deleting in PROVISIONING"}, lines


class Contrary(TpuApi):
    """Whose answers are not those that were expected; `taken` says of each creation what else was there, and when."""

    def __init__(self, emulator: Emulator, **contrary: object):
        super().__init__(PROJECT)
        self.emulator, self.clock = emulator, emulator.tpu.clock.now
        self.unlisted: object = contrary.pop("unlisted", None)  # a zone that has the type all the same
        self.lost: object = contrary.pop("lost", None)  # a zone that creates what it refuses
        self.hidden: Any = contrary.pop("hidden", (0.0, 0.0))  # seconds after its creation between which a node is not shown
        self.refusal: object = contrary.pop("refusal", None)  # of a deletion in PROVISIONING
        self.wanted: list[Request] = []
        self.taken: dict[str, tuple[float, set[str]]] = {}

    def types(self, zone: str) -> set[str]:
        if self.unlisted is None:
            return super().types(zone)
        return set() if zone == self.unlisted else {"v5litepod-1"}

    def create(self, request: Request) -> str:
        self.wanted.append(request)
        operation = super().create(request)
        self.taken[request.name] = self.clock(), {*self.emulator.tpu.nodes()} - {request.name}
        if request.zone == self.lost:
            raise Refused("quota", "Quota limit 'TPUV5sLitepodServing' has been exceeded.")
        return operation

    def node_status(self, name: str, zone: str) -> NodeStatus:
        first, last = self.hidden
        age = self.clock() - self.taken.get(name, (0.0, ""))[0]
        return NodeStatus(None) if first <= age < last else super().node_status(name, zone)

    def delete(self, name: str, zone: str) -> str:
        if isinstance(self.refusal, BaseException) and name.endswith("-q"):
            refusal = self.refusal
            self.refusal = refusal if isinstance(refusal, KeyboardInterrupt) else None
            raise refusal
        return super().delete(name, zone)


Contraried = Callable[..., Made]


@pytest.fixture
def contraried(quick: Emulator, monkeypatch: pytest.MonkeyPatch) -> Contraried:
    """By the emulator's clock, at a dollar an hour, in v5e's first two zones, where no VM boots."""
    monkeypatch.setattr(Machine, "boot", lambda machine, script: None)
    quick.tpu.set(create_seconds=20, delete_seconds=20)
    settings = load(project=PROJECT, accelerator="v5litepod-1", bucket="runs", zones=ZONES, dollars_per_hour=1.0, budget=0.5)
    return partial(smoke_of, settings, pause_seconds=20, clock=quick.tpu.clock.now, wait=quick.tpu.advance)


def test_a_vm_that_never_boots_is_gone_before_the_next_is_asked_for(quick: Emulator, contraried: Contraried):
    """And so is one that a zone gave which does not list the type."""
    made, lines = contraried(api := Contrary(quick, unlisted="us-west1-c"))
    made.run()
    assert (lines["refusal of a zone"].ok, lines["boot"].ok, lines["nothing left"].ok) == (False, False, True)
    assert (quick.tpu.nodes(), quick.tpu.queued_resources()) == ({}, {})
    assert [request.zone for request in api.wanted] == ["us-west1-c", ZONES[0], ZONES[0]]
    for request in api.wanted:
        assert request.metadata["startup-script"] == bundle.boot_script() and "/o/" in request.metadata["tpulm-bundle"]
    queued = api.wanted[-1]
    (begun, before), (asked, others) = api.taken[made.name], api.taken[queued.name]
    assert queued.queued and before == others == set(), "one at a time"
    assert asked - begun > 800, "its half of the budget"
    ends = float(queued.metadata["tpulm-valid-until"])
    assert ends == float(queued.labels["tpulm-until"]) and queued.valid_seconds == pytest.approx(ends - asked, abs=5)
    assert ends - begun < 1801, "what the budget buys in all"
    assert 800 / 3600 < made.spent <= 0.5


def test_a_node_that_came_of_a_refused_request(quick: Emulator, contraried: Contraried):
    """The deletion of the queued resource is refused, too, in other words than expected."""
    made, lines = contraried(api := Contrary(quick, lost=ZONES[0], refusal=CloudRefused("the TPU API refused: not now")))
    made.run()
    assert lines["creation"].found.endswith(ZONES[1]) and lines["nothing left"].ok
    assert lines["deleting in PROVISIONING"].found == "the TPU API refused: not now"
    assert [request.zone for request in api.wanted][1:] == [ZONES[0], ZONES[1], ZONES[1]]
    assert (quick.tpu.nodes(), quick.tpu.queued_resources()) == ({}, {})


@pytest.mark.parametrize("hidden", [(0, 60), (15, 80)], ids=["not yet", "for a while"])
def test_a_node_that_is_not_shown(quick: Emulator, contraried: Contraried, hidden: tuple[float, float]):
    quick.tpu.set(create_seconds=300)
    api, waits = Contrary(quick, hidden=hidden), itertools.count()

    def wait(seconds: float) -> None:
        quick.tpu.advance(seconds)
        if next(waits) == 0:
            raise KeyboardInterrupt

    made, lines = contraried(api, wait=wait)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert lines["nothing left"].ok and quick.tpu.nodes() == {}
    lived = quick.tpu.clock.now() - api.taken[made.name][0]
    assert lived >= 90 and 0 < made.spent <= lived / 3600


def test_interrupted_cleaning_tells_what_may_be_left(quick: Emulator, contraried: Contraried):
    made, lines = contraried(Contrary(quick, refusal=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        made.run()
    left = lines["nothing left"]
    where = f"--zone={ZONES[0]} --project={PROJECT}"
    command = f"gcloud compute tpus queued-resources delete {made.name}-q {where} --force"
    assert left.ok is False and command in left.found and f"gcloud storage rm --recursive {made.workdir}" in left.found
    assert f"delete {made.name} " not in left.found
    assert storage.walk(made.workdir), "the VM needs its bundle to delete itself"


def test_a_transcript_without_ids():
    network, subnetwork = "projects/host-1/global/networks/lab-net", "lab"
    settings = load(project=PROJECT, accelerator="v5litepod-1", bucket="runs", network=network, subnetwork=subnetwork)
    made = smoke.Smoke(settings, TpuApi(PROJECT), GoogleRest(PROJECT), print)
    for said, shown in (
        ("project 123456789, n1234567890_x", "project NUMBER, nNUMBER_x"),
        ("CONSUMER_PROJECT_NUMBER: '1234'\\nUID: '5'", "CONSUMER_PROJECT_NUMBER: '…'\\nUID: '…'"),
        ("2001:DB8::8a2e:7334, fe80::, ::1/128, 1:2:3:4:5:6:7:8", "ADDRESS, ADDRESS, ADDRESS/128, ADDRESS"),
        ("unknown:unknown:fd20::5, [fd20::6]:8470", "unknown:unknown:ADDRESS, [ADDRESS]:8470"),
        ("projects/host-1/global/networks/lab-net, 'lab-net'", "projects/PROJECT/global/networks/NETWORK, 'NETWORK'"),
        ("regions/us-west1/subnetworks/lab", "regions/us-west1/subnetworks/SUBNETWORK"),
        *((said, said) for said in ("20261123, 2026-11-23T10:00:00.123456789Z, at 12:34:56", "1234567890 bytes")),
        *((said, said) for said in ("std::string, a label", "service-accounts/default")),
    ):
        line = smoke.SmokeCheck("said", None, said)
        assert smoke.transcript([line], made, about="").splitlines()[2] == f"?   said: {shown}"


def test_a_budget_that_buys_too_little(quick: Emulator):
    with pytest.raises(ConfigError, match=r"--budget \$0\.01"):
        run_of(quick, budget=0.01)
    assert quick.tpu.nodes() == {}
