"""Learning byte-level BPE: 256 bytes, and merges of the most frequent pairs."""

from __future__ import annotations

import json
from collections import Counter

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError
from tpulm.progress import SILENT, Progress
from tpulm.tokenization import byte_level, special
from tpulm.tokenization.trainer import check_reached, run_trainer
from tpulm.tokenization.words import most_frequent

_DISTINCT_BYTES = 6_000_000  # of distinct words are trained on: bounds memory (about 1 GB)


def learn(words: Counter[str], config: TokenizerConfig, progress: Progress = SILENT) -> models.BPE:
    """A model of exactly `config.vocab_size` tokens, the five special ones and the slots among them."""
    reserved = [*special.TOKENS, *special.slots(config.unused_slots)]
    bytes_as_characters = pre_tokenizers.ByteLevel.alphabet()
    least = len(reserved) + len(bytes_as_characters)
    if config.vocab_size < least:
        raise ConfigError(
            f"tokenizer.vocab_size {config.vocab_size:,} is too small: special tokens and slots take {len(reserved):,} and the "
            f"bytes {len(bytes_as_characters)}. The least possible is {least:,}; several thousand are usual."
        )
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=reserved,
        initial_alphabet=bytes_as_characters,
        show_progress=False,
    )
    chosen = most_frequent(words, _DISTINCT_BYTES, progress, size_of=lambda word: len(word.encode()))
    run_trainer(tokenizer, trainer, {byte_level.written(word): count for word, count in chosen.items()}, progress)
    model = json.loads(tokenizer.to_str())["model"]
    check_reached(len(model["vocab"]), config.vocab_size)
    return models.BPE(model["vocab"], [(left, right) for left, right in model["merges"]])
