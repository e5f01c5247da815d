"""The training step compiled for devices that may not be here, and what the compiler says of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from tpulm import storage
from tpulm.accelerators import Accelerator
from tpulm.plan import buffers, costs, hlo
from tpulm.plan.topology import compiler_version, devices_of
from tpulm.train.compile_cache import cache_folder
from tpulm.train.program import Program

if TYPE_CHECKING:
    from jax.stages import Compiled, Lowered

    from tpulm.config import Phase, RunConfig
    from tpulm.objectives import SpecialIds

_FORMAT = 2  # of the kept analyses: raised with every change of what they hold or how it is counted
_RESERVED = 2**28  # bytes of HBM that are not the program's: the compiler names 15.75 GiB of 16
_LISTED = 16  # parts and buffers that are kept by name
_EXHAUSTED = re.compile(r"\(([0-9.]+)([KMGT]?)\) exceeds|Used ([0-9.]+)([KMGT]?) of")


class Memory(NamedTuple):
    """Bytes of one device's HBM."""

    arguments: int  # parameters, optimiser's state, batch
    outputs: int  # beside what takes the place of arguments
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True)
class Analysis:
    """A compiled step, of one device and one execution."""

    memory: Memory
    flops: float  # of matrix products
    bytes: float  # through HBM
    cycles: float  # the compiler's estimates, summed
    unestimated_bytes: float  # through HBM, by instructions without such an estimate
    collectives: tuple[costs.Collective, ...]
    unknown_loops: int
    cycles_by_part: dict[str, float]
    largest: tuple[buffers.Buffer, ...]
    compile_seconds: float
    compiler: str  # "libtpu 0.0.42, jax 0.10.2"


class DoesNotFit(Exception):
    """The compiler gave up: `needed` bytes of HBM, or None where it does not say. `phase` is that of the run, if known."""

    def __init__(self, message: str, needed: int | None):
        super().__init__(message)
        self.needed = needed
        self.phase: Phase | None = None


def analyse(config: RunConfig, accelerator: Accelerator, *, vocab_size: int, special: SpecialIds) -> tuple[Program, Analysis]:
    """The step that training would run there. Raises ConfigError where the run does not divide over the devices, and
    DoesNotFit where the compiler finds no place for it. What was compiled before is not compiled again."""
    program = program_for(config, accelerator, vocab_size=vocab_size, special=special)
    analysis = _kept(program.lowered_step, accelerator, program.mesh.devices.size)
    usable, total = accelerator.hbm_bytes_per_device - _RESERVED, analysis.memory.total
    if total > usable:  # the compiler itself compares the temporaries alone
        raise DoesNotFit(
            f"state, temporaries and code need {total / 2**30:.2f} GiB of HBM, and {usable / 2**30:.2f} GiB are there", total
        )
    return program, analysis


def program_for(config: RunConfig, accelerator: Accelerator, *, vocab_size: int, special: SpecialIds) -> Program:
    """The run laid out on the slice, not compiled. Raises ConfigError where it does not divide."""
    return Program(config, vocab_size=vocab_size, special=special, devices=devices_of(accelerator))


def compiler() -> str:
    return f"libtpu {compiler_version()}, jax {jax.__version__}"


def _kept(lowered: Lowered, accelerator: Accelerator, devices: int) -> Analysis:
    digest = hashlib.sha256(lowered.as_text().encode())
    digest.update(f"{accelerator.name} {compiler()} {_FORMAT} {os.environ.get('LIBTPU_INIT_ARGS', '')}".encode())
    path = cache_folder("plans") / f"{digest.hexdigest()}.json"
    if (found := _read(path)) is not None:
        return found
    begun = time.perf_counter()
    try:
        analysis: Analysis | DoesNotFit = examine(lowered.compile(), devices, time.perf_counter() - begun)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        analysis = DoesNotFit(str(error).partition(": ")[2].splitlines()[0], _needed(str(error)))
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_json(path, _values(analysis))
    if isinstance(analysis, DoesNotFit):
        raise analysis
    return analysis


def examine(compiled: Compiled, devices: int, seconds: float) -> Analysis:
    """What is in a compiled program."""
    stats: Any = compiled.memory_analysis()
    module = hlo.parse(compiled.as_text() or "")
    found = costs.count(module, devices)
    return Analysis(
        memory=Memory(
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes - stats.alias_size_in_bytes,
            temporaries=stats.temp_size_in_bytes,
            code=stats.generated_code_size_in_bytes,
        ),
        flops=found.flops,
        bytes=found.bytes,
        cycles=found.cycles,
        unestimated_bytes=found.unestimated_bytes,
        collectives=tuple(found.collectives),
        unknown_loops=found.unknown_loops,
        cycles_by_part=dict(found.cycles_by_part.most_common(_LISTED)),
        largest=tuple(buffers.largest(module, _LISTED)),
        compile_seconds=round(seconds, 1),
        compiler=compiler(),
    )


def _needed(message: str) -> int | None:
    found = _EXHAUSTED.search(message)
    if found is None:
        return None
    number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
    return round(float(number) * 1024 ** " KMGT".index(unit or " "))


def _values(analysis: Analysis | DoesNotFit) -> dict[str, Any]:
    if isinstance(analysis, DoesNotFit):
        return {"does_not_fit": str(analysis), "needed": analysis.needed}
    return dataclasses.asdict(analysis)


def _read(path: Path) -> Analysis | None:
    """What was kept; a file that cannot be read counts as none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if "does_not_fit" in values:
        raise DoesNotFit(values["does_not_fit"], values["needed"])
    return Analysis(
        **{
            **values,
            "memory": Memory(*values["memory"]),
            "cycles_by_part": _largest_first(values["cycles_by_part"]),
            "collectives": tuple(costs.Collective(*entry) for entry in values["collectives"]),
            "largest": tuple(buffers.Buffer(*entry) for entry in values["largest"]),
        }
    )


def _largest_first(by_part: dict[str, float]) -> dict[str, float]:
    return dict(sorted(by_part.items(), key=lambda item: -item[1]))  # the file has its keys in another order
