"""Counting unknown words and characters, against counts by hand and by other means."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from made_up import troublesome_text

from tpulm.tokenization import Tokenization
from tpulm.tokenization.report import Fit, TextTally, TokenTally


def fit(made: Tokenization, texts: list[str]) -> Fit:
    text_tally, token_tally = TextTally(), TokenTally(made)
    for text in texts:
        text_tally.add(text)
    token_tally.add(texts)
    return token_tally.fit(text_tally)


@pytest.mark.parametrize(
    ("text", "words", "tokens", "characters"),
    [
        ("the was", 0, 0, 0),
        ("the 龘 was", 1, 1, 1),
        ("龘漢the 龘 was.龘.", 3, 4, 4),  # a Han character is a token of its own; the first word has two, the last one
        (" \u3000龘\t\n", 1, 1, 1),
    ],
)
def test_a_word_is_unknown_that_has_an_unknown_token(
    trained: dict[str, Tokenization], text: str, words: int, tokens: int, characters: int
):
    found = fit(trained["wordpiece"], [text])
    assert found.unknown_tokens == tokens
    assert found.unknown_words == words / len(text.split())
    assert found.unknown_characters == characters / len("".join(text.split()))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=troublesome_text)
def test_any_text_counted_character_by_character(trained: dict[str, Tokenization], text: str):
    """Tokens may begin, end or lie in blanks."""
    for made in trained.values():
        if not text.split():
            return
        encoding = made.plain().encode(text, add_special_tokens=False)
        unknown = {
            place
            for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
            if index == made.special.unknown
            for place in range(start, stop)
        }
        words = [not unknown.isdisjoint(range(*word.span())) for word in re.finditer(r"\S+", text)]
        characters = len("".join(text.split()))
        found = fit(made, [text])
        assert found.unknown_words == sum(words) / len(text.split())
        assert found.unknown_characters == sum(not text[one].isspace() for one in unknown) / characters
        assert (found.tokens, found.unknown_tokens) == (len(encoding.ids), encoding.ids.count(made.special.unknown))
        assert sum(item.characters for item in found.scripts) == characters


def test_every_character_is_in_one_column(made: Tokenization, texts: list[str]):
    for item in fit(made, [*texts[:200], "龘 👍🏽 é"]).scripts:
        assert item.characters == item.whole + item.split + item.unknown and min(item.whole, item.split, item.unknown) >= 0
