"""Every recipe resolves to the configuration on record, and its head comment says what a user wants to know first.

After a wanted change: TPULM_UPDATE_GOLDEN=1 pytest tests/config, then look at the difference and commit it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpulm import accelerators, config

GOLDEN = Path(__file__).parent / "golden"
CLASSIC = ["bert-base", "bert-mini", "bert-small", "bert-tiny"]
ELECTRA = ["electra-base", "electra-small", "electra-small-plus-plus", "koelectra-base-v3", "koelectra-small-v3"]
CAUSAL = ["lm-ja-0.1b", "lm-ja-1b", "lm1b"]
MODERN = ["modern-base", "modern-mini", "modern-small"]
ON_A_LAPTOP = ["laptop-bert", "laptop-electra", "laptop-lm", "laptop-modern", "quickstart"]
RECIPES = sorted([*CLASSIC, *ELECTRA, *CAUSAL, *ON_A_LAPTOP, "bert-base-512", "bert-base-colab", *MODERN])


def test_the_recipes_are_these():
    assert config.list_recipes() == RECIPES
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == RECIPES or os.environ.get("TPULM_UPDATE_GOLDEN")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_resolves_as_recorded(name: str):
    loaded = config.load(name)
    found = config.canonical_json(loaded)
    file = GOLDEN / f"{name}.json"
    if os.environ.get("TPULM_UPDATE_GOLDEN"):
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), "if this is wanted: TPULM_UPDATE_GOLDEN=1 pytest tests/config"
    assert config.from_json(found) == loaded


@pytest.mark.parametrize("name", RECIPES)
def test_the_head_comment_states_what_to_expect(name: str):
    head = re.match(r"(#.*\n)+", config.recipe_text(name))
    assert head is not None
    for heading in ("Source", "Model", "Expected", "Cost", "Departures"):
        assert re.search(rf"^# {heading}  ", head.group(), re.MULTILINE), f"{name}.toml has no '{heading}' in its head comment"
    assert re.search(r"^# (Published|Score)  ", head.group(), re.MULTILINE)


@dataclass(frozen=True)
class Sizes:
    """Of one encoder: width, feed-forward, layers, and width of the embeddings."""

    h: int
    f: int
    layers: int
    e: int

    @property
    def projection(self) -> int:
        return 0 if self.e == self.h else self.e * self.h + self.h

    @property
    def layer(self) -> int:
        return 4 * (self.h**2 + self.h) + 2 * self.h * self.f + self.f + self.h + 4 * self.h


def main_sizes(model: config.ModelConfig) -> Sizes:
    return Sizes(model.hidden_size, model.intermediate_size, model.num_layers, model.embedding_size or model.hidden_size)


def generator_sizes(model: config.ModelConfig) -> Sizes:
    """As google-research/electra computes them (`get_generator_config`)."""
    assert model.generator is not None
    h = int(model.hidden_size * model.generator.width + 0.5)
    return Sizes(h, 4 * h, int(model.num_layers * model.generator.depth), model.embedding_size or model.hidden_size)


def parameters(model: config.ModelConfig, words: int) -> int:
    """Of the encoder that is published: embeddings and layers, and BERT's pooler; heads left out. Decoders whole."""
    sizes = main_sizes(model)
    if model.architecture == "modernbert":  # the first layer lacks one norm, which the embeddings have
        return words * sizes.h + sizes.layers * (4 * sizes.h**2 + 3 * sizes.h * sizes.f + 2 * sizes.h) + sizes.h
    if model.norm == "rms":  # and so no biases, gated feed-forwards, rotary positions, tied output
        return words * sizes.h + sizes.layers * (4 * sizes.h**2 + 3 * sizes.h * sizes.f + 2 * sizes.h) + sizes.h
    if model.architecture == "decoder":
        return (2 * words + model.max_positions + 2) * sizes.h + sizes.layers * sizes.layer
    embeddings = (words + model.max_positions + model.token_types + 2) * sizes.e
    pooler = sizes.h**2 + sizes.h if model.architecture == "bert" else 0
    return embeddings + sizes.projection + sizes.layers * sizes.layer + pooler


def parameters_in_training(model: config.ModelConfig, words: int) -> int:
    """Of an ELECTRA: the discriminator with its head, and the generator with its own but without embeddings."""
    sizes, small = main_sizes(model), generator_sizes(model)
    detection_head = sizes.h**2 + sizes.h + sizes.h + 1
    masked_head = small.h * small.e + small.e + 2 * small.e + words
    return parameters(model, words) + detection_head + small.projection + small.layers * small.layer + masked_head


def flops_per_token(run: config.RunConfig, words: int) -> float:
    """Matrix products of one step, forward and backward, with the vocabulary product at the predicted positions only."""
    length, model, objective = run.data.sequence_length, run.model, run.train.objective
    predictions = objective.max_predictions or round(length * objective.mask_fraction)
    causal, matrices = model.architecture == "decoder", 3 if model.feed_forward == "gated" else 2
    predictions = length if causal else predictions

    def encoder(sizes: Sizes) -> float:
        everywhere = -(-sizes.layers // model.global_every)
        seen = everywhere * length + (sizes.layers - everywhere) * min(length, model.local_window + 1)
        layers = sizes.layers * length * (8 * sizes.h**2 + 2 * matrices * sizes.h * sizes.f) + 4 * length * seen * sizes.h
        return layers + (0 if sizes.e == sizes.h else 2 * length * sizes.e * sizes.h)

    def masked_head(sizes: Sizes) -> float:
        transform = 0 if causal or model.masked_head == "plain" else 2 * sizes.h * sizes.e
        return predictions * (transform + 2 * sizes.e * words)

    main = main_sizes(model)
    if model.architecture != "electra":
        return 3 * (encoder(main) + masked_head(main)) / length
    small = generator_sizes(model)
    detection_head = 2 * length * (main.h**2 + main.h)
    return 3 * (encoder(main) + detection_head + encoder(small) + masked_head(small)) / length


def stated(pattern: str, text: str) -> float:
    """The number that the group of `pattern` finds."""
    found = re.search(pattern, text)
    assert found is not None, f"nothing like {pattern!r} in the head comment"
    return float(found.group(1).replace(",", ""))


@pytest.mark.parametrize("name", RECIPES)
def test_the_sizes_in_the_head_comment_follow_from_the_settings(name: str):
    run, text = config.load(name), config.recipe_text(name)
    words = run.tokenizer.vocab_size
    assert parameters(run.model, words) / 1e6 == pytest.approx(stated(r"([\d.]+)M parameters", text), abs=0.051)
    assert flops_per_token(run, words) / 1e6 == pytest.approx(stated(r"([\d.]+) MFLOP a token", text), rel=0.01)


@pytest.mark.parametrize("name", ELECTRA)
def test_the_parameters_in_training_follow_from_the_settings(name: str):
    run, text = config.load(name), config.recipe_text(name)
    in_training = parameters_in_training(run.model, run.tokenizer.vocab_size)
    assert in_training / 1e6 == pytest.approx(stated(r"([\d.]+)M in training", text), abs=0.051)


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ON_A_LAPTOP])
def test_time_and_cost_in_the_head_comment_follow_from_the_settings(name: str):
    run, text = config.load(name), config.recipe_text(name)
    accelerator = re.search(r"h on a (v\d-\d+)", text)
    assert accelerator is not None
    kind = accelerators.find(accelerator.group(1))
    phases = [(phase.config, phase.last_step - phase.first_step) for phase in config.phases_of(run)]
    each = [steps * own.train.batch_size * own.data.sequence_length for own, steps in phases]
    tokens = sum(each)
    assert tokens / 1e9 == pytest.approx(stated(r"= ([\d.]+)G tokens", text), abs=0.051)
    words = run.tokenizer.vocab_size
    flops = sum(count * flops_per_token(own, words) for count, (own, _) in zip(each, phases, strict=True)) / tokens
    hours, fraction_of_peak = stated(r"([\d.]+) h on a v", text), stated(r"(\d+) % (?:of|MFU)", text) / 100
    if rate := re.search(r"G tokens / (\d+)k tokens/s", text):
        assert hours == pytest.approx(tokens / (float(rate.group(1)) * 1e3) / 3600, rel=0.01)
        # The share of the peak was measured on rows of 512, on which attention adds to the cost of a token.
        assert fraction_of_peak == pytest.approx(float(rate.group(1)) * 1e3 * flops / kind.peak_flops, abs=0.02)
    else:
        two_digits = 0.03
        assert hours == pytest.approx(tokens * flops / (fraction_of_peak * kind.peak_flops) / 3600, rel=two_digits)
    for price, what in ((kind.dollars_per_hour, "on demand"), (kind.spot_dollars_per_hour, "spot")):
        assert price is not None
        assert hours * price == pytest.approx(stated(rf"\$([\d,]+) {what}", text), rel=0.01, abs=0.6)


@pytest.mark.parametrize("name", CLASSIC)
def test_the_bert_recipes_are_faithful(name: str):
    run = config.load(name)
    lengths = [(phase.last_step, phase.config.data.sequence_length) for phase in config.phases_of(run)]
    assert lengths == ([(900_000, 128), (1_000_000, 512)] if name == "bert-base" else [(1_000_000, 128)])
    assert run.corpus.sources == ()
    assert (run.data.rows, run.data.next_sentence, run.data.sequence_length) == ("segments", True, 128)
    assert (run.train.batch_size, run.train.steps) == (256, 1_000_000)
    assert run.model.hidden_size // run.model.num_heads == 64
    assert run.model.intermediate_size == 4 * run.model.hidden_size
    optimizer = run.train.optimizer
    assert (optimizer.learning_rate, optimizer.epsilon, optimizer.weight_decay) == (1e-4, 1e-6, 0.01)
    assert not optimizer.bias_correction


def test_the_notebook_recipe_differs_from_bert_base_where_the_notebook_does():
    run, base = config.load("bert-base-colab"), config.load("bert-base")
    assert run.model == base.model
    assert run.data == base.data
    assert (run.train.batch_size, run.train.steps, run.data.sequence_length) == (128, 1_000_000, 128)
    assert run.train.objective.max_predictions == 20
    assert (run.train.checkpoint.every_steps, run.train.checkpoint.every_minutes) == (2_500, None)
    changed = {"learning_rate": 2e-5, "warmup_steps": 10}
    assert run.train.optimizer == base.train.optimizer.model_copy(update=changed)


ELECTRA_SIZES = {  # words, width, generator, tokens a row, rows a batch, steps, learning rate
    "electra-small": (30_522, 256, (64, 1, 12), 128, 128, 1_000_000, 5e-4),
    "electra-small-plus-plus": (30_522, 256, (256, 4, 12), 512, 128, 4_000_000, 5e-4),
    "electra-base": (30_522, 768, (256, 4, 12), 512, 256, 766_000, 2e-4),
    "koelectra-base-v3": (35_000, 768, (256, 4, 12), 512, 256, 1_500_000, 2e-4),
    "koelectra-small-v3": (35_000, 256, (256, 4, 12), 512, 512, 800_000, 5e-4),
}


@pytest.mark.parametrize("name", ELECTRA)
def test_the_electra_recipes_are_faithful(name: str):
    run = config.load(name)
    words, width, generator, length, batch_size, steps, learning_rate = ELECTRA_SIZES[name]
    assert run.corpus.sources == ()
    assert (run.tokenizer.vocab_size, run.tokenizer.lowercase) == (words, False)
    data = run.data
    assert (data.rows, data.next_sentence, data.sequence_length) == ("segments", False, length)
    assert (data.single_segment_fraction, data.short_fraction) == (0.1, 0.05)
    model = run.model
    assert (model.num_layers, model.hidden_size, model.intermediate_size) == (12, width, 4 * width)
    assert model.hidden_size // model.num_heads == 64
    assert (model.embedding_size, model.activation, model.norm_epsilon) == (128 if width == 256 else 768, "gelu", 1e-12)
    assert model.generator_sizes == generator
    train, objective = run.train, run.train.objective
    assert (train.batch_size, train.steps) == (batch_size, steps)
    assert objective.max_predictions == int((objective.mask_fraction + 0.005) * length)
    assert (objective.generator_weight, objective.discriminator_weight, objective.temperature) == (1, 50, 1)
    optimizer = train.optimizer
    assert (optimizer.learning_rate, optimizer.epsilon, optimizer.weight_decay) == (learning_rate, 1e-6, 0.01)
    assert (optimizer.warmup_steps, optimizer.warmup_kind, optimizer.bias_correction) == (None, "multiply", False)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_causal_recipes_are_faithful(name: str):
    run = config.load(name)
    assert (run.tokenizer.algorithm, run.tokenizer.vocab_size) == ("unigram", 30_000)
    assert (run.train.batch_size, run.train.steps) == (256, 500_000)
    assert run.data.sequence_length == (128 if name == "lm1b" else 256)
    assert run.model.intermediate_size == 4 * run.model.hidden_size
    assert not run.model.tied_output
    optimizer = run.train.optimizer
    assert (optimizer.learning_rate, optimizer.schedule, optimizer.warmup_steps) == (1.6e-3, "rsqrt", 1000)
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay, optimizer.clip_norm) == (0.9, 0.98, 0.1, None)


@pytest.mark.parametrize("name", MODERN)
def test_what_masks_more_is_scored_as_the_others_are(name: str):
    objective = config.load(name).train.objective
    assert (objective.mask_fraction, objective.evaluation_mask_fraction) == (0.3, 0.15)


@pytest.mark.parametrize("name", ["bert-mini", "electra-small"])
def test_a_recipe_can_be_shortened_without_touching_its_warm_up(name: str):
    run = config.load(name, ["train.steps=600", "train.batch_size=64", "data.sequence_length=64"])
    assert run.train.steps == 600
