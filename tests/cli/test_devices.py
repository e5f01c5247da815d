"""`tpulm devices`: what this machine has."""

from __future__ import annotations

import json
import subprocess
import sys


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
