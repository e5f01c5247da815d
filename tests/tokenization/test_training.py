"""Training: the size asked for, the same tokenizer every time, and errors that say what is possible."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from made_up import ALGORITHMS, VOCAB_SIZES, batches, in_order, make_texts, troublesome_text
from tokenizers import Tokenizer, pre_tokenizers, trainers

from tpulm import tokenization
from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError, DataError, Stopped
from tpulm.tokenization import Tokenization, pipelines, training
from tpulm.tokenization.pipelines import SPACE, without_surrogates
from tpulm.tokenization.special import TOKENS, TRAINED
from tpulm.tokenization.training import BYTES, choose_alphabet, count_words, interruptible, learn_bpe, learn_wordpiece


def config(algorithm: str, **settings: object) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"algorithm": algorithm, "vocab_size": VOCAB_SIZES[algorithm]} | settings)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_order_batches_and_memory_do_not_matter(algorithm: str, texts: list[str], trained: dict[str, Tokenization]):
    shuffled = random.Random(5).sample(texts, len(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_CHARACTERS_HELD", 1_000)
        made = tokenization.train(batches(shuffled, 17), config(algorithm))
    assert made.canonical_json == trained[algorithm].canonical_json
    assert (made.vocab_size, made.special) == (VOCAB_SIZES[algorithm], TRAINED)
    assert list(made.vocabulary())[:5] == [*TOKENS]


_TRAIN = """
import sys
sys.path.insert(0, {folder!r})
from made_up import VOCAB_SIZES, batches, make_texts
from tpulm import tokenization
from tpulm.config import TokenizerConfig
for algorithm, size in VOCAB_SIZES.items():
    config = TokenizerConfig(algorithm=algorithm, vocab_size=size)
    print(tokenization.train(batches(make_texts(3_000)), config).fingerprint)
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "5"])
def test_every_process_with_any_number_of_threads_trains_the_same(threads: str, trained: dict[str, Tokenization]):
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "TOKENIZERS_PARALLELISM": "true"}
    code = _TRAIN.format(folder=str(Path(__file__).parent))
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [trained[algorithm].fingerprint for algorithm in VOCAB_SIZES]
    assert result.stderr == ""


def refused(texts: list[list[str]], algorithm: str, size: int, advice: str = "") -> int:
    """The size that the error proposes."""
    with pytest.raises(ConfigError, match=f"vocab_size {size:,} ") as caught:
        tokenization.train(texts, config(algorithm, vocab_size=size))
    found = re.search(rf"{advice}([\d,]+)", str(caught.value))
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_too_large_and_too_small_name_what_is_possible(algorithm: str):
    few = batches(make_texts(60))
    most = refused(few, algorithm, 5_000, "Set tokenizer.vocab_size to ")
    (least,) = {refused(few, algorithm, size, "least possible is ") for size in (1, 8, 50)}
    for size in (least, most):
        assert tokenization.train(few, config(algorithm, vocab_size=size)).vocab_size == size
    refused(few, algorithm, least - 1)
    refused(few, algorithm, most + 1)
    with pytest.raises(ConfigError, match=r"vocab_size to|more text"):
        tokenization.train([["hello"]], config(algorithm))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rare_characters_do_not_crowd_out_a_small_vocabulary(algorithm: str, texts: list[str]):
    """Ten thousand Chinese characters seen twice each, and a vocabulary of hundreds."""
    rare = ["".join(chr(0x4E00 + 20 * line + column) for column in range(20)) for line in range(500)]
    made = tokenization.train(batches(texts * 40 + rare * 2), config(algorithm))
    assert made.vocab_size == VOCAB_SIZES[algorithm]
    unknown = made.encode(["영화 the cat 猫"]).ids == made.special.unknown
    assert not unknown[:-1].any()


def test_words_that_wordpiece_does_not_learn_are_named():
    """Khmer without spaces, and DNA: more of it would not help."""
    for text in ("ខ្ញុំស្រឡាញ់ភាសាខ្មែរ" * 10, "ACGT" * 40):
        with pytest.raises(ConfigError, match=r"tokenizer\.algorithm"):
            tokenization.train([[text] * 50], config("wordpiece"))


def test_no_text_and_a_path_are_refused():
    for texts in ([], [[]], [["", " ", "\n"]]):
        with pytest.raises(DataError, match="no text"):
            tokenization.train(texts, config("bpe"))
    with pytest.raises(ConfigError, match=r"vocab\.txt"):
        tokenization.train([["a"]], TokenizerConfig(path="vocab.txt"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_settings_are_in_the_file(algorithm: str):
    texts = batches(["Café Ärger 영화 見た CAFÉ", *make_texts(600)] * 2)
    settings = config(algorithm, lowercase=True, strip_accents=True, vocab_size=VOCAB_SIZES[algorithm] - 10)
    made = tokenization.train(texts, settings)
    stock = Tokenizer.from_str(made.canonical_json)
    for pair in (("CAFÉ Ärger", "cafe arger"), ("영화", "\u110b\u1167\u11bc\u1112\u116a")):  # the latter: the same, decomposed
        one, other = (stock.encode(text, add_special_tokens=False).ids for text in pair)
        assert one == other and made.special.unknown not in one


COUNTS = {"a": 500, "b": 300, "c": 150, "d": 45, "e": 4, "f": 1}


def chosen(vocab_size: int, *, tokens: int = 1, reserved: int = 5, least_coverage: float = 0.99) -> str:
    settings = {"reserved": reserved, "least_coverage": least_coverage, "continuing": COUNTS if tokens == 2 else ()}
    return "".join(sorted(choose_alphabet(COUNTS, vocab_size=vocab_size, **settings)))


def test_rare_characters_are_left_out_and_half_of_the_room_is_for_words_unless_the_text_needs_more():
    assert chosen(100) == "abcde"
    assert chosen(5 + 12, tokens=2, least_coverage=0.0) == "abc"
    assert chosen(5 + 6, least_coverage=0.0) == "abc" and chosen(5 + 6) == "abcd"


def test_a_requested_stop_does_not_wait_for_the_library(stopped: None):
    class Slow:
        def train_from_iterator(self, *_: object) -> None:
            let_go.wait(60)
            done.set()

    let_go, done = threading.Event(), threading.Event()
    with pytest.raises(Stopped):
        training.run_trainer(Slow(), trainers.BpeTrainer(), {"a": 1})  # pyright: ignore[reportArgumentType]
    assert not done.is_set()
    let_go.set()


# -- counting words --


def counted_plainly(texts: list[str], algorithm: str, config: TokenizerConfig) -> Counter[str]:
    pipeline = getattr(pipelines, algorithm)(config)
    counts: Counter[str] = Counter()
    for text in map(without_surrogates, texts):
        normalized = pipeline.normalizer.normalize_str(text) if pipeline.normalizer else text
        counts.update(word for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(normalized) if word)
    if algorithm == "bpe":
        counts = Counter({(pipelines.from_byte_characters(word) or b"").decode(): count for word, count in counts.items()})
    return counts


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "config", [TokenizerConfig(), TokenizerConfig(lowercase=True, strip_accents=True)], ids=["as it is", "bare"]
)
def test_counts_are_those_of_the_whole_texts(algorithm: str, config: TokenizerConfig):
    @settings(max_examples=60)
    @given(st.lists(troublesome_text, min_size=1, max_size=4))
    def check(texts: list[str]):
        texts.append("a word")
        assert count_words([texts], getattr(pipelines, algorithm)(config)) == counted_plainly(texts, algorithm, config)

    check()


@given(
    st.dictionaries(st.text("aé本", min_size=1, max_size=4), st.integers(1, 5), min_size=1), st.integers(0, 60), st.booleans()
)
def test_the_choice_is_the_beginning_of_the_sorted_words(counts: dict[str, int], most: int, in_bytes: bool):
    size_of = (lambda word: len(word.encode())) if in_bytes else len
    by_frequency = sorted(counts, key=lambda word: (-counts[word], hashlib.blake2b(word.encode(), digest_size=8).digest()))
    sizes = itertools.accumulate(map(size_of, by_frequency))
    expected = {word: counts[word] for word, size in zip(by_frequency, sizes, strict=True) if size <= most}
    assert training.most_frequent(counts, most, size_of=size_of) == expected


def test_a_stop_is_noticed_between_batches_and_within_a_pass(stopped: None):
    for work in (lambda: count_words([["a"]], pipelines.bpe(TokenizerConfig())), lambda: list(interruptible({"a": 1}))):
        with pytest.raises(Stopped):
            work()


# -- WordPiece --


WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}  # the example of Sennrich et al. 2016


def learn(words: dict[str, int], vocab_size: int, **settings: int) -> list[str]:
    config = TokenizerConfig.model_validate({"vocab_size": vocab_size} | settings)
    return in_order(Tokenizer(learn_wordpiece(Counter(words), config)))


def test_special_tokens_characters_their_continuations_merges():
    inside = ["##d", "##e", "##i", "##o", "##r", "##s", "##t", "##w"]
    start = [*TOKENS, *"deilnorstw", *inside]
    assert learn(WORDS, len(start) + 3) == [*start, "##es", "##est", "lo"]


def test_words_with_a_rare_character_and_words_longer_than_bert_reads_teach_nothing():
    words = {**{word: 100 * count for word, count in WORDS.items()}, "low\u9f98": 1}
    assert "\u9f98" not in "".join(learn(words, 30))
    assert "##z" not in learn({**WORDS, "lo" + "w" * 99 + "z": 2, "z": 2}, 30)


def test_ties_are_broken_by_characters_and_not_by_chance():
    words = {f"{first}{second}": 3 for first in "abcdefgh" for second in "ijklmnop"}
    turned = [dict(sorted(words.items(), reverse=turn)) for turn in (False, True)]
    results = {tuple(learn(words, 5 + 8 + 16 + 10)) for words in turned * 3}
    assert len(results) == 1
    assert results.pop()[-10:] == (*("a" + second for second in "ijklmnop"), "bi", "bj")


def test_special_tokens_bytes_merges():
    found = in_order(Tokenizer(learn_bpe(Counter(WORDS), TokenizerConfig(algorithm="bpe", vocab_size=5 + 256 + 3))))
    assert found == [*TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "es", "est", "lo"]


# -- Unigram --


def pieces(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def test_special_tokens_bytes_then_pieces_by_falling_score(trained: dict[str, Tokenization]):
    vocabulary = pieces(Tokenizer.from_str(trained["unigram"].canonical_json))
    reserved = [*TOKENS, *BYTES]
    assert [piece for piece, _ in vocabulary[: len(reserved)]] == reserved
    assert {score for _, score in vocabulary[: len(reserved)]} == {-1000.0}
    scores = [score for _, score in vocabulary[len(reserved) :]]
    assert scores == sorted(scores, reverse=True) and all(score > -100 and (1024 * score).is_integer() for score in scores)
    assert len({piece for piece, _ in vocabulary}) == len(vocabulary)


def test_reserved_names_common_in_the_text_are_no_second_pieces():
    names = [*TOKENS, "<0x41>"]
    words = Counter({SPACE + word: 5 for text in make_texts(500) for word in text.split()})
    words |= Counter({name: 1_000 for word in names for name in (word, SPACE + word)})
    config = TokenizerConfig(algorithm="unigram", vocab_size=600)
    vocabulary = [piece for piece, _ in pieces(Tokenizer(training.learn_unigram(words, config)))]
    assert all(vocabulary.count(name) == 1 and vocabulary.index(name) < 261 for name in names)


def test_only_so_much_is_trained_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "_UNIGRAM_CHARACTERS", 2_000)
    monkeypatch.setattr(training, "_LONGEST_WORD", 10)
    words = Counter({SPACE + "abcdefghij"[n % 10 :] + "klmnopqrst"[: n % 7] + str(n): 1 + n % 3 for n in range(2_000)})
    words["x" * 10_000] = 1
    config = TokenizerConfig(algorithm="unigram", vocab_size=5 + 256 + 130)
    turned = Counter(dict(reversed(words.items())))
    found = [pieces(Tokenizer(training.learn_unigram(given, config))) for given in (words, turned)]
    assert found[0] == found[1] and len(found[0]) == config.vocab_size
