from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tpulm.config import TokenizerConfig
from tpulm.tokenization import Tokenization, pipelines
from tpulm.tokenization.special import locate


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert tokenizer.pre_tokenizer is not None
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]


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


# -- special tokens' names as ordinary text --


def word_level() -> Tokenization:
    """An imported tokenizer whose model knows the names as words, and has an added word that is not special."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[unused0]", "a", "b"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in words[:5]])
    return Tokenization(tokenizer, locate(tokenizer.get_vocab(), "words"))


def test_a_model_that_knows_the_names_as_words():
    made = word_level()
    unknown = made.special.unknown
    assert made.encode(["a <mask> b", "<s> <pad>", "[unused0] <unk>"]).ids.tolist() == [6, unknown, 7, *[unknown] * 4]
    assert made.encode_one("a <mask> b").count(made.special.mask) == 1


def test_added_words_that_are_not_special_keep_their_ids():
    tokenizer = Tokenizer.from_str(word_level().canonical_json)
    tokenizer.add_tokens(["New York"])
    tokenizer.add_special_tokens(["<late>"])
    tokenizer.add_tokens(["Rio"])
    made = Tokenization(tokenizer, locate(tokenizer.get_vocab(), "words"))
    new_york, late, rio = (tokenizer.token_to_id(token) for token in ("New York", "<late>", "Rio"))
    assert (new_york, late, rio) == (8, 9, 10)
    assert made.encode(["a New York Rio b <late>"]).ids.tolist() == [6, new_york, rio, 7, made.special.unknown]
