from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import ALGORITHMS, batches, make_texts, troublesome_text
from tokenizers import pre_tokenizers

from tpulm.config import TokenizerConfig
from tpulm.errors import DataError, Stopped
from tpulm.runtime import interrupt
from tpulm.tokenization import pipelines, training
from tpulm.tokenization.pipelines import without_surrogates
from tpulm.tokenization.training import count_words, interruptible, most_frequent


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
    "config", [TokenizerConfig(), TokenizerConfig(lowercase=True, strip_accents=True)], ids=["cased", "uncased"]
)
def test_counts_are_those_of_the_whole_texts(algorithm: str, config: TokenizerConfig):
    @settings(max_examples=60)
    @given(st.lists(troublesome_text, min_size=1, max_size=4))
    def check(texts: list[str]):
        texts.append("a word")
        assert count_words([texts], getattr(pipelines, algorithm)(config)) == counted_plainly(texts, algorithm, config)

    check()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_order_batches_and_memory_do_not_matter(algorithm: str, monkeypatch: pytest.MonkeyPatch):
    texts, pipeline = [*make_texts(400), "a\ud800b"], getattr(pipelines, algorithm)(TokenizerConfig())
    expected = count_words([texts], pipeline)
    random.Random(0).shuffle(texts)
    monkeypatch.setattr(training, "_CHARACTERS_HELD", 1_000)
    assert count_words(batches(texts, 7), pipeline) == expected


@pytest.mark.parametrize("texts", [[], [[]], [["", " ", "\n"]]])
def test_no_words_are_an_error(texts: list[list[str]]):
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        count_words(texts, pipelines.wordpiece(TokenizerConfig()))


def test_most_frequent_words_first_and_ties_by_chance_alone():
    counts = {f"word{number:04}": 1 + (number < 50) for number in range(1_000)}
    chosen = most_frequent(counts, 8 * 300)
    assert len(chosen) == 300 and all(chosen[word] == count for word, count in counts.items() if count == 2)
    singles = sorted(int(word[4:]) for word, count in chosen.items() if count == 1)
    assert 400 < sum(singles) / len(singles) < 650  # not the first ones
    assert most_frequent(dict(reversed(counts.items())), 8 * 300) == chosen
    assert most_frequent(counts, 8 * 1_000) == counts


@given(
    st.dictionaries(st.text("aé本", min_size=1, max_size=4), st.integers(1, 5), min_size=1), st.integers(0, 60), st.booleans()
)
def test_the_choice_is_the_beginning_of_the_sorted_words(counts: dict[str, int], most: int, in_bytes: bool):
    size_of = (lambda word: len(word.encode())) if in_bytes else len
    by_frequency = sorted(counts, key=lambda word: (-counts[word], hashlib.blake2b(word.encode(), digest_size=8).digest()))
    sizes = itertools.accumulate(map(size_of, by_frequency))
    expected = {word: counts[word] for word, size in zip(by_frequency, sizes, strict=True) if size <= most}
    assert most_frequent(counts, most, size_of=size_of) == expected


def test_byte_level_words_are_written_as_the_library_writes_them():
    @given(troublesome_text)
    def check(text: str):
        text = without_surrogates(text)
        [word] = [word for word, _ in one_word.pre_tokenize_str(text)] or [""]
        assert pipelines.to_byte_characters(text) == word

    one_word = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    check()


def test_a_stop_is_noticed_between_batches_and_within_a_pass(monkeypatch: pytest.MonkeyPatch):
    def stop(_: str) -> None:
        raise Stopped("stopped")

    monkeypatch.setattr(interrupt, "check", stop)
    with pytest.raises(Stopped):
        count_words([["a"]], pipelines.bpe(TokenizerConfig()))
    with pytest.raises(Stopped):
        list(interruptible({"a": 1}))
