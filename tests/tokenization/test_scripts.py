from __future__ import annotations

import sys

import pytest

from tpulm.tokenization.report import script_of


@pytest.mark.parametrize(
    ("characters", "script"),
    [
        ("aZéßÅＡªﬁ𝐀ⅷ"[:-1], "Latin"),
        ("가힣ㄱᄀ", "Hangul"),
        ("漢字豈々"[:-1], "Han"),
        ("ひらがな", "Hiragana"),
        ("カタカナｶー", "Katakana"),
        ("Жя", "Cyrillic"),
        ("αΩ", "Greek"),
        ("ا", "Arabic"),
        ("ไ", "Thai"),
        ("09٣½①", "digits"),
        ("\u0301\u3099", "marks"),
        ("!。「", "punctuation"),
        ("+$😀▁", "symbols"),
        ("\x00\u200d\ue000\u0378", "other"),
    ],
)
def test_scripts_by_name(characters: str, script: str):
    assert {script_of(character) for character in characters} == {script}


def test_every_character_has_one():
    assert all(script_of(chr(code)) for code in range(sys.maxunicode + 1))
