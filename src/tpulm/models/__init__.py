"""Models in plain JAX. `spec` is the tree of parameters of any of them."""

from __future__ import annotations

from typing import Any

from tpulm.config import ModelConfig
from tpulm.models import bert, decoder

__all__ = ["spec"]


def spec(config: ModelConfig, *, vocab_size: int, next_sentence: bool = False) -> Any:
    """The tree of `ParamSpec` for an architecture; `vocab_size` is the tokenizer's, padded there."""
    if config.architecture == "decoder":
        return decoder.spec(config, vocab_size=vocab_size)
    return bert.spec(config, vocab_size=vocab_size, next_sentence=next_sentence)
