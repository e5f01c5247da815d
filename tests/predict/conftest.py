"""The tokenizer of the small vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_vocabulary import SPECIAL, VOCAB_SIZE, WORDS

from tpulm import tokenization


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its tokenizer."""
    folder, words = tmp_path_factory.mktemp("vocabulary"), [*SPECIAL, *WORDS]
    words += [f"word{number}" for number in range(VOCAB_SIZE - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    tokenization.save(tokenization.load(folder / "vocab.txt"), folder / "saved")
    return folder / "saved"
