from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from tpulm.config import TokenizerConfig
from tpulm.tokenization import pipelines


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert tokenizer.pre_tokenizer is not None
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]


def test_wordpiece_settings():
    def split(text: str, **settings: bool) -> list[str]:
        return words(pipelines.wordpiece(TokenizerConfig.model_validate(settings)), text)

    assert split("Café, 日本語!") == ["Café", ",", "日", "本", "語", "!"]
    assert split("Café", lowercase=True) == ["café"]
    assert split("Café", lowercase=True, strip_accents=True) == ["cafe"]
    assert split("日本語 だ", split_cjk=False) == ["日本語", "だ"]


def test_hangul_survives_the_stripping_of_accents_except_googles():
    config = TokenizerConfig(strip_accents=True)
    assert words(pipelines.wordpiece(config), "한국") == ["한국"]
    assert words(pipelines.wordpiece(config, as_google=True), "한국") == ["\u1112\u1161\u11ab\u1100\u116e\u11a8"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("「はい」と、 言った。", ["▁「", "はい", "」", "と", "、", "▁言った", "。"]),
        ("a (b) c-d 3rd", ["▁a", "▁(", "b", ")", "▁c", "-", "d", "▁3rd"]),
        ("가  나\n다", ["▁가", "▁", "▁나", "\n", "다"]),
        ("wow!!! 👍🏽", ["▁wow", "!!!", "▁👍🏽"]),
    ],
)
def test_unigram_words_end_at_punctuation_and_lines(text: str, expected: list[str]):
    assert words(pipelines.unigram(TokenizerConfig()), text) == expected


def test_byte_level_words_are_gpt2s():
    assert words(pipelines.bpe(TokenizerConfig()), "it's 12 a!") == ["it", "'s", "Ġ12", "Ġa", "!"]
    assert words(pipelines.bpe(TokenizerConfig(lowercase=True, strip_accents=True)), "É") == ["e"]
