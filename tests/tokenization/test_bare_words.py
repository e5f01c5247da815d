"""Law: what counts as a bare word has, from the model alone, the ids that the whole pipeline gives."""

from __future__ import annotations

from itertools import compress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import make_texts, troublesome_text
from tokenizers import Tokenizer, models, normalizers

from tpulm.config import TokenizerConfig
from tpulm.tokenization import Tokenization, pipelines
from tpulm.tokenization.bare_words import BareWords, bare_words
from tpulm.tokenization.pipelines import specified

WORDS = sorted({word for text in make_texts(300) for word in text.split()})


@pytest.fixture(params=["cased", "lower case", "CJK together", "unclean"])
def tokenizer(request: pytest.FixtureRequest, trained: dict[str, Tokenization]) -> Tokenizer:
    """The trained vocabulary under other rules."""
    config = TokenizerConfig(lowercase=request.param == "lower case", split_cjk=request.param != "CJK together")
    tokenizer = pipelines.wordpiece(config)
    tokenizer.model = models.WordPiece(trained["wordpiece"].vocabulary(), unk_token="[UNK]", max_input_chars_per_word=100)
    if request.param == "unclean":
        tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False, strip_accents=False, lowercase=False)
    return tokenizer


def the(tokenizer: Tokenizer) -> BareWords:
    found = bare_words(specified(tokenizer))
    assert found is not None
    return found


def is_possible(tokenizer: Tokenizer) -> bool:
    return bare_words(specified(tokenizer)) is not None


def test_bare_words_have_the_pipelines_ids(tokenizer: Tokenizer):
    words = the(tokenizer)

    @settings(max_examples=100)
    @given(st.lists(st.one_of(troublesome_text, st.sampled_from(WORDS)), unique=True, max_size=8))
    def check(texts: list[str]):
        chunks = [text for text in texts if text and " " not in text]
        bare = list(compress(chunks, words.are_bare(chunks).tolist()))
        expected = [encoding.ids for encoding in tokenizer.encode_batch(bare, add_special_tokens=False)]
        found = words.encode(bare)
        assert [ids.tolist() for ids in np.split(found.ids, np.cumsum(found.lengths))][:-1] == expected

    check()


def test_most_words_are_bare_and_marks_and_chinese_are_not(tokenizer: Tokenizer):
    words = the(tokenizer)
    assert words.are_bare(["the", "영화는", "ビール", "x" * 101, "й"]).all()
    assert not words.are_bare(["a.b", "a\tb", "don't", "##s"]).any()
    assert words.encode([]).ids.size == words.are_bare([]).size == 0


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({}, True),
        ({"lowercase": True}, True),
        ({"strip_accents": True}, False),
        ({"lowercase": True, "strip_accents": True}, False),
    ],
)
def test_not_where_characters_decompose(settings_: dict[str, bool], expected: bool):
    assert is_possible(pipelines.wordpiece(TokenizerConfig.model_validate(settings_), as_google=True)) is expected
    assert is_possible(pipelines.wordpiece(TokenizerConfig.model_validate(settings_))) is expected


@pytest.mark.parametrize("lowercase", [False, True])
def test_bare_words_of_bytes_have_the_pipelines_ids(trained: dict[str, Tokenization], lowercase: bool):
    tokenizer = trained["bpe"].plain()
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    words = the(tokenizer)
    assert words.are_bare(["the", " the", "영화는", " ビール"]).all()
    assert not words.are_bare(["a.b", "a b", "  a", "don't", "a1", " ", "\n", "a "]).any()
    assert bool(words.are_bare(["The"]).all()) is not lowercase

    @settings(max_examples=200)
    @given(st.lists(st.one_of(troublesome_text, st.sampled_from([*WORDS, *(f" {word}" for word in WORDS)])), max_size=8))
    def check(texts: list[str]):
        chunks = [text for text in texts if text]
        bare = list(compress(chunks, words.are_bare(chunks).tolist()))
        found = words.encode(bare)
        expected = [encoding.ids for encoding in tokenizer.encode_batch(bare, add_special_tokens=False)]
        assert [ids.tolist() for ids in np.split(found.ids, np.cumsum(found.lengths))][:-1] == expected

    check()


def test_only_where_the_rules_are_known():
    assert not is_possible(pipelines.bpe(TokenizerConfig())) and not is_possible(pipelines.unigram(TokenizerConfig()))
    tokenizer = pipelines.wordpiece(TokenizerConfig())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)  # strips accents unless told not to
    assert not is_possible(tokenizer)
    tokenizer.normalizer = normalizers.NFC()
    assert not is_possible(tokenizer)
    tokenizer = pipelines.wordpiece(TokenizerConfig())
    tokenizer.model = models.WordPiece({"[UNK]": 0}, unk_token="[UNK]", continuing_subword_prefix="")
    assert not is_possible(tokenizer)
