"""`tpulm devices` and `tpulm plan`, as far as they go without a TPU's compiler."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def tpulm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "tpulm", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_what_this_machine_has():
    done = tpulm("devices", "quickstart", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["platform"], found["peak_flops"]) == ("cpu", None)
    assert found["matmul_flops"]["float32"] > 1e9 and found["memory_bytes"] > 2**28
    assert not found["advice"]["use_tpu"]
    assert "no TPU is needed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bert-base",), "name a TPU type with --accelerator"),
        (("bert-base", "--accelerator", "v3-8", "--compare", "v3-8"), "name a TPU type with --accelerator"),
        (("bert-base", "--accelerator", "v3-9"), "v3-8"),
        (("bert-base", "--accelerator", "a100"), "is a GPU"),
        (("bert-bass", "--accelerator", "v3-8"), "bert-base"),
        (("bert-base", "--accelerator", "v3-8", "--set", "train.batch_size=0"), "train.batch_size"),
    ],
)
def test_what_cannot_be_planned(arguments: tuple[str, ...], message: str):
    done = tpulm("plan", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and "Traceback" not in done.stderr
