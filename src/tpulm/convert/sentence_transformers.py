"""What sentence-transformers reads next to a model: how a text becomes one vector.

The format is that of its versions 2 to 6: modules.json lists the modules, each of which has its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.config.finetune import LEAST_LENGTH
from tpulm.convert.config_json import HeadConfig
from tpulm.errors import DataError, brief
from tpulm.models.classifier import Pooling
from tpulm.tokenization import Tokenization

MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")  # in its order; written is the first
_TEXTS = tuple(f"sentence_{kind}_config.json" for kind in _KINDS)
EMBEDDER_FILES = (MODULES, "1_Pooling", "2_Normalize", _SETTINGS, *_TEXTS)
_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_OTHER_MODES = (
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)


def embedder_files(head: HeadConfig, config: ModelConfig, max_length: int | None) -> dict[str, Any]:
    """The contents of an embedding model's JSON files, by file."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    if not head.normalized:
        del paths["Normalize"]
    return {
        MODULES: [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in enumerate(paths.items())
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": config.hidden_size,
            **{key: mode == head.pooling for key, mode in _MODES.items()},
            **dict.fromkeys(_OTHER_MODES, False),
            "include_prompt": True,
        },
        _SETTINGS: {
            "prompts": dict(head.prompts),
            "default_prompt_name": head.prompt_name,
            "similarity_fn_name": head.similarity,
        },
        _TEXTS[0]: {"max_seq_length": max_length or config.max_positions, "do_lower_case": False},
        **({"2_Normalize/config.json": {}} if head.normalized else {}),  # nothing to set; a bucket has no empty folders
    }


def read_embedder(folder: PurePath) -> HeadConfig | None:
    """How the model of a folder embeds texts; None if the folder is not one of an embedding model.

    Raises DataError naming the module or the setting that is not supported.
    """
    if not storage.exists(folder / MODULES):
        return None
    modules = [one if isinstance(one, dict) else {} for one in storage.read_given_object(folder / MODULES, list)]
    kinds = [str(one.get("type")).rsplit(".", 1)[-1] for one in modules]
    if "Pooling" not in kinds:
        return None
    for number, kind in enumerate(kinds):
        if kind != ("Transformer", "Pooling", "Normalize")[min(number, 2)]:
            raise DataError(
                f"module {number + 1} is {kind}; only Transformer, Pooling and Normalize are supported, in this order. A "
                f"copy of the folder without {MODULES} is read as an encoder alone",
                location=str(folder / MODULES),
            )
    settings = _read(folder / _SETTINGS)
    if (dimensions := settings.get("truncate_dim")) is not None:
        raise DataError(
            f"truncate_dim is {brief(dimensions)}; vectors cut to their first numbers are not supported. A copy of the folder "
            "without it gives whole ones",
            location=str(folder / _SETTINGS),
        )
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or default not in (None, *prompts):
        raise DataError(f"no prompt {brief(default)} in {brief(prompts)}", location=str(folder / _SETTINGS))
    prompts = {name: str(text) for name, text in prompts.items() if text}
    return HeadConfig(
        (),
        pooling=_pooling(folder / str(modules[1].get("path")) / "config.json", prompts),
        normalized="Normalize" in kinds,
        prompts=tuple(prompts.items()),
        prompt_name=default if default in prompts else None,
        similarity=settings.get("similarity_fn_name") or "cosine",
    )


def _read(path: PurePath) -> dict[str, Any]:
    return storage.read_given_object(path) if storage.exists(path) else {}


def _pooling(path: PurePath, prompts: Mapping[str, str]) -> Pooling:
    values = storage.read_given_object(path)
    if prompts and values.get("include_prompt") is False:
        raise DataError("include_prompt is false; pooling without the tokens of a prompt is not supported", location=str(path))
    modes = [_MODES.get(key, key) for key, value in values.items() if key.startswith("pooling_mode_") and value]
    modes = modes or [values.get("pooling_mode")]
    if modes[0] in ("mean", "cls") and len(modes) == 1:
        return modes[0]
    raise DataError(f"it pools by {modes}; only 'mean' or 'cls' is supported", location=str(path))


def text_length(folder: PurePath, tokenization: Tokenization) -> int | None:
    """The `max_seq_length` of an embedding model, if its folder says one. Raises DataError for an invalid length, and if
    texts are to be made lower-case next to the tokenizer."""
    path = next((folder / name for name in _TEXTS if storage.exists(folder / name)), folder / _TEXTS[0])
    values = _read(path)
    if values.get("do_lower_case") and not tokenization.lowers_case:
        raise DataError(
            "do_lower_case is true, but the tokenizer keeps capital letters; make it lower-case text itself", location=str(path)
        )
    length = values.get("max_seq_length")
    if length is not None and (type(length) is not int or length < LEAST_LENGTH):
        raise DataError(f"max_seq_length is {brief(length)}; at least {LEAST_LENGTH} tokens are supported", location=str(path))
    return length
