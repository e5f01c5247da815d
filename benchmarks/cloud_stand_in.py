"""Cloud Storage for benchmarks: the emulator in a process of its own, with the clients of this process pointed at it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

from tpulm import storage


@contextlib.contextmanager
def emulator(*, latency_seconds: float = 0.0) -> Iterator[str]:
    """A path in an empty bucket; each request takes `latency_seconds` longer than on this machine."""
    command = [sys.executable, "-m", "tpulm", "cloud", "emulator", "--port", "0", "--bucket", "runs", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        described = json.loads(process.stdout.readline())
        os.environ.update(described["environment"])
        storage.forget_clients()
        faults = json.dumps({"latency_seconds": latency_seconds}).encode()
        urllib.request.urlopen(
            urllib.request.Request(f"{described['url']}/_control/faults", data=faults, method="POST")
        ).close()
        yield "gs://runs/benchmark"
    finally:
        process.terminate()
        process.wait()
