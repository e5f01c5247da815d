"""Copy parameters to and from other formats' tensors by a table of names.

An axis that our spec names "layers" becomes one of their tensors per layer. The rows that pad our vocabulary are cut off on
export and added on import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tpulm.convert.names import Name, TensorLayout
from tpulm.errors import DataError, some_of, suggest
from tpulm.nn.params import ParamSpec, is_spec, named_leaves

_TRANSPOSED: tuple[TensorLayout, ...] = ("dense", "merge")
_SHOWN = 20  # names that an error lists for each kind of problem


class _TensorSlice(NamedTuple):
    """A part of one of our arrays that is a separate tensor there: its name, our index, and the part's shape in our layout."""

    theirs: str
    index: Any
    shape: tuple[int, ...]


def _slices(leaf: ParamSpec, theirs: str, vocab_size: int) -> list[_TensorSlice]:
    if leaf.axes[0] == "layers":
        return [_TensorSlice(theirs.format(layer=layer), layer, leaf.shape[1:]) for layer in range(leaf.shape[0])]
    if leaf.axes[0] == "vocab":
        return [_TensorSlice(theirs, slice(vocab_size), (vocab_size, *leaf.shape[1:]))]
    return [_TensorSlice(theirs, ..., leaf.shape)]


def to_theirs(params: Any, spec: Any, table: Sequence[Name], *, vocab_size: int) -> dict[str, np.ndarray]:
    """Their tensors by name, float32, as C-ordered copies; the vocabulary is cut to `vocab_size`."""
    leaves, specs = named_leaves(params), named_leaves(spec)
    rows = _by_our_name(table, specs)
    tensors: dict[str, np.ndarray] = {}
    for ours, leaf in specs.items():
        array, layout = np.asarray(leaves[ours], np.float32), rows[ours].layout
        for part in _slices(leaf, rows[ours].theirs, vocab_size):
            shape = _their_shape(part.shape, layout)
            piece = array[part.index]
            turned = piece.reshape(shape[::-1]).T if layout in _TRANSPOSED else piece.reshape(shape)
            tensors[part.theirs] = np.array(turned, order="C")
    return tensors


def from_theirs(
    tensors: Mapping[str, Any],
    spec: Any,
    table: Sequence[Name],
    *,
    vocab_size: int,
    origin: str,
    description: str = "config.json",
) -> Any:
    """Our tree of float32 arrays. Raises DataError naming what is missing, unknown or of another shape, before any is read.

    A tensor is an array, or has a `shape` and becomes one by `np.asarray`. `description` names the source of the model's sizes,
    for the message.
    """
    specs = named_leaves(spec)
    rows = _by_our_name(table, specs)
    layers = max(leaf.shape[0] for leaf in specs.values() if leaf.axes[0] == "layers")
    if layers > len(tensors):  # else the names alone could fill the memory
        raise DataError(
            f"the weights do not fit {description}: it says {layers:,} layers, and there are {len(tensors):,} tensors in all",
            location=origin,
        )
    parts = {ours: _slices(leaf, rows[ours].theirs, vocab_size) for ours, leaf in specs.items()}
    expected = {part.theirs: _their_shape(part.shape, rows[ours].layout) for ours in parts for part in parts[ours]}
    _check(tensors, expected, origin=origin, description=description)
    leaves = {ours: np.zeros(leaf.shape, np.float32) for ours, leaf in specs.items()}
    for ours, array in leaves.items():
        for part in parts[ours]:
            tensor = np.asarray(tensors[part.theirs])
            array[part.index] = (tensor.T if rows[ours].layout in _TRANSPOSED else tensor).reshape(part.shape)
    broken = [one.theirs for ours, array in leaves.items() for one in parts[ours] if not np.isfinite(array[one.index]).all()]
    if broken:
        raise DataError(f"NaN or infinite numbers in {some_of(broken)}", location=origin)
    return jax.tree.unflatten(jax.tree.structure(spec, is_leaf=is_spec), list(leaves.values()))


def _check(tensors: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], *, origin: str, description: str) -> None:
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    wrong = [name for name in tensors if name in expected and tuple(tensors[name].shape) != expected[name]]
    problems = [f"missing: {name} {list(expected[name])}" for name in missing[:_SHOWN]]
    problems += [f"unknown: {name} {list(tensors[name].shape)}.{suggest(name, expected)}" for name in unknown[:_SHOWN]]
    problems += [
        f"shape: {name} is {list(tensors[name].shape)}, {description} says {list(expected[name])}" for name in wrong[:_SHOWN]
    ]
    if problems:
        count = len(missing) + len(unknown) + len(wrong)
        problems += [f"and {count - len(problems)} more"] if count > len(problems) else []
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise DataError(f"the weights do not fit {description} ({count} of {len(expected)} names):\n{lines}", location=origin)


def _by_our_name(table: Sequence[Name], specs: Mapping[str, ParamSpec]) -> dict[str, Name]:
    rows = {row.ours: row for row in table}
    if rows.keys() != specs.keys():
        raise ValueError(f"the table of names and the model differ in {sorted(rows.keys() ^ specs.keys())}")
    return rows


def _their_shape(shape: tuple[int, ...], layout: TensorLayout) -> tuple[int, ...]:
    if layout in ("same", "flat"):
        return shape if layout == "same" else (math.prod(shape),)
    cut = -1 if layout.endswith("merge") else 1  # between the axes in and those out
    ours = (math.prod(shape[:cut]), math.prod(shape[cut:]))
    return ours[::-1] if layout in _TRANSPOSED else ours
