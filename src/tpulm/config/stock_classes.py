"""The stock classes of Hugging Face's transformers: which one fits a model's settings.

Only models with such a class are trained: transformers loads the folder that a run exports with its own code, and computes the
same values.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple


class StockClass(NamedTuple):
    """One class of transformers, and the settings that it requires; all others are free."""

    model_type: str  # theirs, in config.json
    class_name: str
    needs: Mapping[str, Any]  # setting -> its value, or a range of values


_PLAIN = {"norm": "layer", "biases": True, "feed_forward": "plain", "positions": "learned"}
_AS_PUBLISHED = {
    **_PLAIN,
    "tied_output": True,
    "masked_head": "transform",
    "token_types": range(1, sys.maxsize),
}
_LLAMA_LIKE = {"norm_position": "pre", "norm": "rms", "feed_forward": "gated", "positions": "rotary"}

STOCK_CLASSES = (
    StockClass("bert", "BertForMaskedLM", {"architecture": "bert", "norm_position": "post", **_AS_PUBLISHED}),
    StockClass("megatron-bert", "MegatronBertForMaskedLM", {"architecture": "bert", "norm_position": "pre", **_AS_PUBLISHED}),
    StockClass("electra", "ElectraForPreTraining", {"architecture": "electra", "norm_position": "post", **_AS_PUBLISHED}),
    StockClass(
        "eurobert",
        "EuroBertForMaskedLM",
        {"architecture": "bert", **_LLAMA_LIKE, "masked_head": "plain", "token_types": 0, "next_sentence": False},
    ),
    StockClass("gpt2", "GPT2LMHeadModel", {"architecture": "decoder", "norm_position": "pre", **_PLAIN}),
    StockClass(
        "modernbert",
        "ModernBertForMaskedLM",
        {
            "architecture": "modernbert",
            "norm_position": "pre",
            "norm": "layer",
            "biases": False,
            "feed_forward": "gated",
            "positions": "rotary",
            "tied_output": True,
            "masked_head": "transform",
            "token_types": 0,
            "next_sentence": False,
        },
    ),
    StockClass("llama", "LlamaForCausalLM", {"architecture": "decoder", **_LLAMA_LIKE}),
)


def stock_class_of(settings: Mapping[str, Any]) -> StockClass:
    """The class that fits the settings: those of `ModelConfig`, and "next_sentence" if known.

    Raises ValueError naming the nearest class and the settings that differ from it.
    """
    candidates = [one for one in STOCK_CLASSES if one.needs["architecture"] == settings["architecture"]]
    nearest = min(candidates, key=lambda one: len(_misfits(one, settings)))
    if wrong := _misfits(nearest, settings):
        raise ValueError(
            f"no class of transformers has these settings of the model. The nearest, {nearest.class_name}, needs "
            + ", ".join(f"{name} = {_text(nearest.needs[name])} (not {_text(settings[name])})" for name in wrong)
        )
    return nearest


def _misfits(stock: StockClass, settings: Mapping[str, Any]) -> list[str]:
    def fits(value: Any, required: Any) -> bool:
        return value in required if isinstance(required, range) else value == required

    return [name for name, required in stock.needs.items() if name in settings and not fits(settings[name], required)]


def _text(value: Any) -> str:
    if isinstance(value, range):
        return f"at least {value.start}"
    return str(value).lower() if isinstance(value, bool) else repr(value)
