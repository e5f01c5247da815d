"""Every recipe is a model of the published size, and a training step that can be built."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import pytest

from devices import first
from tpulm import config
from tpulm.config import RunConfig
from tpulm.models import bert, electra
from tpulm.nn.params import count
from tpulm.special_tokens import SpecialTokens
from tpulm.train.program import PretrainingProgram

SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
AS_ON_TPU = [
    "hardware.unroll=false",
    "hardware.fsdp=1",
    "train.compute_dtype=bfloat16",
]  # layers as a loop, which also lowers many times faster

# Of transformers' BertModel with its pooler, and ElectraModel (the discriminator), of the settings each is published with.
PUBLISHED = {
    "bert-base": 109_482_240,
    "bert-base-512": 109_482_240,
    "bert-base-colab": 110_617_344,
    "bert-mini": 11_170_560,
    "bert-small": 28_763_648,
    "bert-tiny": 4_385_920,
    "electra-base": 108_891_648,
    "electra-small": 13_483_008,
    "electra-small-plus-plus": 13_483_008,
    "koelectra-base-v3": 112_330_752,
    "koelectra-small-v3": 14_056_192,
}
# Of the generators: google/electra-base-generator, google/electra-small-generator and their kin (ElectraModel again).
GENERATORS = {
    "electra-base": 33_511_168,
    "electra-small": 4_580_928,
    "electra-small-plus-plus": 13_483_008,
    "koelectra-base-v3": 36_950_272,
    "koelectra-small-v3": 14_056_192,
}


def program(run: RunConfig) -> PretrainingProgram:
    return PretrainingProgram(run, vocab_size=run.tokenizer.vocab_size, special=SPECIAL, devices=first(2))


def encoder_size(half: Any, words: int) -> int:
    """Embeddings, projection and layers, without the rows that only round the vocabulary up."""
    padded, width = half.embeddings.tokens.shape
    assert padded == bert.padded_vocab_size(words)
    return sum(count(part) for part in (half.embeddings, half.projection, half.layers)) - (padded - words) * width


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_the_parameters_of_the_published_model(name: str):
    run = config.load(name)
    words, spec = run.tokenizer.vocab_size, program(run).objective.spec
    if run.model.architecture == "electra":
        assert encoder_size(spec.discriminator, words) == PUBLISHED[name]
        assert encoder_size(electra.halves(spec).generator, words) == GENERATORS[name]
    else:
        assert encoder_size(spec, words) + count(spec.next_sentence.pooler) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_parameters_are_those_of_transformers(torch: ModuleType, name: str):
    from transformers import BertConfig, BertModel, ElectraConfig, ElectraModel

    run = config.load(name)
    model = run.model

    def settings(width: int, heads: int, layers: int, inner: int) -> dict[str, Any]:
        return {
            "vocab_size": run.tokenizer.vocab_size,
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "intermediate_size": inner,
        }

    main = settings(model.hidden_size, model.num_heads, model.num_layers, model.intermediate_size)
    with torch.device("meta"):
        if model.architecture == "bert":
            assert BertModel(BertConfig(**main)).num_parameters() == PUBLISHED[name]
            return
        embedding_size = model.embedding_size or model.hidden_size
        width, heads, layers = model.generator_sizes
        small = settings(width, heads, layers, 4 * width)
        assert ElectraModel(ElectraConfig(**main, embedding_size=embedding_size)).num_parameters() == PUBLISHED[name]
        assert ElectraModel(ElectraConfig(**small, embedding_size=embedding_size)).num_parameters() == GENERATORS[name]


@pytest.mark.parametrize("name", config.list_recipes())
def test_a_recipe_can_be_built(name: str):
    """Its model and its loss are traced, phase by phase, and its batch divides over devices."""
    for phase in config.phases_of(config.load(name, AS_ON_TPU)):
        run = phase.config
        made = program(run)
        shape, dtype = made.batch_shapes(run.data.sequence_length)["tokens"]
        assert (shape, dtype) == ((run.train.batch_size, run.data.sequence_length), jnp.uint16)
        assert (made.mesh.size, made.compute_dtype) == (2, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("name", config.list_recipes())
def test_the_training_step_of_a_recipe_lowers(name: str):
    for phase in config.phases_of(config.load(name, AS_ON_TPU)):
        run = phase.config
        text = program(run).lowered_step.as_text()
        rows, length = run.train.batch_size, run.data.sequence_length
        assert f"tensor<{rows}x{length}xui16>" in text, "the step takes the whole batch of 16-bit tokens"
        assert "bf16" in text
