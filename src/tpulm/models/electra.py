"""ELECTRA: a generator that fills in masked tokens, and a discriminator that detects which tokens were replaced.

Clark et al. 2020. Both are post-norm encoders like BERT, with a separate embedding size and a projection where it differs from
the layers'. The generator shares the discriminator's embeddings (tokens, positions, types and their norm) unless it has its
own; in a variant of the original it shares the layers too. Disentangled embeddings (DeBERTaV3) are the generator's, and the
discriminator adds a difference to them. The two halves are Hugging Face's ElectraForMaskedLM and ElectraForPreTraining.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import NamedTuple

import jax
from jax import Array
from jaxtyping import Float

from tpulm.config import ModelConfig
from tpulm.models.bert import Embeddings, Encoder, MaskedModel, embedding_size, encoder_spec, forward_flops, masked_head_spec
from tpulm.nn.layers import Dense, activation, dense, dense_spec
from tpulm.nn.params import ParamSpec, TruncatedNormal, map_specs, parameters, zeros
from tpulm.nn.transformer import Execution


@parameters
class DetectionHead:
    dense: Dense
    output: Dense  # [D, 1]


@parameters
class Generator(MaskedModel):
    """In a training tree, None stands for parameters shared with the discriminator."""


@parameters
class Discriminator(Encoder):
    detection_head: DetectionHead


@parameters
class Electra:
    generator: Generator
    discriminator: Discriminator  # without embeddings where there is a difference
    difference: Embeddings | None  # discriminator's embeddings minus generator's, if disentangled


class Halves(NamedTuple):
    """Two complete models."""

    generator: Generator
    discriminator: Discriminator


def generator_config(config: ModelConfig) -> ModelConfig:
    """The config of the generator as a standalone model."""
    width, heads, layers = config.generator_sizes
    own = config.generator is None or config.generator.own_layers
    return config.model_copy(
        update={
            "num_layers": layers,
            "hidden_size": width,
            "num_heads": heads,
            "intermediate_size": 4 * width if own else config.intermediate_size,
            "embedding_size": embedding_size(config),
        }
    )


def generator_spec(config: ModelConfig, *, vocab_size: int) -> Generator:
    """The spec of a complete generator; `config` is that of `generator_config`."""
    head = masked_head_spec(config, embedding_size(config), vocab_size=vocab_size)
    return Generator(**vars(encoder_spec(config, vocab_size=vocab_size)), masked_head=head)


def discriminator_spec(config: ModelConfig, *, vocab_size: int) -> Discriminator:
    init, size = TruncatedNormal(config.initializer_range), config.hidden_size
    return Discriminator(
        **vars(encoder_spec(config, vocab_size=vocab_size)),
        detection_head=DetectionHead(
            dense=dense_spec((size, size), ("embed", None), init), output=dense_spec((size, 1), (None, None), init)
        ),
    )


def spec(config: ModelConfig, *, vocab_size: int) -> Electra:
    """The training tree: both halves, with shared parameters stored once."""
    assert config.generator is not None
    generator = generator_spec(generator_config(config), vocab_size=vocab_size)
    generator = replace(generator, layers=map_specs(_with_whole_heads, generator.layers))
    discriminator = discriminator_spec(config, vocab_size=vocab_size)
    difference = None
    if config.generator.disentangled_embeddings:
        difference = map_specs(_difference, discriminator.embeddings)
        discriminator = replace(discriminator, embeddings=None)
    elif not config.generator.own_embeddings:
        generator = replace(generator, embeddings=None)
    if not config.generator.own_layers:
        generator = replace(generator, projection=None, layers=None)
    return Electra(generator, discriminator, difference)


def _difference(leaf: ParamSpec) -> ParamSpec:
    """Zero at first, and not decayed: that would pull the discriminator's embeddings towards the generator's, not to zero."""
    return replace(leaf, init=zeros, decay=False)


def _with_whole_heads(leaf: ParamSpec) -> ParamSpec:
    """Never sharded by heads: a generator has few, ELECTRA-small's a single one."""
    return replace(leaf, axes=tuple(None if axis == "heads" else axis for axis in leaf.axes))


def halves(params: Electra) -> Halves:
    """Both models complete, the shared parameters in both. With disentangled embeddings, the discriminator's gradient does not
    reach the generator's embeddings."""
    generator, discriminator = params.generator, params.discriminator
    if params.difference is not None:
        shared = jax.lax.stop_gradient(generator.embeddings)
        discriminator = replace(discriminator, embeddings=jax.tree.map(operator.add, shared, params.difference))
    if generator.embeddings is None:
        generator = replace(generator, embeddings=discriminator.embeddings)
    if generator.layers is None:
        generator = replace(generator, projection=discriminator.projection, layers=discriminator.layers)
    return Halves(generator, discriminator)


def replaced_logits(
    head: DetectionHead, hidden: Float[Array, "B L D"], *, config: ModelConfig, execution: Execution
) -> Float[Array, "B L"]:
    """Float32 logits of each token being a replacement."""
    with jax.named_scope("detection_head"):
        x = hidden.reshape(-1, hidden.shape[-1])
        x = activation(config.activation)(dense(head.dense, x, dtype=execution.dtype))
        return dense(head.output, x, dtype=execution.dtype).astype("float32").reshape(hidden.shape[:-1])


def forward_flops_of_both(config: ModelConfig, *, sequence_length: int, predictions: int, vocab_size: int) -> float:
    """FLOPs of the matrix products in one row's forward pass through generator and discriminator."""
    length, size = sequence_length, config.hidden_size

    def encoder(model: ModelConfig) -> float:
        projection = (
            2.0 * length * embedding_size(model) * model.hidden_size if embedding_size(model) != model.hidden_size else 0.0
        )
        layers = forward_flops(model, sequence_length=length, predictions=0, vocab_size=vocab_size, next_sentence=False)
        return layers + projection

    small = generator_config(config)
    head = 2.0 * predictions * embedding_size(config) * (small.hidden_size + vocab_size)
    return encoder(small) + head + encoder(config) + 2.0 * length * size * (size + 1)
