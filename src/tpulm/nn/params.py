"""Parameter specs: shape, logical axes, initializer, and whether weight decay applies.

A model's `spec(config)` returns the same tree as its parameters, with a `ParamSpec` at each leaf. Initial values, shardings,
the restore target, the decay mask and the parameter count all come from that one tree.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import Array

Initializer = Callable[[Array, tuple[int, ...]], Array]
_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class ParamSpec:
    """One parameter; `axes` has one logical axis name per dimension of `shape` (None: never sharded)."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Initializer
    decay: bool

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.axes):
            raise ValueError(f"a parameter of shape {self.shape} needs {len(self.shape)} axis names, not {self.axes}")


@dataclass_transform(frozen_default=True)
def parameters(cls: _Class) -> _Class:
    """Class decorator: a frozen dataclass registered as a pytree, whose fields are its subtrees in order of declaration."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


def param(shape: tuple[int, ...], axes: tuple[str | None, ...], init: Initializer, *, decay: bool = True) -> Any:
    """A `ParamSpec`, typed as Any to stand where the tree declares an array."""
    return ParamSpec(shape, axes, init, decay)


def zeros(key: Array, shape: tuple[int, ...]) -> Array:
    del key
    return jnp.zeros(shape, jnp.float32)


def ones(key: Array, shape: tuple[int, ...]) -> Array:
    del key
    return jnp.ones(shape, jnp.float32)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal with this standard deviation, cut at two of them, as in Google's BERT (`tf.truncated_normal_initializer`)."""

    stddev: float

    def __call__(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32) * jnp.float32(self.stddev)


def is_spec(leaf: Any) -> bool:
    """The `is_leaf` for mapping a tree of specs together with others."""
    return isinstance(leaf, ParamSpec)


def path_name(path: tuple[Any, ...]) -> str:
    """The stable name of a leaf, such as "layers/attention/query/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves (arrays, specs, shapes) by path name, in the tree's order."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_spec)[0]}


def map_specs(function: Callable[[ParamSpec], Any], spec: Any) -> Any:
    """The tree with `function` applied to each `ParamSpec`."""
    return jax.tree.map(function, spec, is_leaf=is_spec)


def initialize(spec: Any, key: Array) -> Any:
    """Initial values, float32. A leaf's key depends only on its path, so adding a leaf does not change the others."""

    def begin(path: tuple[Any, ...], leaf: ParamSpec) -> Array:
        return leaf.init(jax.random.fold_in(key, zlib.crc32(path_name(path).encode())), leaf.shape)

    return jax.tree_util.tree_map_with_path(begin, spec, is_leaf=is_spec)


def shapes(spec: Any) -> Any:
    """The tree of `jax.ShapeDtypeStruct`, float32."""
    return map_specs(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), spec)


def count(spec: Any) -> int:
    """The number of scalar parameters, vocabulary padding included."""
    return sum(math.prod(leaf.shape) for leaf in named_leaves(spec).values())


def stack(spec: Any, num_layers: int) -> Any:
    """The spec of `num_layers` identical layers, stacked on a new leading axis "layers"."""
    return map_specs(lambda s: ParamSpec((num_layers, *s.shape), ("layers", *s.axes), s.init, s.decay), spec)
