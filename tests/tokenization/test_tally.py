"""Counting unknown words and characters by hand."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulm.tokenization import Tokenization
from tpulm.tokenization.tally import TextTally, TokenTally, _words_hit, script_coverage


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


@given(st.text("ab \u3000\n", max_size=20), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=4))
def test_spans_hit_the_words_they_have_a_character_of(text: str, given_spans: list[tuple[int, int]]):
    """Spans may begin, end or lie in blanks: SentencePiece's tokens take the space before a word along."""
    spans = [(min(start, len(text)), min(start + length, len(text))) for start, length in given_spans]
    covered = {place for start, stop in spans for place in range(start, stop)}
    words = [set(range(*match.span())) for match in re.finditer(r"\S+", text)]
    assert _words_hit(text, spans) == sum(bool(word & covered) for word in words)


def test_texts_are_counted_once_for_all(trained: dict[str, Tokenization]):
    texts = ["the 龘 was", "é"]
    text_tally, _ = tallied(trained["wordpiece"], texts)
    assert (text_tally.documents, text_tally.words, text_tally.characters.total()) == (2, 4, 8)
    assert text_tally.text_bytes == sum(len(text.encode()) for text in texts) == 13


def test_every_character_is_in_one_column(made: Tokenization, texts: list[str]):
    text_tally, token_tally = tallied(made, [*texts[:200], "龘 👍🏽 é"])
    for item in script_coverage(text_tally, token_tally):
        assert item.characters == item.whole + item.split + item.unknown and min(item.whole, item.split, item.unknown) >= 0
