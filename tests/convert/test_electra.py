"""Both halves of an ELECTRA as transformers has them, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outputs import assert_same_leaves, found_whole, ours, random_params, rows, theirs

from tpulm.config import DataConfig, RunConfig
from tpulm.convert.continuing import initial_weights
from tpulm.convert.huggingface import LoadedModel, load_model, save_parts
from tpulm.convert.importing import import_model
from tpulm.convert.model_card import CardFacts
from tpulm.errors import ConfigError
from tpulm.models import electra
from tpulm.nn.params import named_leaves
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
def trained(request: pytest.FixtureRequest, make_small: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The Small whose parameters are those of both halves, and its export."""
    small = make_small(**{"architecture": "electra", "activation": "gelu", **SETTINGS[request.param]})
    params = random_params(electra.spec(small.config, vocab_size=60), vocab_size=60, seed=5)
    card = CardFacts(RunConfig(name="small", model=small.config, data=DataConfig(sequence_length=16)), 60, "[MASK]", steps=7)
    export = tmp_path_factory.mktemp("electra") / "export"
    save_parts(export, params, small.config, **small.arguments, card=card)
    return small._replace(params=params), export


def test_logits_of_both_equal_those_of_transformers(torch: Any, transformers: Any, trained: tuple[Any, Path]):
    (_, export), (ids, real, _) = trained, rows().values()
    for half, loader in (("generator", transformers.ElectraForMaskedLM), ("discriminator", transformers.ElectraForPreTraining)):
        model = found_whole(loader, export / half)
        found = theirs(torch, model, input_ids=ids, attention_mask=real).logits.numpy()
        expected = ours(load_model(export / half), ids, real)
        assert np.abs(expected).max() > 0.5  # or an error of 1e-4 would say little
        np.testing.assert_allclose(found[real], expected[real], atol=1e-4, rtol=0)


def test_both_come_back_as_they_were_each_with_a_card_of_its_own(trained: tuple[Any, Path]):
    small, export = trained
    both = electra.halves(small.params)
    for half, model, its_config in (
        ("generator", both.generator, electra.generator_config(small.config)),
        ("discriminator", both.discriminator, small.config),
    ):
        loaded = load_model(export / half)
        sizes = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "activation", "architecture")
        assert [getattr(loaded.config, name) for name in sizes] == [getattr(its_config, name) for name in sizes]
        assert loaded.head == ("detection" if half == "discriminator" else "masked")
        card = (export / half / "README.md").read_text("utf-8")
        assert f"# small-{half}" in card
        assert ("ForPreTraining" in card) == (half == "discriminator")
        assert ("replaced-token-detection" in card, "fill-mask" in card) == (half == "discriminator", half == "generator")
        assert_same_leaves(loaded.params, model)


def test_an_import_is_the_same_and_training_goes_on_with_it(trained: tuple[Any, Path], tmp_path: Path):
    small, export = trained
    assert import_model(export, tmp_path / "both").parts == ("discriminator", "generator")
    assert import_model(export / "discriminator", tmp_path / "one").parts == ("",)
    for file in ("generator/model.safetensors", "discriminator/model.safetensors"):
        assert (tmp_path / "both" / file).read_bytes() == (export / file).read_bytes()
    spec = electra.spec(small.config, vocab_size=60)
    found = named_leaves(initial_weights(tmp_path / "both", small.config, spec, small.tokenizer, with_moments=False).params)
    for name, leaf in named_leaves(small.params).items():  # the difference of embeddings is rounded
        np.testing.assert_allclose(found[name], leaf, rtol=0, atol=1e-6 if name.startswith("difference/") else 0, err_msg=name)


def test_the_generator_fills_masks_and_the_discriminator_says_that_it_does_not(trained: tuple[Any, Path]):
    folder = trained[1]
    (folder.parent / "run.json").write_text("{}")
    model = load_model(folder.parent)  # a work folder: its generator
    assert load_model(folder).config == model.config  # and so of the export
    assert isinstance(model, LoadedModel) and model.head == "masked"
    assert len(fill_mask(model, "the [MASK] cat", top=3)[0]) == 3
    with pytest.raises(ConfigError, match="ELECTRA's discriminator"):
        fill_mask(load_model(folder / "discriminator"), "the [MASK] cat")
