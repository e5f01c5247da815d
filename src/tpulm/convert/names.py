"""Parameters in Hugging Face's words: two-column tables, and the copying that follows them.

Their linear layers keep weights as [out, in], ours as [in, out] with the heads apart. Axes that our specs name "layers" become
one of their tensors each, and the rows that pad our vocabulary are cut off on the way out and added on the way in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tpulm.config import ModelConfig
from tpulm.convert.heads import Head
from tpulm.errors import DataError, some_of, suggest
from tpulm.nn.params import ParamSpec, is_spec, named_leaves

_SHOWN = 20  # names of each kind of problem that an error lists
NormPosition = Literal["post", "pre"]
# same: as ours; flat: all axes as one; dense: ours is [in, out…], theirs [out, in]; merge: ours is [in…, out], theirs [out, in]
# conv, conv merge: the same two where theirs is [in, out]
Layout = Literal["same", "flat", "dense", "merge", "conv", "conv merge"]


class Name(NamedTuple):
    """One row: our path, their name ("{layer}" stands for the layer's number), and what becomes of the axes."""

    ours: str
    theirs: str
    layout: Layout = "same"


_EMBEDDINGS = (
    Name("embeddings/tokens", "bert.embeddings.word_embeddings.weight"),
    Name("embeddings/positions", "bert.embeddings.position_embeddings.weight"),
    Name("embeddings/types", "bert.embeddings.token_type_embeddings.weight"),
)
_LAYER = "bert.encoder.layer.{layer}."
_LAYERS = (
    Name("layers/attention/query/kernel", _LAYER + "attention.self.query.weight", "dense"),
    Name("layers/attention/query/bias", _LAYER + "attention.self.query.bias", "flat"),
    Name("layers/attention/key/kernel", _LAYER + "attention.self.key.weight", "dense"),
    Name("layers/attention/key/bias", _LAYER + "attention.self.key.bias", "flat"),
    Name("layers/attention/value/kernel", _LAYER + "attention.self.value.weight", "dense"),
    Name("layers/attention/value/bias", _LAYER + "attention.self.value.bias", "flat"),
    Name("layers/attention/output/kernel", _LAYER + "attention.output.dense.weight", "merge"),
    Name("layers/attention/output/bias", _LAYER + "attention.output.dense.bias"),
    Name("layers/up/kernel", _LAYER + "intermediate.dense.weight", "dense"),
    Name("layers/up/bias", _LAYER + "intermediate.dense.bias"),
    Name("layers/down/kernel", _LAYER + "output.dense.weight", "dense"),
    Name("layers/down/bias", _LAYER + "output.dense.bias"),
)
_NORMS: dict[NormPosition, tuple[Name, ...]] = {
    "post": (  # BertForMaskedLM
        Name("embeddings/norm/scale", "bert.embeddings.LayerNorm.weight"),
        Name("embeddings/norm/bias", "bert.embeddings.LayerNorm.bias"),
        Name("layers/attention_norm/scale", _LAYER + "attention.output.LayerNorm.weight"),
        Name("layers/attention_norm/bias", _LAYER + "attention.output.LayerNorm.bias"),
        Name("layers/feed_forward_norm/scale", _LAYER + "output.LayerNorm.weight"),
        Name("layers/feed_forward_norm/bias", _LAYER + "output.LayerNorm.bias"),
    ),
    "pre": (  # MegatronBertForMaskedLM
        Name("layers/attention_norm/scale", _LAYER + "attention.ln.weight"),
        Name("layers/attention_norm/bias", _LAYER + "attention.ln.bias"),
        Name("layers/feed_forward_norm/scale", _LAYER + "ln.weight"),
        Name("layers/feed_forward_norm/bias", _LAYER + "ln.bias"),
        Name("final_norm/scale", "bert.encoder.ln.weight"),
        Name("final_norm/bias", "bert.encoder.ln.bias"),
    ),
}
_MASKED_HEAD = (
    Name("masked_head/dense/kernel", "cls.predictions.transform.dense.weight", "dense"),
    Name("masked_head/dense/bias", "cls.predictions.transform.dense.bias"),
    Name("masked_head/norm/scale", "cls.predictions.transform.LayerNorm.weight"),
    Name("masked_head/norm/bias", "cls.predictions.transform.LayerNorm.bias"),
    Name("masked_head/output_bias", "cls.predictions.bias"),
)
_NEXT_SENTENCE = (
    Name("next_sentence/pooler/kernel", "bert.pooler.dense.weight", "dense"),
    Name("next_sentence/pooler/bias", "bert.pooler.dense.bias"),
    Name("next_sentence/output/kernel", "cls.seq_relationship.weight", "dense"),
    Name("next_sentence/output/bias", "cls.seq_relationship.bias"),
)

_PROJECTION = (
    Name("projection/kernel", "electra.embeddings_project.weight", "dense"),
    Name("projection/bias", "electra.embeddings_project.bias"),
)
_GENERATOR = (  # ElectraForMaskedLM
    Name("masked_head/dense/kernel", "generator_predictions.dense.weight", "dense"),
    Name("masked_head/dense/bias", "generator_predictions.dense.bias"),
    Name("masked_head/norm/scale", "generator_predictions.LayerNorm.weight"),
    Name("masked_head/norm/bias", "generator_predictions.LayerNorm.bias"),
    Name("masked_head/output_bias", "generator_lm_head.bias"),
)
_DISCRIMINATOR = (  # ElectraForPreTraining
    Name("detection_head/dense/kernel", "discriminator_predictions.dense.weight", "dense"),
    Name("detection_head/dense/bias", "discriminator_predictions.dense.bias"),
    Name("detection_head/output/kernel", "discriminator_predictions.dense_prediction.weight", "dense"),
    Name("detection_head/output/bias", "discriminator_predictions.dense_prediction.bias"),
)

_BERT_CLASSIFIER = (  # BertForSequenceClassification, MegatronBertForSequenceClassification
    Name("classification_head/dense/kernel", "bert.pooler.dense.weight", "dense"),
    Name("classification_head/dense/bias", "bert.pooler.dense.bias"),
    Name("classification_head/output/kernel", "classifier.weight", "dense"),
    Name("classification_head/output/bias", "classifier.bias"),
)
_ELECTRA_CLASSIFIER = (  # ElectraForSequenceClassification
    Name("classification_head/dense/kernel", "classifier.dense.weight", "dense"),
    Name("classification_head/dense/bias", "classifier.dense.bias"),
    Name("classification_head/output/kernel", "classifier.out_proj.weight", "dense"),
    Name("classification_head/output/bias", "classifier.out_proj.bias"),
)

# Theirs that repeat another tensor: dropped when equal to it, refused otherwise.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
}
# Theirs that hold no weights (a buffer of 0, 1, 2, …), and those that nothing reads when the next-sentence head is absent.
BUFFERS = ("bert.embeddings.position_ids", "electra.embeddings.position_ids")
POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
# How the first conversions, bert-base-uncased among them, name the two vectors of a norm.
_OLD_SUFFIXES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def names(config: ModelConfig, head: Head) -> tuple[Name, ...]:
    """The table for one model; every parameter of ours is in it once."""
    if config.architecture == "electra":
        body = (*_EMBEDDINGS, *_LAYERS, *_NORMS["post"])
        renamed = (row._replace(theirs=row.theirs.replace("bert.", "electra.", 1)) for row in body)
        projection = _PROJECTION if config.embedding_size not in (None, config.hidden_size) else ()
        heads = {"detection": _DISCRIMINATOR, "classification": _ELECTRA_CLASSIFIER}.get(head, _GENERATOR)
        return (*renamed, *projection, *heads)
    heads = {"next_sentence": (*_MASKED_HEAD, *_NEXT_SENTENCE), "classification": _BERT_CLASSIFIER}.get(head, _MASKED_HEAD)
    return (*_EMBEDDINGS, *_LAYERS, *_NORMS[config.norm_position], *heads)


def head_in(tensors: Mapping[str, Any]) -> Head:
    """The head that their tensors hold."""
    if any(name in tensors for name in ("classifier.weight", "classifier.out_proj.weight")):
        return "classification"
    if any(row.theirs in tensors for row in _DISCRIMINATOR):
        return "detection"
    return "next_sentence" if any(row.theirs in tensors for row in _NEXT_SENTENCE[2:]) else "masked"


class Kept(NamedTuple):
    """Tensors under today's names, and the names of those left out although they held weights."""

    tensors: dict[str, np.ndarray]
    dropped: tuple[str, ...]


def tidy(tensors: Mapping[str, np.ndarray], *, origin: str) -> Kept:
    """Renames what old conversions named otherwise and leaves out repeats, buffers and a pooler that nothing reads.

    Raises DataError for a decoder that is not the embedding table.
    """
    kept = {_current_name(name): tensor for name, tensor in tensors.items() if name not in BUFFERS}
    for name, source in TIED.items():
        repeat = kept.pop(name, None)
        if repeat is not None and not np.array_equal(repeat, kept.get(source, repeat)):
            raise DataError(
                f"{name} differs from {source}: a decoder with weights of its own is not supported", location=origin
            )
        if repeat is not None:
            kept.setdefault(source, repeat)
    reads_pooler = head_in(kept) in ("next_sentence", "classification")
    dropped = () if reads_pooler else tuple(name for name in POOLER if name in kept)
    return Kept({name: tensor for name, tensor in kept.items() if name not in dropped}, dropped)


def _current_name(name: str) -> str:
    for old, current in _OLD_SUFFIXES.items():
        if name.endswith(old):
            return name.removesuffix(old) + current
    return name


def to_theirs(params: Any, spec: Any, table: Sequence[Name], *, vocab_size: int) -> dict[str, np.ndarray]:
    """Their tensors by name, float32, as C-ordered copies; the vocabulary cut to `vocab_size`."""
    leaves, specs = named_leaves(params), named_leaves(spec)
    rows = _by_our_name(table, specs)
    tensors: dict[str, np.ndarray] = {}
    for ours, leaf_spec in specs.items():
        name, layout = rows[ours].theirs, rows[ours].layout
        array = np.asarray(leaves[ours], np.float32)
        if _is_stacked(leaf_spec):
            for layer, piece in enumerate(array):
                tensors[name.format(layer=layer)] = _to_their_layout(piece, layout)
        else:
            cut = array[:vocab_size] if _has_vocabulary(leaf_spec) else array
            tensors[name] = _to_their_layout(cut, layout)
    return tensors


def from_theirs(
    tensors: Mapping[str, Any],
    spec: Any,
    table: Sequence[Name],
    *,
    vocab_size: int,
    origin: str,
    description: str = "config.json",
) -> Any:
    """Our tree of float32 arrays. Raises DataError naming what is missing, unknown or of another shape, before any is read.

    A tensor is an array, or has a `shape` and becomes one by `np.asarray`. `description` is what the model's sizes are known
    from, for the message.
    """
    specs = named_leaves(spec)
    rows = _by_our_name(table, specs)
    layers = max(leaf_spec.shape[0] for leaf_spec in specs.values() if _is_stacked(leaf_spec))
    if layers > len(tensors):  # or the names alone would fill the memory
        raise DataError(
            f"the weights do not fit {description}: it says {layers:,} layers, and there are {len(tensors):,} tensors in all",
            location=origin,
        )
    _check(tensors, _their_shapes(specs, rows, vocab_size=vocab_size), origin=origin, description=description)

    def leaf(ours: str, leaf_spec: ParamSpec) -> np.ndarray:
        name, layout = rows[ours].theirs, rows[ours].layout
        shape = leaf_spec.shape
        if _is_stacked(leaf_spec):
            layers = (np.asarray(tensors[name.format(layer=layer)]) for layer in range(shape[0]))
            return np.stack([_to_our_layout(tensor, layout, shape[1:]) for tensor in layers])
        if _has_vocabulary(leaf_spec):
            padded = np.zeros(shape, np.float32)
            padded[:vocab_size] = np.asarray(tensors[name])
            return padded
        return _to_our_layout(np.asarray(tensors[name]), layout, shape)

    leaves = {ours: leaf(ours, leaf_spec) for ours, leaf_spec in specs.items()}
    broken = [rows[ours].theirs for ours, array in leaves.items() if not np.isfinite(array).all()]
    if broken:
        raise DataError(f"NaN or infinite numbers in {some_of(broken)}", location=origin)
    return jax.tree.unflatten(jax.tree.structure(spec, is_leaf=is_spec), list(leaves.values()))


def _check(tensors: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], *, origin: str, description: str) -> None:
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    wrong = [name for name in tensors if name in expected and tuple(tensors[name].shape) != expected[name]]
    problems = [f"missing: {name} {list(expected[name])}" for name in missing[:_SHOWN]]
    problems += [f"unknown: {name} {list(tensors[name].shape)}.{suggest(name, expected)}" for name in unknown[:_SHOWN]]
    problems += [
        f"shape: {name} is {list(tensors[name].shape)}, {description} says {list(expected[name])}" for name in wrong[:_SHOWN]
    ]
    if problems:
        count = len(missing) + len(unknown) + len(wrong)
        problems += [f"and {count - len(problems)} more"] if count > len(problems) else []
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise DataError(f"the weights do not fit {description} ({count} of {len(expected)} names):\n{lines}", location=origin)


def _their_shapes(specs: Mapping[str, ParamSpec], rows: Mapping[str, Name], *, vocab_size: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, leaf_spec in specs.items():
        name, layout = rows[ours].theirs, rows[ours].layout
        if _is_stacked(leaf_spec):
            for layer in range(leaf_spec.shape[0]):
                shapes[name.format(layer=layer)] = _their_shape(leaf_spec.shape[1:], layout)
        elif _has_vocabulary(leaf_spec):
            shapes[name] = (vocab_size, *leaf_spec.shape[1:])
        else:
            shapes[name] = _their_shape(leaf_spec.shape, layout)
    return shapes


def _by_our_name(table: Sequence[Name], specs: Mapping[str, ParamSpec]) -> dict[str, Name]:
    rows = {row.ours: row for row in table}
    if rows.keys() != specs.keys():
        raise ValueError(f"the table of names and the model differ in {sorted(rows.keys() ^ specs.keys())}")
    return rows


def _is_stacked(leaf_spec: ParamSpec) -> bool:
    return leaf_spec.axes[0] == "layers"


def _has_vocabulary(leaf_spec: ParamSpec) -> bool:
    return leaf_spec.axes[0] == "vocab"


def _their_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    match layout:
        case "same":
            return shape
        case "flat":
            return (math.prod(shape),)
        case "dense":
            return (math.prod(shape[1:]), shape[0])
        case "merge":
            return (shape[-1], math.prod(shape[:-1]))
        case "conv":
            return (shape[0], math.prod(shape[1:]))
        case "conv merge":
            return (math.prod(shape[:-1]), shape[-1])


def _to_their_layout(array: np.ndarray, layout: Layout) -> np.ndarray:
    shape = _their_shape(array.shape, layout)
    turned = array.reshape(shape[::-1]).T if layout in ("dense", "merge") else array.reshape(shape)
    return np.array(turned, order="C")


def _to_our_layout(tensor: np.ndarray, layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    turned = tensor.T if layout in ("dense", "merge") else tensor
    return np.array(turned, np.float32).reshape(shape)
