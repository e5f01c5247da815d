"""`tpulm plan` and `devices`: what they print, and what is refused before anything is compiled."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import pytest

from command_line import invoke
from compiled import needs_libtpu

PROMISED = {"accelerator", "devices", "hbm_bytes", "used_bytes", "fits", "model_flops_per_step", "compiled_flops_per_step"}
PROMISED |= {"step_seconds_estimate", "step_seconds_lower_bound", "tokens_per_second", "hours", "compiler"}
PROMISED |= {"cost_on_demand_usd", "cost_spot_usd"}


def test_what_cannot_be_planned():
    for arguments, message in (
        (("bert-base",), "--accelerator"),
        (("bert-base", "--accelerator", "v3-8", "--compare", "v3-8"), "--accelerator"),
        (("bert-base", "--accelerator", "v3-9"), "v3-8"),
        (("bert-base", "--accelerator", "v3-8,v6e-8"), "--compare v3-8,v6e-8"),
        (("bert-base", "--compare", "v3-8,v6e-8", "--fit"), "--fit"),
        (("bert-bass", "--accelerator", "v3-8"), "bert-base"),
    ):
        done = invoke("plan", *arguments, code=2)
        assert done.stdout == "" and message in done.stderr


def test_without_the_compiler_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version(name if name != "libtpu" else "no such package"))
    done = invoke("plan", "bert-tiny", "--accelerator", "v3-8", code=2)
    assert done.stdout == "" and "pip install -e '.[tpu]'" in done.stderr


@needs_libtpu
@pytest.mark.slow
def test_a_plan_as_one_object_and_as_a_comparison():
    planned = values("plan", "quickstart", "--accelerator", "v3-8", "--json")
    assert planned.keys() >= PROMISED
    assert planned["fits"] and planned["devices"] == 8 and planned["hbm_bytes"] == 16 * 2**30
    assert planned["cost_on_demand_usd"] == pytest.approx(8 * planned["hours"])
    assert not any(phase["uncounted_kernels"] for phase in planned["phases"])
    compared = values("plan", "quickstart", "--compare", "v3-8", "--json")
    assert compared == {"run": "quickstart", "accelerators": [planned]}


@needs_libtpu
@pytest.mark.compiles
def test_a_batch_that_is_too_large_and_what_fits_instead():
    arguments = ("plan", "lm-ja-1b", "--accelerator", "v3-8", "--set", "train.batch_size=2048", "--json")
    refused = values(*arguments, code=1)
    assert not refused["fits"] and refused["used_bytes"] > refused["hbm_bytes"] == 16 * 2**30
    assert refused["largest"][0]["bytes"] > 2**28
    fitting = values(*arguments, "--fit")
    assert fitting["fits"] and fitting["used_bytes"] < fitting["hbm_bytes"]
    changes = [word for name, value in fitting["changes"].items() for word in ("--set", f"{name}={value}")]
    assert values(*arguments, *changes)["used_bytes"] == fitting["used_bytes"]


def values(*arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(invoke(*arguments, code=code).stdout)


@pytest.mark.slow
def test_what_this_machine_has():
    done = invoke("devices", "quickstart", "--json", code=0)
    found = json.loads(done.stdout)
    assert (found["platform"], found["peak_flops"]) == ("cpu", None)
    assert found["matmul_flops"]["float32"] > 1e9 and found["memory_bytes"] > 2**28
    assert not found["advice"]["use_tpu"] and "no TPU is needed" in done.stderr
