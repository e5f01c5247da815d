"""Law: the chunks of a text, tokenized one by one, give the tokens of the whole; where that cannot be shown, nothing is cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import troublesome_text
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre

from tpulm.config import TokenizerConfig
from tpulm.tokenization import pipelines
from tpulm.tokenization.chunks import Chunks, Cutter, cutter
from tpulm.tokenization.pipelines import specified


def pipeline(pre_tokenizer: pre.PreTokenizer | None, *steps: norm.Normalizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if steps:
        tokenizer.normalizer = norm.Sequence(list(steps))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def bert(**settings_: bool) -> norm.BertNormalizer:
    return norm.BertNormalizer(**{"lowercase": False, "strip_accents": False} | settings_)


CUT: dict[str, Callable[[], Tokenizer]] = {
    "our wordpiece": lambda: pipelines.wordpiece(TokenizerConfig()),
    "our uncased wordpiece": lambda: pipelines.wordpiece(TokenizerConfig(lowercase=True, strip_accents=True)),
    "our wordpiece, CJK together": lambda: pipelines.wordpiece(TokenizerConfig(split_cjk=False)),
    "google's uncased": lambda: pipelines.wordpiece(TokenizerConfig(lowercase=True, strip_accents=True), as_google=True),
    "our bpe": lambda: pipelines.bpe(TokenizerConfig()),
    "our lower-case bpe": lambda: pipelines.bpe(TokenizerConfig(lowercase=True)),
    "our unigram": lambda: pipelines.unigram(TokenizerConfig()),
    "our uncased unigram": lambda: pipelines.unigram(TokenizerConfig(lowercase=True, strip_accents=True)),
    "bert, unclean": lambda: pipeline(pre.BertPreTokenizer(), bert(clean_text=False, handle_chinese_chars=False)),
    "bert after NFC": lambda: pipeline(pre.BertPreTokenizer(), norm.NFC(), bert()),
    "bert before NFC": lambda: pipeline(pre.BertPreTokenizer(), bert(), norm.NFC()),
    "bert words of NFKD": lambda: pipeline(pre.BertPreTokenizer(), norm.NFKD()),
    "bert words, then digits": lambda: pipeline(pre.Sequence([pre.BertPreTokenizer(), pre.Digits(True)])),
    "whitespace": lambda: pipeline(pre.Whitespace(), norm.NFKC()),
    "whitespace, then marks": lambda: pipeline(pre.Sequence([pre.WhitespaceSplit(), pre.Punctuation()])),
    "byte level with a first space": lambda: pipeline(pre.ByteLevel(add_prefix_space=True)),
    "byte level with a first space, of NFD": lambda: pipeline(pre.ByteLevel(add_prefix_space=True), norm.NFD()),
    "metaspace of NFKC": lambda: pipeline(pre.Metaspace(), norm.NFKC()),
    "metaspace without a first one": lambda: pipeline(pre.Metaspace(prepend_scheme="never"), norm.NFKD(), norm.StripAccents()),
    "metaspace, then scripts": lambda: pipeline(pre.Sequence([pre.Metaspace(), pre.UnicodeScripts()])),
}

WHOLE: dict[str, Callable[[], Tokenizer]] = {
    "no words": lambda: pipeline(None),
    "byte level, accents gone": lambda: pipelines.bpe(TokenizerConfig(strip_accents=True)),
    "byte level of NFKC": lambda: pipeline(pre.ByteLevel(add_prefix_space=False), norm.NFKC()),
    "byte level without its expression": lambda: pipeline(pre.ByteLevel(use_regex=False)),
    "an expression first": lambda: pipeline(
        pre.Sequence([pre.Split(Regex(r"\w+ "), "isolated"), pre.ByteLevel(use_regex=False)])
    ),
    "a replacement": lambda: pipeline(pre.BertPreTokenizer(), norm.Replace("a b", "c")),
    "ends stripped": lambda: pipeline(pre.Metaspace(), norm.Strip()),
    "metaspace for the first part only": lambda: pipeline(pre.Metaspace(prepend_scheme="first")),
    "metaspace in one piece": lambda: pipeline(pre.Metaspace(split=False)),
}


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert tokenizer.pre_tokenizer is not None
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized) if word]


def chunks_of(cut: Cutter, text: str) -> list[str]:
    found = cut.cut([text])
    assert found.ends.tolist() == [len(found.starts)]
    return strings_of(found)


def strings_of(chunks: Chunks) -> list[str]:
    return chunks.strings(np.arange(len(chunks.starts)))


@pytest.mark.parametrize("name", CUT)
def test_words_of_the_chunks_are_the_words_of_the_text(name: str):
    tokenizer = CUT[name]()
    cut = cutter(specified(tokenizer))
    assert cut is not None

    @settings(max_examples=100)
    @given(troublesome_text)
    def check(text: str):
        assert [word for chunk in chunks_of(cut, text) for word in words(cut.for_chunks.tokenizer, chunk)] == words(
            tokenizer, text
        )

    check()


@pytest.mark.parametrize("name", WHOLE)
def test_what_cannot_be_shown_is_not_cut(name: str):
    assert cutter(specified(WHOLE[name]())) is None


def test_added_words_are_found_across_chunks_so_nothing_is_cut():
    tokenizer = pipelines.wordpiece(TokenizerConfig())
    tokenizer.add_special_tokens([AddedToken("[X]")])
    assert cutter(specified(tokenizer)) is not None
    tokenizer.add_tokens([AddedToken("New York")])
    assert cutter(specified(tokenizer)) is None


def test_text_falls_apart_where_it_should():
    def cut(tokenizer: Tokenizer, text: str) -> list[str]:
        function = cutter(specified(tokenizer))
        assert function is not None
        return chunks_of(function, text)

    assert cut(CUT["our wordpiece"](), " 영화 good...「日本語」") == ["영화", "good", "...「", "日", "本", "語", "」"]
    assert cut(CUT["our wordpiece, CJK together"](), "日本語 だ") == ["日本語", "だ"]
    assert cut(CUT["our bpe"](), "a b  c\td e ") == ["a", " b  c\td", " e "]
    assert cut(CUT["our unigram"](), "a  b (c)") == [" a", " ", " b", " (", "c", ")"]
    assert cut(CUT["our uncased unigram"](), "a  b (c)") == ["a", " ", " b", " (c)"]


@pytest.mark.parametrize("name", CUT)
def test_texts_are_cut_together_as_they_are_alone(name: str):
    cut = cutter(specified(CUT[name]()))
    assert cut is not None

    @settings(max_examples=50)
    @given(st.lists(troublesome_text, max_size=5))
    def check(texts: list[str]):
        found = cut.cut(texts)
        each = [part.tolist() for part in np.split(np.array(strings_of(found), object), found.ends)][:-1]
        assert each == [chunks_of(cut, text) for text in texts]

    check()
