"""Which writing system a character belongs to, by the name Unicode gives it."""

from __future__ import annotations

import unicodedata
from functools import cache

_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han", "KATAKANA-HIRAGANA": "Katakana", "FEMININE": "Latin", "MASCULINE": "Latin"}


@cache
def script_of(character: str) -> str:
    """ "Latin", "Hangul", "Han", …; "digits", "marks", "punctuation" and "symbols" for what all share; "other" for the rest."""
    match unicodedata.category(character)[0]:
        case "N":
            return "digits"
        case "M":
            return "marks"
        case "P":
            return "punctuation"
        case "S":
            return "symbols"
        case "L":
            plain = unicodedata.normalize("NFKC", character)[0]  # without width, style and ligature
            first = unicodedata.name(plain, "other").split()[0]
            return _NAMES.get(first, first if first == "other" else first.capitalize())
    return "other"
