"""Choosing the next token from its logits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from tpulm.errors import ConfigError


class Sampling(NamedTuple):
    """The law: logits are divided by the temperature; of the tokens the `top_k` likeliest stay, and of those the fewest that
    together have a probability of at least `top_p`; one of them is drawn. At temperature 0 it is the likeliest of all."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = 0.95
    seed: int = 0

    def check(self, vocab_size: int) -> None:
        """Raises ConfigError for values that leave nothing to choose from, or mean nothing."""
        if not 0.0 <= self.temperature <= 100.0:
            raise ConfigError(f"temperature is {self.temperature}; it must lie between 0 (the likeliest token) and 100")
        if self.top_k is not None and not 1 <= self.top_k <= vocab_size:
            raise ConfigError(
                f"top_k is {self.top_k}; it must lie between 1 and the size of the vocabulary, {vocab_size}. Leave it out to "
                "keep all tokens"
            )
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}; it must be more than 0 and at most 1. 1 keeps all tokens")


def row_keys(seed: int, rows: Int[Array, " B"], number: Int[Array, ""]) -> Array:
    """One key for each row: of a text's place among all texts and of the token's number in it, whatever else is computed."""
    base = jax.random.key(seed, impl="threefry2x32")
    return jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(base, row), number))(rows)


def choose(
    logits: Float[Array, "B V"],
    keys: Array,
    *,
    temperature: Float[Array, ""],
    top_p: Float[Array, ""],
    top_k: int | None,
    greedy: bool,
) -> Int[Array, " B"]:
    """The next token of each row; logits of tokens that do not exist are -1e9."""
    if greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    scores, tokens = jax.lax.top_k(logits / temperature, top_k or logits.shape[-1])
    probabilities = jax.nn.softmax(scores, axis=-1)
    likelier = jnp.cumsum(probabilities, axis=-1) - probabilities  # the probability of all before each
    scores = jnp.where(likelier < top_p, scores, -jnp.inf)
    drawn = jax.vmap(jax.random.categorical)(keys, scores)
    return jnp.take_along_axis(tokens, drawn[:, None], axis=1)[:, 0].astype(jnp.int32)
