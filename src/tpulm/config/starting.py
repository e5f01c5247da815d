"""A run that goes on from a finished model: which settings the model brings, and what of a run file contradicts it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tpulm.config.schema import TokenizerConfig
from tpulm.errors import ConfigError, suggest

# Of [model], what has no part in which weights there are and what they compute: a run may set these otherwise.
FREE = frozenset({"dropout", "attention_dropout", "initializer_range"})
_FREE_OF_TOKENIZER = "allow_unknown"
OPTIMIZER_FILE = "optimizer.safetensors"  # of a model's folder: the optimiser's moments


class Start(NamedTuple):
    """A finished model in the words of a run file."""

    folder: str  # as train.start_from names it
    model: Mapping[str, Any]  # all of [model]
    tokenizer: Mapping[str, Any]  # all of [tokenizer] that matters beside its path
    next_sentence: bool  # whether it has the head for data.next_sentence
    moments: bool  # whether the optimiser's lie there too


def apply(values: Mapping[str, Any], stated: Mapping[str, Any], start: Start, reference: str) -> dict[str, Any]:
    """`values`, the settings of a run, with those of the model in their place.

    `stated` are those among them that the run file or an override says itself: they must not contradict the model, whereas what
    a run file extends gives way. Raises ConfigError naming every setting that does not fit.
    """
    model, train, data = (_group(stated, name) for name in ("model", "train", "data"))
    wrong = _contradictions("model", model, start.model)
    tokenizer = {**_group(stated, "tokenizer")}
    allowed = {name: tokenizer.pop(name) for name in (_FREE_OF_TOKENIZER,) if name in tokenizer}
    wrong += _contradictions("tokenizer", tokenizer, start.tokenizer)
    wrong += _contradictions("train", {k: v for k, v in train.items() if k == "start_from"}, {"start_from": start.folder})
    architecture = _group(values, "model").get("architecture", start.model["architecture"])
    if architecture != start.model["architecture"] and "architecture" not in model:
        wrong.append(
            f"{reference} is for model.architecture = {_show(architecture)}, not for {_show(start.model['architecture'])}, "
            "which is there: take a recipe for it"
        )
    if train.get("start_optimizer") is True and not start.moments:
        wrong.append(f"train.start_optimizer is true, but there is no {OPTIMIZER_FILE}: leave it out")
    if wrong:
        lines = "\n".join(f"  {line}" for line in wrong)
        raise ConfigError(
            f"{reference} does not go with the model of {start.folder}:\n{lines}\nLeave these settings out, or start from "
            "another model. What a run file extends gives way by itself."
        )
    if _group(values, "data").get("next_sentence") is True and not start.next_sentence:
        says = "data.next_sentence is true" if "next_sentence" in data else f"{reference} has data.next_sentence = true"
        raise ConfigError(
            f"{says}, but the model of {start.folder} has no next-sentence head: set data.next_sentence=false (in the run "
            "file, or with --set)"
        )
    free = {name: value for name, value in model.items() if name in FREE}
    beginning = {"start_from": start.folder, "start_optimizer": train.get("start_optimizer", start.moments)}
    return {
        **values,
        "model": {**start.model, **free},
        "tokenizer": {**start.tokenizer, **allowed},
        "train": {**_group(values, "train"), **beginning},
    }


def _group(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = values.get(name, {})
    return group if isinstance(group, Mapping) else {}  # what else it is, validation will say


def _contradictions(prefix: str, stated: Mapping[str, Any], start: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in stated.items():
        if prefix == "model" and name in FREE:
            continue
        full, there = f"{prefix}.{name}", start.get(name)
        value = _unset(value)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            found += _contradictions(full, value, there)
        elif name not in start:
            if prefix == "tokenizer" and value != _unset(getattr(TokenizerConfig(), name, None)):
                found.append(f"{full} would not be read, as the tokenizer is taken from there")
            elif prefix != "tokenizer":
                found.append(f"{full} is no setting.{suggest(name, start)}")
        elif name == "embedding_size":
            if (value or start["hidden_size"]) != (there or start["hidden_size"]):
                found.append(f"{full} is {_show(value)}, and {_show(there)} there")
        elif value != there:
            found.append(f"{full} is {_show(value)}, and {_show(there)} there")
    return found


def _unset(value: Any) -> Any:
    return None if value == "none" else value


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
