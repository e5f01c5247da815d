"""Devices of a TPU that is not here, for which its real compiler compiles."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

from tpulm.accelerators import Accelerator
from tpulm.errors import MissingExtra, installing


def devices_of(accelerator: Accelerator) -> Sequence[Any]:
    """The devices of a slice, as JAX would list them there. Raises MissingExtra where the TPU compiler is not installed."""
    compiler_version()
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or it would look for the VM it believes to be on
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no device is opened, so that several may compile at once
    from jax.experimental import topologies

    with _silence():
        described = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{accelerator.generation}:{accelerator.topology}",
            **({"chip_config_name": "megacore"} if accelerator.generation == "v4" else {}),
            **({"chips_per_host_bounds": _bounds(accelerator)} if accelerator.hosts == 1 else {}),
        )
    return described.devices


def compiler_version() -> str:
    """Of libtpu, which holds the compiler."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        raise MissingExtra(
            f"compiling for a TPU needs its compiler, libtpu, which is not installed: {installing('tpu')} "
            "(Linux on x86-64; no TPU is needed)"
        ) from None


def _bounds(accelerator: Accelerator) -> tuple[int, ...]:
    bounds = accelerator.shape
    return bounds + (1,) * (3 - len(bounds))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The compiler's library writes to the process's stderr that there is no TPU; what goes wrong is raised all the same."""
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        yield
        return
    saved, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)
        os.close(nowhere)
