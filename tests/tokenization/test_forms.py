"""Tokens as text, without the marks of their vocabularies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tpulm.tokenization import Tokenization, load
from tpulm.tokenization.forms import Form, forms

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]


def loaded(tokenizer: Tokenizer, path: Path) -> Tokenization:
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL[:5]])
    tokenizer.save(str(path))
    return load(path)


def signed(word: str) -> str:
    """As byte-level vocabularies write it: by the library itself."""
    return "".join(part for part, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(word))


@pytest.fixture
def three(tmp_path: Path) -> dict[str, dict[int, Form]]:
    """The same vocabulary in three spellings: "the" and "영화" begin words, "ing" and "는" go on."""
    words, parts = ["the", "영화"], ["ing", "는"]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words, *(f"##{part}" for part in parts), "##"]), "utf-8")
    byte_level = [*SPECIAL, *(signed(f" {word}") for word in words), *map(signed, parts), signed("영")[:2], signed(" ")]
    bpe = Tokenizer(models.BPE({word: index for index, word in enumerate(byte_level)}, []))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    pieces = [*SPECIAL, *(f"▁{word}" for word in words), *parts, "▁", "<0xEC>"]
    unigram = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 1, False))
    return {
        "wordpiece": forms(load(tmp_path / "vocab.txt")),
        "bpe": forms(loaded(bpe, tmp_path / "bpe.json")),
        "unigram": forms(loaded(unigram, tmp_path / "unigram.json")),
    }


COMMON_WORDS = {Form("the", True), Form("영화", True), Form("ing", False), Form("는", False)}


def test_signs_are_gone_and_places_stay(three: dict[str, dict[int, Form]]):
    assert set(three["wordpiece"].values()) == COMMON_WORDS | {Form("##", True)}  # two signs of a number are a word
    assert set(three["bpe"].values()) == COMMON_WORDS | {Form("영".encode()[:2], False), Form(" ", False)}
    assert all(min(found) == len(SPECIAL) for found in three.values()), "special tokens and slots have none"
    assert set(three["unigram"].values()) == COMMON_WORDS | {Form(" ", False), Form(b"\xec", False)}


def test_forms_of_trained_ones_write_the_text_again(trained: dict[str, Tokenization]):
    for made in (trained["bpe"], trained["unigram"]):
        written = [forms(made)[index] for index in made.encode(["a was 영화는 good"]).ids.tolist()]
        texts = [form.text if isinstance(form.text, bytes) else form.text.encode() for form in written]
        found = b"".join(b" " * form.begins_word + text for form, text in zip(written, texts, strict=True))
        assert found.decode().strip() == "a was 영화는 good"
