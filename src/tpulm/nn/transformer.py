"""A stack of equal transformer layers: post-norm or pre-norm, an encoder's or a decoder's, as `ModelConfig` says."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from typing import Literal, NamedTuple

import jax
from jax import Array
from jax.sharding import NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Float, Int, UInt32

from tpulm.config import ModelConfig
from tpulm.nn.attention import Attention, Rotation, attend, attention_spec
from tpulm.nn.dropout import DropoutWords, dropout, site_seeds, token_seeds, words_at
from tpulm.nn.layers import PRODUCT, Dense, Norm, activation, dense, dense_spec, norm_spec, normalize
from tpulm.nn.params import TruncatedNormal, parameters, stack

Remat = Literal["none", "dots", "full"]


class Execution(NamedTuple):
    """How a model is computed: none of it changes what is computed, rounding aside."""

    dtype: DTypeLike  # of activations and matrix products
    remat: Remat  # kept for the backward pass: everything, matrix products only, or only the layers' inputs
    unroll: bool  # layers as straight code, or as a loop
    # activations [R, D] over several devices; None: as the compiler likes, which for parameters that are split is not by rows
    rows: NamedSharding | None = None
    flash: NamedSharding | None = None  # rows over devices that have the kernels of nn/flash.py

    def laid(self, x: Float[Array, "R D"]) -> Float[Array, "R D"]:
        """Activations between layers, each token whole on one device."""
        return x if self.rows is None else jax.lax.with_sharding_constraint(x, self.rows)


class Randomness(NamedTuple):
    """What dropout draws from: one key for the step, two words for each row."""

    key: Array
    rows: UInt32[Array, "B 2"]


@parameters
class Layer:
    attention: Attention
    attention_norm: Norm  # post: after the branch is added; pre: before the branch
    gate: Dense | None  # [D, F], gated feed-forward only
    up: Dense  # [D, F]
    down: Dense  # [F, D]
    feed_forward_norm: Norm


def layer_spec(config: ModelConfig) -> Layer:
    init = TruncatedNormal(config.initializer_range)
    size, inner, bias = config.hidden_size, config.intermediate_size, config.biases

    def widening() -> Dense:
        return dense_spec((size, inner), ("embed", "feed_forward"), init, bias=bias)

    return Layer(
        attention=attention_spec(size, config.num_heads, init, bias=bias),
        attention_norm=norm_spec(size, bias=has_norm_bias(config)),
        gate=widening() if config.feed_forward == "gated" else None,
        up=widening(),
        down=dense_spec((inner, size), ("feed_forward", "embed"), init, bias=bias),
        feed_forward_norm=norm_spec(size, bias=has_norm_bias(config)),
    )


def has_norm_bias(config: ModelConfig) -> bool:
    return config.biases and config.norm == "layer"


def stack_spec(config: ModelConfig) -> Layer:
    return stack(layer_spec(config), config.num_layers)


def apply_layer(
    params: Layer,
    x: Float[Array, "R D"],
    segments: Int[Array, "B L"],
    words: LayerWords | None,
    *,
    config: ModelConfig,
    execution: Execution,
    rope: Rotation | None,
) -> Float[Array, "R D"]:
    pre = config.norm_position == "pre"
    dtype = execution.dtype
    words = words or LayerWords(None, None, None)

    def norm(norm_params: Norm, y: Array) -> Array:
        with jax.named_scope("norm"):
            return normalize(norm_params, y, epsilon=config.norm_epsilon, kind=config.norm)

    with jax.named_scope("attention"):
        branch = norm(params.attention_norm, x) if pre else x
        branch = attend(
            params.attention,
            branch,
            segments,
            dtype=dtype,
            dropout_rate=config.attention_dropout,
            words=words.weights,
            causal=config.architecture == "decoder",
            keep_weights=execution.remat == "none",
            rope=rope,
            flash=execution.flash,
        )
        x = x + dropout(branch, rate=config.dropout, words=words.attention)
        x = x if pre else norm(params.attention_norm, x)
    with jax.named_scope("feed_forward"):
        branch = norm(params.feed_forward_norm, x) if pre else x
        branch = feed_forward(params, branch, config=config, dtype=dtype)
        x = x + dropout(branch, rate=config.dropout, words=words.feed_forward)
        return x if pre else norm(params.feed_forward_norm, x)


def feed_forward(params: Layer, x: Float[Array, "R D"], *, config: ModelConfig, dtype: DTypeLike) -> Float[Array, "R D"]:
    act, widened = activation(config.activation), dense(params.up, x, dtype=dtype)
    inner = act(widened) if params.gate is None else act(dense(params.gate, x, dtype=dtype)) * widened
    return dense(params.down, inner, dtype=dtype)


class LayerWords(NamedTuple):
    """What the three places in a layer where dropout is applied draw from."""

    weights: DropoutWords | None  # for [B, H, L, M]
    attention: DropoutWords | None  # for [R, D]
    feed_forward: DropoutWords | None  # for [R, D]


def apply_stack(
    params: Layer,
    x: Float[Array, "R D"],
    segments: Int[Array, "B L"],
    *,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
    rope: Rotation | None = None,
) -> Float[Array, "R D"]:
    """All layers in turn; each draws its own dropout masks from `randomness` (None: no dropout). `rope`: rotary positions."""
    rows, length = segments.shape
    sites = tokens = None
    if randomness is not None:
        sites = site_seeds(randomness.key, (config.num_layers, len(LayerWords._fields)))
        tokens = token_seeds(randomness.rows, length)

    def step(x: Array, layer_and_sites: tuple[Layer, Array | None]) -> tuple[Array, None]:
        layer, layer_sites = layer_and_sites
        words = None
        if layer_sites is not None and tokens is not None:
            words = LayerWords(
                weights=words_at(layer_sites[0], tokens, (rows, 1, length, 1)),
                attention=words_at(layer_sites[1], tokens, (rows * length, 1)),
                feed_forward=words_at(layer_sites[2], tokens, (rows * length, 1)),
            )
        x = apply_layer(layer, execution.laid(x), segments, words, config=config, execution=execution, rope=rope)
        return execution.laid(x), None

    match execution.remat:
        case "full":
            step = jax.checkpoint(step, prevent_cse=False)
        case "dots":
            policy = jax.checkpoint_policies.save_only_these_names(PRODUCT)
            step = jax.checkpoint(step, prevent_cse=False, policy=policy)
        case "none":
            pass
    unroll = config.num_layers if execution.unroll else 1
    with jax.named_scope("layers"):
        x, _ = jax.lax.scan(step, x, (params, sites), unroll=unroll)
    return x
