"""Counting unknown words and characters by hand."""

from __future__ import annotations

import pytest

from tpulm.tokenization import Tokenization
from tpulm.tokenization.tally import TextTally, TokenTally, script_coverage


def tallied(made: Tokenization, texts: list[str]) -> tuple[TextTally, TokenTally]:
    text_tally, token_tally = TextTally(), TokenTally(made)
    for text, encoding in zip(texts, made.plain().encode_batch(texts, add_special_tokens=False), strict=True):
        text_tally.add(text)
        token_tally.add(text, encoding)
    return text_tally, token_tally


@pytest.mark.parametrize(
    ("text", "words", "tokens", "characters"),
    [
        ("the was", 0, 0, 0),
        ("the 龘 was", 1, 1, 1),
        ("龘漢the 龘 was.龘.", 3, 4, 4),  # a Han character is a token of its own; the first word has two, the last one
        (" \u3000龘\t\n", 1, 1, 1),
        ("", 0, 0, 0),
    ],
)
def test_a_word_is_unknown_that_has_an_unknown_token(
    trained: dict[str, Tokenization], text: str, words: int, tokens: int, characters: int
):
    _, found = tallied(trained["wordpiece"], [text])
    assert (found.unknown_words, found.unknown_tokens, found.unknown_characters.total()) == (words, tokens, characters)


def test_texts_are_counted_once_for_all(trained: dict[str, Tokenization]):
    texts = ["the 龘 was", "é"]
    text_tally, _ = tallied(trained["wordpiece"], texts)
    assert (text_tally.documents, text_tally.words, text_tally.characters.total()) == (2, 4, 8)
    assert text_tally.text_bytes == sum(len(text.encode()) for text in texts) == 13


def test_every_character_is_in_one_column(made: Tokenization, texts: list[str]):
    text_tally, token_tally = tallied(made, [*texts[:200], "龘 👍🏽 é"])
    for item in script_coverage(text_tally, token_tally):
        assert item.characters == item.whole + item.split + item.unknown and min(item.whole, item.split, item.unknown) >= 0
