"""What a model that a run goes on from brings, and which settings of the run may not contradict it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpulm import config
from tpulm.config import ModelConfig, Start
from tpulm.errors import ConfigError

MODEL = {"num_layers": 3, "hidden_size": 48, "num_heads": 4, "intermediate_size": 96, "dropout": 0.2}


def start(*, next_sentence: bool = True, moments: bool = True, **model: object) -> Start:
    settings = ModelConfig.model_validate({**MODEL, **model}).model_dump(mode="json")
    return Start("/m", settings, {"path": "/m/tokenizer.json", "vocab_size": 60}, next_sentence, moments)


def run_file(folder: Path, text: str = "", base: str = "bert-tiny") -> Path:
    (folder / "run.toml").write_text(f'extends = "{base}"\n[corpus]\nsources = ["t.txt"]\n{text}\n')
    return folder / "run.toml"


def test_what_is_extended_gives_way(tmp_path: Path):
    found = config.load(run_file(tmp_path), start=start())
    assert found.model == ModelConfig.model_validate(MODEL)
    assert (found.tokenizer.path, found.tokenizer.vocab_size) == ("/m/tokenizer.json", 60)
    assert (found.train.start_from, found.train.start_optimizer) == ("/m", True)
    assert (found.train.steps, found.data.next_sentence) == (1_000_000, True), "the rest stays the recipe's"
    assert config.load("bert-tiny", start=start(moments=False)).train.start_optimizer is False
    (tmp_path / "run.json").write_text(config.canonical_json(found))
    assert config.load(tmp_path / "run.json", start=start()) == found, "the result goes with itself"


def test_what_may_differ_is_the_run_s(tmp_path: Path):
    path = run_file(tmp_path, "[model]\nnum_layers = 3\nattention_dropout = 0.05\nembedding_size = 48")
    found = config.load(path, ["model.dropout=0.0", "train.start_optimizer=false"], start=start())
    assert (found.model.dropout, found.model.attention_dropout, found.model.num_layers) == (0.0, 0.05, 3)
    assert found.train.start_optimizer is False


def test_contradictions_are_named(tmp_path: Path):
    """Whether they are overrides or lines of the run file."""
    for name, value, message in (
        ("model.num_layers", "4", "model.num_layers is 4"),
        ("model.norm_epsilon", "1e-5", "model.norm_epsilon is 1e-05"),
        ("model.hiden_size", "48", "'hidden_size'"),
        ("model.generator.width", "0.5", "model.generator is"),
        ("tokenizer.vocab_size", "61", "tokenizer.vocab_size is 61"),
        ("tokenizer.algorithm", '"bpe"', "tokenizer.algorithm"),
        ("train.start_from", '"/other"', "/other"),
    ):
        group, _, rest = name.partition(".")
        for text, overrides in (("", [f"{name}={value}"]), (f"[{group}]\n{rest} = {value}", [])):
            with pytest.raises(ConfigError, match=message):
                config.load(run_file(tmp_path, text), overrides, start=start())


def test_another_vocabulary_is_the_run_s(tmp_path: Path):
    found = config.load(run_file(tmp_path), ["tokenizer.path=/other.txt"], start=start())
    assert (found.tokenizer.path, found.train.start_from, found.train.start_optimizer) == ("/other.txt", "/m", False)
    with pytest.raises(ConfigError, match="start_optimizer"):
        config.load(run_file(tmp_path), ["tokenizer.path=/other.txt", "train.start_optimizer=true"], start=start())


def test_a_recipe_for_another_architecture_is_refused():
    with pytest.raises(ConfigError, match=r'"electra".*"bert"'):
        config.load("electra-small", start=start())


def test_a_head_or_moments_that_are_missing_are_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="next_sentence"):
        config.load(run_file(tmp_path), start=start(next_sentence=False))
    without = config.load(run_file(tmp_path), ["data.next_sentence=false"], start=start(next_sentence=False))
    assert not without.data.next_sentence
    with pytest.raises(ConfigError, match="start_optimizer"):
        config.load(run_file(tmp_path), ["train.start_optimizer=true"], start=start(moments=False))
    with pytest.raises(ConfigError, match=r"start_optimizer.*start_from"):
        config.load(run_file(tmp_path), ["train.start_optimizer=true"])


def test_an_electra_s_generator_is_compared_setting_by_setting(tmp_path: Path):
    model = {"architecture": "electra", "hidden_size": 128, "num_heads": 2, "embedding_size": 32}
    generator = {"width": 0.5, "depth": 1.0, "own_embeddings": False, "own_layers": True}
    begin = start(**model, generator=generator, next_sentence=False)
    found = config.load("electra-small", start=begin)
    assert found.model.generator is not None and found.model.generator.width == 0.5
    with pytest.raises(ConfigError, match=r"model.generator.width is 0.25"):
        config.load(run_file(tmp_path, base="electra-small"), ["model.generator.width=0.25"], start=begin)
