"""Three small tokenizers trained on made-up text."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from made_up import ALGORITHMS, VOCAB_SIZES, batches, make_texts

from tpulm import tokenization
from tpulm.config import TokenizerConfig
from tpulm.errors import Stopped
from tpulm.runtime import interrupt
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


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has asked this process to stop."""
    monkeypatch.setattr(interrupt, "check", Mock(side_effect=Stopped("stopped")))


@pytest.fixture(params=ALGORITHMS)
def made(request: pytest.FixtureRequest, trained: dict[str, Tokenization]) -> Tokenization:
    return trained[request.param]
