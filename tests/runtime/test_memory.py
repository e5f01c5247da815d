"""What a training process frees stays with it, however training was asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor

def probe():
    with ThreadPoolExecutor(4) as pool:  # whose arenas JAX's threads take over
        list(pool.map(lambda _: [bytes(1000) for _ in range(1000)], range(16)))
    import jax, jax.numpy as jnp
    def loss(kernels):
        x = jnp.ones((4096, 256))
        for kernel in kernels:
            x = jnp.tanh(x @ kernel) * 0.5 + jnp.sin(x)
        return jnp.mean(x**2)
    step = jax.jit(lambda x: x - jax.grad(loss)(x))
    x = jnp.ones((6, 256, 256))
    for _ in range(3):
        x = step(x).block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        x = step(x).block_until_ready()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)

"""
DOORS = {
    "none": "probe()",
    "the command line": "from tpulm.cli.app import app, main; app.command()(probe); sys.argv = ['tpulm', 'probe']; main()",
    "Python": "import tpulm; tpulm.run; probe()",
}


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back this eagerly")
def test_page_faults_of_twenty_steps() -> None:
    def faults(door: str) -> int:
        command = [sys.executable, "-c", PROGRAM + DOORS[door]]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    eagerly = faults("none")
    assert eagerly > 5_000  # 4 KiB each
    assert {door: faults(door) < eagerly / 3 for door in DOORS if door != "none"} == {"the command line": True, "Python": True}
