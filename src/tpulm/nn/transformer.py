"""A stack of transformer layers of one shape: post-norm or pre-norm, encoder or decoder, as `ModelConfig` says."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import math
import operator
from typing import Literal, NamedTuple

import jax
from jax import Array
from jax.sharding import NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Float, Int, UInt32

from tpulm.config import ModelConfig
from tpulm.nn.attention import CAUSAL, EVERYTHING, Attention, AttentionWindow, Rotation, attend, attention_spec
from tpulm.nn.dropout import DropoutSeeds, dropout, seeds_at, site_seeds, token_seeds
from tpulm.nn.layers import PRODUCT, Dense, Norm, activation, dense, dense_spec, norm_spec, normalize
from tpulm.nn.params import TruncatedNormal, parameters, stack

Remat = Literal["none", "dots", "full"]


class Execution(NamedTuple):
    """How a model is computed; no field changes the result, apart from rounding."""

    dtype: DTypeLike  # of activations and matrix products
    remat: Remat  # saved for the backward pass: everything, matrix products only, or only the layers' inputs
    unroll: bool  # layers unrolled instead of in a loop
    # sharding of activations [R, D]; None: the compiler's choice, which for sharded parameters is not by rows
    rows: NamedSharding | None = None
    kernels: NamedSharding | None = None  # sharding of rows over devices that have attention kernels
    tokens_at_once: int | None = None  # whose logits over the vocabulary are in memory; None: all

    def shard(self, x: Float[Array, "R D"]) -> Float[Array, "R D"]:
        """Constrain activations between layers to `rows`: each token whole on one device."""
        return x if self.rows is None else jax.lax.with_sharding_constraint(x, self.rows)


class Randomness(NamedTuple):
    """The source of dropout masks: one key for the step, two seeds for each row."""

    key: Array
    rows: UInt32[Array, "B 2"]


@parameters
class Layer:
    attention: Attention
    attention_norm: Norm  # post-norm: after the branch is added; pre-norm: before the branch
    gate: Dense | None  # [D, F], gated feed-forward only
    up: Dense  # [D, F]
    down: Dense  # [F, D]
    feed_forward_norm: Norm


def layer_spec(config: ModelConfig) -> Layer:
    init, into_stream = initializers(config)
    size, inner, bias = config.hidden_size, config.intermediate_size, config.biases
    widening = dense_spec((size, inner), ("embed", "feed_forward"), init, bias=bias)
    return Layer(
        attention=attention_spec(size, config.num_heads, init, into_stream, bias=bias),
        attention_norm=norm_spec(size, bias=has_norm_bias(config)),
        gate=widening if config.feed_forward == "gated" else None,
        up=widening,
        down=dense_spec((inner, size), ("feed_forward", "embed"), into_stream, bias=bias),
        feed_forward_norm=norm_spec(size, bias=has_norm_bias(config)),
    )


def initializers(config: ModelConfig) -> tuple[TruncatedNormal, TruncatedNormal]:
    """Initializers of most matrices, and of those whose products are added to the residual stream."""
    scale = math.sqrt(2.0 * config.num_layers) if config.depth_scaled_init else 1.0
    return TruncatedNormal(config.initializer_range), TruncatedNormal(config.initializer_range / scale)


def has_norm_bias(config: ModelConfig) -> bool:
    return config.biases and config.norm == "layer"


def stack_spec(config: ModelConfig) -> Layer:
    return stack(layer_spec(config), config.num_layers)


class LayerKind(NamedTuple):
    """How a layer differs from the others, by its number."""

    window: AttentionWindow
    is_local: bool  # windowed attention, with the RoPE of local layers
    norms_input: bool  # False: the input is already normalized


def layer_kind(number: int, config: ModelConfig, *, causal: bool) -> LayerKind:
    """Layers of ModernBERT have global attention if `global_every` divides their number. The first one has no norm before its
    attention: one follows the embeddings (Warner et al. 2024; transformers' ModernBertEncoderLayer)."""
    is_local = number % config.global_every > 0
    half = config.local_window // 2
    window = AttentionWindow(half, 0 if causal else half) if is_local else CAUSAL if causal else EVERYTHING
    return LayerKind(window, is_local, norms_input=config.architecture != "modernbert" or number > 0)


class Rotations(NamedTuple):
    """RoPE of layers with global attention, and of those with a local window."""

    everywhere: Rotation
    local: Rotation


def apply_layer(
    params: Layer,
    x: Float[Array, "R D"],
    segments: Int[Array, "B L"],
    seeds: LayerSeeds | None,
    *,
    config: ModelConfig,
    execution: Execution,
    rope: Rotations | None,
    kind: LayerKind,
) -> Float[Array, "R D"]:
    pre = config.norm_position == "pre"
    dtype = execution.dtype
    seeds = seeds or LayerSeeds(None, None, None)

    def norm(norm_params: Norm, y: Array) -> Array:
        with jax.named_scope("norm"):
            return normalize(norm_params, y, epsilon=config.norm_epsilon, kind=config.norm)

    with jax.named_scope("attention"):
        branch = norm(params.attention_norm, x) if pre and kind.norms_input else x
        branch = attend(
            params.attention,
            branch,
            segments,
            dtype=dtype,
            dropout_rate=config.attention_dropout,
            seeds=seeds.weights,
            window=kind.window,
            keep_weights=execution.remat == "none",
            rope=None if rope is None else rope.local if kind.is_local else rope.everywhere,
            kernels=execution.kernels,
        )
        x = x + dropout(branch, rate=config.dropout, seeds=seeds.attention)
        x = x if pre else norm(params.attention_norm, x)
    with jax.named_scope("feed_forward"):
        branch = norm(params.feed_forward_norm, x) if pre else x
        branch = feed_forward(params, branch, config=config, dtype=dtype)
        x = x + dropout(branch, rate=config.dropout, seeds=seeds.feed_forward)
        return x if pre else norm(params.feed_forward_norm, x)


def feed_forward(params: Layer, x: Float[Array, "R D"], *, config: ModelConfig, dtype: DTypeLike) -> Float[Array, "R D"]:
    act, widened = activation(config.activation), dense(params.up, x, dtype=dtype)
    inner = act(widened) if params.gate is None else act(dense(params.gate, x, dtype=dtype)) * widened
    return dense(params.down, inner, dtype=dtype)


class LayerSeeds(NamedTuple):
    """The seeds of a layer's three dropout sites."""

    weights: DropoutSeeds | None  # for [B, H, L, M]
    attention: DropoutSeeds | None  # for [R, D]
    feed_forward: DropoutSeeds | None  # for [R, D]


def apply_stack(
    params: Layer,
    x: Float[Array, "R D"],
    segments: Int[Array, "B L"],
    *,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
    rope: Rotations | None = None,
    causal: bool = False,
) -> Float[Array, "R D"]:
    """Apply all layers; each draws its own dropout masks from `randomness` (None: no dropout).

    The layers run in a scan over rounds, one round being the layers until the pattern repeats. A first layer unlike all others
    runs before the scan, and layers that do not fill a round run after it.
    """
    rows, length = segments.shape
    sites = tokens = None
    if randomness is not None:
        sites = site_seeds(randomness.key, (config.num_layers, len(LayerSeeds._fields)))
        tokens = token_seeds(randomness.rows, length)
    kinds = [layer_kind(number, config, causal=causal) for number in range(config.num_layers)]

    def apply(x: Array, layer: Layer, layer_sites: Array | None, kind: LayerKind) -> Array:
        seeds = None
        if layer_sites is not None and tokens is not None:
            seeds = LayerSeeds(
                weights=seeds_at(layer_sites[0], tokens, (rows, 1, length, 1)),
                attention=seeds_at(layer_sites[1], tokens, (rows * length, 1)),
                feed_forward=seeds_at(layer_sites[2], tokens, (rows * length, 1)),
            )
        x = apply_layer(*(layer, execution.shard(x), segments, seeds), config=config, execution=execution, rope=rope, kind=kind)
        return execution.shard(x)

    if execution.remat != "none":
        policy = jax.checkpoint_policies.save_only_these_names(PRODUCT) if execution.remat == "dots" else None
        apply = jax.checkpoint(apply, prevent_cse=False, policy=policy, static_argnums=3)

    def straight(x: Array, first: int, end: int) -> Array:
        for number in range(first, end):
            layer, layer_sites = _at((params, sites), number)
            x = apply(x, layer, layer_sites, kinds[number])
        return x

    first, round_length = (0, 1) if config.architecture != "modernbert" else (1, config.global_every)
    rounds = (config.num_layers - first) // round_length
    end = first + rounds * round_length

    def loop_round(x: Array, stacked: tuple[Layer, Array | None]) -> tuple[Array, None]:
        for number in range(round_length):
            layer, layer_sites = stacked if round_length == 1 else _at(stacked, number)
            x = apply(x, layer, layer_sites, kinds[first + number])
        return x, None

    def in_rounds(leaf: Array) -> Array:
        return leaf[first:end].reshape(rounds, *(round_length,) * (round_length > 1), *leaf.shape[1:])

    with jax.named_scope("layers"):
        x = straight(x, 0, first)
        if rounds:
            stacked = params, sites
            if first or round_length > 1:
                stacked = jax.tree.map(in_rounds, stacked)
            x, _ = jax.lax.scan(loop_round, x, stacked, unroll=rounds if execution.unroll else 1)
        return straight(x, end, config.num_layers)


def _at(stacked: tuple[Layer, Array | None], number: int) -> tuple[Layer, Array | None]:
    """One layer's slice of leaves stacked on the leading axis."""
    return jax.tree.map(operator.itemgetter(number), stacked)
