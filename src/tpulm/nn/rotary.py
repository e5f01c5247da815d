"""Rotary positions: queries and keys are turned by angles that grow with the position (Su et al. 2021, section 3.2)."""

from __future__ import annotations

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int


class Rotation(NamedTuple):
    """Of each token, for all heads alike; float32."""

    cos: Float[Array, "B 1 L K/2"]
    sin: Float[Array, "B 1 L K/2"]


def rotation(positions: Int[Array, "B L"], *, head_size: int, theta: float) -> Rotation:
    """Pair i of a head turns by position / theta ** (2 i / head_size)."""
    frequencies = 1.0 / theta ** (np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size))
    angles = positions[:, None, :, None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)[None, None, None, :]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


@jax.custom_vjp
def _turn(x: Array, cos: Array, sin: Array) -> Array:
    wide = x.astype(jnp.float32)
    first, second = jnp.split(wide, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


_turn.defvjp(
    lambda x, cos, sin: (_turn(x, cos, sin), (cos, sin)),
    lambda kept, g: (_turn(g, kept[0], -kept[1]), None, None),
)


def rotate(x: Float[Array, "B H L K"], by: Rotation) -> Float[Array, "B H L K"]:
    """Element i of a head's first half is paired with element i of its second, as Hugging Face's models do (the paper pairs
    neighbours). Computed in float32; the gradient is the turn back."""
    return cast("Array", _turn(x, by.cos, by.sin))
