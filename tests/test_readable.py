from __future__ import annotations

import pytest

from tpulm.readable import dollars, duration, percent, size, visible


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "?"),
        (0.0, "$0"),
        (9e-05, "less than a cent"),
        (0.0099, "less than a cent"),
        (0.01, "$0.01"),
        (8.0, "$8.00"),
        (352.4, "$352.40"),
        (1234.5, "$1,234"),
    ],
)
def test_money(amount: float | None, text: str):
    assert dollars(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.3, "less than a second"),
        (42.4, "42 s"),
        (119, "119 s"),
        (119.9, "2 min"),
        (720, "12 min"),
        (7_140, "119 min"),
        (7_199, "2.0 h"),
        (12_240, "3.4 h"),
        (449_280, "5.2 days"),
    ],
)
def test_durations(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (1.0, 3, "100.000%"),
        (0.9999999, 3, ">99.999%"),
        (0.99999, 3, "99.999%"),
        (0.99998, 2, ">99.99%"),
        (0.99128, 3, "99.128%"),
        (0.5, 1, "50.0%"),
        (1e-9, 3, "<0.001%"),
        (0.0, 3, "0.000%"),
    ],
)
def test_shares_are_never_rounded_to_all_or_nothing(share: float, digits: int, text: str):
    assert percent(share, digits) == text


def test_sizes():
    assert (size(99_999), size(100_000), size(1_234_567_890)) == ("99,999 bytes", "0.1 MB", "1,234.6 MB")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31m\x00\n", "a␛[31m␀␊"),
        ("a\u202eb\u200b\x85", "a⟨U+202E⟩b⟨U+200B⟩⟨U+0085⟩"),
        ("👨\u200d👩 ok", "👨\u200d👩 ok"),
        (b"\xe3\x81", "⟨E3 81⟩"),
        (b"q", "q"),
        (b"\x1b", "⟨1B⟩"),
    ],
)
def test_what_cannot_be_seen_is_shown(text: str | bytes, shown: str):
    assert visible(text) == shown
