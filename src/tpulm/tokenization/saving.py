"""A tokenizer as a folder: what transformers' AutoTokenizer reads, and a manifest written last."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tpulm import storage
from tpulm.errors import StorageError
from tpulm.tokenization.special import CONFIG_KEYS
from tpulm.tokenization.tokenization import Tokenization

MANIFEST = "manifest.json"
_FORMAT_VERSION = 1
_UNLIMITED = int(1e30)  # what transformers writes for "no limit"


def save(
    tokenization: Tokenization,
    folder: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any] | None = None,
    model_max_length: int | None = None,
) -> None:
    """Write the folder; an older tokenizer in it is replaced.

    `inputs` (anything JSON can hold) goes into the manifest. `model_max_length` is the model's number of positions, for
    transformers' truncation. Raises StorageError.
    """
    target = storage.make_folder(folder)
    storage.remove(target / MANIFEST)
    storage.write_atomic(target / "tokenizer.json", tokenization.canonical_json)
    names = {key: tokenization.token(getattr(tokenization.special, role)) for role, key in CONFIG_KEYS.items()}
    storage.write_json(target / "special_tokens_map.json", names)
    storage.write_json(target / "tokenizer_config.json", _tokenizer_config(tokenization, names, model_max_length))
    if tokenization.algorithm == "WordPiece":
        storage.write_atomic(target / "vocab.txt", "".join(f"{token}\n" for token in tokenization.vocabulary()))
    else:
        storage.remove(target / "vocab.txt")
    manifest = {
        "format_version": _FORMAT_VERSION,
        "fingerprint": tokenization.fingerprint,
        "algorithm": tokenization.algorithm,
        "vocab_size": tokenization.vocab_size,
        "special": asdict(tokenization.special),
        "inputs": dict(inputs or {}),
    }
    storage.write_json(target / MANIFEST, manifest)


def load_manifest(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The manifest (format_version, fingerprint, algorithm, vocab_size, special, inputs), or None where none was finished."""
    path = storage.as_path(folder) / MANIFEST
    if not storage.exists(path):
        return None
    manifest = storage.read_json(path)
    version = manifest.get("format_version")
    if version != _FORMAT_VERSION:
        raise StorageError(
            f"{path} has format version {version}, and this program reads {_FORMAT_VERSION}; delete the folder and run again"
        )
    if not isinstance(manifest.get("fingerprint"), str) or type(manifest.get("vocab_size")) is not int:
        raise StorageError(f"{path} has no fingerprint or no vocab_size, so it was edited; delete the folder and run again")
    return manifest


def _tokenizer_config(tokenization: Tokenization, names: Mapping[str, str], model_max_length: int | None) -> dict[str, Any]:
    added = json.loads(tokenization.canonical_json)["added_tokens"]
    attributes = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {
        **names,
        **_bert_settings(tokenization),
        "added_tokens_decoder": {str(token["id"]): {name: token[name] for name in attributes} for token in added},
        "clean_up_tokenization_spaces": False,  # the decoder in tokenizer.json does what is to be done
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length or _UNLIMITED,
        "padding_side": "right",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "truncation_side": "right",
        **(tokenization.segmenter.settings() if tokenization.segmenter else {}),
    }


def _bert_settings(tokenization: Tokenization) -> dict[str, bool]:
    """How a WordPiece vocabulary reads text, under the names of transformers' BertTokenizer; nothing where that is not as BERT.

    For readers of vocab.txt alone, whose defaults (lower-case, no accents, hence Hangul in letters) fit few vocabularies.
    """
    normalizer = json.loads(tokenization.canonical_json)["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    bert = next((step for step in steps if step.get("type") == "BertNormalizer"), None)
    if tokenization.algorithm != "WordPiece" or bert is None:
        return {}
    strip_accents = bert["strip_accents"]
    return {
        "do_lower_case": bert["lowercase"],
        "strip_accents": bert["lowercase"] if strip_accents is None else strip_accents,
        "tokenize_chinese_chars": bert["handle_chinese_chars"],
    }
