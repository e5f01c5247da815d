"""Pretrain language models from raw text, and give them back in Hugging Face format.

    config = tpulm.load_config("bert-mini", {"corpus.sources": ["reviews/*.txt.gz"]})
    summary = tpulm.run(config, workdir="w")                        # the whole path
    for step, state, metrics in tpulm.training_steps(config, "w"):  # or your own loop around the compiled step
        ...
    model = tpulm.load_model("w/export")

Each name is imported when first used: `import tpulm` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpulm.config import load as load_config
    from tpulm.convert.huggingface import load_model
    from tpulm.pipeline import Summary, run, training_steps
    from tpulm.predict.fill_mask import fill_mask
    from tpulm.predict.generate import generate

__all__ = ["Summary", "fill_mask", "generate", "load_config", "load_model", "run", "training_steps"]

_HOMES = {
    "load_config": ("tpulm.config", "load"),
    "load_model": ("tpulm.convert.huggingface", "load_model"),
    "Summary": ("tpulm.pipeline", "Summary"),
    "run": ("tpulm.pipeline", "run"),
    "training_steps": ("tpulm.pipeline", "training_steps"),
    "fill_mask": ("tpulm.predict.fill_mask", "fill_mask"),
    "generate": ("tpulm.predict.generate", "generate"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tpulm' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
