"""Every recipe is a model of the published size, a training step that can be built, and costs what its head comment says."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import pytest

from devices import first
from tpulm import accelerators, config
from tpulm.config import ModelConfig, RunConfig
from tpulm.models import bert, electra
from tpulm.nn.params import count
from tpulm.special_tokens import SpecialTokens
from tpulm.train.program import PretrainingProgram

SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
# Layers as a loop, which also lowers many times faster.
AS_ON_TPU = ["hardware.unroll=false", "hardware.fsdp=1", "train.compute_dtype=bfloat16"]

# Of transformers' BertModel with its pooler, and ElectraModel (the discriminator), of the settings each is published with.
PUBLISHED = {"bert-base": 109_482_240, "bert-base-512": 109_482_240, "bert-base-colab": 110_617_344}
PUBLISHED |= {"bert-mini": 11_170_560, "bert-small": 28_763_648, "bert-tiny": 4_385_920}
PUBLISHED |= {"electra-base": 108_891_648, "electra-small": 13_483_008, "electra-small-plus-plus": 13_483_008}
PUBLISHED |= {"koelectra-base-v3": 112_330_752, "koelectra-small-v3": 14_056_192}
# Of the generators: google/electra-base-generator, google/electra-small-generator and their kin (ElectraModel again).
GENERATORS = {"electra-base": 33_511_168, "electra-small": 4_580_928, "electra-small-plus-plus": 13_483_008}
GENERATORS |= {"koelectra-base-v3": 36_950_272, "koelectra-small-v3": 14_056_192}


def program(run: RunConfig) -> PretrainingProgram:
    """Its model and its loss are traced, nothing is compiled."""
    return PretrainingProgram(run, vocab_size=run.tokenizer.vocab_size, special=SPECIAL, devices=first(2))


def encoder_size(half: Any, words: int) -> int:
    """Embeddings, projection and layers, without the rows that only round the vocabulary up."""
    padded, width = half.embeddings.tokens.shape
    assert padded == bert.padded_vocab_size(words)
    parts = half.embeddings, half.projection, half.layers, half.final_norm
    return sum(map(count, parts)) - (padded - words) * width


def published_size(model: ModelConfig, words: int, spec: Any) -> int:
    """The parameters of the published encoder, with BERT's pooler and without heads, or of a whole decoder."""
    if model.architecture == "electra":
        return encoder_size(spec.discriminator, words)
    output = count(spec.output) * words // bert.padded_vocab_size(words) if model.architecture == "decoder" else 0
    pooler = model.hidden_size * (model.hidden_size + 1) if model.architecture == "bert" else 0
    return encoder_size(spec, words) + output + pooler


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_parameters_are_those_of_transformers(torch: ModuleType, name: str):
    from transformers import BertConfig, BertModel, ElectraConfig, ElectraModel

    run = config.load(name)
    model = run.model

    def settings(width: int, heads: int, layers: int, inner: int) -> dict[str, Any]:
        sizes = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers, "intermediate_size": inner}
        return {"vocab_size": run.tokenizer.vocab_size, **sizes}

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


def stated(pattern: str, text: str) -> float:
    """The number that the group of `pattern` finds."""
    found = re.search(pattern, text)
    assert found is not None, f"nothing like {pattern!r} in the head comment"
    return float(found.group(1).replace(",", ""))


@pytest.mark.parametrize("name", config.list_recipes())
def test_the_published_size_and_the_head_comment_follow_from_the_settings(name: str):
    """Sizes, time and cost; and the batch of each phase divides over devices."""
    run, text = config.load(name, AS_ON_TPU), config.recipe_text(name)
    words, whole = run.tokenizer.vocab_size, program(run)
    spec = whole.objective.spec
    size = published_size(run.model, words, spec)
    assert size == PUBLISHED.get(name, size) and size / 1e6 == pytest.approx(stated(r"([\d.]+)M parameters", text), abs=0.051)
    if name in GENERATORS:
        assert encoder_size(electra.halves(spec).generator, words) == GENERATORS[name]
    if "M in training" in text:
        padding = (bert.padded_vocab_size(words) - words) * (spec.discriminator.embeddings.tokens.shape[1] + 1)
        assert (count(spec) - padding) / 1e6 == pytest.approx(stated(r"([\d.]+)M in training", text), abs=0.051)
    tokens = flops = 0.0
    for phase in config.phases_of(run):
        made = program(phase.config) if run.phases else whole
        length, rows = phase.config.data.sequence_length, phase.config.train.batch_size
        assert made.batch_shapes(length)["tokens"] == ((rows, length), jnp.uint16)
        assert (made.mesh.size, made.compute_dtype) == (2, "bfloat16")
        tokens += (phase.last_step - phase.first_step) * rows * length
        flops += (phase.last_step - phase.first_step) * rows * made.objective.flops_per_row
    per_token = whole.objective.flops_per_row / run.data.sequence_length
    assert per_token / 1e6 == pytest.approx(stated(r"([\d.]+) MFLOP a token", text), rel=0.01)
    if (accelerator := re.search(r"h on a (v\d-\d+)", text)) is None:
        return  # on a laptop
    kind = accelerators.find(accelerator[1])
    assert tokens / 1e9 == pytest.approx(stated(r"= ([\d.]+)G tokens", text), abs=0.051)
    hours, fraction_of_peak = stated(r"([\d.]+) h on a v", text), stated(r"(\d+) % (?:of|MFU)", text) / 100
    if rate := re.search(r"G tokens / (\d+)k tokens/s", text):
        assert hours == pytest.approx(tokens / (float(rate[1]) * 1e3) / 3600, rel=0.01)
        # The share of the peak was measured on rows of 512, on which attention adds to the cost of a token.
        assert fraction_of_peak == pytest.approx(float(rate[1]) * 1e3 * flops / tokens / kind.peak_flops, abs=0.02)
    else:
        assert hours == pytest.approx(flops / (fraction_of_peak * kind.peak_flops) / 3600, rel=0.03)  # it has two digits
    for price, what in ((kind.dollars_per_hour, "on demand"), (kind.spot_dollars_per_hour, "spot")):
        assert price is not None
        assert hours * price == pytest.approx(stated(rf"\$([\d,]+) {what}", text), rel=0.01, abs=0.6)
