"""Which arrays of a compiled program take most of its memory, and where in the model they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tpulm.plan.hlo import Array, Computation, Instruction, Module
from tpulm.plan.scopes import part

_PASSED_ON = frozenset(["bitcast", "reshape", "broadcast", "copy", "convert", "transpose"])
_VIEWS = frozenset(["parameter", "get-tuple-element", "tuple", "bitcast", "while", "constant"])


class Buffer(NamedTuple):
    shape: str  # "f32[12,32,12,128,128]"
    bytes: int
    part: str  # of the model, as `scopes.part` names it
    stacked: bool  # one slice for each round of a loop: what the forward pass keeps for the backward pass


def largest(module: Module, count: int) -> list[Buffer]:
    """Of those that the program makes itself (parameters and optimiser's state are its arguments), the largest first."""
    found = [*_stacks(module), *_made(module.entry)]
    return sorted(found, key=lambda buffer: -buffer.bytes)[:count]


def _made(computation: Computation) -> Iterator[Buffer]:
    for instruction in computation:
        if instruction.opcode not in _VIEWS and instruction.attribute("custom_call_target") != '"AllocateBuffer"':
            for array in instruction.shapes:
                if array.memory_space == 0 and "dynamic_update" not in instruction.scope:
                    yield Buffer(str(array), array.bytes, part(instruction.scope), stacked=False)


def _stacks(module: Module) -> Iterator[Buffer]:
    """What loops fill slice by slice."""
    for loop in _loops(module):
        body = module.computations[loop.attribute("body") or ""]
        for instruction in body:
            fused = module.computations.get(instruction.attribute("calls") or "")
            inner = [instruction] if fused is None else list(fused)
            for update in inner:
                if update.opcode == "dynamic-update-slice" and update.shapes[0].memory_space == 0:
                    yield _stack(update, instruction, fused, body)


def _stack(update: Instruction, outer: Instruction, fused: Computation | None, body: Computation) -> Buffer:
    array: Array = update.shapes[0]
    if fused is None:
        scope = _origin(update.operands[1], body)
    else:
        scope = _origin(update.operands[1], fused)
        if not scope or "dynamic_update" in scope:
            numbers = {parameter.name: int(parameter.literal) for parameter in fused.parameters()}
            name = _source(update.operands[1], fused)
            scope = _origin(outer.operands[numbers[name]], body) if name in numbers else outer.scope
    return Buffer(str(array), array.bytes, part(scope), stacked=True)


def _origin(name: str, within: Computation) -> str:
    instruction = within.instructions.get(_source(name, within))
    return "" if instruction is None or instruction.opcode == "parameter" else instruction.scope


def _source(name: str, within: Computation) -> str:
    """What is only passed on, reshaped or converted, followed to where it is computed."""
    instruction = within.instructions.get(name)
    while instruction is not None and instruction.opcode in _PASSED_ON and instruction.operands:
        name = instruction.operands[0]
        instruction = within.instructions.get(name)
    return name


def _loops(module: Module) -> Iterator[Instruction]:
    for computation in module.computations.values():
        for instruction in computation:
            if instruction.opcode == "while":
                yield instruction
