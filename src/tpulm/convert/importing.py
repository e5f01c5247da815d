"""Import a Hugging Face folder or one of Google's TF1 checkpoints as a model folder of tpulm.

The weights first become our parameters, so that every name and shape is checked, and are then written like an export.
Nothing is ever unpickled.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Literal, NamedTuple

import safetensors.numpy

from tpulm import storage, tokenization
from tpulm.config.resolve import OPTIMIZER_FILE
from tpulm.convert.config_json import FOREIGN_ENCODERS, FOREIGN_TYPES, class_name
from tpulm.convert.heads import Head, head_of, num_parameters
from tpulm.convert.huggingface import (
    CONFIG,
    HALVES,
    PICKLED,
    REPORT,
    SENTENCEPIECE,
    TOKENIZERS,
    WEIGHTS,
    LoadedModel,
    Weights,
    check_vocabulary,
    encode_weights,
    load_model,
    load_weights,
    local_or_hub,
    save_loaded,
    weights_file,
)
from tpulm.convert.sentence_transformers import EMBEDDER_FILES
from tpulm.convert.tensorbundle import find_checkpoint
from tpulm.convert.tensorflow1 import GivenConfig, Kind, load_checkpoint
from tpulm.errors import ConfigError, DataError
from tpulm.models.bert import VOCABULARY_MULTIPLE
from tpulm.tokenization import CausalTokenization, Tokenization
from tpulm.tokenization.causal import GPT2_MERGES, GPT2_VOCABULARY
from tpulm.tokenization.files import TOKENIZER, VOCABULARY
from tpulm.tokenization.hf_files import ADDED_TOKENS, SETTINGS_FILES

AnyPath = str | os.PathLike[str]
CONFIGS = ("bert_config.json", CONFIG)  # next to a TF1 checkpoint; the first that exists
# Files next to the tokenizer.json of a foreign model, and all files of a tokenizer that only transformers can use.
_SETTINGS = (*SETTINGS_FILES, "generation_config.json")
_FOREIGN_TOKENIZERS = (TOKENIZER, GPT2_VOCABULARY, SENTENCEPIECE)
_FOREIGN = (*_FOREIGN_TOKENIZERS, GPT2_MERGES, ADDED_TOKENS, *_SETTINGS)
_HEADLESS = "it is an encoder without a head: 'tpulm finetune', 'tpulm embed' and --init use it, 'tpulm fill-mask' cannot"
_UNGROUPED = "keys and values that query heads shared are copied for each: grouped-query attention became multi-head attention"


class Imported(NamedTuple):
    """What was imported. `dropped` names the tensors left out, `notes` tell the user what to know."""

    folder: str
    source: Literal["huggingface", "tf1"]
    architecture: str
    parts: tuple[str, ...]  # subfolders of `folder` with a model; "" is `folder` itself
    parameters: int  # of the model or both halves, without the vocabulary's padding
    vocab_size: int
    lowercase: bool | None  # of a bare vocab.txt; None: the tokenizer's own file defines it
    step: int | None
    moments: bool
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    head: Head | None  # None: an encoder without one


def import_model(
    source: AnyPath,
    target: AnyPath,
    *,
    vocab: AnyPath | None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    kind: Kind | None = None,
    config: AnyPath | None = None,
) -> Imported:
    """Write the model of `source` into `target`, which must be empty or absent; on failure nothing is left there.

    The options are for TF1 checkpoints. Raises ConfigError for wrong arguments, DataError for wrong files.
    """
    checkpoint, folder = local_or_hub(source), storage.as_path(target)
    if storage.info(folder) is not None:
        raise ConfigError(f"{folder} is a file; --to names the folder to be made")
    if storage.list_folder(folder):
        raise ConfigError(f"{folder} is not empty; name another folder with --to, or empty that one first")
    base = checkpoint / "export" if storage.exists(checkpoint / "run.json") else checkpoint
    parts = ("",) if weights_file(base) else tuple(half for half in HALVES if weights_file(base / half))
    if parts:  # of a Hugging Face folder
        options = {"--vocab": vocab, "--lowercase/--cased": lowercase, "--strip-accents/--keep-accents": strip_accents}
        wrong = [name for name, value in (options | {"--kind": kind, "--config": config}).items() if value is not None]
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: for TF1 checkpoints; {base} is a Hugging Face folder, which says it itself")
    prefix = None if parts else find_checkpoint(checkpoint)
    if prefix is None and not parts:
        raise _not_a_model(checkpoint)
    with storage.built_aside(folder, last=REPORT) as temporary:
        storage.make_folder(temporary)
        if prefix is None:
            imported = _from_hugging_face(base, parts, temporary)
        else:
            imported = _from_tensorflow1(prefix, temporary, vocab, (lowercase, strip_accents), kind, config)
        imported = imported._replace(folder=str(folder))
        report = {name: value for name, value in imported._asdict().items() if name != "folder"}
        storage.write_json(temporary / REPORT, report | {"imported_from": str(checkpoint)})
    return imported


def _not_a_model(path: PurePath) -> ConfigError:
    if not storage.exists(path):
        return ConfigError(f"{path}: no such file or folder; name a Hugging Face folder or a TF1 checkpoint")
    files = [path] if storage.info(path) is not None else storage.list_folder(path)
    names = [file.name for file in files]
    pickled = [name for name in names if name.endswith(PICKLED)]
    if pickled:
        return ConfigError(
            f"{path}: {pickled[0]} is not read, as such files can run any program when they are opened. If you trust it, "
            f"load it with transformers and save_pretrained() it, which writes {WEIGHTS}; then import that folder"
        )
    if names == [WEIGHTS]:
        return ConfigError(f"{path} is a file; name the folder it lies in, with its {CONFIG} and tokenizer")
    return ConfigError(
        f"{path} is neither a Hugging Face folder ({WEIGHTS}, {CONFIG}) nor a TF1 checkpoint (PREFIX.index and "
        f"PREFIX.data-00000-of-00001); it holds {', '.join(names[:8]) or 'nothing'}"
    )


# -- from Hugging Face ------------------------------------------------------------------------------------------------------


def _from_hugging_face(base: PurePath, parts: tuple[str, ...], target: Path) -> Imported:
    parameters, vocab_size, architecture, head = 0, 0, "", None
    dropped, notes = (), list[str]()
    for part in parts:
        folder = base / part
        note = _unusable_tokenizer(folder)
        model = load_model(folder) if note is None else load_weights(folder)
        if isinstance(model, LoadedModel) and not isinstance(model.tokenization, CausalTokenization):
            save_loaded(target / part, model)
            notes += tokenization.normalization_warnings(model.tokenization, folder) if part == parts[0] else []
        else:
            tokenizer = model.tokenization if isinstance(model, LoadedModel) else None
            _save_foreign(folder, target / part, model, tokenizer)
            notes += [] if tokenizer is None else tokenization.dropped_characters(tokenizer, folder)
        notes += [] if note is None else [note]
        if storage.read_given_object(folder / CONFIG).get("num_key_value_heads") not in (None, model.config.num_heads):
            notes.append(_UNGROUPED)
        head = None if model.head == "embedding" and model.head_config is None else model.head
        notes += [_HEADLESS] if head is None else []
        dropped += model.dropped
        parameters += num_parameters(model.params, model.config, model.vocab_size)
        vocab_size, architecture = model.vocab_size, model.config.architecture
    return Imported(
        str(target), "huggingface", architecture, parts, parameters, vocab_size, None, None, False, dropped, tuple(notes), head
    )


def _unusable_tokenizer(folder: PurePath) -> str | None:
    """Why tpulm cannot use the tokenizer of a foreign model type; None if it can."""
    values = storage.read_given_object(folder / CONFIG) if storage.exists(folder / CONFIG) else {}
    model_type = values.get("model_type")
    if model_type not in FOREIGN_TYPES:
        return None
    if model_type not in FOREIGN_ENCODERS and any(storage.exists(folder / name) for name in TOKENIZERS):
        return None  # a defect of it is an error
    if any(storage.exists(folder / name) for name in TOKENIZERS[:2]):
        try:
            tokenization.load(folder)
        except DataError as error:
            why = str(error)
        else:
            return None
    elif any(storage.exists(folder / name) for name in _FOREIGN_TOKENIZERS):
        why = f"it is no {TOKENIZER} of the tokenizers library; load it with AutoTokenizer and save_pretrained() it"
    else:
        return None
    return f"the tokenizer was copied as it is: transformers reads it, tpulm's own commands do not ({why})"


def _save_foreign(source: PurePath, target: Path, model: LoadedModel | Weights, tokenizer: Tokenization | None) -> None:
    """Save the weights in our form with a foreign tokenizer, which is copied unchanged or written as tokenizer.json.

    vocab.json and merges.txt are replaced by that equivalent file; if both forms were there, they could differ.
    """
    values = storage.read_given_object(source / CONFIG)
    values.pop("torch_dtype", None)  # the older name of dtype
    if "num_key_value_heads" in values:
        values["num_key_value_heads"] = model.config.num_heads
    weights = encode_weights(model.params, model.config, vocab_size=model.vocab_size, head=model.head)
    storage.make_folder(target)
    if tokenizer is None:
        tokens = tokenization.vocab_size_of(source / TOKENIZER) if storage.exists(source / TOKENIZER) else 0
        check_vocabulary(tokens, values["vocab_size"], source)
    elif not storage.exists(source / TOKENIZER):
        storage.write_atomic(target / TOKENIZER, tokenizer.canonical_json)
    copied = _FOREIGN if tokenizer is None else (TOKENIZER, *_SETTINGS)
    for name in storage.walk(source):
        if PurePath(name).parts[0] in (*copied, *EMBEDDER_FILES):
            storage.make_folder((target / name).parent)
            storage.write_atomic(target / name, storage.read_bytes(source / name))
    storage.write_json(
        target / CONFIG, values | {"architectures": [class_name(values["model_type"], model.head)], "dtype": "float32"}
    )
    storage.write_atomic(target / WEIGHTS, weights)


# -- from TF1 ---------------------------------------------------------------------------------------------------------------


def _from_tensorflow1(
    prefix: PurePath,
    target: Path,
    vocab: AnyPath | None,
    normalization: tuple[bool | None, bool | None],
    kind: Kind | None,
    config: AnyPath | None,
) -> Imported:
    folder = prefix.parent
    config_path = next((folder / name for name in CONFIGS if storage.exists(folder / name)), None)
    config_path = config_path if config is None else storage.as_path(config)
    vocab_path = folder / VOCABULARY if vocab is None else storage.as_path(vocab)
    if storage.info(vocab_path) is None:
        raise ConfigError(f"{vocab_path}: no such file; name the vocabulary of the checkpoint with --vocab vocab.txt")
    original = None if config_path is None else GivenConfig(storage.read_given_object(config_path), str(config_path))
    loaded = load_checkpoint(prefix, config=original, kind=kind)
    notes: list[str] = []
    tokenizer = tokenization.load_vocabulary(vocab_path, *normalization, note=notes.append)
    _check_vocabulary(tokenizer.vocab_size, loaded.vocab_size, vocab_path, prefix, notes)
    for half, part in loaded.parts.items():
        save_loaded(target / half, LoadedModel(part.params, part.config, loaded.vocab_size, tokenizer, head_of(part.params)))
    if loaded.moments:
        storage.write_atomic(target / OPTIMIZER_FILE, safetensors.numpy.save(dict(loaded.moments)))
    elif any(name.endswith(("/adam_m", "/adam_v")) for name in loaded.dropped):
        notes.append("the optimizer's moments were left out: the checkpoint lacks those of some parameters")
    return Imported(
        str(target),
        "tf1",
        loaded.kind,
        tuple(loaded.parts),
        sum(num_parameters(part.params, part.config, loaded.vocab_size) for part in loaded.parts.values()),
        loaded.vocab_size,
        tokenizer.lowers_case,
        loaded.step,
        bool(loaded.moments),
        loaded.dropped,
        tuple(notes),
        head_of(list(loaded.parts.values())[-1].params),  # of an ELECTRA the generator's
    )


def _check_vocabulary(tokens: int, rows: int, vocab: PurePath, prefix: PurePath, notes: list[str]) -> None:
    """A vocabulary may be shorter than the model's table, which may have been rounded up."""
    if tokens > rows or rows - tokens >= VOCABULARY_MULTIPLE:
        raise DataError(
            f"the vocabulary has {tokens:,} tokens, and the model of {prefix} {rows:,}: it belongs to another model. Name the "
            "right one with --vocab",
            location=str(vocab),
        )
    if tokens < rows:
        notes.append(f"the vocabulary has {tokens:,} tokens and the model {rows:,}: the last {rows - tokens} are unused")
