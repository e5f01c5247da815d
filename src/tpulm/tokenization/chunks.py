"""Where a text may be cut so that the pieces, tokenized one by one, give the tokens of the whole.

`cutter` returns a function only for pipelines for which this can be shown; other text goes to the tokenizer whole.

Normalisers are safe at a space when they treat characters one by one (lower-casing, cleaning, padding Chinese characters) or
are one of Unicode's forms: a space has combining class 0 and composes with nothing before it, so nothing moves or merges across
the point in front of it.

BERT's pre-tokenizer throws blanks away and makes each punctuation mark, and with the normaliser's help each Chinese character,
a word of its own. So text falls apart at every space, mark and Chinese character. Only marks and characters are used here
that have been such in every version of Unicode; the rest stay inside their chunk, where the tokenizer splits them. "=" and a
following U+0338 could compose, so marks are used only with BERT's own normaliser, which composes nothing before it has
removed those.

Byte-level BPE (GPT-2's expression) begins a word at a space between two characters that are not blank: no alternative of the
expression crosses from a visible character into a blank, and its look-ahead concerns runs of blanks alone. Any other blank
stays inside its chunk.

Metaspace turns each space into "▁", adds one at the very start, and begins a word at each. A chunk with the space before it is
treated alone as it is in the text. What follows Metaspace in a sequence sees one such word at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

Cutter = Callable[[str], list[str]]

_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~、。「」『』（）！？…"
_CHINESE = "㐀-䶿一-鿿"

_BLANK = r"[\s\x1c-\x1f\x85\u180e\u200b\u2060\ufeff]"  # to some library in some version
_VISIBLE = _BLANK.replace("[", "[^", 1)
_LONE_SPACES = re.compile(
    rf"(?: ?{_VISIBLE}++|{_BLANK}++{_VISIBLE}*+)(?:(?! {_VISIBLE}){_BLANK}++{_VISIBLE}*+)*+", re.DOTALL
).findall
_SPACES_DROPPED = re.compile(r"[^ ]+").findall
_SPACES_LEADING = re.compile(r" ?[^ ]+| ").findall

_BY_CHARACTER = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
_KEEPS_BLANKS_APART = {"Lowercase", "NFC", "NFD"}  # neither makes a blank of something visible nor deletes anything
_WITHIN_A_WORD = {
    "Split",
    "Punctuation",
    "Digits",
    "UnicodeScripts",
    "CharDelimiterSplit",
    "BertPreTokenizer",
    "WhitespaceSplit",
}


def cutter(tokenizer: Tokenizer) -> Cutter | None:
    """The function that cuts for this tokenizer, or None when nothing can be promised.

    It returns chunks in the order of the text; whatever lies between two chunks has no tokens.
    """
    specification = json.loads(tokenizer.to_str())
    if any(not token["special"] for token in specification["added_tokens"]):
        return None  # these are found anywhere in the text, before anything else happens
    normalizers = _steps(specification["normalizer"], "normalizers")
    pre_tokenizers = _steps(specification["pre_tokenizer"], "pretokenizers")
    if not pre_tokenizers:
        return None
    first, rest = pre_tokenizers[0], {step["type"] for step in pre_tokenizers[1:]}
    names = {step["type"] for step in normalizers}
    if not (names <= _BY_CHARACTER and rest <= _WITHIN_A_WORD):
        return None
    match first["type"]:
        case "BertPreTokenizer":
            return _bert(normalizers)
        case "Whitespace" | "WhitespaceSplit":
            return _SPACES_DROPPED
        case "ByteLevel" if first.get("use_regex", True) and names <= _KEEPS_BLANKS_APART:
            return _LONE_SPACES
        case "Metaspace" if first.get("split", True) and first["prepend_scheme"] in ("always", "never"):
            return _SPACES_LEADING
    return None


def _bert(normalizers: list[dict[str, Any]]) -> Cutter:
    if [step["type"] for step in normalizers[:1]] != ["BertNormalizer"]:
        return _SPACES_DROPPED
    bert, others = normalizers[0], [step["type"] for step in normalizers[1:]]
    if others and not (others == ["NFC"] and bert["strip_accents"]):
        return _SPACES_DROPPED
    chinese = _CHINESE if bert["handle_chinese_chars"] else ""
    marks = re.escape(_MARKS)
    single = f"|[{chinese}]" if chinese else ""
    return re.compile(f"[^ {marks}{chinese}]+|[{marks}]+{single}").findall


def _steps(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A normaliser or pre-tokenizer of tokenizer.json as a flat list."""
    if component is None:
        return []
    if component["type"] == "Sequence":
        return [step for part in component[key] for step in _steps(part, key)]
    return [component]
