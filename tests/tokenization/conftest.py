"""Three small tokenizers trained on made-up text."""

from __future__ import annotations

import pytest
from made_up import ALGORITHMS, VOCAB_SIZES, batches, make_texts

from tpulm import tokenization
from tpulm.config import TokenizerConfig
from tpulm.tokenization import Tokenization


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_texts(3_000)


@pytest.fixture(scope="session")
def trained(texts: list[str]) -> dict[str, Tokenization]:
    """A tokenizer of each algorithm."""
    return {
        algorithm: tokenization.train(batches(texts), TokenizerConfig(algorithm=algorithm, vocab_size=VOCAB_SIZES[algorithm]))
        for algorithm in ALGORITHMS
    }


@pytest.fixture(params=ALGORITHMS)
def made(request: pytest.FixtureRequest, trained: dict[str, Tokenization]) -> Tokenization:
    return trained[request.param]
