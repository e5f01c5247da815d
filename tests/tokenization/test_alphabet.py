from __future__ import annotations

import pytest

from tpulm.errors import ConfigError
from tpulm.tokenization.training import choose_alphabet, count_characters

COUNTS = {"a": 500, "b": 300, "c": 150, "d": 45, "e": 4, "f": 1}


def chosen(vocab_size: int, *, tokens: int = 1, reserved: int = 5, min_frequency: int = 2, least_coverage: float = 0.99) -> str:
    found = choose_alphabet(
        COUNTS,
        dict.fromkeys(COUNTS, tokens),
        vocab_size=vocab_size,
        reserved=reserved,
        min_frequency=min_frequency,
        least_coverage=least_coverage,
    )
    assert found.coverage == pytest.approx(sum(COUNTS[character] for character in found.characters) / 1_000)
    return "".join(sorted(found.characters))


def test_rare_characters_are_left_out():
    assert chosen(100) == "abcde"
    assert chosen(100, min_frequency=1) == "abcdef"
    assert chosen(100, min_frequency=5) == "abcd"


def test_half_of_the_room_unless_the_text_needs_more():
    assert chosen(5 + 6, least_coverage=0.0) == "abc"
    assert chosen(5 + 12, tokens=2, least_coverage=0.0) == "abc"
    assert chosen(5 + 6) == "abcd"


def test_ties_go_by_code_point():
    counts = dict.fromkeys("zyxw", 10)
    found = choose_alphabet(counts, dict.fromkeys(counts, 1), vocab_size=4, reserved=0, min_frequency=1, least_coverage=0.0)
    assert found.characters == {"w", "x"}


def test_too_small_names_the_least_possible():
    with pytest.raises(ConfigError, match=r"vocab_size 8 is too small.*4 characters.*99%.*least possible is 9;"):
        chosen(8)
    assert chosen(9) == "abcd"


def test_characters_are_counted_with_their_words():
    assert count_characters([("aab", 2), ("b", 3)]) == {"a": 4, "b": 5}
