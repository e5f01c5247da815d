"""Models with random weights, and tokenizers of which each token is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import encoders
from tpulm import tokenization
from tpulm.config import ModelConfig
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.huggingface import LoadedModel
from tpulm.nn.params import ParamSpec, map_specs, ones

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def random_model(made: tokenization.Tokenization, head: Head, **settings: Any) -> LoadedModel:
    """Of numbers so far from zero that its answers vary."""
    config, random = ModelConfig.model_validate(encoders.SIZES | settings), np.random.default_rng(5)

    def draw(leaf: ParamSpec) -> np.ndarray:
        return random.normal(float(leaf.init is ones), 0.5, size=leaf.shape).astype(np.float32)

    params = map_specs(draw, spec_of(config, head, vocab_size=made.vocab_size))
    return LoadedModel(params, config, made.vocab_size, made, head)


def with_tokens(tokens: list[str], kind: str, folder: Path) -> tokenization.Tokenization:
    """A byte-level BPE or a Unigram vocabulary, through the file that any such tokenizer is kept in."""
    tokens = [*SPECIAL, *tokens]
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], 1, "<0x00>" in tokens))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "[MASK]", normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenization.load(folder)
