"""A finished model as the beginning of a run: its settings, its tokenizer, and whether the optimiser's moments are there."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.config.starting import FREE, OPTIMIZER_FILE, Start
from tpulm.convert.heads import Head
from tpulm.convert.huggingface import CONFIG, LoadedModel, load_model, model_folder, vocabulary_settings
from tpulm.convert.start import check_trainable
from tpulm.errors import ConfigError
from tpulm.models.electra import generator_config
from tpulm.nn.params import named_leaves

HALVES = ("generator", "discriminator")


def starting_point(path: str | os.PathLike[str]) -> Start:
    """What a run takes from an import, an export, a Hugging Face folder or a work folder with an export.

    Raises ConfigError where a run cannot go on from it, and what `load_model` raises.
    """
    given = storage.as_path(path)
    given = given.expanduser().absolute() if isinstance(given, Path) else given
    folder = model_folder(given)
    if storage.read_given_object(folder / CONFIG).get("model_type") == "electra":
        folder, loaded, config = _electra(given)
        head: Head = "detection"
    else:
        loaded = load_model(folder)
        config, head = loaded.config, loaded.head
    check_trainable(given, loaded.tokenization)
    return Start(
        folder=str(given),
        model=config.model_dump(mode="json"),
        tokenizer=_tokenizer(folder, loaded),
        next_sentence=head == "next_sentence",
        moments=storage.exists(given / OPTIMIZER_FILE),
    )


def _tokenizer(folder: PurePath, loaded: LoadedModel) -> dict[str, Any]:
    vocab_size, segmenter = loaded.tokenization.vocab_size, loaded.tokenization.segmenter
    morphemes = {} if segmenter is None else {"morphemes": segmenter.analyser}
    if storage.exists(folder / "tokenizer.json"):
        return {"path": str(folder / "tokenizer.json"), "vocab_size": vocab_size, **morphemes}
    settings = vocabulary_settings(folder)
    rules = {name: getattr(settings, name) for name in ("lowercase", "strip_accents", "split_cjk")}
    return {"path": str(folder / "vocab.txt"), "vocab_size": vocab_size, **rules, **morphemes}


def _electra(given: PurePath) -> tuple[PurePath, LoadedModel, ModelConfig]:
    """The discriminator's folder, the discriminator, and the settings of both halves together."""
    root = model_folder(given).parent
    missing = [half for half in HALVES if not storage.exists(root / half / CONFIG)]
    if missing:
        raise ConfigError(f"{given}: training an ELECTRA needs both halves, {' and '.join(HALVES)}; {missing[0]} is not there")
    small, large = (load_model(root / half) for half in HALVES)
    if small.tokenization.vocabulary() != large.tokenization.vocabulary():
        raise ConfigError(f"{given}: generator and discriminator have different vocabularies; they are not of one ELECTRA")
    own_layers = not (_same(small, large, "layers") and _same(small, large, "projection"))
    generator = {
        "width": small.config.hidden_size / large.config.hidden_size,
        "depth": small.config.num_layers / large.config.num_layers,
        "own_embeddings": not _same(small, large, "embeddings"),
        "own_layers": own_layers,
    }
    if generator["width"] > 1.0 or generator["depth"] > 1.0:
        raise ConfigError(f"{given}: the generator is larger than the discriminator, which an ELECTRA of ours cannot have")
    config = ModelConfig.model_validate({**large.config.model_dump(), "generator": generator})
    ours, theirs = generator_config(config).model_dump(), small.config.model_dump()
    wrong = [name for name in theirs if name not in {*FREE, "generator"} and theirs[name] != ours[name]]
    if wrong:
        listed = ", ".join(f"{name} {theirs[name]!r} (not {ours[name]!r})" for name in wrong)
        raise ConfigError(
            f"{given}: the generator has {listed}; ours, of that width beside this discriminator, has the latter, as in the "
            "authors' code"
        )
    return root / "discriminator", large, config


def _same(small: LoadedModel, large: LoadedModel, name: str) -> bool:
    """Whether the two halves have this part in common: the same arrays."""
    left, right = (named_leaves(getattr(model.params, name)) for model in (small, large))
    return left.keys() == right.keys() and all(np.array_equal(left[path], right[path]) for path in left)
