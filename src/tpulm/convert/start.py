"""Beginning a run with the weights of a finished model, and with its optimiser's moments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.config.starting import OPTIMIZER_FILE
from tpulm.convert.huggingface import LoadedModel, load_model, model_folder
from tpulm.errors import ConfigError, DataError
from tpulm.models.electra import Electra
from tpulm.nn.params import is_spec, named_leaves
from tpulm.tokenization import CausalTokenization, Tokenization
from tpulm.train.optimizer import Moments

NEXT_SENTENCE = "next_sentence"
_REPORT = "import.json"


class Beginning(NamedTuple):
    """What training begins with: trees of float32 arrays (numpy) as the spec; `said` is a sentence about it."""

    params: Any
    moments: Moments | None
    said: str


def beginning_of(
    path: str | PurePath, config: ModelConfig, spec: Any, tokenization: Tokenization, *, with_moments: bool
) -> Beginning:
    """The weights of a model, and with them, if asked for, the optimiser's moments.

    A next-sentence head that the run does not train is left out. Raises as `starting_params` and `starting_moments`.
    """
    params = starting_params(path, config, spec, tokenization)
    moments = starting_moments(path, spec) if with_moments else None
    step = _step_of(storage.as_path(path))
    weights = "weights" if step is None else f"weights of step {step:,}"
    optimiser = "a fresh optimiser" if moments is None else "the optimiser's moments"
    said = f"starting from {path}: {weights} and {optimiser}"
    if params.left_out:
        said += "; its next-sentence head is left out, as data.next_sentence is false"
    return Beginning(params.tree, moments, said)


class Params(NamedTuple):
    tree: Any
    left_out: tuple[str, ...]  # paths of parameters that the run does not train


def starting_params(path: str | PurePath, config: ModelConfig, spec: Any, tokenization: Tokenization) -> Params:
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
    found = named_leaves(params)
    left_out = tuple(name for name in found if _is_unwanted_head(name, spec))
    return Params(_fitted({name: leaf for name, leaf in found.items() if name not in left_out}, spec, path), left_out)


def starting_moments(path: str | PurePath, spec: Any) -> Moments:
    """google's moments of all parameters of `spec`, from the file that `tpulm import` writes, and the step they are of.

    Raises ConfigError where there is no such file or it does not fit, DataError where it is damaged.
    """
    folder = storage.as_path(path)
    file = folder / OPTIMIZER_FILE
    if not storage.exists(file):
        raise ConfigError(f"train.start_optimizer: {folder} has no {OPTIMIZER_FILE}; set it to false for a fresh optimiser")
    try:
        with storage.local_copy(file) as local, storage.explain("read", file):
            arrays = safetensors.numpy.load_file(local)
    except SafetensorError as error:
        raise DataError(f"not a whole safetensors file ({error}); import the model again", location=str(file)) from error
    broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    broken += [name for name, array in arrays.items() if name.startswith("adam_v/") and (array < 0).any()]
    if broken:
        raise DataError(f"no moments: NaN, infinite or negative numbers in {', '.join(broken[:5])}", location=str(file))
    trees = []
    for role in ("adam_m", "adam_v"):
        own = {name.removeprefix(f"{role}/"): array for name, array in arrays.items() if name.startswith(f"{role}/")}
        trees.append(_fitted({name: own[name] for name in own if not _is_unwanted_head(name, spec)}, spec, file))
    return Moments(*trees, step=_step_of(folder))


def _step_of(folder: PurePath) -> int | None:
    """Of the training that made a model, where its folder says it."""
    for path in (folder / _REPORT, folder / "results" / "export.json"):
        if storage.exists(path):
            return storage.read_json(path).get("step")
    return None


def _is_unwanted_head(name: str, spec: Any) -> bool:
    return name.startswith(f"{NEXT_SENTENCE}/") and getattr(spec, NEXT_SENTENCE, None) is None


def _same_vocabulary(path: str | PurePath, loaded: LoadedModel, tokenization: Tokenization) -> None:
    check_trainable(path, loaded.tokenization)
    if loaded.tokenization.vocabulary() != tokenization.vocabulary():
        given = model_folder(path) / "tokenizer.json"
        raise ConfigError(f"the model of {path} has another vocabulary than this run; set tokenizer.path = '{given}'")


def check_trainable(path: str | PurePath, theirs: Tokenization) -> None:
    """Raises ConfigError for a model whose tokenizer is for generation alone."""
    if isinstance(theirs, CausalTokenization):
        raise ConfigError(
            f"the model of {path} cannot be trained further: its tokenizer lacks special tokens, or its texts begin and end "
            "otherwise than in rows of tpulm's, which have [SEP] between them. 'tpulm generate' uses it; a run goes on from a "
            "causal model that tpulm has exported"
        )


def _fitted(found: dict[str, np.ndarray], spec: Any, path: str | PurePath) -> Any:
    """The tree of `spec`; rows of a vocabulary that was rounded up further, which stand for no token, are cut off."""
    wanted = named_leaves(spec)
    for name, leaf in wanted.items():
        if name in found and leaf.axes[0] == "vocab" and len(found[name]) > leaf.shape[0]:
            found[name] = found[name][: leaf.shape[0]]
    _same_shapes(path, found, wanted)
    return jax.tree.unflatten(jax.tree.structure(spec, is_leaf=is_spec), [found[name] for name in wanted])


def _same_shapes(path: str | PurePath, found: dict[str, np.ndarray], wanted: dict[str, Any]) -> None:
    if any(name.startswith(f"{NEXT_SENTENCE}/") and name not in found for name in wanted):
        raise ConfigError(f"the model of {path} has no next-sentence head; set data.next_sentence=false")
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
