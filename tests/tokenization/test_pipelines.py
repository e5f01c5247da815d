from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers

from tpulm.config import TokenizerConfig
from tpulm.tokenization import pipelines


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert tokenizer.pre_tokenizer is not None
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]


def test_hangul_survives_the_stripping_of_accents_except_googles():
    config = TokenizerConfig(strip_accents=True)
    assert words(pipelines.wordpiece(config), "한국") == ["한국"]
    assert words(pipelines.wordpiece(config, as_google=True), "한국") == ["\u1112\u1161\u11ab\u1100\u116e\u11a8"]


def test_unigram_words_end_at_punctuation_and_lines():
    for text, expected in (
        ("「はい」と、 言った。", ["▁「", "はい", "」", "と", "、", "▁言った", "。"]),
        ("a (b) c-d 3rd", ["▁a", "▁(", "b", ")", "▁c", "-", "d", "▁3rd"]),
        ("가  나\n다", ["▁가", "▁", "▁나", "\n", "다"]),
        ("wow!!! 👍🏽", ["▁wow", "!!!", "▁👍🏽"]),
    ):
        assert words(pipelines.unigram(TokenizerConfig()), text) == expected


def split(tokenizer: Tokenizer, text: str) -> list[str]:
    assert tokenizer.pre_tokenizer is not None
    return [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_byte_level_words_are_gpt2s_with_their_marks():
    assert words(pipelines.bpe(TokenizerConfig()), "it's 12 a!") == ["it", "'s", "Ġ12", "Ġa", "!"]
    assert words(pipelines.bpe(TokenizerConfig(lowercase=True, strip_accents=True)), "É") == ["e"]
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in ("we'll go, I'd say:  «été» 3rd\n\n한국어 日本語です。 ❤️ 1️⃣ 👍🏽 \t x ", "I'VE 'tis a' s'"):
        assert split(pipelines.bpe(TokenizerConfig()), text) == split(gpt2, text)
    for text in ("हिन्दी में लिखा", "தமிழ் எழுத்து", "كَتَبَ الوَلَد", "می\u200cخواهم که", "e\u0301te\u0301 a\u0308"):
        assert split(pipelines.bpe(TokenizerConfig()), text) == text.replace(" ", "\0 ").split("\0")
