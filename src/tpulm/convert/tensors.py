"""Copying parameters by a table of names, to other people's tensors and back.

Axes that our specs name "layers" become one of their tensors each, and the rows that pad our vocabulary are cut off on the way
out and added on the way in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tpulm.convert.names import Layout, Name
from tpulm.errors import DataError, some_of, suggest
from tpulm.nn.params import ParamSpec, is_spec, named_leaves

_SHOWN = 20  # names of each kind of problem that an error lists


def to_theirs(params: Any, spec: Any, table: Sequence[Name], *, vocab_size: int) -> dict[str, np.ndarray]:
    """Their tensors by name, float32, as C-ordered copies; the vocabulary cut to `vocab_size`."""
    leaves, specs = named_leaves(params), named_leaves(spec)
    rows = _by_our_name(table, specs)
    tensors: dict[str, np.ndarray] = {}
    for ours, leaf_spec in specs.items():
        name, layout = rows[ours].theirs, rows[ours].layout
        array = np.asarray(leaves[ours], np.float32)
        if _is_stacked(leaf_spec):
            for layer, piece in enumerate(array):
                tensors[name.format(layer=layer)] = _to_their_layout(piece, layout)
        else:
            cut = array[:vocab_size] if _has_vocabulary(leaf_spec) else array
            tensors[name] = _to_their_layout(cut, layout)
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

    A tensor is an array, or has a `shape` and becomes one by `np.asarray`. `description` is what the model's sizes are known
    from, for the message.
    """
    specs = named_leaves(spec)
    rows = _by_our_name(table, specs)
    layers = max(leaf_spec.shape[0] for leaf_spec in specs.values() if _is_stacked(leaf_spec))
    if layers > len(tensors):  # or the names alone would fill the memory
        raise DataError(
            f"the weights do not fit {description}: it says {layers:,} layers, and there are {len(tensors):,} tensors in all",
            location=origin,
        )
    _check(tensors, _their_shapes(specs, rows, vocab_size=vocab_size), origin=origin, description=description)

    def leaf(ours: str, leaf_spec: ParamSpec) -> np.ndarray:
        name, layout = rows[ours].theirs, rows[ours].layout
        shape = leaf_spec.shape
        if _is_stacked(leaf_spec):
            layers = (np.asarray(tensors[name.format(layer=layer)]) for layer in range(shape[0]))
            return np.stack([_to_our_layout(tensor, layout, shape[1:]) for tensor in layers])
        if _has_vocabulary(leaf_spec):
            padded = np.zeros(shape, np.float32)
            padded[:vocab_size] = np.asarray(tensors[name])
            return padded
        return _to_our_layout(np.asarray(tensors[name]), layout, shape)

    leaves = {ours: leaf(ours, leaf_spec) for ours, leaf_spec in specs.items()}
    broken = [rows[ours].theirs for ours, array in leaves.items() if not np.isfinite(array).all()]
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


def _their_shapes(specs: Mapping[str, ParamSpec], rows: Mapping[str, Name], *, vocab_size: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, leaf_spec in specs.items():
        name, layout = rows[ours].theirs, rows[ours].layout
        if _is_stacked(leaf_spec):
            for layer in range(leaf_spec.shape[0]):
                shapes[name.format(layer=layer)] = _their_shape(leaf_spec.shape[1:], layout)
        elif _has_vocabulary(leaf_spec):
            shapes[name] = (vocab_size, *leaf_spec.shape[1:])
        else:
            shapes[name] = _their_shape(leaf_spec.shape, layout)
    return shapes


def _by_our_name(table: Sequence[Name], specs: Mapping[str, ParamSpec]) -> dict[str, Name]:
    rows = {row.ours: row for row in table}
    if rows.keys() != specs.keys():
        raise ValueError(f"the table of names and the model differ in {sorted(rows.keys() ^ specs.keys())}")
    return rows


def _is_stacked(leaf_spec: ParamSpec) -> bool:
    return leaf_spec.axes[0] == "layers"


def _has_vocabulary(leaf_spec: ParamSpec) -> bool:
    return leaf_spec.axes[0] == "vocab"


def _their_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    match layout:
        case "same":
            return shape
        case "flat":
            return (math.prod(shape),)
        case "dense":
            return (math.prod(shape[1:]), shape[0])
        case "merge":
            return (shape[-1], math.prod(shape[:-1]))
        case "conv":
            return (shape[0], math.prod(shape[1:]))
        case "conv merge":
            return (math.prod(shape[:-1]), shape[-1])


def _to_their_layout(array: np.ndarray, layout: Layout) -> np.ndarray:
    shape = _their_shape(array.shape, layout)
    turned = array.reshape(shape[::-1]).T if layout in ("dense", "merge") else array.reshape(shape)
    return np.array(turned, order="C")


def _to_our_layout(tensor: np.ndarray, layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    turned = tensor.T if layout in ("dense", "merge") else tensor
    return np.array(turned, np.float32).reshape(shape)
