"""Training: the size asked for, the same tokenizer every time, and errors that say what is possible."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import ALGORITHMS, VOCAB_SIZES, batches, make_texts
from tokenizers import Tokenizer

from tpulm import tokenization
from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError, DataError
from tpulm.progress import Silent
from tpulm.tokenization import Tokenization
from tpulm.tokenization.special import TOKENS, TRAINED


def config(algorithm: str, **settings: object) -> TokenizerConfig:
    return TokenizerConfig.model_validate(
        {"algorithm": algorithm, "vocab_size": VOCAB_SIZES[algorithm], "unused_slots": 2} | settings
    )


def test_layout_and_size(made: Tokenization):
    names = list(made.vocabulary())
    assert (
        len(names)
        == made.vocab_size
        == VOCAB_SIZES[{"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}[made.algorithm]]
    )
    assert names[:7] == [*TOKENS, "[unused0]", "[unused1]"]
    assert [made.token(index) for index in TRAINED] == list(TOKENS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_order_and_batches_of_the_text_do_not_matter(algorithm: str, texts: list[str], trained: dict[str, Tokenization]):
    shuffled = list(texts)
    random.Random(5).shuffle(shuffled)
    assert tokenization.train(batches(shuffled, 17), config(algorithm)).canonical_json == trained[algorithm].canonical_json


_TRAIN = """
import sys
sys.path.insert(0, {folder!r})
from made_up import VOCAB_SIZES, batches, make_texts
from tpulm import tokenization
from tpulm.config import TokenizerConfig
for algorithm, size in VOCAB_SIZES.items():
    config = TokenizerConfig(algorithm=algorithm, vocab_size=size, unused_slots=2)
    print(tokenization.train(batches(make_texts(3_000)), config).fingerprint)
"""


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_every_process_with_any_number_of_threads_trains_the_same(threads: str, trained: dict[str, Tokenization]):
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "TOKENIZERS_PARALLELISM": "true"}
    code = _TRAIN.format(folder=str(Path(__file__).parent))
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [trained[algorithm].fingerprint for algorithm in VOCAB_SIZES]
    assert result.stderr == ""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_than_the_text_yields_names_what_it_yields(algorithm: str):
    few = batches(make_texts(60))
    with pytest.raises(ConfigError, match="cannot be reached") as caught:
        tokenization.train(few, config(algorithm, vocab_size=5_000))
    reachable = re.search(r"Set tokenizer.vocab_size to ([\d,]+) or less", str(caught.value))
    assert reachable is not None
    size = int(reachable[1].replace(",", ""))
    assert tokenization.train(few, config(algorithm, vocab_size=size)).vocab_size == size
    with pytest.raises(ConfigError, match="cannot be reached"):
        tokenization.train(few, config(algorithm, vocab_size=size + 1))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 8, 50])
def test_too_small_names_the_least_possible(algorithm: str, size: int, texts: list[str]):
    with pytest.raises(ConfigError, match="is too small") as caught:
        tokenization.train(batches(texts), config(algorithm, vocab_size=size))
    least = re.search(r"least possible is ([\d,]+)", str(caught.value))
    assert least is not None
    vocab_size = int(least[1].replace(",", ""))
    assert tokenization.train(batches(texts), config(algorithm, vocab_size=vocab_size)).vocab_size == vocab_size
    with pytest.raises(ConfigError, match="is too small"):
        tokenization.train(batches(texts), config(algorithm, vocab_size=vocab_size - 1))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rare_characters_do_not_crowd_out_a_small_vocabulary(algorithm: str, texts: list[str]):
    """Ten thousand Chinese characters seen twice each, and a vocabulary of hundreds."""
    rare = ["".join(chr(0x4E00 + 20 * line + column) for column in range(20)) for line in range(500)]
    made = tokenization.train(batches(texts * 40 + rare * 2), config(algorithm))
    assert made.vocab_size == VOCAB_SIZES[algorithm]
    unknown = made.encode(["영화 the cat 猫"]).ids == made.special.unknown
    assert not unknown[:-1].any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_word_yields_an_error_that_says_what_to_do(algorithm: str):
    with pytest.raises(ConfigError, match=r"Set tokenizer.vocab_size to|Give more text"):
        tokenization.train([["hello"]], config(algorithm))


def test_no_text_and_a_path_are_refused():
    with pytest.raises(DataError, match="no text"):
        tokenization.train([["", " "]], config("bpe"))
    with pytest.raises(ConfigError, match=r"vocab\.txt"):
        tokenization.train([["a"]], TokenizerConfig(path="vocab.txt"))


class Recorded(Silent):
    def __init__(self) -> None:
        self.advanced: dict[str, float] = {}

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self.advanced[description] = 0.0

    def advance(self, amount: float) -> None:
        self.advanced[list(self.advanced)[-1]] += amount


def test_phases_are_reported_and_nothing_printed(texts: list[str], capfd: pytest.CaptureFixture[str]):
    progress = Recorded()
    tokenization.train(batches(texts), config("wordpiece"), progress=progress)
    assert list(progress.advanced)[:2] == ["Counting words", "Words for the tokenizer"]
    assert progress.advanced["Counting words"] == sum(map(len, texts))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_settings_are_in_the_file(algorithm: str):
    texts = batches(["Café Ärger 영화 見た CAFÉ", *make_texts(600)])
    made = tokenization.train(
        texts, config(algorithm, lowercase=True, strip_accents=True, min_frequency=1, vocab_size=VOCAB_SIZES[algorithm] - 10)
    )
    stock = Tokenizer.from_str(made.canonical_json)
    for pair in (("CAFÉ Ärger", "cafe arger"), ("영화", "\u110b\u1167\u11bc\u1112\u116a")):  # the latter: the same, decomposed
        one, other = (stock.encode(text, add_special_tokens=False).ids for text in pair)
        assert one == other and made.special.unknown not in one
