"""Read Google's BERT and ELECTRA from their TF1 checkpoints, including the optimizer's moments.

Google's BERT computes GELU in its tanh form and ELECTRA by erf; both call it "gelu" (modeling.py of the two). Their layer norms
have an epsilon of 1e-12. BERT's sizes are in its bert_config.json; ELECTRA's follow from the shapes, except the number of
heads: size / 64 in all published ones, and max(1, size / 64) in every generator (electra: pretrain/pretrain_helpers.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import numpy as np

from tpulm.config import ModelConfig
from tpulm.convert.config_json import Described, from_config_json
from tpulm.convert.heads import Head, Model, spec_of
from tpulm.convert.names import TF1_EXTRAS, TF1_NEXT_SENTENCE, TF1_POOLER, Name, tf1_names
from tpulm.convert.tensorbundle import Bundle
from tpulm.convert.tensors import from_theirs
from tpulm.errors import ConfigError, DataError
from tpulm.nn.params import named_leaves

Kind = Literal["bert", "electra"]
HEAD_SIZE = 64
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # TensorFlow 2's
_DEFAULTS = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
# Keys of config.json: the name of a tensor in a scope, and the axis with that length.
_SIZES = {
    "vocab_size": ("embeddings/word_embeddings", 0),
    "embedding_size": ("embeddings/word_embeddings", 1),
    "max_position_embeddings": ("embeddings/position_embeddings", 0),
    "type_vocab_size": ("embeddings/token_type_embeddings", 0),
    "hidden_size": ("encoder/layer_0/attention/self/query/kernel", 0),
    "intermediate_size": ("encoder/layer_0/intermediate/dense/kernel", 1),
}


class GivenConfig(NamedTuple):
    """A bert_config.json: its contents and its path."""

    values: Mapping[str, Any]
    origin: str


class ImportedModel(NamedTuple):
    """A whole model: BERT, or a half of ELECTRA. Parameters are float32 (numpy), the vocabulary padded."""

    params: Model
    config: ModelConfig


class Checkpoint(NamedTuple):
    """The contents of a TF1 checkpoint.

    `moments` are the optimizer's, in the shapes of our parameters, under "adam_m/" or "adam_v/" and the parameter's path in
    training; empty unless the checkpoint has all of them. `dropped` names what was left out.
    """

    kind: Kind
    parts: Mapping[str, ImportedModel]  # "" for BERT; "discriminator" and "generator"
    vocab_size: int
    step: int | None
    moments: Mapping[str, np.ndarray]
    dropped: tuple[str, ...]


class _PartLayout(NamedTuple):
    """One part before its tensors are read; `owns` are the prefixes of names that belong to it alone in training."""

    described: Described
    spec: Any
    table: tuple[Name, ...]
    tensors: tuple[str, ...]
    owns: tuple[str, ...]


def load_checkpoint(prefix: PurePath, *, config: GivenConfig | None, kind: Kind | None = None) -> Checkpoint:
    """The model and the optimizer state under PREFIX.

    Raises ConfigError if a BERT has no config or the checkpoint is not of this `kind`, DataError listing every name that is
    missing, unknown or of another shape, and what tensorbundle.py raises for damaged files.
    """
    bundle = Bundle(prefix)
    if _OBJECT_GRAPH in bundle:
        raise DataError(
            "a checkpoint of TensorFlow 2 (it holds an object graph), and only those of TF1 are read; load it with "
            "transformers and save_pretrained() it, which writes model.safetensors",
            location=bundle.index,
        )
    extras = {name: role for name in bundle for role, pattern in TF1_EXTRAS if fnmatchcase(name, pattern)}
    weights = [name for name in bundle if name not in extras]
    actual = _kind_in(weights, bundle)
    if kind not in (None, actual):
        raise ConfigError(f"{prefix} holds {actual.upper()}, not {kind}: leave --kind out, or name another checkpoint")
    if actual == "bert":
        dropped = [] if TF1_NEXT_SENTENCE in weights else [name for name in TF1_POOLER if name in weights]
        layouts = {"": _bert(bundle, [name for name in weights if name not in dropped], config)}
    else:
        dropped, layouts = [], _electra(bundle, weights, config)
    parts = {half: _read(bundle, layout, config) for half, layout in layouts.items()}
    moments = _moments(bundle, layouts, extras)
    dropped += [name for name, role in extras.items() if role is None or (role.startswith("adam") and not moments)]
    step = int(bundle["global_step"].read()) if "global_step" in bundle else None
    vocab_size = next(iter(layouts.values())).described.vocab_size
    return Checkpoint(actual, parts, vocab_size, step, moments, tuple(dropped))


def _kind_in(weights: Sequence[str], bundle: Bundle) -> Kind:
    scopes = sorted({name.partition("/")[0] for name in weights})
    if "bert" in scopes:
        return "bert"
    if "electra" in scopes:
        return "electra"
    raise DataError(
        f"neither Google's BERT (bert/…) nor its ELECTRA (electra/…): the names begin with "
        f"{', '.join(scopes[:12]) or 'nothing'}. Another model's checkpoint cannot be imported",
        location=bundle.index,
    )


def _bert(bundle: Bundle, weights: Sequence[str], config: GivenConfig | None) -> _PartLayout:
    if config is None:
        raise ConfigError(
            f"{bundle.prefix}: no bert_config.json is next to the checkpoint, and only that has the number of heads; name "
            "it with --config"
        )
    head: Head = "next_sentence" if TF1_NEXT_SENTENCE in weights else "masked"
    described = _described("bert", config.values, config.origin)
    spec = spec_of(described.config, head, vocab_size=described.vocab_size)
    return _PartLayout(described, spec, tf1_names("bert", spec), tuple(weights), ("",))


def _electra(bundle: Bundle, weights: Sequence[str], config: GivenConfig | None) -> dict[str, _PartLayout]:
    """Both halves; the generator may have its own embeddings and layers, or share them."""
    settings, origin = ({}, bundle.index) if config is None else config
    own_layers = any(name.startswith("generator/encoder/") for name in weights)
    own_embeddings = any(name.startswith("generator/embeddings/") for name in weights)
    body, embeddings = "generator" if own_layers else "electra", "generator" if own_embeddings else "electra"
    sizes = _sizes(bundle, weights, body="electra", embeddings="electra")
    # Values from the file take precedence, and are then compared with the shapes.
    large = _described("electra", {**sizes, **_heads(settings, sizes["hidden_size"], bundle), **settings}, origin)
    sizes = _sizes(bundle, weights, body=body, embeddings=embeddings)
    heads = max(1, sizes["hidden_size"] // HEAD_SIZE) if own_layers else large.config.num_heads
    small = _described("electra", {**settings, **sizes, "num_attention_heads": heads}, origin)
    own = ("generator/", "generator_predictions/")
    generators = [name for name in weights if name.startswith(own)]
    shared = [name for name in weights if name.startswith("electra/embeddings/")] if embeddings == "electra" else []
    shared += [
        name for name in weights if name.startswith(("electra/encoder/", "electra/embeddings_project/")) and not own_layers
    ]
    discriminator = spec_of(large.config, "detection", vocab_size=large.vocab_size)
    generator = spec_of(small.config, "masked", vocab_size=small.vocab_size)
    table = tf1_names("electra", generator, body=body, embeddings=embeddings)
    others = tuple(name for name in weights if name not in generators)
    return {
        "discriminator": _PartLayout(large, discriminator, tf1_names("electra", discriminator), others, ("",)),
        "generator": _PartLayout(small, generator, table, (*shared, *generators), own),
    }


def _sizes(bundle: Bundle, weights: Sequence[str], *, body: str, embeddings: str) -> dict[str, int]:
    """Keys of a config.json, derived from tensor shapes in two scopes."""
    sizes: dict[str, int] = {}
    for key, (name, axis) in _SIZES.items():
        full = f"{embeddings if name.startswith('embeddings') else body}/{name}"
        if full not in bundle or len(bundle[full].shape) != 2:
            raise DataError(f"missing: {full}, a matrix whose shape gives {key}", location=bundle.index)
        sizes[key] = bundle[full].shape[axis]
    numbers = [int(match.group(1)) for name in weights if (match := re.match(rf"{body}/encoder/layer_(\d+)/", name))]
    return sizes | {"num_hidden_layers": 1 + max(numbers)}


def _heads(settings: Mapping[str, Any], size: int, bundle: Bundle) -> dict[str, int]:
    if "num_attention_heads" in settings:
        return {}
    if size % HEAD_SIZE:
        raise ConfigError(
            f"{bundle.prefix}: the layers are {size} wide, which is not a multiple of a head's {HEAD_SIZE}, so the number of "
            "heads is not known; write a JSON file with num_attention_heads and name it with --config"
        )
    return {"num_attention_heads": size // HEAD_SIZE}


def _described(kind: Kind, values: Mapping[str, Any], origin: str) -> Described:
    """Google's keys are Hugging Face's, except for the meaning of "gelu" and constants in their code."""
    activation = values.get("hidden_act", "gelu")
    if kind == "bert" and activation == "gelu" and "model_type" not in values:
        activation = "gelu_new"
    fixed = {"model_type": kind, "hidden_act": activation, "layer_norm_eps": 1e-12}
    return from_config_json({**_DEFAULTS, **values, **fixed}, origin=origin)


def _read(bundle: Bundle, layout: _PartLayout, config: GivenConfig | None, *, moment: str = "") -> ImportedModel:
    """The parameters of one part, or one of their two `moment`s in the same shapes."""
    params = from_theirs(
        {name: bundle[name + moment] for name in layout.tensors},
        layout.spec,
        layout.table,
        vocab_size=layout.described.vocab_size,
        origin=str(bundle.prefix),
        description="the model's layout" if config is None else PurePath(config.origin).name,
    )
    return ImportedModel(params, layout.described.config)


def _moments(bundle: Bundle, layouts: Mapping[str, _PartLayout], extras: Mapping[str, str | None]) -> dict[str, np.ndarray]:
    """Both moments of all trained parameters, or none if one is missing; for shared parameters the discriminator's."""
    required = [f"{name}/{role}" for layout in layouts.values() for name in layout.tensors for role in ("adam_m", "adam_v")]
    if not all(name in extras for name in required):
        return {}
    moments: dict[str, np.ndarray] = {}
    for half, layout in layouts.items():
        owned = {row.ours for row in layout.table if row.theirs.startswith(layout.owns)}
        for role in ("adam_m", "adam_v"):
            leaves = named_leaves(_read(bundle, layout, None, moment=f"/{role}").params)
            prefix = f"{role}/{half}/" if half else f"{role}/"
            moments |= {prefix + ours: array for ours, array in leaves.items() if ours in owned}
    return moments
