"""Compiled programs in the bucket: a machine that takes over does not compile, and nothing that is wrong with them matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.train import program

WORKDIR = "gs://runs/my run [1]"
PROGRAM = f"""
import json
import jax, jax.numpy as jnp
from tpulm import storage
from tpulm.train import program

def long(x):
    for number in range(5):
        x = jnp.sin(x) * number + jnp.where(x > number, x, -x)
    return x

program._LEAST_SECONDS = 0.0
program.enable_compilation_cache(storage.as_path({WORKDIR!r}))
value = float(jax.jit(long)(jnp.float32(1.0)))
print(json.dumps([value, *program.compile_stats(), jax.config.values["jax_compilation_cache_dir"]]))
"""


def compile_it(environment: dict[str, str]) -> tuple[float, program.CompileStats, str]:
    """Something, in a process of its own: its value, what was compiled, where programs are kept."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    value, *compiled, folder = json.loads(done.stdout)
    return value, program.CompileStats(*compiled), folder


@pytest.mark.slow
def test_the_second_machine_does_not_compile(gcs: Emulator, user_environment: dict[str, str]):
    environment = {**user_environment, **gcs.environment}
    del environment["JAX_COMPILATION_CACHE_DIR"]
    value, first, folder = compile_it(environment)
    assert folder.startswith(f"{WORKDIR}/compiled/cpu-") and first.programs > 0 == first.cache_hits
    again, second, _ = compile_it(environment)
    assert (again, second.programs, second.cache_hits) == (value, 0, first.programs)
    for name in storage.walk(f"{WORKDIR}/compiled"):
        storage.write_atomic(f"{WORKDIR}/compiled/{name}", b"damaged")
    gcs.faults.set(read_only=True)
    again, third, _ = compile_it(environment)  # what cannot be read is compiled, and need not be kept
    assert (again, third.programs > 0, third.cache_hits) == (value, True, 0)


def test_a_folder_that_the_environment_names_is_kept():
    named = jax.config.values["jax_compilation_cache_dir"]
    assert named == os.environ["JAX_COMPILATION_CACHE_DIR"]
    program.enable_compilation_cache(storage.as_path(WORKDIR))
    assert jax.config.values["jax_compilation_cache_dir"] == named


def test_old_programs_make_room(gcs: Emulator):
    folder = storage.as_path(f"{WORKDIR}/compiled")
    for number in range(4):
        storage.write_atomic(folder / f"{number}-cache", b"x" * 100)
    program.evict_oldest(folder, 250)
    assert sorted(storage.walk(folder)) == ["2-cache", "3-cache"]
    program.evict_oldest(storage.as_path("gs://nobody-has-this/w/compiled"))
