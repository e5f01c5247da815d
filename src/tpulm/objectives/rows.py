"""Segments, token types and positions of a row, derived from its token ids."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from tpulm.models.bert import EncoderInput
from tpulm.special_tokens import SpecialTokens

RowKind = Literal["segments", "packed", "causal"]


def encoder_input(ids: Int[Array, "B L"], *, row_kind: RowKind, special: SpecialTokens) -> EncoderInput:
    """The input of rows: ids, segments, types and positions.

    segments: `[CLS] A [SEP] B [SEP]` and padding. One segment (0); type 1 after the first [SEP] up to and including the second
    (Devlin et al. 2019, figure 2); positions count from 0.
    packed: documents, each `[CLS] … [SEP]`, one after another. The segment is the number of [CLS] so far minus one; positions
    restart at each [CLS]; types are 0.
    causal: texts, each with a [SEP] before and after it (dataset/layouts.py). A [SEP] counts as the first token of the text
    that follows: the segment is the number of [SEP] so far; positions restart at each [SEP]; there are no types.
    In all kinds, padding has segment -1 and type 0.
    """
    padding = ids == special.pad
    if row_kind == "segments":
        separators = jnp.cumsum((ids == special.sep).astype(jnp.int32), axis=1)
        before = separators - (ids == special.sep).astype(jnp.int32)  # [SEP]s to the left of each token
        types = jnp.where((before == 1) & ~padding, 1, 0)
        return EncoderInput(ids, jnp.where(padding, -1, 0), types, None)
    causal = row_kind == "causal"
    begins = ids == (special.sep if causal else special.cls)
    segments = jnp.cumsum(begins.astype(jnp.int32), axis=1) - (0 if causal else 1)
    index = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32)[None, :], ids.shape)
    start = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
    positions = jnp.where(padding, 0, index - start)
    return EncoderInput(ids, jnp.where(padding, -1, segments), None if causal else jnp.zeros_like(ids), positions)
