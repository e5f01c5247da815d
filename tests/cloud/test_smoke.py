"""`tpulm cloud smoke` against the emulator: as Google answers, and as the emulator once did."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpulm import storage
from tpulm.cloud import prices, setup, smoke
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.launch import offered
from tpulm.cloud.provider import Request
from tpulm.cloud.settings import load
from tpulm.cloud.tpu_api import TpuApi
from tpulm.emulator import Emulator, MachineSettings, as_it_was
from tpulm.errors import ConfigError

PROJECT = "tpulm-emulator"


def emulated(monkeypatch: pytest.MonkeyPatch, *old: str) -> Iterator[Emulator]:
    machines = MachineSettings(environment={"TPULM_LOOK_SECONDS": "0.2", "TPULM_BOOT_SECONDS": "5"})
    with Emulator(machines=machines, as_it_was=old) as emulator:
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
        emulator.create_bucket("runs")
        emulator.tpu.set(create_seconds=0.5, delete_seconds=0.1)
        yield emulator


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    yield from emulated(monkeypatch)


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
def test_an_old_behaviour_fails_its_line(monkeypatch: pytest.MonkeyPatch, old: str, wrong: str):
    assert old in as_it_was.OLD
    for emulator in emulated(monkeypatch, old):
        lines, _ = lines_of(emulator)
        assert [what for what, line in lines.items() if line.ok is not True] == [wrong], lines


def test_a_budget_that_buys_too_little(emulator: Emulator):
    with pytest.raises(ConfigError, match=r"--budget \$0\.01 buys"):
        lines_of(emulator, budget=0.01)
    assert emulator.tpu.nodes() == {}
