"""What one execution of a compiled program costs: operations, bytes, cycles and communication, loops multiplied out.

The compiler's own cost analysis counts the body of a loop once, however often it runs; here every instruction is counted as
often as it is executed. Operations are those of matrix products only, as XLA counts them: two for each multiplication that is
not by a padding zero.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tpulm.plan.hlo import Array, Computation, Instruction, Module, part

_FREE = frozenset(
    ["parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id", "replica-id", "domain"]
)
_ASYNC_DONE = re.compile(r"-(done|update)$")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_SLICING = frozenset(["dynamic-slice", "gather", "slice"])
_BITCAST = frozenset(["bitcast"])
_SAME_VALUE = frozenset(["copy", "bitcast", "convert"])
_FREE_CALLS = frozenset(
    ["AllocateBuffer", "ConcatBitcast", "X64Combine", "X64SplitLow", "X64SplitHigh", "Sharding", "AssumeGatherIndicesInBound"]
)


_KERNEL_COST = re.compile(r'"cost_estimate":\{"flops":"(\d+)","transcendentals":"(\d+)"')
# Cycles per weight of a kernel of nn/flash.py, which reports weights as transcendentals: the mean of both directions. From the
# compiler's static profile of 512 x 512 weights with heads of 64 for a v5e; for a v6e it says 0.0096.
_CYCLES_A_WEIGHT = 0.0114


class Collective(NamedTuple):
    kind: str  # "all-reduce", …
    bytes: int  # of one device's result (of its operand for a reduce-scatter)
    group: int  # devices that take part together
    times: int
    scope: str


@dataclass
class Costs:
    """The costs of one device, for one execution of the program."""

    flops: float = 0.0
    bytes: float = 0.0  # read from and written to HBM
    cycles: float = 0.0  # the compiler's estimates
    unestimated_bytes: float = 0.0  # moved by instructions without an estimate of cycles
    collectives: list[Collective] = field(default_factory=list)
    unknown_loops: int = 0  # loops whose trip count could not be read, counted once
    opaque: Counter[str] = field(default_factory=Counter)  # kernels whose operations cannot be counted, by name
    kernels: int = 0  # runs of kernels that state their own cost
    cycles_by_part: Counter[str] = field(default_factory=Counter)  # of the model, as `hlo.part` names them
    bytes_by_part: Counter[str] = field(default_factory=Counter)


def count(module: Module, devices: int, bytes_per_cycle: float | None = None) -> Costs:
    """The costs of a module that `devices` devices run together.

    `bytes_per_cycle`: of HBM. An instruction whose cycles are of no cost model takes no longer than its bytes in HBM need, and
    so no time if all it needs is on the chip. None: its cycles count as they are.
    """
    costs = Costs()
    _Walk(module, devices, costs, bytes_per_cycle).add(module.entry, 1)
    return costs


class _Walk:
    def __init__(self, module: Module, devices: int, costs: Costs, bytes_per_cycle: float | None):
        self._computations, self._devices, self._costs = module.computations, devices, costs
        self._bytes_per_cycle = bytes_per_cycle

    def add(self, computation: Computation, times: int) -> None:
        for instruction in computation:
            self._add(instruction, computation, times)

    def _add(self, instruction: Instruction, within: Computation, times: int) -> None:
        opcode = instruction.opcode
        if opcode in _FREE or _ASYNC_DONE.search(opcode) or self._target(instruction) in _FREE_CALLS:
            return
        if opcode == "while":
            rounds = self._rounds(instruction, within)
            self._costs.unknown_loops += rounds is None
            for role in ("condition", "body"):
                self.add(self._called(instruction, role), times * (rounds or 1))
        elif opcode == "conditional":
            self.add(max(self._branches(instruction), key=lambda branch: len(branch.instructions)), times)
        elif opcode == "call":
            self.add(self._called(instruction, "to_apply"), times)
        elif opcode == "async-start":
            self.add(self._called(instruction, "calls"), times)
        elif (kind := opcode.removesuffix("-start")) in _COLLECTIVES:
            self._costs.collectives.append(self._communication(kind, instruction, times))
        elif opcode.endswith("-start"):
            # A copy between HBM and on-chip memory that overlaps other instructions: bytes, but no time of its own. Its shapes
            # are those of both ends, in either order, then of a context.
            ends = instruction.shapes[:2]
            moved = times * min(array.bytes for array in ends) * sum(array.memory_space == 0 for array in ends)
            self._costs.bytes += moved
            self._costs.bytes_by_part[part(instruction.scope)] += moved
        else:
            self._leaf(instruction, within, times)

    def _leaf(self, instruction: Instruction, within: Computation, times: int) -> None:
        costs, name = self._costs, part(instruction.scope)
        once = self._bytes(instruction, within)
        moved = times * once
        costs.flops += times * self._flops(instruction, within)
        costs.bytes += moved
        costs.bytes_by_part[name] += moved
        cycles = instruction.cycles
        if kernel := _KERNEL_COST.search(instruction.attributes):
            costs.kernels += times
            costs.flops += times * float(kernel[1])
            cycles = round(float(kernel[2]) * _CYCLES_A_WEIGHT)
        elif target := self._target(instruction):
            costs.opaque[target] += times
        elif cycles is not None and self._bytes_per_cycle is not None and not instruction.modelled:
            cycles = min(cycles, round(once / self._bytes_per_cycle))
        if cycles is None:
            costs.unestimated_bytes += moved
        else:
            costs.cycles += times * cycles
            costs.cycles_by_part[name] += times * cycles

    # -- operations -----------------------------------------------------------------------------------------------------

    def _flops(self, instruction: Instruction, within: Computation) -> float:
        if instruction.opcode in ("convolution", "dot"):
            operands = [within.instructions[name].shapes[0] for name in instruction.operands]
            return (convolution_flops if instruction.opcode == "convolution" else dot_flops)(instruction, *operands)
        called = self._computations.get(instruction.attribute("calls") or "")
        return 0.0 if called is None else sum(self._flops(inner, called) for inner in called)

    # -- bytes ----------------------------------------------------------------------------------------------------------

    def _bytes(self, instruction: Instruction, within: Computation) -> int:
        """Bytes through HBM: operands and results; if these are sliced or updated in place, only that part."""
        operands = [within.instructions[name] for name in instruction.operands if name in within.instructions]
        called = self._computations.get(instruction.attribute("calls") or "")
        if instruction.opcode == "fusion" and called is not None:
            reads = sum(self._read(p, o, called) for p, o in zip(called.parameters(), operands, strict=True))
            return reads + self._written(instruction, called)
        if instruction.opcode in _SLICING:
            return 2 * _hbm(instruction.shapes)
        if instruction.opcode == "dynamic-update-slice":
            return 2 * _hbm(operands[1].shapes)
        return sum(_hbm(operand.shapes) for operand in operands) + _hbm(instruction.shapes)

    def _read(self, parameter: Instruction, operand: Instruction, fused: Computation) -> int:
        if not _hbm(operand.shapes):
            return 0
        whole, part = _hbm(operand.shapes), 0
        for user in _through_bitcasts(parameter.name, fused):
            is_first = fused.source(user.operands[0], _BITCAST) == parameter.name
            if is_first and user.opcode in _SLICING:
                part += sum(array.bytes for array in user.shapes)
            elif not (is_first and user.opcode == "dynamic-update-slice"):  # which is in place
                return whole
        return min(whole, part)

    def _written(self, instruction: Instruction, fused: Computation) -> int:
        roots = [fused.instructions[fused.root]]
        if roots[0].opcode == "tuple":
            roots = [fused.instructions[name] for name in roots[0].operands]
        written = 0
        for root, shape in zip(roots, instruction.shapes, strict=False):
            updated = fused.instructions[fused.source(root.name, _BITCAST)]
            if updated.opcode == "dynamic-update-slice":
                shape = fused.instructions[updated.operands[1]].shapes[0]
            written += 0 if shape.memory_space else shape.bytes
        return written

    # -- control flow ---------------------------------------------------------------------------------------------------

    def _called(self, instruction: Instruction, role: str) -> Computation:
        return self._computations[instruction.attribute(role) or ""]

    def _branches(self, instruction: Instruction) -> list[Computation]:
        listed = instruction.attribute("branch_computations")
        names = [name.strip().lstrip("%") for name in listed.split(",")] if listed else []
        names += [name for role in ("true_computation", "false_computation") if (name := instruction.attribute(role))]
        return [self._computations[name] for name in names]

    def _rounds(self, loop: Instruction, within: Computation) -> int | None:
        """The trip count of a loop that counts up by one: its condition's bound less the counter's first value; or None."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
        if known:
            return int(known[1])
        compared = _comparison(self._called(loop, "condition"), self._computations)
        start = within.instructions.get(loop.operands[0])
        if compared is None or start is None or start.opcode != "tuple":
            return None
        counter, bound = compared
        first = _constant(start.operands[counter], within)
        return None if first is None else bound - first

    def _target(self, instruction: Instruction) -> str | None:
        if instruction.opcode != "custom-call":
            return None
        return (instruction.attribute("custom_call_target") or "").strip('"')

    def _communication(self, kind: str, instruction: Instruction, times: int) -> Collective:
        size, results = group_size(instruction.attributes, self._devices), instruction.shapes
        if instruction.opcode.endswith("-start") and kind != "all-reduce":  # whose shapes include its operands
            count = max(1, len(instruction.operands))
            results = results[count : 2 * count] or results
        moved = sum(array.bytes for array in results)
        if kind == "reduce-scatter":
            moved *= size
        return Collective(kind, moved, size, times, instruction.scope)


def group_size(attributes: str, devices: int) -> int:
    """How many devices take part in each instance of a collective, from any of XLA's forms of `replica_groups`."""
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes):
        return int(match[2])
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
    if match := re.search(r"replica_groups=\{\{([0-9,]*)\}", attributes):
        return len(match[1].split(","))
    return devices


def convolution_flops(instruction: Instruction, inputs: Array, kernel: Array) -> float:
    """Two for each pair of an input element and a kernel element that are multiplied.

    The compiler writes batched matrix products as convolutions over padded, dilated windows; what falls on padding or between
    dilated elements is not counted. (https://openxla.org/xla/operation_semantics, Conv)
    """
    labels = instruction.attribute("dim_labels") or ""
    left, rest = labels.split("_", 1)
    right, out = rest.split("->")
    window, rank = instruction.attribute("window") or "", sum(label.isdigit() for label in right)

    def numbers(name: str, default: int) -> list[int]:
        match = re.search(rf"\b{name}=(\S+)", window)
        return [int(low.split("_")[0]) for low in match[1].split("x")] if match else [default] * rank

    strides, spreads, reaches = numbers("stride", 1), numbers("lhs_dilate", 1), numbers("rhs_dilate", 1)
    pairs = 1
    for axis, (size, pad) in enumerate(zip(numbers("size", 1), numbers("pad", 0), strict=True)):
        outputs = instruction.shapes[0].dims[out.index(str(axis))]
        last = (inputs.dims[left.index(str(axis))] - 1) * spreads[axis]
        # Of an output position and a kernel position that meet an element of the input along this axis.
        pairs *= sum(
            0 <= place <= last and place % spreads[axis] == 0
            for begin in range(-pad, size * reaches[axis] - pad, reaches[axis])
            for place in range(begin, begin + outputs * strides[axis], strides[axis])
        )
    groups = int(instruction.attribute("batch_group_count") or 1)
    return 2.0 * inputs.dims[left.index("b")] / groups * kernel.dims[right.index("i")] * kernel.dims[right.index("o")] * pairs


def dot_flops(instruction: Instruction, left: Array, _: Array) -> float:
    contracted = [int(axis) for axis in (instruction.attribute("lhs_contracting_dims") or "").split(",") if axis]
    return 2.0 * math.prod(instruction.shapes[0].dims) * math.prod(left.dims[axis] for axis in contracted)


def _hbm(shapes: Iterable[Array]) -> int:
    return sum(array.bytes for array in shapes if array.memory_space == 0)


def _through_bitcasts(name: str, fused: Computation) -> Iterator[Instruction]:
    for user in fused.users(name):
        if user.opcode == "bitcast":
            yield from _through_bitcasts(user.name, fused)
        else:
            yield user


def _comparison(condition: Computation, computations: dict[str, Computation]) -> tuple[int, int] | None:
    """(index of the counter in the loop's tuple, bound) of a condition `counter < bound`; None for any other."""
    root, inner = condition.instructions[condition.root], condition
    outside: dict[str, str] = {}
    if root.opcode == "fusion":
        inner = computations[root.attribute("calls") or ""]
        outside = dict(zip((parameter.name for parameter in inner.parameters()), root.operands, strict=True))
        root = inner.instructions[inner.root]
    if root.opcode != "compare" or root.attribute("direction") != "LT":
        return None
    left, right = (outside.get(name, name) for name in root.operands)
    counter, bound = condition.instructions.get(left), _constant(right, condition if right in condition.instructions else inner)
    if counter is None or counter.opcode != "get-tuple-element" or bound is None:
        return None
    return int(counter.attribute("index") or 0), bound


def _constant(name: str, within: Computation) -> int | None:
    instruction = within.instructions.get(within.source(name, _SAME_VALUE))
    literal = instruction.literal if instruction is not None and instruction.opcode == "constant" else ""
    return int(literal) if re.fullmatch(r"-?\d+", literal) else None
