"""Rule-based sentence splitting: Korean, Japanese, Chinese and English well, other languages by punctuation and line ends.

BERT's segments are made of sentences, so a missing or extra boundary costs little, while speed matters: one compiled regular
expression finds candidates, and Python examines one only if its full stop may belong to an abbreviation.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

_CLOSING = r"\"'”’»」』）)］\]｝}〉》】〕〗"
_MARKS = ".!?…。！？｡"
# Latin, Greek, Cyrillic and Armenian. Georgian has upper-case letters, too, but sentences do not begin with them.
_LOWER = "".join(filter(str.islower, map(chr, (*range(0x61, 0x590), *range(0x1E00, 0x2000)))))

# What follows the first of a run of marks (only the first, or long runs would take quadratic time), by kind:
# - full-width: no space needed; not in 「…。」と, where the sentence continues after the quotation;
# - Korean without a space: 재밌어요.진짜, after a syllable that ends sentences, or after "!" and "?";
# - Latin: white space, and no lower-case letter after it, unless the text's sentences begin with one;
# - other scripts: anything, but white space after Greek's question mark;
# - a line end: no lower-case letter, which shows that the line was only wrapped.
_PATTERN: Final = rf"""
    [{_MARKS}．।॥؟۔።፧։།៕;\n] (?<![{_MARKS}][{_MARKS}])
    (?:
        (?: (?<=[。！？｡]) [{_MARKS}]*+ | [{_MARKS}]++ (?<=[。！？｡]) )
        (?: [{_CLOSING}]++ (?![とっ、，]) | (?![{_CLOSING}]) ) \s*+
      | (?: (?<=[다요죠까네음임함됨]\.) | (?<=[가-힣][!?]) ) [.!?~]*+ (?=[가-힣])
      | (?<=[ぁ-ヿ一-鿿々][!?]) [!?]*+ (?: [{_CLOSING}]++ (?![とっ、，]) | (?![{_CLOSING}]) ) (?=[ぁ-ヿ一-鿿「『（])
      | (?<=[.!?…]) [.!?…]*+ [{_CLOSING}]*+ (?: [^\S\n]*+ \n \s*+ | [^\S\n]++ (?! [,;:)\]] | LOWER ) )
      | (?<=．) [{_CLOSING}]*+ (?![0-9０-９A-Za-zＡ-Ｚａ-ｚ]) \s*+
      | (?<=[।॥؟۔።፧։།៕]) [।॥؟۔።፧։།៕]*+ [{_CLOSING}]*+ \s*+
      | (?<=[Ͱ-Ͽἀ-῿];) [{_CLOSING}]*+ \s++
      | (?<=\n) [^\S\n]*+ (?: \n \s*+ | (?![{_LOWER}]) )
    )
"""
_CANDIDATE: Final = re.compile(_PATTERN.replace("LOWER", f"[{_LOWER}]"), re.VERBOSE)
_CANDIDATE_IN_LOWER_CASE: Final = re.compile(_PATTERN.replace("| LOWER", ""), re.VERBOSE)

_LOWER_LETTER: Final = re.compile(f"[{_LOWER}]")
_BEGINNING: Final = re.compile(r"\w\w ?[.!?]\s+([^\W\d_])")  # the first letter after a word and a mark
_SEEN: Final = 20_000  # characters, enough to tell how sentences begin
_LONGEST_WORD: Final = 64  # characters looked at before a full stop
_LEAST_BEGINNINGS: Final = 3  # a single one may follow "Soft!"

# Polite endings that end a Korean sentence even without a full stop.
_KOREAN_ENDING: Final = re.compile(r"(?:니다|[어아해네세에예군까게데지나래대]요) +(?=[가-힣A-Za-z0-9\"'“‘(])")

_ABBREVIATIONS: Final = frozenset({
    "mr", "mrs", "ms", "messrs", "mme", "mlle", "dr", "prof", "st", "sr", "jr", "gen", "col", "lt", "sgt", "capt", "cmdr",
    "maj", "rev", "hon", "pres", "gov", "sen", "rep", "mt", "ft", "vs", "cf", "al", "viz", "ca", "approx",
})  # fmt: skip
_BEFORE_NUMBERS: Final = frozenset({
    "no", "nos", "vol", "vols", "p", "pp", "fig", "figs", "eq", "eqs", "sec", "ch", "chap", "art", "par",
    "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
})  # fmt: skip
# Where sentences begin with lower-case letters: after these abbreviations, an ellipsis or a quotation the sentence goes on.
_GOES_ON: Final = re.compile("\\.\\.|…|.*[\"'”’»]")
_MORE_ABBREVIATIONS: Final = _ABBREVIATIONS | {"etc", "inc", "ltd", "corp", "co", "dept", "ave", "blvd", "bros"}


def split_sentences(text: str) -> list[str]:
    """The sentences in order, without surrounding white space. Nothing else is lost."""
    sentences: list[str] = []
    begin = 0
    in_lower_case = _is_in_lower_case(text)
    candidates = _CANDIDATE_IN_LOWER_CASE if in_lower_case else _CANDIDATE
    abbreviations = _MORE_ABBREVIATIONS if in_lower_case else _ABBREVIATIONS
    for match in candidates.finditer(text):
        mark, end = match.span()
        if text[mark] == "." and not _ends_sentence(text, begin, mark, end, abbreviations):
            continue
        if in_lower_case and _GOES_ON.match(match[0]) and text[end : end + 1] in _LOWER:
            continue
        _append(sentences, text[begin:end].strip())
        begin = end
    _append(sentences, text[begin:].strip())
    return sentences


def _is_in_lower_case(text: str) -> bool:
    """Whether all of its letters are lower-case, or nearly all of its sentences begin with a lower-case letter."""
    if text.islower():
        return _LOWER_LETTER.search(text) is not None
    first = _BEGINNING.findall(text[:_SEEN])
    lower = sum(letter in _LOWER for letter in first)
    return lower >= _LEAST_BEGINNINGS and lower > 0.8 * len(first)


def _append(sentences: list[str], sentence: str) -> None:
    if "요 " in sentence or "니다 " in sentence:
        begin = 0
        for match in _KOREAN_ENDING.finditer(sentence):
            sentences.append(sentence[begin : match.end()].rstrip())
            begin = match.end()
        sentence = sentence[begin:]
    if sentence:
        sentences.append(sentence)


def _ends_sentence(text: str, begin: int, mark: int, end: int, abbreviations: Set[str]) -> bool:
    """Whether the full stop at `mark` ends a sentence, rather than an abbreviation, an initial or a list number."""
    before = text[mark - 1 : mark]
    if not before.isalnum() or not (before.isdigit() or before.lower() != before.upper()):  # scripts without two cases
        return True
    low = max(begin, mark - _LONGEST_WORD)  # or a long line without a sentence would be searched again and again
    word_begin = max(text.rfind(" ", low, mark), text.rfind("\n", low, mark), low - 1) + 1
    word = text[word_begin:mark].lstrip("\"'“‘([")
    if before.isdigit():
        return not (word.isdigit() and word_begin == begin)
    if len(word) == 1:
        return not (word.isascii() or word.isupper())
    if "." in word:  # U.S., e.g.; but not "example.com."
        return any(len(letters) > 1 for letters in word.split("."))
    word = word.lower()
    return not (word in abbreviations or (word in _BEFORE_NUMBERS and text[end : end + 1].isdigit()))
