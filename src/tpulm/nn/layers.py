"""Norm, dense and activations: the pieces every layer is made of, over activations of shape [tokens, features].

The gradients of dense and of the activations are written out. XLA's CPU compiler computes what autodiff writes up to 1.3
times slower: it transposes the larger operand of a weight's gradient, and keeps intermediates that are cheaper computed again
(docs/experiments.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from tpulm.nn.params import Initializer, ones, param, parameters, zeros

Activation = Literal["gelu_tanh", "gelu", "relu"]


@parameters
class Norm:
    scale: Float[Array, " D"]
    bias: Float[Array, " D"]


@parameters
class Dense:
    kernel: Float[Array, "I O"]  # [in, out]
    bias: Float[Array, " O"]


def norm_spec(size: int, axis: str | None = "embed") -> Norm:
    return Norm(scale=param((size,), (axis,), ones, decay=False), bias=param((size,), (axis,), zeros, decay=False))


def dense_spec(sizes: tuple[int, int], axes: tuple[str | None, str | None], init: Initializer) -> Dense:
    return Dense(kernel=param(sizes, axes, init), bias=param(sizes[1:], axes[1:], zeros, decay=False))


def normalize(params: Norm, x: Float[Array, "R D"], *, epsilon: float) -> Float[Array, "R D"]:
    """Layer normalisation over D, computed in float32 whatever x is (Ba et al. 2016; the variance is the biased one)."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(variance + jnp.float32(epsilon))
    return (scaled * params.scale[None, :] + params.bias[None, :]).astype(x.dtype)


def dense(params: Dense, x: Float[Array, "R I"], *, dtype: DTypeLike) -> Float[Array, "R O"]:
    """x @ kernel + bias in `dtype`; gradients of the parameters are accumulated in float32."""
    return affine(x, params.kernel, params.bias, dtype=dtype)


def affine(
    x: Float[Array, "R I"], kernel: Float[Array, "I O"], bias: Float[Array, " O"], *, dtype: DTypeLike
) -> Float[Array, "R O"]:
    """As `dense`, for parameters that are not in a `Dense`."""
    return cast("Array", _affine(x, kernel, bias, jnp.dtype(dtype)))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _affine(x: Array, kernel: Array, bias: Array, dtype: jnp.dtype) -> Array:
    return x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)[None, :]


def _affine_forward(x: Array, kernel: Array, bias: Array, dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    return affine(x, kernel, bias, dtype=dtype), (x, kernel)


def _affine_backward(dtype: jnp.dtype, kept: tuple[Array, Array], g: Array) -> tuple[Array, Array, Array]:
    x, kernel = kept
    dx = jax.lax.dot_general(g, kernel.astype(dtype), (((1,), (1,)), ((), ()))).astype(x.dtype)
    return dx, kernel_gradient(x.astype(dtype), g), column_sums(g)


_affine.defvjp(_affine_forward, _affine_backward)


@jax.custom_vjp
def add_bias(x: Float[Array, "R O"], bias: Float[Array, " O"]) -> Float[Array, "R O"]:
    return x + bias[None, :]


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), None), lambda _, g: (g, column_sums(g)))


def column_sums(x: Float[Array, "R O"]) -> Float[Array, " O"]:
    """Sums over the rows in float32, as a product with ones: for wide x up to fifty times faster on a CPU than a reduction."""
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return jnp.matmul(ones, x, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)[0]


_CONTRACTED = 128  # tokens in the inner of the two contracted axes below


def kernel_gradient(x: Float[Array, "R I"], g: Float[Array, "R O"]) -> Float[Array, "I O"]:
    """x^T g in float32.

    Contracted over two axes where R allows: XLA's CPU compiler then copies x transposed and takes its fast product, which
    it does not do for one axis. The two give the same numbers.
    """
    if x.shape[0] % _CONTRACTED:
        return jax.lax.dot_general(x, g, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    x, g = (y.reshape(-1, _CONTRACTED, y.shape[-1]) for y in (x, g))
    return jax.lax.dot_general(x, g, (((0, 1), (0, 1)), ((), ())), preferred_element_type=jnp.float32)


def activation(name: Activation) -> Callable[[Array], Array]:
    """gelu_tanh is google's BERT and Hugging Face's "gelu_new"; gelu is the exact erf form, Hugging Face's "gelu"."""
    match name:
        case "gelu_tanh":
            return gelu_tanh
        case "gelu":
            return gelu_erf
        case "relu":
            return jax.nn.relu


_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715  # Hendrycks and Gimpel 2016, section 2


@jax.custom_vjp
def gelu_tanh(x: Array) -> Array:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), computed in float32."""
    y = x.astype(jnp.float32)
    return (0.5 * y * (1.0 + jnp.tanh(_TANH_SCALE * (y + _TANH_CUBIC * (y * y * y))))).astype(x.dtype)


def _gelu_tanh_backward(x: Array, g: Array) -> tuple[Array]:
    y = x.astype(jnp.float32)
    square = y * y
    tanh = jnp.tanh(_TANH_SCALE * (y + _TANH_CUBIC * (square * y)))
    slope = 0.5 * (1.0 + tanh) + 0.5 * y * (1.0 - tanh * tanh) * (_TANH_SCALE * (1.0 + 3.0 * _TANH_CUBIC * square))
    return ((g.astype(jnp.float32) * slope).astype(x.dtype),)


gelu_tanh.defvjp(lambda x: (gelu_tanh(x), x), _gelu_tanh_backward)


@jax.custom_vjp
def gelu_erf(x: Array) -> Array:
    """x times the normal distribution function of x, computed in float32."""
    y = x.astype(jnp.float32)
    return (0.5 * y * (1.0 + jax.lax.erf(y * math.sqrt(0.5)))).astype(x.dtype)


def _gelu_erf_backward(x: Array, g: Array) -> tuple[Array]:
    y = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * y * y) * (1.0 / math.sqrt(2.0 * math.pi))
    slope = 0.5 * (1.0 + jax.lax.erf(y * math.sqrt(0.5))) + y * density
    return ((g.astype(jnp.float32) * slope).astype(x.dtype),)


gelu_erf.defvjp(lambda x: (gelu_erf(x), x), _gelu_erf_backward)
