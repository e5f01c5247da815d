"""A finished model as the starting point of a run or a classifier: settings, tokenizer, weights and optimizer moments.

For another vocabulary, tokens that both have keep their weights, and new ones begin as the mean of their pieces.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.config.resolve import FREE, OPTIMIZER_FILE, Start
from tpulm.convert.heads import Head, Model
from tpulm.convert.huggingface import (
    CONFIG,
    HALVES,
    REPORT,
    LoadedModel,
    load_model,
    model_folder,
    read_tensors,
    vocabulary_settings,
)
from tpulm.errors import ConfigError, DataError, TpulmError, some_of
from tpulm.models.bert import Bert
from tpulm.models.classifier import (
    ClassificationHead,
    SequenceClassifier,
    TextEncoder,
    TokenClassifier,
    TokenHead,
    without_head,
)
from tpulm.models.electra import Electra, generator_config
from tpulm.nn.params import initialize, is_spec, named_leaves
from tpulm.tokenization import CausalTokenization, Tokenization, load
from tpulm.tokenization.files import TOKENIZER, VOCABULARY
from tpulm.tokenization.forms import Form, forms
from tpulm.tokenization.special import absent
from tpulm.train.optimizer import Moments

NEXT_SENTENCE = "next_sentence"


class InitialWeights(NamedTuple):
    """What training starts from: float32 (numpy) trees with the spec's structure; `summary` is a sentence about it."""

    params: Any
    moments: Moments | None
    summary: str


def initial_weights(
    path: str | PurePath,
    config: ModelConfig,
    spec: Any,
    tokenization: Tokenization,
    *,
    with_moments: bool,
    other_vocabulary: bool = False,
) -> InitialWeights:
    """The weights of a Hugging Face folder or a work folder's export and, if asked for, the optimizer's moments.

    A next-sentence head that the run does not train is left out; a masked head that the model lacks begins at random. Raises
    ConfigError naming every parameter that does not fit or, unless the run may have an `other_vocabulary`, the tokenizer to
    use; for moments of another vocabulary; and like `starting_moments`.
    """
    model = _electra_model(path, spec) if config.architecture == "electra" else load_model(path)
    check_trainable(path, model.tokenization)
    is_classifier, expected = isinstance(model.params, SequenceClassifier | TokenClassifier), named_leaves(spec)
    arrays = named_leaves(without_head(model.params) if is_classifier else model.params)
    step = _step_of(storage.as_path(path))
    weights = "weights" if step is None else f"weights of step {step:,}"
    optimizer = "the optimizer's moments" if with_moments else "a fresh optimizer"
    notes = [f"starting from {path}: {weights} and {optimizer}"]
    if left_out := {name for name in arrays if _is_unwanted_head(name, spec)}:
        notes.append("its next-sentence head is left out, as data.next_sentence is false")
    heads = {name: name.partition("_head/")[0] + "_head" for name in expected if "_head/" in name}
    if fresh := sorted({head for head in heads.values() if not any(name.startswith(f"{head}/") for name in arrays)}):
        notes.append(f"{some_of(fresh)} begins at random, as the model has none")
    if model.tokenization.vocabulary() != tokenization.vocabulary():
        if not other_vocabulary:
            source = model_folder(path) / TOKENIZER
            raise ConfigError(f"the model of {path} has another vocabulary than this run; set tokenizer.path = '{source}'")
        if with_moments:
            raise ConfigError(
                f"train.start_optimizer is true, but the moments of {path} are of another vocabulary than this run: set it to "
                "false"
            )
        vocabulary = new_vocabulary(model.tokenization, tokenization)
        for name, leaf in expected.items():
            if leaf.axes[0] == "vocab" and name in arrays:
                arrays[name] = vocabulary.rows(arrays[name], leaf.shape[0])
        notes.append(str(vocabulary))
    drawn = {name: leaf for name, leaf in expected.items() if heads.get(name) in fresh}
    arrays |= jax.device_get(initialize(drawn, jax.random.key(_HEAD_SEED, impl="threefry2x32")))
    tree = _fitted({name: leaf for name, leaf in arrays.items() if name not in left_out}, spec, path)
    return InitialWeights(tree, starting_moments(path, spec) if with_moments else None, "; ".join(notes))


def _electra_model(path: str | PurePath, spec: Any) -> LoadedModel:
    """The discriminator of an export, but with the parameters of both halves in a training tree like `spec`."""
    folder = model_folder(path).parent
    small, large = load_model(folder / "generator"), load_model(folder / "discriminator")
    generator, discriminator, difference = cast("Any", small.params), cast("Any", large.params), None
    if spec.difference is not None:
        difference = jax.tree.map(np.subtract, discriminator.embeddings, generator.embeddings)
        discriminator = replace(discriminator, embeddings=None)
    shared = {name: None for name in ("embeddings", "projection", "layers") if getattr(spec.generator, name) is None}
    return large._replace(params=cast("Any", Electra(replace(generator, **shared), discriminator, difference)))


def starting_moments(path: str | PurePath, spec: Any) -> Moments:
    """The Adam moments of all parameters of `spec`, and their step, from the file that `tpulm import` writes.

    Raises ConfigError if the file is missing or does not fit, DataError if it is damaged.
    """
    folder = storage.as_path(path)
    file = folder / OPTIMIZER_FILE
    if not storage.exists(file):
        raise ConfigError(f"train.start_optimizer: {folder} has no {OPTIMIZER_FILE}; set it to false for a fresh optimizer")
    arrays = read_tensors(file, remedy="import the model again")
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
    """The step at which training of a model ended, if its folder says so."""
    for path in (folder / REPORT, folder / "results" / "export.json"):
        if storage.exists(path):
            return storage.read_json(path).get("step")
    return None


def _is_unwanted_head(name: str, spec: Any) -> bool:
    return name.startswith(f"{NEXT_SENTENCE}/") and getattr(spec, NEXT_SENTENCE, None) is None


def check_trainable(path: str | PurePath | None, tokenization: Tokenization) -> None:
    """Raise ConfigError for a model whose tokenizer is for generation only; `path` is its folder, if known."""
    if isinstance(tokenization, CausalTokenization):
        why = "begins and ends texts in another way than tpulm's rows, which have [SEP] between them"
        if lacking := absent(tokenization.vocabulary()):
            why = f"lacks special tokens ({' '.join(lacking)})"
        elif path is not None:
            try:
                load(model_folder(path))
            except TpulmError as error:
                why = f"has unusable special tokens ({error})"
        named = "the model" if path is None else f"the model of {path}"
        raise ConfigError(
            f"{named} cannot be trained further: its tokenizer {why}. 'tpulm generate' uses it; what can be trained on is a "
            "causal model that tpulm has exported"
        )


def _fitted(arrays: dict[str, np.ndarray], spec: Any, path: str | PurePath) -> Any:
    """The tree of `spec`. Rows that pad a larger vocabulary, and stand for no token, are cut off."""
    expected = named_leaves(spec)
    for name, leaf in expected.items():
        if name in arrays and leaf.axes[0] == "vocab" and len(arrays[name]) > leaf.shape[0]:
            arrays[name] = arrays[name][: leaf.shape[0]]
    if any(name.startswith(f"{NEXT_SENTENCE}/") and name not in arrays for name in expected):
        raise ConfigError(f"the model of {path} has no next-sentence head; set data.next_sentence=false")
    wrong = [f"{name} is missing there" for name in expected if name not in arrays]
    wrong += [f"{name} has no place here" for name in arrays if name not in expected]
    wrong += [
        f"{name} is {list(arrays[name].shape)} there and {list(expected[name].shape)} here"
        for name in expected
        if name in arrays and arrays[name].shape != expected[name].shape
    ]
    if wrong:
        shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise ConfigError(f"the model of {path} is not the one this run trains: {shown}. Give [model] the same settings")
    return jax.tree.unflatten(jax.tree.structure(spec, is_leaf=is_spec), [arrays[name] for name in expected])


FineTuned = SequenceClassifier | TokenClassifier | TextEncoder
_HEAD_SEED = 0x6865_6164  # so that no other draw from the same seed gives a head's values


def begin_classifier(params: Model, spec: FineTuned, *, again: bool, seed: int) -> FineTuned:
    """The encoder of `params` with a head of `spec` (both with the same model settings), as float32 numpy.

    The head is drawn from the seed, except for what `params` has: BERT's pooler if next-sentence prediction trained it,
    ModernBERT's dense layer and norm, a classifier's dense layer, and its whole head if it has the same task and labels
    (`again`).
    """
    if isinstance(spec, TextEncoder):
        return without_head(params)
    kind = TokenClassifier if isinstance(spec, TokenClassifier) else SequenceClassifier
    if isinstance(params, TokenClassifier) and kind is SequenceClassifier:
        raise ConfigError("this model's head labels tokens; for classes of texts begin with the encoder it was made of")
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), _HEAD_SEED)
    head: Any = jax.device_get(initialize(_head(spec), key))
    if isinstance(params, Bert) and head.norm is not None and (masked := params.masked_head).dense is not None:
        head = replace(head, dense=masked.dense, norm=masked.norm)  # ModernBERT's, shared by all its tasks
    elif isinstance(params, Bert) and kind is SequenceClassifier and params.next_sentence is not None:
        pooler = params.next_sentence.pooler
        bias = np.zeros_like(head.dense.bias) if pooler.bias is None else pooler.bias
        head = replace(head, dense=replace(pooler, bias=bias))
    elif isinstance(params, kind):
        old_head = _head(params)
        head = old_head if again else replace(head, dense=old_head.dense, norm=old_head.norm)
    return kind(params.embeddings, params.projection, params.layers, params.final_norm, head)


def _head(model: SequenceClassifier | TokenClassifier) -> ClassificationHead | TokenHead:
    return model.token_head if isinstance(model, TokenClassifier) else model.classification_head


def starting_point(path: str | os.PathLike[str]) -> Start:
    """What a run inherits from an import, an export, a Hugging Face folder or a work folder with an export.

    Raises ConfigError if a run cannot continue from it, and whatever `load_model` raises.
    """
    source = storage.absolute(path)
    folder = model_folder(source)
    if storage.read_given_object(folder / CONFIG).get("model_type") == "electra":
        folder, loaded, config = _electra(source)
        head: Head = "detection"
    else:
        loaded = load_model(folder)
        config, head = loaded.config, loaded.head
    check_trainable(source, loaded.tokenization)
    return Start(
        folder=str(source),
        model=config.model_dump(mode="json"),
        tokenizer=_tokenizer(folder, loaded),
        next_sentence=head == "next_sentence",
        moments=storage.exists(source / OPTIMIZER_FILE),
    )


def _tokenizer(folder: PurePath, loaded: LoadedModel) -> dict[str, Any]:
    vocab_size, segmenter = loaded.tokenization.vocab_size, loaded.tokenization.segmenter
    morphemes = {} if segmenter is None else {"morphemes": segmenter.analyser}
    if storage.exists(folder / TOKENIZER):
        return {"path": str(folder / TOKENIZER), "vocab_size": vocab_size, **morphemes}
    settings = vocabulary_settings(folder)
    rules = {name: getattr(settings, name) for name in ("lowercase", "strip_accents", "split_cjk")}
    return {"path": str(folder / VOCABULARY), "vocab_size": vocab_size, **rules, **morphemes}


def _electra(source: PurePath) -> tuple[PurePath, LoadedModel, ModelConfig]:
    """The discriminator's folder, the discriminator, and the joint settings of both halves."""
    root = model_folder(source).parent
    missing = [half for half in HALVES if not storage.exists(root / half / CONFIG)]
    if missing:
        raise ConfigError(
            f"{source}: training an ELECTRA needs both halves, generator and discriminator; {missing[0]} is not there"
        )
    large, small = (load_model(root / half) for half in HALVES)
    if small.tokenization.vocabulary() != large.tokenization.vocabulary():
        raise ConfigError(f"{source}: generator and discriminator have different vocabularies; they are not of one ELECTRA")
    own_layers = not (_same(small, large, "layers") and _same(small, large, "projection"))
    generator = {
        "width": small.config.hidden_size / large.config.hidden_size,
        "depth": small.config.num_layers / large.config.num_layers,
        "own_embeddings": not _same(small, large, "embeddings"),
        "own_layers": own_layers,
    }
    if generator["width"] > 1.0 or generator["depth"] > 1.0:
        raise ConfigError(f"{source}: the generator is larger than the discriminator, which tpulm's ELECTRA models cannot have")
    config = ModelConfig.model_validate({**large.config.model_dump(), "generator": generator})
    ours, theirs = generator_config(config).model_dump(), small.config.model_dump()
    wrong = [name for name in theirs if name not in {*FREE, "generator"} and theirs[name] != ours[name]]
    if wrong:
        listed = ", ".join(f"{name} {theirs[name]!r} (not {ours[name]!r})" for name in wrong)
        raise ConfigError(
            f"{source}: the generator has {listed}; ours, of that width beside this discriminator, has the latter, as in the "
            "authors' code"
        )
    return root / "discriminator", large, config


def _same(small: LoadedModel, large: LoadedModel, name: str) -> bool:
    """Whether the two halves share this part, i.e. have equal arrays."""
    left, right = (named_leaves(getattr(model.params, name)) for model in (small, large))
    return left.keys() == right.keys() and all(np.array_equal(left[path], right[path]) for path in left)


_LETTER = "a"
_MOST_LETTERS = 16  # tried before a token, until none joins its first characters


class NewVocabulary(NamedTuple):
    """For each token of the new vocabulary the old ids whose rows' mean it begins with; none: the mean of all rows."""

    sources: list[tuple[int, ...]]
    kept: int  # tokens in both, including special ones
    composed: int
    ordinary: np.ndarray  # int64: the old ids except special tokens

    def __str__(self) -> str:
        rest = len(self.sources) - self.kept - self.composed
        return (
            f"another vocabulary: {self.kept:,} of {len(self.sources):,} tokens keep their weights, {self.composed:,} begin as "
            f"the mean of their pieces in the old one, and {rest:,} as the mean of all"
        )

    def rows(self, old: np.ndarray, count: int) -> np.ndarray:
        """A parameter [V, …] of the old vocabulary for the new one, with `count` rows; rows beyond its tokens are 0."""
        result = np.zeros((count, *old.shape[1:]), old.dtype)
        result[: len(self.sources)] = old[self.ordinary].mean(axis=0)
        for index, ids in enumerate(self.sources):
            if ids:
                result[index] = old[list(ids)].mean(axis=0)
        return result


def new_vocabulary(old: Tokenization, new: Tokenization) -> NewVocabulary:
    """Match tokens that read the same in the same place, at the beginning of a word or within one, however the vocabularies
    write them, and special tokens by role. Raises ConfigError if the two share only special tokens."""
    old_ids = {form: index for index, form in forms(old).items()}
    pieces_of, special = _Pieces(old), tuple(old.special)
    sources: list[tuple[int, ...]] = [() for _ in range(new.vocab_size)]
    for mine, their in zip(new.special, old.special, strict=True):
        sources[mine] = (their,)
    copied = composed = 0
    for index, form in forms(new).items():
        if form in old_ids:
            sources[index], copied = (old_ids[form],), copied + 1
        elif isinstance(form.text, str) and form.text.strip():
            stands_alone = form.begins_word and new.encode([_LETTER + form.text]).ids.tolist()[-1:] == [index]
            if pieces := [one for one in pieces_of(form, stands_alone=stands_alone) if one not in special]:
                sources[index], composed = tuple(pieces), composed + 1
    if not copied:
        raise ConfigError("the two vocabularies have no token in common; begin without --init")
    return NewVocabulary(sources, copied + len(special), composed, np.array(sorted(old_ids.values()), np.int64))


class _Pieces:
    """The ids with which a tokenizer writes a token in its context: after a space, or within a word."""

    def __init__(self, tokenization: Tokenization):
        self._encode, of_tokens = tokenization.encode, forms(tokenization)
        self._beginning_words = {index for index, form in of_tokens.items() if form.begins_word}
        texts = (form.text for form in of_tokens.values() if isinstance(form.text, str))
        letters = dict.fromkeys(text for text in texts if len(text) == 1 and text.isalpha())
        heads = ((letter, self._ids(letter)) for letter in letters)
        self._heads = list(islice((head for head in heads if tokenization.special.unknown not in head[1]), _MOST_LETTERS))

    def __call__(self, form: Form, *, stands_alone: bool) -> list[int]:
        """`stands_alone`: a word without a space before it, such as a punctuation mark."""
        space = " " if form.begins_word and not stands_alone else ""
        for letter, head in self._heads:
            ids = self._ids(f"{letter}{space}{form.text}")
            rest = ids[len(head) :]
            # Else a token lies across the letter and the text, or the text is a word of its own.
            if rest and ids[: len(head)] == head and (form.begins_word or rest[0] not in self._beginning_words):
                return rest
        return self._ids(str(form.text))

    def _ids(self, text: str) -> list[int]:
        return self._encode([text]).ids.tolist()
