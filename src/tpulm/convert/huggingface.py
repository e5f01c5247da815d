"""A model to and from a Hugging Face folder: model.safetensors, config.json, tokenizer files, README.md; no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from tpulm import storage, tokenization
from tpulm.config import ModelConfig, TokenizerConfig
from tpulm.config.finetune import LEAST_LENGTH
from tpulm.convert.config_json import (
    HeadConfig,
    class_name,
    from_config_json,
    head_from_json,
    head_to_json,
    model_type_of,
    to_config_json,
)
from tpulm.convert.heads import DECODER_HEADS, FINE_TUNED, Head, Model, head_of, spec_of
from tpulm.convert.model_card import CARD, CardFacts, is_hub_name, render
from tpulm.convert.names import fuse, head_in, names, tidy, ungrouped, without_heads
from tpulm.convert.relatives import as_bert_config, as_bert_tensors
from tpulm.convert.sentence_transformers import embedder_files, read_embedder, text_length
from tpulm.convert.tensors import from_theirs, to_theirs
from tpulm.errors import ConfigError, DataError, StorageError, TpulmError, brief
from tpulm.models.classifier import SequenceClassifier, TokenClassifier
from tpulm.models.electra import Electra, generator_config, halves
from tpulm.nn.params import count, named_leaves
from tpulm.tokenization import Tokenization
from tpulm.tokenization.causal import GPT2_VOCABULARY, CausalTokenization
from tpulm.tokenization.files import MANIFEST, TOKENIZER, VOCABULARY, convert_hint
from tpulm.tokenization.hf_files import TOKENIZER_CONFIG, read_settings
from tpulm.tokenization.segmenter import declared_segmenter
from tpulm.workfolder import newer_checkpoint

WEIGHTS = "model.safetensors"
SHARDS = f"{WEIGHTS}.index.json"  # names the files that hold the weights, if they are several
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".h5", ".msgpack")  # never opened
CONFIG = "config.json"
TOKENIZERS = (TOKENIZER, VOCABULARY, GPT2_VOCABULARY)  # any one is enough; GPT-2's, the last, comes with merges.txt
SENTENCEPIECE = "tokenizer.model"
# In a repository: folders but for those of sentence-transformers' modules (1_Pooling), and weights in these. * matches / too.
_NOT_OF_A_MODEL = ["[!0-9]*/*", "*/*.safetensors"]
HALVES = ("discriminator", "generator")  # of an ELECTRA, subfolders of its export
# In an export: the model itself; for ELECTRA the half that fills masks, or the one that reads.
FILLS_MASKS, READS = ("", "generator"), ("", "discriminator")
REPORT = "import.json"  # of an imported model
# Keys of config.json: of a fine-tuned model, and of one that began as a run of tpulm.
COLUMNS, PRETRAINED = "tpulm_columns", "tpulm_pretrained"


class LoadedModel(NamedTuple):
    """A model read from a folder: float32 parameters (numpy), with the vocabulary padded as in `convert.heads.spec_of`.

    `dropped` names weights of the file that have no place in ours (a pooler without its classifier); `head_config` says what a
    classifier's outputs mean, or how an embedding model pools, `max_length` to how many tokens its texts are truncated (None:
    unknown), `columns` how those of its training file were named ("text" and, of pairs, "pair"); `pretrained_here`: it began as
    a run of tpulm. A bare encoder has the head "embedding" and no `head_config`.
    """

    params: Model
    config: ModelConfig
    vocab_size: int
    tokenization: Tokenization
    head: Head
    dropped: tuple[str, ...] = ()
    head_config: HeadConfig | None = None
    columns: dict[str, str] | None = None
    pretrained_here: bool = False
    max_length: int | None = None

    def __repr__(self) -> str:
        model = f"{self.config.architecture}, {self.config.num_layers} layers of {self.config.hidden_size}"
        return f"LoadedModel({model}, {count(self.params):,} parameters, head {self.head!r}, {self.tokenization!r})"


class Weights(NamedTuple):
    """A model without its tokenizer; the fields are those of `LoadedModel`."""

    params: Model
    config: ModelConfig
    vocab_size: int
    head: Head
    dropped: tuple[str, ...]
    head_config: HeadConfig | None = None
    columns: dict[str, str] | None = None
    pretrained_here: bool = False


def save_model(
    folder: str | PurePath,
    params: Model,
    config: ModelConfig,
    *,
    vocab_size: int,
    tokenization_folder: str | PurePath,
    tokenizer: Tokenization,
    card: CardFacts | None = None,
    head: Head | None = None,
    head_config: HeadConfig | None = None,
    columns: Mapping[str, str] | None = None,
    pretrained_here: bool = False,
    max_length: int | None = None,
) -> None:
    """Write the folder under a temporary name and move it into place; an existing folder is replaced.

    `params` may be on devices; `head` is needed for a head with the parameters of another; `vocab_size` is the tokenizer's, to
    which the padded vocabulary is cut. `tokenizer` is what lies in `tokenization_folder`. Tied tensors (the decoder) are not
    stored, as transformers expects. A classifier needs `head_config`; `max_length` is the truncation of its texts, if shorter
    than the model's input. Raises TpulmError if a parameter is not finite, ConfigError if no class of transformers has the
    model's settings.
    """
    target, tokenizer_folder = storage.as_path(folder), storage.as_path(tokenization_folder)
    head = head or head_of(params)
    model_type = model_type_of(config, head)
    weights = encode_weights(params, config, vocab_size=vocab_size, head=head)
    with storage.built_aside(target, last=CONFIG) as temporary:
        _copy_tokenizer(tokenizer_folder, temporary, tokenizer, config, head, max_length)
        description = to_config_json(config, head, vocab_size=vocab_size, special=tokenizer.special)
        description |= {PRETRAINED: True} if pretrained_here else {}
        if head_config is not None:
            description |= head_to_json(head_config, model_type, head) | ({COLUMNS: columns} if columns else {})
            for name, values in (embedder_files(head_config, config, max_length) if head == "embedding" else {}).items():
                storage.make_folder((temporary / name).parent)
                storage.write_json(temporary / name, values)
        storage.write_json(temporary / CONFIG, description)
        storage.write_atomic(temporary / WEIGHTS, weights)
        if card is not None:
            storage.write_atomic(temporary / CARD, render(card))


def save_loaded(folder: str | PurePath, model: LoadedModel) -> None:
    """Like `save_model`, for a model with the tokenizer it was loaded with."""
    with storage.scratch_folder() as tokenizer_folder:
        tokenization.save(model.tokenization, tokenizer_folder)
        rest = {name: value for name, value in model._asdict().items() if name not in ("tokenization", "dropped")}
        save_model(folder, **rest, tokenization_folder=tokenizer_folder, tokenizer=model.tokenization)


def encode_weights(params: Model, config: ModelConfig, *, vocab_size: int, head: Head) -> bytes:
    """The bytes of model.safetensors. Raises TpulmError if a parameter is not finite, ConfigError like `save_model`."""
    model_type = model_type_of(config, head)
    params = jax.device_get(params)
    if broken := [name for name, leaf in named_leaves(params).items() if not np.isfinite(leaf).all()]:
        raise TpulmError(f"nothing was exported: NaN or infinite numbers in {', '.join(broken)}; export an earlier checkpoint")
    num_outputs = 0
    if isinstance(params, SequenceClassifier | TokenClassifier):
        own = params.token_head if isinstance(params, TokenClassifier) else params.classification_head
        num_outputs = own.output.kernel.shape[1]
    tree = spec_of(config, head, vocab_size=vocab_size, num_outputs=num_outputs)
    tensors = fuse(to_theirs(params, tree, names(model_type, tree, head), vocab_size=vocab_size))
    return safetensors.numpy.save(tensors, metadata={"format": "pt"})


def save_parts(
    folder: str | PurePath, params: Model | Electra, config: ModelConfig, *, card: CardFacts | None = None, **arguments: Any
) -> None:
    """Like `save_model`, for the result of training: ELECTRA becomes two models, in `discriminator` and `generator`."""
    target = storage.as_path(folder)
    if not isinstance(params, Electra):
        save_model(target, params, config, card=card, **arguments)
        return
    both = halves(params)
    parts = ((both.discriminator, config), (both.generator, generator_config(config)))
    with storage.built_aside(target, last=CONFIG) as temporary:
        for half, (model, its_config) in zip(HALVES, parts, strict=True):
            facts = None if card is None else replace(card, half=half)
            save_model(temporary / half, model, its_config, card=facts, **arguments)


def load_model(path: str | PurePath, *, preferred: Sequence[str] = FILLS_MASKS) -> LoadedModel:
    """The model of a Hugging Face folder, or of a work folder's export; of an ELECTRA the half `preferred`.

    Raises ConfigError if the path is not a model, DataError if its files contradict each other.
    """
    folder = model_folder(path, preferred=preferred)
    weights = load_weights(folder)
    causal = weights.config.architecture == "decoder"
    tokenizer = (tokenization.load_causal if causal else tokenization.load)(folder, vocabulary_settings(folder))
    if causal and weights.head == "classification":
        _check_framing(tokenizer, folder)
    check_vocabulary(tokenizer.vocab_size, weights.vocab_size, folder)
    max_length = _length_of_texts(folder, weights, tokenizer) if weights.head_config is not None else None
    return LoadedModel(**weights._asdict(), tokenization=tokenizer, max_length=max_length)


def check_vocabulary(tokens: int, vocab_size: int, folder: PurePath) -> None:
    if tokens > vocab_size:
        raise DataError(
            f"the vocabulary has {tokens:,} tokens, but the model only {vocab_size:,} (vocab_size in {CONFIG}): "
            "this tokenizer belongs to another model",
            location=str(folder),
        )


def load_weights(folder: PurePath) -> Weights:
    """The contents of a folder's config.json and weights. Raises DataError if they contradict each other."""
    original, file = storage.read_given_object(folder / CONFIG), weights_file(folder) or folder / WEIGHTS
    values, origin = as_bert_config(original, origin=str(folder / CONFIG)), str(file)
    described = from_config_json(values, origin=str(folder / CONFIG))
    config, tensors = described.config, _read_shards(file) if file.name == SHARDS else read_tensors(file)
    tensors, unread = as_bert_tensors(tensors, original, origin=origin)
    head_size = config.hidden_size // config.num_heads
    tensors = ungrouped(tensors, groups=described.groups, num_heads=config.num_heads, head_size=head_size, origin=origin)
    head = head_in(tensors)
    if config.architecture == "decoder" and head == "masked":
        head = "causal"
    if head == "classification":  # whose tensors may be named like another head's
        for one in FINE_TUNED:
            if class_name(values["model_type"], one) in described.classes:
                head = one
                break
    if config.architecture == "decoder" and head not in DECODER_HEADS:
        raise DataError(
            f"{', '.join(described.classes) or 'its class'} is not supported: of causal models those that continue or classify "
            "texts are",
            location=str(folder / CONFIG),
        )
    tidied = tidy(tensors, values["model_type"], head, tied=config.tied_output, origin=origin)
    masked = names(values["model_type"], spec_of(config, "masked", vocab_size=described.vocab_size))
    of_head = {row.theirs for row in masked if row.ours.startswith("masked_head/")}  # none if tied and without biases
    headless = head in ("masked", "next_sentence") and of_head and of_head.isdisjoint(tidied.tensors)
    head_config = None if head == "causal" else read_embedder(folder)
    if headless or head_config is not None:
        head, tidied = "embedding", without_heads(tidied, values["model_type"])
    if head in FINE_TUNED:
        head_config = head_from_json(values, origin=str(folder / CONFIG), head=head)
    outputs = head_config.num_outputs if head_config is not None else 0
    tree = spec_of(config, head, vocab_size=described.vocab_size, num_outputs=outputs)
    table = names(values["model_type"], tree, head)
    params = from_theirs(tidied.tensors, tree, table, vocab_size=described.vocab_size, origin=origin)
    columns, pretrained_here = values.get(COLUMNS), values.get(PRETRAINED) is True
    named = isinstance(columns, dict) and "text" in columns and all(isinstance(name, str) for name in columns.values())
    if columns is not None and not named:
        raise DataError(f"{COLUMNS} is {brief(columns)}, not the names of columns", location=str(folder / CONFIG))
    dropped = (*unread, *tidied.dropped)
    return Weights(params, config, described.vocab_size, head, dropped, head_config, columns, pretrained_here)


def model_folder(path: str | PurePath, *, preferred: Sequence[str] = FILLS_MASKS) -> PurePath:
    """The folder that holds the model: `path` itself, or its export if `path` is a work folder. Raises ConfigError."""
    source = local_or_hub(path)
    if not storage.exists(source):
        raise ConfigError(f"{source}: no such folder; name the folder of a model, or a work folder with an export")
    if not storage.is_folder(source):
        raise ConfigError(f"{source} is a file; name the folder that holds {CONFIG} and {WEIGHTS}")
    is_workdir = storage.exists(source / "run.json")
    folder = source / "export" if is_workdir else source
    folder = next((folder / half for half in preferred if storage.exists(folder / half / CONFIG)), folder)
    if is_workdir and not storage.exists(folder / CONFIG):
        raise ConfigError(f"{source} is a work folder without an exported model; make one with: tpulm export {source}")
    if is_workdir and (step := newer_checkpoint(source)) is not None:
        raise ConfigError(
            f"{source / 'export'} is older than checkpoint {step:,}: bring it up to date with: tpulm export {source} (or name "
            f"{source / 'export'} to use it as it is)"
        )
    missing = [CONFIG] if not storage.exists(folder / CONFIG) else []
    missing += [WEIGHTS] if weights_file(folder) is None else []
    hint = ""
    if not any(storage.exists(folder / name) for name in TOKENIZERS):
        missing.append(" or ".join(TOKENIZERS[:2]))
        hint = convert_hint(folder)
    if missing:
        pickled = [file.name for file in storage.list_folder(folder) if file.name.endswith(PICKLED)]
        if WEIGHTS in missing and pickled:
            hint = f"; {pickled[0]} is not read: load it with transformers and save_pretrained() it, which writes {WEIGHTS}"
        raise ConfigError(f"{folder} is not a model: {', '.join(missing)} missing{hint}")
    return folder


def is_pretrained_here(path: str | PurePath) -> bool:
    """Whether a model began as a run of tpulm; False if it is no longer there."""
    try:
        return storage.read_json(model_folder(path, preferred=READS) / CONFIG).get(PRETRAINED) is True
    except ConfigError:
        return False


def local_or_hub(path: str | os.PathLike[str], *, weights: bool = True) -> PurePath:
    """The path or, if nothing is there and it is named so, a model of the Hugging Face Hub, downloaded unless it is in the
    Hub's cache; without `weights` its settings and its tokenizer. Raises ConfigError."""
    source, name = storage.as_path(path), str(path)
    if not is_hub_name(name):
        return source
    from huggingface_hub import snapshot_download

    files = ["*.json", "*.txt", SENTENCEPIECE, *(["*.safetensors"] if weights else [])]
    try:
        return storage.as_path(snapshot_download(name, allow_patterns=files, ignore_patterns=_NOT_OF_A_MODEL))
    except Exception as error:  # of its own, of the network, and of the disk
        folder = name.partition("/")[2]
        raise ConfigError(
            f"{name}: there is no such folder, and no such model could be downloaded from the Hub ({brief(error)}). Where the "
            f"network allows it: hf download {name} --local-dir {folder}, and name {folder} here"
        ) from error


def vocabulary_settings(folder: PurePath) -> TokenizerConfig:
    """How transformers reads a folder's bare vocab.txt; irrelevant for a tokenizer.json, which has its own rules."""
    settings = read_settings(folder, [TOKENIZER_CONFIG])
    if (segmenter := declared_segmenter(settings, str(folder / TOKENIZER_CONFIG))) is not None:
        return TokenizerConfig(lowercase=segmenter.lowercase, morphemes=segmenter.analyser)
    lowercase, strip_accents = settings.do_lower_case, settings.strip_accents
    return TokenizerConfig(
        lowercase=lowercase,
        strip_accents=lowercase if strip_accents is None else strip_accents,
        split_cjk=settings.tokenize_chinese_chars,
    )


def _length_of_texts(folder: PurePath, weights: Weights, tokenizer: Tokenization) -> int | None:
    """The number of tokens to which the texts were truncated; None if unknown (1e30 means no limit)."""
    own = text_length(folder, tokenizer) if weights.head == "embedding" else None
    length = own or read_settings(folder, [TOKENIZER_CONFIG]).model_max_length
    return int(length) if isinstance(length, int | float) and LEAST_LENGTH <= length <= weights.config.max_positions else None


def weights_file(folder: PurePath) -> PurePath | None:
    """The file of a model's weights, or else the index of its shards; None if it has neither."""
    return next((folder / name for name in (WEIGHTS, SHARDS) if storage.exists(folder / name)), None)


def _read_shards(index: PurePath) -> dict[str, np.ndarray]:
    """The tensors of all files that the index names. Raises DataError if it is not an index, or a file is damaged."""
    files = storage.read_given_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise DataError(f"weight_map is {brief(files)}, not the files of tensors by name", location=str(index))
    return {name: tensor for file in sorted({*files.values()}) for name, tensor in read_tensors(index.parent / file).items()}


def read_tensors(path: PurePath, *, remedy: str = "copy or export it again") -> dict[str, np.ndarray]:
    """The tensors of a safetensors file. Raises DataError, with the remedy, if it is damaged."""
    try:
        with storage.local_copy(path) as file, storage.explain("read", path):
            return safetensors.numpy.load_file(file)
    except SafetensorError as error:
        raise DataError(f"not a whole safetensors file ({error}); {remedy}", location=str(path)) from error


def _check_framing(tokenizer: Tokenization, folder: PurePath) -> None:
    """Raise DataError for a causal model's classifier whose texts do not begin and end as those of `for_classes`."""
    framed = tokenizer.encode_one("")
    if isinstance(tokenizer, CausalTokenization) or framed != [tokenizer.special.sep] * 2:
        raise DataError(
            "it classifies texts by a causal model, and its tokenizer does not put one token both before and after a text, as "
            "'tpulm finetune' does; use it in transformers",
            location=str(folder),
        )


def _copy_tokenizer(
    source: PurePath, target: PurePath, tokenizer: Tokenization, config: ModelConfig, head: Head, max_length: int | None
) -> None:
    """Copy all tokenizer files, and add the model's longest input and its input names for transformers.

    A causal model's texts begin with [SEP] and are padded on the left, so that a continuation follows immediately; those that
    it classifies end with [SEP], too.
    """
    files = [source / name for name in storage.walk(source) if name != MANIFEST]
    if not files:
        raise StorageError(f"cannot read {source}: no such file or folder, or an empty one")
    decoder, causal = config.architecture == "decoder", head == "causal"
    changes: dict[str, Any] = {"model_max_length": max_length or config.max_positions}
    if decoder or config.token_types < 2:
        changes["model_input_names"] = ["input_ids", "attention_mask"]
    for file in files:
        if file.name == TOKENIZER_CONFIG:
            values = storage.read_json(file)
            if decoder:
                changes |= {"bos_token": values["sep_token"], "eos_token": values["sep_token"]}
                changes |= {"padding_side": "left" if causal else "right"}
            storage.write_json(target / file.name, {**values, **changes})
        elif file.name == TOKENIZER and causal:
            storage.write_atomic(target / file.name, tokenizer.causal().canonical_json)
        else:
            storage.write_atomic(target / file.name, storage.read_bytes(file))
