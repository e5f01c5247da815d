"""Both halves of an ELECTRA as transformers has them, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outputs import assert_same_leaves, found_whole, ours, theirs

from tpulm.config import DataConfig, RunConfig
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


@pytest.fixture(scope="module", params=list(SETTINGS))
def trained(request: pytest.FixtureRequest, make_small: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """(parameters, configuration, export) of a random ELECTRA whose numbers are far from zero."""
    small = make_small(**{"architecture": "electra", "activation": "gelu", **SETTINGS[request.param]})
    config, random = small.config, np.random.default_rng(5)
    params = map_specs(
        lambda leaf: random.normal(float(leaf.init is ones), 0.3, leaf.shape).astype(np.float32),
        electra.spec(config, vocab_size=60),
    )
    card = CardFacts(RunConfig(name="small", model=config, data=DataConfig(sequence_length=16)), 60, "[MASK]", steps=7)
    export = tmp_path_factory.mktemp("electra") / "export"
    return params, config, save_parts(export, params, config, **small.arguments, card=card)


def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    real = np.arange(20)[None] < np.array([20, 13, 3])[:, None]
    return {"ids": np.where(real, random.integers(0, 60, (3, 20)), 0).astype(np.int32), "real": real}


def test_logits_of_both_equal_those_of_transformers(torch: Any, transformers: Any, trained: tuple[Any, Any, Path]):
    folder, rows = trained[2], batch()
    for half, loader in (("generator", transformers.ElectraForMaskedLM), ("discriminator", transformers.ElectraForPreTraining)):
        model = found_whole(loader, folder / half)
        found = theirs(torch, model, input_ids=rows["ids"], attention_mask=rows["real"]).logits.numpy()
        expected = ours(load_model(folder / half), **rows)
        assert np.abs(expected).max() > 0.5  # or an error of 1e-4 would say little
        np.testing.assert_allclose(found[rows["real"]], expected[rows["real"]], atol=1e-4, rtol=0)


def unpadded(tree: Any) -> dict[str, np.ndarray]:
    """Without the rows that pad the vocabulary, which are not kept."""
    return {name: leaf[:60] if leaf.shape[0] == 128 else leaf for name, leaf in named_leaves(tree).items()}


def test_both_come_back_as_they_were_each_with_a_card_of_its_own(trained: tuple[Any, Any, Path]):
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
        card = (folder / half / "README.md").read_text("utf-8")
        assert f"# small-{half}" in card
        assert ("ForPreTraining" in card) == (half == "discriminator")
        assert ("replaced-token-detection" in card, "fill-mask" in card) == (half == "discriminator", half == "generator")
        assert_same_leaves(unpadded(loaded.params), unpadded(model))


def test_the_generator_fills_masks_and_the_discriminator_says_that_it_does_not(trained: tuple[Any, Any, Path]):
    folder = trained[2]
    (folder.parent / "run.json").write_text("{}")
    model = load_model(folder.parent)  # a work folder: its generator
    assert load_model(folder).config == model.config  # and so of the export
    assert isinstance(model, LoadedModel) and model.head == "masked"
    assert len(fill_mask(model, "the [MASK] cat", top=3)[0]) == 3
    with pytest.raises(ConfigError, match="ELECTRA's discriminator"):
        fill_mask(load_model(folder / "discriminator"), "the [MASK] cat")
