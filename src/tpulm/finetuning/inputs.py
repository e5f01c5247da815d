"""What a fine-tuning is of: kept beside its results, so that other inputs never continue them."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Any

import numpy as np

from tpulm import storage
from tpulm.config import FinetuneConfig, changes, listed
from tpulm.convert.huggingface import LoadedModel
from tpulm.errors import WorkFolderMismatch
from tpulm.labelled import Examples
from tpulm.nn.params import named_leaves

INPUTS = "inputs.json"
# How the work is carried out, not what it is: these may differ between attempts.
_OPERATIONAL = {"checkpoint", "hardware", "log_every_steps", "seeds"}


def describe_inputs(
    model: LoadedModel, parts: dict[str, Examples | None], config: FinetuneConfig, labels: tuple[str, ...]
) -> dict[str, Any]:
    """JSON: the settings, and SHA-256 of the weights, the tokenizer and each part's examples."""
    examples = {name: None if part is None else _fingerprint(part) for name, part in parts.items()}
    return {
        "model": _weights(model),
        "tokenizer": model.tokenization.fingerprint,
        **{f"{name} examples": value for name, value in examples.items()},
        "labels": list(labels),
        "settings": config.model_dump(mode="json", exclude=_OPERATIONAL),
    }


def agree(folder: PurePath, inputs: dict[str, Any], *, output: PurePath) -> None:
    """Write them down, or compare where something was made of others. Raises WorkFolderMismatch naming what differs.

    Something is made when there is a checkpoint or a result; what less than that has left is removed.
    """
    path = folder / INPUTS
    seeds = [item for item in storage.list_folder(folder) if item.name.startswith("seed-")]
    found = changes(storage.read_json(path), inputs) if storage.exists(path) else []
    if found and any(storage.exists(one / "result.json") or storage.committed_steps(one / "checkpoints") for one in seeds):
        raise WorkFolderMismatch(
            f"{output} was begun with other inputs (there -> now):\n{listed(found)}\n"
            "Set them back, use another --output, or delete this one to begin again."
        )
    for one in seeds if found else []:
        storage.remove(one)
    storage.write_json(path, inputs)


def _weights(model: LoadedModel) -> str:
    digest = hashlib.sha256()
    for name, leaf in named_leaves(model.params).items():
        digest.update(f"{name} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).data)
    return digest.hexdigest()


def _fingerprint(examples: Examples) -> str:
    digest = hashlib.sha256()
    for column in (examples.texts, examples.pairs, examples.labels):
        digest.update(json.dumps(column, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
