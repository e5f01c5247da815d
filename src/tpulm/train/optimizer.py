"""Learning-rate schedules and the optimizer, as optax transformations.

AdamW is the one BERT was trained with (google-research/bert, optimization.py), with epsilon 1e-6 outside the square root and
weight decay on matrices only, plus Adam's bias correction, which BERT's lacks, unless turned off. The global gradient is
clipped; the originals clip each replica's gradient before the mean.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tpulm.config import SCHEDULES, OptimizerConfig
from tpulm.nn.params import is_spec, map_specs, named_leaves, path_name

Schedule = Callable[[jax.Array, OptimizerConfig, int], jax.Array]


def _wsd(n: jax.Array, config: OptimizerConfig, total_steps: int) -> jax.Array:
    remaining = jnp.clip((total_steps - n) / config.decay(total_steps), 0.0, 1.0)
    if config.decay_type == "1-sqrt":  # Hägele et al. 2024, section 3; ModernBERT (Warner et al. 2024, section 2.2.2)
        return 1.0 - jnp.sqrt(1.0 - remaining)
    return remaining


def _rsqrt(n: jax.Array, config: OptimizerConfig, total_steps: int) -> jax.Array:
    begin = max(1, config.warmup(total_steps))
    return jnp.sqrt(begin / jnp.maximum(n, float(begin)))


_SCHEDULES: dict[str, Schedule] = {
    "linear": lambda n, config, total_steps: 1.0 - jnp.clip(n / total_steps, 0.0, 1.0),
    "cosine": lambda n, config, total_steps: 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(n / total_steps, 0.0, 1.0))),
    "constant": lambda n, config, total_steps: jnp.ones_like(n),
    "rsqrt": _rsqrt,
    "wsd": _wsd,
}


def register_schedule(name: str, factor: Schedule) -> None:
    """Let `train.optimizer.schedule = name` multiply the learning rate by `factor(n, config, total_steps)`; n is the number of
    the update, from 1, as float32."""
    SCHEDULES.add(name)
    _SCHEDULES[name] = factor


def learning_rate(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """The learning-rate schedule, as a function of count, for update n = count + 1; it peaks at n = warmup_steps.

    warmup_kind "replace" (BERT): the warmup replaces the decay, which starts at n = 0 all the same. "multiply" (ELECTRA): the
    two are multiplied. The originals' first update has rate zero; ours has 1 / warmup_steps of the peak.
    """
    warmup, decay = config.warmup(total_steps), _SCHEDULES[config.schedule]

    def schedule(count: Any) -> jax.Array:
        n = jnp.asarray(count, jnp.float32) + 1.0
        factor = decay(n, config, total_steps)
        if warmup:
            rise = n / warmup
            factor = (
                jnp.where(n <= warmup, rise, factor) if config.warmup_kind == "replace" else factor * jnp.minimum(rise, 1.0)
            )
        return jnp.asarray(config.learning_rate, jnp.float32) * factor

    return schedule


def make_optimizer(config: OptimizerConfig, total_steps: int, spec: Any) -> optax.GradientTransformation:
    """clip -> Adam (or Muon and Adam) -> decay -> (LAMB: trust ratio) -> (layer-wise decay) -> learning rate.

    `spec` is the parameters' tree of ParamSpec.
    """
    decayed = map_specs(lambda leaf: leaf.decay, spec)
    if config.bias_correction:
        scaled = _promoting(optax.scale_by_adam(config.beta1, config.beta2, config.epsilon))
    else:
        scaled = _scale_by_adam_without_correction(config.beta1, config.beta2, config.epsilon)
    if config.name == "muon":
        axes = map_specs(_matrix_axes, spec)
        labels = map_specs(lambda leaf: "muon" if _is_matrix(leaf) else "adam", spec)
        muon = optax.chain(_promoting(optax.contrib.scale_by_muon(weight_dimension_numbers=axes)), _scale_by_fans(spec))
        scaled = optax.partition({"muon": muon, "adam": scaled}, labels)
    parts = [scaled, optax.add_decayed_weights(config.weight_decay, mask=decayed)]
    if config.clip_norm is not None:
        parts.insert(0, _clip_by_global_norm(config.clip_norm))
    if config.name == "lamb":
        parts.append(_scale_by_trust_ratio(spec))
    if config.layer_decay is not None:
        parts.append(_scale_by_depth(spec, config.layer_decay))
    return optax.chain(*parts, optax.scale_by_learning_rate(learning_rate(config, total_steps)))


def _clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """As optax's, but multiplies by one factor; optax divides each element, whose results would pass through memory."""

    def clip(updates: Any, _: Any) -> Any:
        norm = optax.tree.norm(updates)
        factor = jnp.where(norm < limit, 1.0, limit / norm)
        return jax.tree.map(lambda update: update * factor, updates)

    return optax.stateless(clip)


_MUON_RMS = 0.2  # RMS of an update, about AdamW's (Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2)


def _is_matrix(leaf: Any) -> bool:
    """Whether a leaf holds the layers' matrices, [N, in, out], in which heads may be a separate axis."""
    return leaf.axes[0] == "layers" and leaf.decay


def _matrix_axes(leaf: Any) -> Any:
    """The input axes and output axes of a matrix, for Muon."""
    if not _is_matrix(leaf):
        return optax.MaskedNode()
    inputs = (1, 2) if len(leaf.shape) == 4 and leaf.axes[1] == "heads" else (1,)
    return optax.contrib.MuonDimensionNumbers(inputs, tuple(range(1 + len(inputs), len(leaf.shape))))


def _scale_by_fans(spec: Any) -> optax.GradientTransformation:
    """Scale Muon's updates to RMS `_MUON_RMS`: an orthogonal matrix's elements have RMS 1 / sqrt(max(inputs, outputs))."""

    def scale(leaf: Any) -> Any:
        if not _is_matrix(leaf):
            return optax.MaskedNode()
        outputs = math.prod(leaf.shape[axis] for axis in _matrix_axes(leaf).output_axis)
        return np.float32(_MUON_RMS * math.sqrt(max(outputs, math.prod(leaf.shape[1:]) // outputs)))

    scales = map_specs(scale, spec)
    return optax.stateless(lambda updates, _: jax.tree.map(operator.mul, updates, scales))


def _promoting(transformation: optax.GradientTransformation) -> optax.GradientTransformation:
    """Allow dtype promotion: optax's bias correction raises a float to an integer power, which strict promotion forbids."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):
            return transformation.update(updates, state, params)

    return optax.GradientTransformation(transformation.init, update)


class _Moments(NamedTuple):
    mu: Any
    nu: Any


class Moments(NamedTuple):
    """Adam's running means of gradients and of their squares, without bias correction, as Google's optimizer keeps them."""

    first: Any  # a tree like the parameters'
    second: Any
    step: Any  # number of updates they come from, an int or an int32 array; None: unknown


def with_moments(state: Any, moments: Moments) -> Any:
    """An optimizer's initial state, with these moments in place of zeros; schedules still begin at 0.

    Bias correction divides by 1 - beta ** count, for means that were zero `count` updates ago, so its count must be that of the
    moments. With a count of 0 the first update would be a third of what it should be (betas 0.9, 0.999). `moments.step` may be
    None without bias correction.
    """

    def put(part: Any) -> Any:
        if isinstance(part, _Moments):
            return _Moments(moments.first, moments.second)
        if isinstance(part, optax.ScaleByAdamState):
            return part._replace(count=moments.step, mu=moments.first, nu=moments.second)
        return part

    return tuple(put(part) for part in state)


def _scale_by_adam_without_correction(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """mu / (sqrt(nu) + epsilon); optax's always divides by 1 - beta ** count."""

    def init(params: Any) -> _Moments:
        return _Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: _Moments, params: Any = None) -> tuple[Any, _Moments]:
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, state.nu, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu), _Moments(mu, nu)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def _scale_by_trust_ratio(spec: Any) -> optax.GradientTransformation:
    """LAMB's |parameter| / |update| for each layer (arXiv 1904.00962, algorithm 2).

    A stacked leaf holds all layers along its "layers" axis; the norms reduce over the other axes only. Parameters without
    decay (norms and biases) keep a ratio of one, as in the authors' code.
    """

    def ratio(leaf: Any, update: jax.Array, parameter: jax.Array) -> jax.Array:
        if not leaf.decay:
            return update
        axes = tuple(i for i, name in enumerate(leaf.axes) if name != "layers")
        size = jnp.sqrt(jnp.sum(jnp.square(parameter), axis=axes, keepdims=True))
        step = jnp.sqrt(jnp.sum(jnp.square(update), axis=axes, keepdims=True))
        return update * jnp.where((size > 0.0) & (step > 0.0), size / jnp.where(step > 0.0, step, 1.0), 1.0)

    return optax.stateless(lambda updates, params: jax.tree.map(ratio, spec, updates, params, is_leaf=is_spec))


def _scale_by_depth(spec: Any, layer_decay: float) -> optax.GradientTransformation:
    """Scale by layer_decay ** (N + 1 - depth): depth 0 for embeddings, i + 1 for layer i of N, N + 1 for all above the layers.

    N is that of the leaf's own stack, as ELECTRA has two. (ELECTRA's authors, for fine-tuning, apply one more power to all but
    the head.)
    """

    def factor(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        if leaf.axes[0] == "layers":
            powers = np.arange(leaf.shape[0], 0, -1)
        else:
            deepest = max((other.shape[0] for other in stacks(path)), default=0)
            is_below = not {"embeddings", "projection"}.isdisjoint(path_name(path).split("/"))
            powers = np.array([deepest + 1 if is_below else 0])
        return np.float32(layer_decay) ** powers.reshape(-1, *[1] * (len(leaf.shape) - 1)).astype(np.float32)

    def stacks(path: tuple[Any, ...]) -> list[Any]:
        """The stacked leaves of the same model: in ELECTRA of the same half, else all."""
        half = path_name(path).split("/")[0] if path_name(path).split("/")[0] in ("generator", "discriminator") else ""
        return [leaf for name, leaf in named_leaves(spec).items() if name.startswith(half) and leaf.axes[0] == "layers"]

    factors = jax.tree_util.tree_map_with_path(factor, spec, is_leaf=is_spec)
    return optax.stateless(lambda updates, _: jax.tree.map(operator.mul, updates, factors))
