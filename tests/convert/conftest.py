"""A small tokenizer folder, and random models over it whose numbers are far from zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from outputs import random_params

import bundles
from tpulm import storage, tokenization
from tpulm.config import ModelConfig
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.huggingface import save_model

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "cat", "sees", "a", "and", "##s", ".", ","]
VOCAB_SIZE = 60


@pytest.fixture
def transformers(torch: Any) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what it would say of weights is asserted on instead
    return transformers


class Small(NamedTuple):
    """A model and the folder of its tokenizer."""

    params: Any
    config: ModelConfig
    tokenizer_folder: Path
    tokenizer: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """What `save_model` takes by name."""
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "tokenization_folder": self.tokenizer_folder,
            "tokenizer": self.tokenizer,
        }

    def save(self, folder: Path, **more: Any) -> Path:
        """The folder, as `save_model` writes it."""
        save_model(folder, self.params, self.config, **self.arguments, **more)
        return folder


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, words_file = tmp_path_factory.mktemp("tokenizer"), tmp_path_factory.mktemp("words") / "vocab.txt"
    words = VOCABULARY + [f"word{number}" for number in range(VOCAB_SIZE - len(VOCABULARY))]
    storage.write_atomic(words_file, "\n".join(words) + "\n")
    tokenization.save(tokenization.load(words_file), folder)
    return folder


@pytest.fixture(scope="session")
def make_small(tokenizer_folder: Path):
    """A function (next_sentence=False, **settings of the model) -> Small."""
    tokenizer = tokenization.load(tokenizer_folder)

    def make(*, next_sentence: bool = False, **settings: Any) -> Small:
        sizes = {"num_layers": 2, "hidden_size": 24, "num_heads": 3, "intermediate_size": 40, "max_positions": 20}
        config = ModelConfig.model_validate(sizes | settings)
        head: Head = "next_sentence" if next_sentence else "masked"
        tree = spec_of(config, head, vocab_size=tokenizer.vocab_size)
        return Small(random_params(tree, vocab_size=tokenizer.vocab_size), config, tokenizer_folder, tokenizer)

    return make


@pytest.fixture
def checkpoint(tmp_path: Path):
    """A function (tensors, bert_config=None, tokens=60) -> the prefix of a TF1 checkpoint with its files beside it."""

    def write(tensors: dict[str, np.ndarray], settings: Any = None, tokens: int = 60) -> Path:
        prefix = bundles.write(tmp_path / "source" / "model.ckpt", tensors)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "cat", "##s"]
        words += [f"w{number}" for number in range(tokens - len(words))]
        (prefix.parent / "vocab.txt").write_text("\n".join(words) + "\n")
        if settings is not None:
            (prefix.parent / "bert_config.json").write_text(json.dumps(settings))
        return prefix

    return write
