"""Every recipe resolves to the configuration on record, and its head comment says what a user wants to know first.

After a wanted change: TPULM_UPDATE_GOLDEN=1 pytest tests/config, then look at the difference and commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tpulm import config
from tpulm.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
CLASSIC = ["bert-base", "bert-mini", "bert-small", "bert-tiny"]
CAUSAL = ["lm-ja-0.1b", "lm-ja-1b", "lm1b"]
RECIPES = sorted([*CLASSIC, *CAUSAL, "bert-modern", "quickstart"])


def test_the_recipes_are_these():
    assert config.list_recipes() == RECIPES
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == RECIPES or os.environ.get("TPULM_UPDATE_GOLDEN")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_resolves_as_recorded(name: str):
    found = config.canonical_json(config.load(name))
    file = GOLDEN / f"{name}.json"
    if os.environ.get("TPULM_UPDATE_GOLDEN"):
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), "if this is wanted: TPULM_UPDATE_GOLDEN=1 pytest tests/config"


@pytest.mark.parametrize("name", RECIPES)
def test_canonical_json_gives_the_same_configuration_again(name: str):
    loaded = config.load(name)
    assert config.from_json(config.canonical_json(loaded)) == loaded


@pytest.mark.parametrize("name", RECIPES)
def test_the_head_comment_states_what_to_expect(name: str):
    head = re.match(r"(#.*\n)+", config.recipe_text(name))
    assert head is not None
    for heading in ("Source", "Model", "Expected", "Cost", "Departures"):
        assert re.search(rf"^# {heading}  ", head.group(), re.MULTILINE), f"{name}.toml has no '{heading}' in its head comment"
    assert re.search(r"^# (Published|Score)  ", head.group(), re.MULTILINE)


def parameters(model: config.ModelConfig, words: int) -> int:
    """Embeddings, layers and pooler of a BERT, heads left out; all of a decoder, and of bert-modern, which has no head."""
    h, f = model.hidden_size, model.intermediate_size
    if model.norm == "rms":
        return words * h + model.num_layers * (4 * h * h + 3 * h * f + 2 * h) + h
    if model.architecture == "decoder":
        return (2 * words + model.max_positions + 2) * h + model.num_layers * (4 * (h * h + h) + 2 * h * f + f + h + 4 * h)
    embeddings = (words + model.max_positions + model.token_types + 2) * h
    layer = 4 * (h * h + h) + 2 * h * f + f + h + 4 * h
    return embeddings + model.num_layers * layer + h * h + h


def flops_per_token(run: config.RunConfig, words: int) -> float:
    """Matrix products of one step, forward and backward, with the vocabulary product at the predicted positions only."""
    h, f, length = run.model.hidden_size, run.model.intermediate_size, run.data.sequence_length
    causal, matrices = run.model.architecture == "decoder", 3 if run.model.feed_forward == "gated" else 2
    predictions = length if causal else -(-length * round(100 * run.train.objective.mask_fraction) // 100)
    layer = length * (8 * h * h + 2 * matrices * h * f) + 4 * length * length * h
    transform = 0 if causal or run.model.masked_head == "plain" else 2 * h * h
    head = predictions * (transform + 2 * h * words)
    return 3 * (run.model.num_layers * layer + head) / length


@pytest.mark.parametrize("name", RECIPES)
def test_the_numbers_in_the_head_comment_follow_from_the_settings(name: str):
    run, text = config.load(name), config.recipe_text(name)
    words = run.tokenizer.vocab_size
    millions = float(re.search(r"([\d.]+)M parameters", text).group(1))  # pyright: ignore[reportOptionalMemberAccess]
    assert parameters(run.model, words) / 1e6 == pytest.approx(millions, abs=0.051)
    megaflops = float(re.search(r"([\d.]+) MFLOP a token", text).group(1))  # pyright: ignore[reportOptionalMemberAccess]
    assert flops_per_token(run, words) / 1e6 == pytest.approx(megaflops, rel=0.02)


@pytest.mark.parametrize("name", CLASSIC)
def test_the_bert_recipes_are_faithful(name: str):
    run = config.load(name)
    assert run.corpus.sources == ()
    assert (run.data.rows, run.data.next_sentence, run.data.sequence_length) == ("segments", True, 128)
    assert (run.train.batch_size, run.train.steps) == (256, 1_000_000)
    assert run.model.hidden_size // run.model.num_heads == 64
    assert run.model.intermediate_size == 4 * run.model.hidden_size
    optimizer = run.train.optimizer
    assert (optimizer.learning_rate, optimizer.epsilon, optimizer.weight_decay) == (1e-4, 1e-6, 0.01)
    assert not optimizer.bias_correction


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


def test_bert_modern_is_scored_as_the_others_are():
    objective = config.load("bert-modern").train.objective
    assert (objective.mask_fraction, objective.evaluation_mask_fraction) == (0.3, 0.15)


def test_a_bert_recipe_can_be_shortened_without_touching_its_warm_up():
    run = config.load("bert-mini", ["train.steps=600", "train.batch_size=64", "data.sequence_length=64"])
    assert run.train.steps == 600


def test_an_unknown_recipe_gets_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'bert-mini'"):
        config.recipe_text("bert-minni")
