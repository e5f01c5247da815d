"""Beginning a run with the weights of a finished model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from tpulm.config import ModelConfig
from tpulm.convert.huggingface import LoadedModel, load_model, model_folder
from tpulm.errors import ConfigError
from tpulm.models.electra import Electra
from tpulm.nn.params import named_leaves
from tpulm.tokenization import CausalTokenization, Tokenization


def starting_params(path: str | PurePath, config: ModelConfig, spec: Any, tokenization: Tokenization) -> Any:
    """The tree of float32 parameters for `spec`, from a Hugging Face folder or a work folder's export.

    Raises ConfigError naming every parameter that does not fit, or the tokenizer to take.
    """
    if config.architecture == "electra":
        folder = model_folder(path).parent
        halves: list[Any] = [load_model(folder / half) for half in ("generator", "discriminator")]
        params: Any = Electra(*(half.params for half in halves))
        shared = {name: None for name in ("embeddings", "projection", "layers") if getattr(spec.generator, name) is None}
        params, loaded = replace(params, generator=replace(params.generator, **shared)), halves[1]
    else:
        loaded = load_model(path)
        params = loaded.params
    _same_vocabulary(path, loaded, tokenization)
    _same_shapes(path, params, spec)
    return params


def _same_vocabulary(path: str | PurePath, loaded: LoadedModel, tokenization: Tokenization) -> None:
    _check_trainable(path, loaded.tokenization)
    if loaded.tokenization.vocabulary() != tokenization.vocabulary():
        given = model_folder(path) / "tokenizer.json"
        raise ConfigError(f"the model of {path} has another vocabulary than this run; set tokenizer.path = '{given}'")


def _check_trainable(path: str | PurePath, theirs: Tokenization) -> None:
    if isinstance(theirs, CausalTokenization):
        raise ConfigError(
            f"the model of {path} cannot be trained further: its tokenizer lacks special tokens that rows are made with. "
            "'tpulm generate' uses it; a run that starts from a model needs one with [PAD], [UNK], [CLS], [SEP] and [MASK]"
        )


def _same_shapes(path: str | PurePath, params: Any, spec: Any) -> None:
    found, wanted = named_leaves(params), named_leaves(spec)
    wrong = [f"{name} is missing there" for name in wanted if name not in found]
    wrong += [f"{name} has no place here" for name in found if name not in wanted]
    wrong += [
        f"{name} is {list(found[name].shape)} there and {list(wanted[name].shape)} here"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    if wrong:
        shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise ConfigError(f"the model of {path} is not the one this run trains: {shown}. Give [model] the same settings")
