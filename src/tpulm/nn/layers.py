"""Norms, dense layers and activation functions, over activations of shape [tokens, features].

Dense layers and activations have custom gradients. XLA's CPU compiler runs autodiff's up to 1.3 times slower: it transposes
the larger operand of a weight's gradient, and stores intermediates that are cheaper to recompute (docs/experiments.md).
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
import math
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Float

from tpulm.nn.params import Initializer, ones, param, parameters, zeros

Activation = Literal["gelu_tanh", "gelu", "relu", "silu"]
NormKind = Literal["layer", "rms"]
PRODUCT = "product"  # checkpoint name of what is saved when all else is recomputed for the backward pass


@parameters
class Norm:
    scale: Float[Array, " D"]
    bias: Float[Array, " D"] | None


@parameters
class Dense:
    kernel: Float[Array, "I O"]  # [in, out]
    bias: Float[Array, " O"] | None


def norm_spec(size: int, axis: str | None = "embed", *, bias: bool = True) -> Norm:
    return Norm(
        scale=param((size,), (axis,), ones, decay=False),
        bias=param((size,), (axis,), zeros, decay=False) if bias else None,
    )


def dense_spec(sizes: tuple[int, int], axes: tuple[str | None, str | None], init: Initializer, *, bias: bool = True) -> Dense:
    return Dense(kernel=param(sizes, axes, init), bias=param(sizes[1:], axes[1:], zeros, decay=False) if bias else None)


def normalize(params: Norm, x: Float[Array, "R D"], *, epsilon: float, kind: NormKind = "layer") -> Float[Array, "R D"]:
    """Normalize over D, computed in float32; the result has x's dtype.

    layer: to mean 0 and (biased) variance 1 (Ba et al. 2016). rms: to mean square 1 (Zhang and Sennrich 2019).
    """
    wide = x.astype(jnp.float32)
    if kind == "layer":
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    scaled = wide * jax.lax.rsqrt(variance + jnp.float32(epsilon)) * params.scale[None, :]
    return (scaled if params.bias is None else scaled + params.bias[None, :]).astype(x.dtype)


def dense(params: Dense, x: Float[Array, "R I"], *, dtype: DTypeLike) -> Float[Array, "R O"]:
    """x @ kernel + bias in `dtype`; gradients of the parameters are accumulated in float32."""
    return affine(x, params.kernel, params.bias, dtype=dtype)


def affine(
    x: Float[Array, "R I"], kernel: Float[Array, "I O"], bias: Float[Array, " O"] | None, *, dtype: DTypeLike
) -> Float[Array, "R O"]:
    """As `dense`, for parameters outside a `Dense`; without a bias, the product alone."""
    dtype = jnp.dtype(dtype)
    y = _product(x, kernel, dtype) if bias is None else _affine(x, kernel, bias, dtype)
    return checkpoint_name(cast("Array", y), PRODUCT)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _affine(x: Array, kernel: Array, bias: Array, dtype: jnp.dtype) -> Array:
    return cast("Array", _product(x, kernel, dtype)) + bias.astype(dtype)[None, :]


def _affine_forward(x: Array, kernel: Array, bias: Array, dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    return affine(x, kernel, bias, dtype=dtype), (x, kernel)


def _affine_backward(dtype: jnp.dtype, residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array, Array]:
    return *_product_backward(dtype, residuals, g), column_sums(g)


_affine.defvjp(_affine_forward, _affine_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, kernel: Array, dtype: jnp.dtype) -> Array:
    return multiply("ri,io->ro", x.astype(dtype), kernel.astype(dtype))


def _product_backward(dtype: jnp.dtype, residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    dx = multiply("ro,io->ri", g, kernel.astype(dtype)).astype(x.dtype)
    return dx, kernel_gradient(x.astype(dtype), g)


_product.defvjp(lambda x, kernel, dtype: (_product(x, kernel, dtype), (x, kernel)), _product_backward)


def multiply(axes: str, x: Array, y: Array) -> Array:
    """Einsum of two arrays of one dtype, accumulated in float32 and rounded once.

    XLA's CPU compiler otherwise multiplies bfloat16 in float32 too, which takes twice as long with AVX512_BF16.
    """
    return jnp.einsum(axes, x, y, preferred_element_type=jnp.float32).astype(x.dtype)


def project(x: Float[Array, "R D"], table: Float[Array, "V D"], *, dtype: DTypeLike) -> Float[Array, "R V"]:
    """x @ table^T, accumulated and returned in float32; operands, those of its gradients included, are cast to `dtype`.

    Autodiff would multiply the float32 gradient as it is: several times the work where `dtype` is bfloat16.
    """
    return cast("Array", _projected(x, table, jnp.dtype(dtype)))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _projected(x: Array, table: Array, dtype: jnp.dtype) -> Array:
    return jnp.einsum("rd,vd->rv", x.astype(dtype), table.astype(dtype), preferred_element_type=jnp.float32)


def _projected_backward(dtype: jnp.dtype, residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, table = residuals
    g = g.astype(dtype)
    dx = jnp.einsum("rv,vd->rd", g, table.astype(dtype), preferred_element_type=jnp.float32).astype(x.dtype)
    return dx, kernel_gradient(g, x.astype(dtype))


_projected.defvjp(lambda x, table, dtype: (_projected(x, table, dtype), (x, table)), _projected_backward)


@jax.custom_vjp
def add_bias(x: Float[Array, "R O"], bias: Float[Array, " O"]) -> Float[Array, "R O"]:
    return x + bias[None, :]


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), None), lambda _, g: (g, column_sums(g)))


def column_sums(x: Float[Array, "R O"]) -> Float[Array, " O"]:
    """Sums over rows in float32, as a product with ones: for wide x, up to fifty times faster on a CPU than a reduction."""
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return jnp.matmul(ones, x, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)[0]


_CONTRACTED = 128  # most tokens in the inner of the two contracted axes below


def kernel_gradient(x: Float[Array, "R I"], g: Float[Array, "R O"]) -> Float[Array, "I O"]:
    """x^T g in float32.

    Contracted over two axes where R allows: XLA's CPU compiler then copies x transposed and uses its fast product, which
    it does not do for one axis. In float32 this pays off for long axes only; bfloat16 takes half the time.
    """
    inner = math.gcd(x.shape[0], _CONTRACTED)
    if inner < (_CONTRACTED if x.dtype == jnp.float32 else 8):
        return jax.lax.dot_general(x, g, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    x, g = (y.reshape(-1, inner, y.shape[-1]) for y in (x, g))
    return jax.lax.dot_general(x, g, (((0, 1), (0, 1)), ((), ())), preferred_element_type=jnp.float32)


def activation(name: Activation) -> Callable[[Array], Array]:
    """gelu_tanh is that of Google's BERT, Hugging Face's "gelu_new"; gelu is the exact erf form, Hugging Face's "gelu"."""
    functions: dict[Activation, Callable[[Array], Array]]
    functions = {"gelu_tanh": gelu_tanh, "gelu": gelu_erf, "relu": jax.nn.relu, "silu": silu}
    return functions[name]


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
    """x times the standard normal distribution function of x, computed in float32."""
    y = x.astype(jnp.float32)
    return (0.5 * y * (1.0 + jax.lax.erf(y * math.sqrt(0.5)))).astype(x.dtype)


def _gelu_erf_backward(x: Array, g: Array) -> tuple[Array]:
    y = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * y * y) * (1.0 / math.sqrt(2.0 * math.pi))
    slope = 0.5 * (1.0 + jax.lax.erf(y * math.sqrt(0.5))) + y * density
    return ((g.astype(jnp.float32) * slope).astype(x.dtype),)


gelu_erf.defvjp(lambda x: (gelu_erf(x), x), _gelu_erf_backward)


@jax.custom_vjp
def silu(x: Array) -> Array:
    """x times the logistic function of x, computed in float32 (Hendrycks and Gimpel 2016; also called swish)."""
    y = x.astype(jnp.float32)
    return (y * jax.lax.logistic(y)).astype(x.dtype)


def _silu_backward(x: Array, g: Array) -> tuple[Array]:
    y = x.astype(jnp.float32)
    gate = jax.lax.logistic(y)
    return ((g.astype(jnp.float32) * (gate * (1.0 + y * (1.0 - gate)))).astype(x.dtype),)


silu.defvjp(lambda x: (silu(x), x), _silu_backward)
