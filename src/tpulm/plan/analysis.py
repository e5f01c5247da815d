"""Compile the training step for TPU devices that need not be attached, and read what the compiler says of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from pydantic import TypeAdapter

from tpulm import storage, tokenization
from tpulm.accelerators import Accelerator
from tpulm.errors import MissingExtra, StorageError, installing
from tpulm.plan import costs, hlo
from tpulm.plan.hlo import Array, Computation, Instruction, Module, part
from tpulm.progress import held_stderr
from tpulm.train.program import PretrainingProgram

if TYPE_CHECKING:
    from jax.stages import Compiled, Lowered

    from tpulm.config import Phase, RunConfig


def devices_of(accelerator: Accelerator) -> Sequence[Any]:
    """The devices of a slice, as JAX would list them there. Raises MissingExtra if the TPU compiler is not installed."""
    compiler_version()
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else it looks for the VM it believes to be on
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no device is opened, so that several may compile at once
    from jax.experimental import topologies

    one_host = (*accelerator.shape, 1, 1)[:3]
    with held_stderr() as held:  # the library writes there that there is no TPU; what goes wrong is raised all the same
        described = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{accelerator.generation}:{accelerator.topology}",
            **({"chip_config_name": "megacore"} if accelerator.generation == "v4" else {}),
            **({"chips_per_host_bounds": one_host} if accelerator.hosts == 1 else {}),
        )
        held.truncate(0)
    return described.devices


def compiler_version() -> str:
    """The version of libtpu, which holds the compiler."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        raise MissingExtra(
            f"compiling for a TPU needs its compiler, libtpu, which is not installed: {installing('tpu')} "
            "(Linux on x86-64; no TPU is needed)"
        ) from None


_PASSED_ON = frozenset(["bitcast", "reshape", "broadcast", "copy", "convert", "transpose"])
_VIEWS = frozenset(["parameter", "get-tuple-element", "tuple", "bitcast", "while", "constant"])


class Buffer(NamedTuple):
    shape: str  # "f32[12,32,12,128,128]"
    bytes: int
    part: str  # of the model, as `hlo.part` names it
    stacked: bool  # one slice per iteration of a loop: what the forward pass keeps for the backward pass


def largest(module: Module, count: int) -> list[Buffer]:
    """The largest buffers that the program itself makes (parameters and optimizer state are arguments), largest first."""
    buffers = [*_stacks(module), *_buffers(module.entry)]
    return sorted(buffers, key=lambda buffer: -buffer.bytes)[:count]


def _buffers(computation: Computation) -> Iterator[Buffer]:
    for instruction in computation:
        if instruction.opcode not in _VIEWS and instruction.attribute("custom_call_target") != '"AllocateBuffer"':
            for array in instruction.shapes:
                if array.memory_space == 0 and "dynamic_update" not in instruction.scope:
                    yield Buffer(str(array), array.bytes, part(instruction.scope), stacked=False)


def _stacks(module: Module) -> Iterator[Buffer]:
    """The buffers that loops fill slice by slice."""
    instructions = (instruction for computation in module.computations.values() for instruction in computation)
    for loop in (instruction for instruction in instructions if instruction.opcode == "while"):
        body = module.computations[loop.attribute("body") or ""]
        for instruction in body:
            fused = module.computations.get(instruction.attribute("calls") or "")
            inner = [instruction] if fused is None else list(fused)
            for update in inner:
                if update.opcode == "dynamic-update-slice" and update.shapes[0].memory_space == 0:
                    yield _stack(update, instruction, fused, body)


def _stack(update: Instruction, outer: Instruction, fused: Computation | None, body: Computation) -> Buffer:
    array: Array = update.shapes[0]
    scope = _origin(update.operands[1], body if fused is None else fused)
    if fused is not None and (not scope or "dynamic_update" in scope):
        numbers = {parameter.name: int(parameter.literal) for parameter in fused.parameters()}
        name = fused.source(update.operands[1], _PASSED_ON)
        scope = _origin(outer.operands[numbers[name]], body) if name in numbers else outer.scope
    return Buffer(str(array), array.bytes, part(scope), stacked=True)


def _origin(name: str, within: Computation) -> str:
    instruction = within.instructions.get(within.source(name, _PASSED_ON))
    return "" if instruction is None or instruction.opcode == "parameter" else instruction.scope


_FORMAT = 6  # of cached analyses: raised whenever what they hold, or how it is counted, changes
_RESERVED = 2**28  # bytes of HBM that the program cannot use: the compiler names 15.75 GiB of 16
_LISTED = 16  # buffers that are cached
# XLA's copies reach this share of the published HBM bandwidth: Google measured 3,199 of 3,690 GB/s on one core of a TPU7x
# (AI-Hypercomputer/accelerator-microbenchmarks, Ironwood/guides/hbm), where the compiler's cycles give 1,393 GB/s.
_REACHED = 0.87
# Generations for which the cycles that are of no cost model stay. By them adding arrays takes 1.1 times as long as their bytes
# need on a v3, 2.3 times on a v6e; and estimates with them agree with runs published for a v3 (docs/planning.md).
_FITTING = ("v2", "v3")
_EXHAUSTED = re.compile(r"\(([0-9.]+)([KMGT]?)\) exceeds|Used ([0-9.]+)([KMGT]?) of")


class Memory(NamedTuple):
    """Bytes of one device's HBM."""

    arguments: int  # parameters, optimizer state, batch
    outputs: int  # except those in the place of arguments
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(kw_only=True)
class Analysis(costs.Costs):
    """The analysis of a compiled step: its costs for one device and one execution, and what it takes there."""

    memory: Memory
    largest: tuple[Buffer, ...]
    compile_seconds: float
    compiler: str  # "libtpu 0.0.42, jax 0.10.2"


class DoesNotFit(Exception):
    """The compiler gave up: `needed` bytes of HBM, or None if it does not say. `phase` is that of the run, if known."""

    def __init__(self, message: str, needed: int | None):
        super().__init__(message)
        self.needed = needed
        self.phase: Phase | None = None


def analyse(config: RunConfig, accelerator: Accelerator) -> tuple[PretrainingProgram, Analysis]:
    """The step that training would run there. Raises ConfigError if the run does not divide over the devices, and DoesNotFit if
    the compiler finds no place for it. Analyses are cached."""
    program = program_for(config, accelerator)
    analysis = analysis_of(program.lowered_step, accelerator, program.mesh.devices.size)
    usable, total = accelerator.hbm_bytes_per_device - _RESERVED, analysis.memory.total
    if total > usable:  # the compiler itself compares the temporaries alone
        raise DoesNotFit(
            f"state, temporaries and code need {total / 2**30:.2f} GiB of HBM, and {usable / 2**30:.2f} GiB are there", total
        )
    return program, analysis


def program_for(config: RunConfig, accelerator: Accelerator) -> PretrainingProgram:
    """The run laid out on the slice, not compiled, for the vocabulary that it has or will train. Raises ConfigError if it does
    not divide."""
    vocabulary = tokenization.expected(config.tokenizer)
    return PretrainingProgram(config, **vocabulary._asdict(), devices=devices_of(accelerator))


def compiler() -> str:
    return f"libtpu {compiler_version()}, jax {jax.__version__}"


def analysis_of(lowered: Lowered, accelerator: Accelerator, devices: int) -> Analysis:
    """The compiled program's analysis, cached by its text, the accelerator, the compiler and the compiler's options. Raises
    DoesNotFit, which is cached as well."""
    digest = hashlib.sha256(lowered.as_text().encode())
    digest.update(f"{accelerator.name} {compiler()} {_FORMAT} {os.environ.get('LIBTPU_INIT_ARGS', '')}".encode())
    path = storage.cache_folder("plans") / f"{digest.hexdigest()}.json"
    try:
        cached = _CACHE_FORMAT.validate_json(path.read_bytes())
    except (OSError, ValueError):  # none that can be read
        bandwidth = accelerator.hbm_bytes_per_second / accelerator.devices / accelerator.clock_hertz
        cached = _compiled(lowered, devices, None if accelerator.generation in _FITTING else _REACHED * bandwidth)
        with contextlib.suppress(OSError, StorageError):  # else the next call compiles again
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_atomic(path, _CACHE_FORMAT.dump_json(cached, indent=2))
    if isinstance(cached, _Refusal):
        raise DoesNotFit(*cached)
    return cached


def _compiled(lowered: Lowered, devices: int, bytes_per_cycle: float | None) -> Analysis | _Refusal:
    begun = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed = None
        if (match := _EXHAUSTED.search(str(error))) is not None:
            number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
            needed = round(float(number) * 1024 ** " KMGT".index(unit or " "))
        return _Refusal(str(error).partition(": ")[2].splitlines()[0], needed)
    return examine(compiled, devices, time.perf_counter() - begun, bytes_per_cycle)


def examine(compiled: Compiled, devices: int, seconds: float, bytes_per_cycle: float | None = None) -> Analysis:
    """The analysis of a compiled program."""
    stats: Any = compiled.memory_analysis()
    module = hlo.parse(compiled.as_text() or "")
    return Analysis(
        **vars(costs.count(module, devices, bytes_per_cycle)),
        memory=Memory(
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes - stats.alias_size_in_bytes,
            temporaries=stats.temp_size_in_bytes,
            code=stats.generated_code_size_in_bytes,
        ),
        largest=tuple(largest(module, _LISTED)),
        compile_seconds=round(seconds, 1),
        compiler=compiler(),
    )


class _Refusal(NamedTuple):
    does_not_fit: str
    needed: int | None


_CACHE_FORMAT: TypeAdapter[Analysis | _Refusal] = TypeAdapter(Analysis | _Refusal)
