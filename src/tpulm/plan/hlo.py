"""Parse the text of a compiled program (optimized HLO, `compiled.as_text()`) into instructions.

Only what counting needs is read: shapes with their layouts, operands, attributes, and the compiler's own estimate of cycles.
The grammar is that of XLA's printer, https://openxla.org/xla/operation_semantics; the layouts' tiles and memory spaces are
described in https://openxla.org/xla/tiled_layout and https://openxla.org/xla/shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_WRAPPED = re.compile(r"^(?:jvp|transpose|vmap|checkpoint|rematted_computation|remat\d*)\((.*)\)$")
_PLUMBING = re.compile(r"^(?:jit\(.*\)|while|body|cond|closed_call|checkpoint|rematted_computation|shard_map|pjit|)$")
_DYNAMIC_SLICE = re.compile(r"dynamic_(?:update_)?(?:slice|index_in_dim)")


def part(scope: str) -> str:
    """ "backward: layers/feed_forward" for "jit(step)/transpose(jvp(layers))/while/body/closed_call/feed_forward/dot_general".

    What a loop over layers stores for its backward pass, or reads there, is "… (kept between passes)".
    """
    direction = "backward: " if "transpose(" in scope else "forward: " if "jvp(" in scope else ""
    names: list[str] = []
    for name in scope.split(";")[0].split("/"):
        while wrapped := _WRAPPED.match(name):
            name = wrapped[1]
        if not _PLUMBING.match(name) and "->" not in name:  # an einsum's subscripts repeat the operation
            names.append(name)
    inner = names[:-1] if len(names) > 1 else names  # the last one is the operation
    suffix = " (kept between passes)" if _DYNAMIC_SLICE.search(scope) and "while" in scope else ""
    return f"{direction}{'/'.join(name for name in inner if not _DYNAMIC_SLICE.search(name)) or 'other'}{suffix}"


_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) .*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%?(\S+) = ")
_OPERAND = re.compile(r"%([^\s,()]+)")
_TILE = re.compile(r"T\(([0-9,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_SCOPE = re.compile(r'op_name="([^"]*)"')

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "tf32": 32, "c64": 64, "c128": 128}


@dataclass(frozen=True, slots=True)
class Array:
    """One array of a shape: its logical dimensions and its layout in memory."""

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    memory_space: int = 0  # 0: HBM; others are on the chip

    @property
    def bytes(self) -> int:
        """Bytes in memory, padded to whole tiles."""
        dims = list(self.dims)
        for size, axis in zip(reversed(self.tile), self.minor_to_major, strict=False):
            dims[axis] = -(-dims[axis] // size) * size
        digits = re.search(r"\d+", self.dtype)  # f32, s8, u4, f8e4m3fn
        return math.prod(dims) * _BITS.get(self.dtype, int(digits[0]) if digits else 32) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    opcode: str
    shapes: tuple[Array, ...]  # one, or a tuple's leaves
    operands: tuple[str, ...]
    literal: str  # the text between the parentheses: a constant's value, a parameter's number
    attributes: str

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate for one execution; None where it makes none."""
        match = _CYCLES.search(self.attributes)
        return int(match[1]) if match else None

    @property
    def modelled(self) -> bool:
        """Whether `cycles` are of a cost model, as those of products are; others are marked as of none."""
        return "COST_MODEL_TYPE_INVALID" not in self.attributes

    @property
    def scope(self) -> str:
        """Where in the Python program it comes from: "jit(step)/jvp(layers)/while/body/…"."""
        match = _SCOPE.search(self.attributes)
        return match[1] if match else ""

    def attribute(self, name: str) -> str | None:
        """The raw text of `name=…`, without a leading % and within its braces if it has them."""
        match = re.search(rf"\b{name}=(?:\{{([^}}]*)\}}|%?([^\s,]+))", self.attributes)
        return None if match is None else (match[1] if match[1] is not None else match[2])


@dataclass(slots=True)
class Computation:
    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    def parameters(self) -> list[Instruction]:
        """The parameters, in order of their numbers."""
        ordered = [instruction for instruction in self if instruction.opcode == "parameter"]
        return sorted(ordered, key=lambda instruction: int(instruction.literal))

    def users(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self if name in instruction.operands]

    def source(self, name: str, passed_on: frozenset[str]) -> str:
        """Where a chain of operations begins that only pass on their operand."""
        while (instruction := self.instructions.get(name)) and instruction.opcode in passed_on and instruction.operands:
            name = instruction.operands[0]
        return name


@dataclass(frozen=True, slots=True)
class Module:
    computations: dict[str, Computation]
    entry: Computation


def parse(text: str) -> Module:
    """Raises ValueError for a text that is not an HLO module."""
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    inside: Computation | None = None
    for line in text.splitlines():
        if inside is None:
            header = _HEADER.match(line)
            if header and not line.startswith("HloModule"):
                inside = computations[header[2]] = Computation(header[2])
                entry = inside if header[1] else entry
        elif line == "}" or line.startswith("}, "):  # "}}, …" ends a kernel's metadata of several lines
            inside = None
        elif named := _NAME.match(line):
            instruction = _instruction(named[2], line[named.end() :])
            inside.instructions[instruction.name] = instruction
            if named[1]:
                inside.root = instruction.name
    if entry is None:
        raise ValueError("no HLO module: it has no ENTRY computation")
    return Module(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shapes, rest = text[:end], text[end:].lstrip()
    opened = rest.index("(")
    closed = _closing(rest, opened)
    inside = rest[opened + 1 : closed]
    return Instruction(
        name=name,
        opcode=rest[:opened],
        shapes=tuple(arrays(shapes)),
        operands=tuple(_OPERAND.findall(inside)),
        literal=inside,
        attributes=rest[closed + 1 :],
    )


def arrays(shape: str) -> Iterator[Array]:
    """The arrays of a shape as XLA prints it: "(f32[2,3]{1,0:T(8,128)}, s32[]{:T(256)S(6)})" has two."""
    for dtype, dims, layout in _ARRAY.findall(shape):
        order, _, rest = layout.partition(":")
        tile, space = _TILE.search(rest), _SPACE.search(rest)
        yield Array(
            dtype,
            tuple(int(size.removeprefix("<=")) for size in dims.split(",") if size),
            tuple(int(axis) for axis in order.split(",") if axis),
            tuple(int(size) for size in tile[1].split(",")) if tile else (),
            int(space[1]) if space else 0,
        )


def _closing(text: str, opened: int) -> int:
    """The position of the parenthesis that closes the one at `opened`."""
    depth = 0
    for place in range(opened, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"no HLO: a parenthesis is not closed in {text[:80]!r}")
