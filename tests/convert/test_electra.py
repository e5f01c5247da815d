"""Both halves of an ELECTRA as transformers has them, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outputs import ours

from tpulm import tokenization
from tpulm.config import DataConfig, ModelConfig, RunConfig
from tpulm.convert.huggingface import LoadedModel, load_model, save_parts
from tpulm.convert.model_card import CardFacts
from tpulm.errors import ConfigError
from tpulm.models import electra
from tpulm.nn.params import map_specs, named_leaves, ones
from tpulm.predict.fill_mask import fill_mask

SETTINGS = {
    "projected": {"embedding_size": 12},
    "as wide": {},
    "own embeddings": {"generator": {"own_embeddings": True, "width": 0.5}},
    "disentangled embeddings": {"embedding_size": 12, "generator": {"disentangled_embeddings": True}},
    "relu": {"activation": "relu"},
    "one body": {"generator": {"own_layers": False, "width": 1.0}},
}


def config_of(**settings: Any) -> ModelConfig:
    sizes = {"num_layers": 2, "hidden_size": 24, "num_heads": 3, "intermediate_size": 40, "max_positions": 20}
    return ModelConfig.model_validate({"architecture": "electra", "activation": "gelu", **sizes, **settings})


@pytest.fixture(scope="module", params=list(SETTINGS))
def trained(
    request: pytest.FixtureRequest, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, Path]:
    """(parameters, configuration, export) of a random ELECTRA whose numbers are far from zero."""
    config, random = config_of(**SETTINGS[request.param]), np.random.default_rng(5)
    params = map_specs(
        lambda leaf: random.normal(float(leaf.init is ones), 0.3, leaf.shape).astype(np.float32),
        electra.spec(config, vocab_size=60),
    )
    card = CardFacts(RunConfig(name="small", model=config, data=DataConfig(sequence_length=16)), 60, "[MASK]", steps=7)
    tokenizer = tokenization.load(tokenizer_folder)
    given: dict[str, Any] = {"vocab_size": 60, "tokenization_folder": tokenizer_folder, "tokenizer": tokenizer}
    return params, config, save_parts(tmp_path_factory.mktemp("electra") / "export", params, config, **given, card=card)


def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    real = np.arange(20)[None] < np.array([20, 13, 3])[:, None]
    return {"ids": np.where(real, random.integers(0, 60, (3, 20)), 0).astype(np.int32), "real": real}


def test_logits_of_both_equal_those_of_transformers(torch: Any, transformers: Any, trained: tuple[Any, Any, Path]):
    folder, rows = trained[2], batch()
    for half, loader in (("generator", transformers.ElectraForMaskedLM), ("discriminator", transformers.ElectraForPreTraining)):
        theirs, info = loader.from_pretrained(folder / half, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
        with torch.no_grad():
            found = theirs.eval()(
                input_ids=torch.tensor(rows["ids"], dtype=torch.long),
                attention_mask=torch.tensor(rows["real"], dtype=torch.long),
            ).logits.numpy()
        expected = ours(load_model(folder / half), **rows)
        assert np.abs(expected).max() > 0.5  # or an error of 1e-4 would say little
        np.testing.assert_allclose(found[rows["real"]], expected[rows["real"]], atol=1e-4, rtol=0)


def test_both_come_back_as_they_were(trained: tuple[Any, Any, Path]):
    params, config, folder = trained
    both = electra.halves(params)
    for half, model, its_config in (
        ("generator", both.generator, electra.generator_config(config)),
        ("discriminator", both.discriminator, config),
    ):
        loaded = load_model(folder / half)
        sizes = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "activation", "architecture")
        assert [getattr(loaded.config, name) for name in sizes] == [getattr(its_config, name) for name in sizes]
        assert loaded.head == ("detection" if half == "discriminator" else "masked")
        for name, leaf in named_leaves(model).items():
            back = named_leaves(loaded.params)[name]
            same = slice(60) if leaf.shape[0] == 128 else slice(None)  # the rows that pad the vocabulary are not kept
            np.testing.assert_array_equal(back[same], leaf[same], err_msg=name)


def test_the_generator_fills_masks_and_the_discriminator_says_that_it_does_not(trained: tuple[Any, Any, Path]):
    folder = trained[2]
    (folder.parent / "run.json").write_text("{}")
    model = load_model(folder.parent)  # a work folder: its generator
    assert load_model(folder).config == model.config  # and so of the export
    assert isinstance(model, LoadedModel) and model.head == "masked"
    assert len(fill_mask(model, "the [MASK] cat", top=3)[0]) == 3
    with pytest.raises(ConfigError, match="ELECTRA's discriminator"):
        fill_mask(load_model(folder / "discriminator"), "the [MASK] cat")


def test_each_half_has_a_card_of_its_own(trained: tuple[Any, Any, Path]):
    cards = {half: (trained[2] / half / "README.md").read_text("utf-8") for half in ("generator", "discriminator")}
    assert "# small-generator" in cards["generator"] and "pipeline_tag: fill-mask" in cards["generator"]
    assert "# small-discriminator" in cards["discriminator"] and "- replaced-token-detection" in cards["discriminator"]
    assert "ElectraForPreTraining" not in cards["generator"]
