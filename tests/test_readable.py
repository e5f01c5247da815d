from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tpulm.readable import amount, decimals, dollars, duration, pasteable, percent, size, visible


def test_money():
    amounts = [None, 0.0, 9e-05, 0.0099, 0.01, 8.0, 352.4, 999.999, 1234.5]
    cent = "less than a cent"
    assert [dollars(amount) for amount in amounts] == ["?", "$0", cent, cent, "$0.01", "$8.00", "$352.40", "$1,000", "$1,234"]


def test_durations():
    assert [duration(seconds) for seconds in (0, 0.3, 42.4, 119)] == ["0 s", "less than a second", "42 s", "119 s"]
    assert [duration(seconds) for seconds in (119.9, 720, 7_140)] == ["2 min", "12 min", "119 min"]
    assert [duration(seconds) for seconds in (7_199, 12_240, 449_280)] == ["2.0 h", "3.4 h", "5.2 days"]


def test_shares_are_never_rounded_to_all_or_nothing():
    assert [percent(share) for share in (1.0, 0.9999999, 0.99999)] == ["100.000%", ">99.999%", "99.999%"]
    assert [percent(share) for share in (0.99128, 1e-9, 0.0)] == ["99.128%", "<0.001%", "0.000%"]
    assert (percent(0.99998, 2), percent(0.5, 1)) == (">99.99%", "50.0%")


def test_small_numbers_keep_their_digits():
    plain = [decimals(0.82541), decimals(0.82541, 0.00004), decimals(0.0), decimals(1234.5)]
    assert plain == ["0.8254", "0.8254 ± 0.0000", "0.0000", "1234.5000"]
    small = [decimals(1.234e-7), decimals(-1.234e-7, 2e-9), decimals(0.0123, places=2)]
    assert small == ["1.23e-07", "-1.23e-07 ± 2e-09", "0.0123"]


def test_sizes():
    assert (size(99_999), size(100_000), size(1_234_567_890)) == ("99,999 bytes", "0.1 MB", "1,234.6 MB")


def test_amounts():
    assert [amount(count) for count in (950, 37_024, 999_499, 999_500, 4_200_000)] == ["950", "37k", "999k", "1.0M", "4.2M"]


def test_names_that_are_not_utf8_can_be_pasted(tmp_path: Path):
    """bash is the judge."""
    folder = tmp_path / os.fsdecode(b"d_\xc7\xd1\xb1\xdb\\x")
    folder.mkdir()
    shown = pasteable(f"cannot write {folder}: no, ")
    word = shown.removeprefix("cannot write ").removesuffix(": no, ")
    assert shown.isprintable() and subprocess.run(["bash", "-c", f"cd {word}"], check=False).returncode == 0
    assert pasteable("한글 \ud800") == "한글 \ud800"


def test_what_cannot_be_seen_is_shown():
    assert visible("a\x1b[31m\x00\n") == "a␛[31m␀␊"
    assert visible("a\u202eb\u200b\x85") == "a⟨U+202E⟩b⟨U+200B⟩⟨U+0085⟩"
    assert visible("👨\u200d👩 ok") == "👨\u200d👩 ok"
