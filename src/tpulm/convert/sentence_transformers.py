"""What sentence-transformers reads beside a model: how hidden states are pooled into one vector for each text.

The format is that of its versions 2 to 6: modules.json lists the modules, each of which has its settings.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.convert.config_json import HeadConfig
from tpulm.errors import DataError
from tpulm.models.embedding import Pooling

MODULES = "modules.json"
_POOLING = "1_Pooling/config.json"
_SETTINGS, _TEXTS = "config_sentence_transformers.json", "sentence_bert_config.json"
EMBEDDER_FILES = (MODULES, "1_Pooling", "2_Normalize", _SETTINGS, _TEXTS)
_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_OTHER_MODES = (
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)


def embedder_files(head: HeadConfig, config: ModelConfig, max_length: int | None) -> dict[str, Any]:
    """The contents of JSON files, by file; empty unless the model is an embedding model."""
    if head.pooling is None:
        return {}
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    return {
        MODULES: [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in enumerate(paths.items())
        ],
        _POOLING: {
            "word_embedding_dimension": config.hidden_size,
            **{key: mode == head.pooling for key, mode in _MODES.items()},
            **dict.fromkeys(_OTHER_MODES, False),
            "include_prompt": True,
        },
        "2_Normalize/config.json": {},  # nothing to set; a bucket has no empty folders
        _SETTINGS: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
        _TEXTS: {"max_seq_length": max_length or config.max_positions, "do_lower_case": False},
    }


def read_pooling(folder: PurePath) -> Pooling:
    """The pooling of a model's folder; "mean" if not specified. Raises DataError unless it is "mean" or "cls"."""
    if not storage.exists(folder / _POOLING):
        return "mean"
    values = storage.read_given_object(folder / _POOLING)
    modes = [_MODES.get(key, key) for key, value in values.items() if key.startswith("pooling_mode_") and value]
    modes = modes or [values.get("pooling_mode")]
    if modes[0] in ("mean", "cls") and len(modes) == 1:
        return modes[0]
    raise DataError(f"it pools by {modes}; only 'mean' or 'cls' is supported", location=str(folder / _POOLING))
