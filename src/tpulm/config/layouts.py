"""Which class of Hugging Face's transformers fits a model's settings.

Only models with such a class are trained: transformers loads the folder that a run exports with its own code, and computes the
same values.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple


class Layout(NamedTuple):
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

LAYOUTS = (
    Layout("bert", "BertForMaskedLM", {"architecture": "bert", "norm_position": "post", **_AS_PUBLISHED}),
    Layout("megatron-bert", "MegatronBertForMaskedLM", {"architecture": "bert", "norm_position": "pre", **_AS_PUBLISHED}),
    Layout("electra", "ElectraForPreTraining", {"architecture": "electra", "norm_position": "post", **_AS_PUBLISHED}),
    Layout(
        "eurobert",
        "EuroBertForMaskedLM",
        {"architecture": "bert", **_LLAMA_LIKE, "masked_head": "plain", "token_types": 0, "next_sentence": False},
    ),
    Layout("gpt2", "GPT2LMHeadModel", {"architecture": "decoder", "norm_position": "pre", **_PLAIN}),
    Layout(
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
    Layout("llama", "LlamaForCausalLM", {"architecture": "decoder", **_LLAMA_LIKE}),
)


def layout_of(settings: Mapping[str, Any]) -> Layout:
    """The layout that fits the settings: those of `ModelConfig`, and "next_sentence" if known.

    Raises ValueError naming the nearest layout and the settings that differ from it.
    """
    candidates = [layout for layout in LAYOUTS if layout.needs["architecture"] == settings["architecture"]]
    nearest = min(candidates, key=lambda layout: len(_misfits(layout, settings)))
    if wrong := _misfits(nearest, settings):
        raise ValueError(
            f"no class of transformers has these settings of the model. The nearest, {nearest.class_name}, needs "
            + ", ".join(f"{name} = {_text(nearest.needs[name])} (not {_text(settings[name])})" for name in wrong)
        )
    return nearest


def _misfits(layout: Layout, settings: Mapping[str, Any]) -> list[str]:
    def fits(value: Any, required: Any) -> bool:
        return value in required if isinstance(required, range) else value == required

    return [name for name, required in layout.needs.items() if name in settings and not fits(settings[name], required)]


def _text(value: Any) -> str:
    if isinstance(value, range):
        return f"at least {value.start}"
    return str(value).lower() if isinstance(value, bool) else repr(value)
