"""Where a text may be cut so that the pieces, tokenized one by one, give the tokens of the whole.

`cutter` returns a `Cutter` only for pipelines for which this can be shown; other text goes to the tokenizer whole.

Normalisers are safe at a space when they treat characters one by one (lower-casing, cleaning, padding Chinese characters) or
are one of Unicode's forms: a space has combining class 0 and composes with nothing before it, so nothing moves or merges across
the point in front of it.

BERT's pre-tokenizer throws blanks away and makes each punctuation mark, and with the normaliser's help each Chinese
character, a word of its own. So text falls apart at every space, line end, mark and Chinese character. Only marks and
characters are used here that have been such in every version of Unicode; the rest stay inside their chunk, where the
tokenizer splits them. "=" and a following U+0338 could compose, so marks are used only with BERT's own normaliser, which
composes nothing before it has removed those.

Byte-level BPE (GPT-2's expression) begins a word at a space between two characters that are not blank: no alternative of the
expression crosses from a visible character into a blank, and its look-ahead concerns runs of blanks alone. Any other blank
stays inside its chunk. A letter and a mark beside it are never in one word, but for an apostrophe before letters ('s), so text
falls apart there, too, where both are such in every version of Unicode, no normaliser takes characters apart, and no space is
put before what stands alone; and between letters where no token reaches across (see crossings.py), but for Latin ones, which an
apostrophe may bind, and if nothing composes letters with what follows.

Metaspace turns each space into "▁", adds one at the very start, and begins a word at each. A chunk with the space before it is
treated alone as it is in the text. What follows Metaspace in a sequence sees one such word at a time. Where that is our own
expression for Unigram, text falls apart beside marks and between letters as above; its chunks have every "▁" as a space and go
to a tokenizer that adds none.

A cut looks at a slice of texts as an array of characters: a table says what kind each is, and where the kind changes a chunk
begins. So a character costs nanoseconds, and only chunks that are not known yet (known_chunks.py) become strings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from tpulm.tokenization.crossings import Crossings, crossings
from tpulm.tokenization.pipelines import SPACE, Specified, is_unigram, steps, unigram_words

_MARKS: Final = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~、。「」『』（）！？…"
_CHINESE: Final = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF))
# Blank to some library in some version:
_BLANK: Final = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u180e"
    + "".join(map(chr, range(0x2000, 0x200C)))
    + ("\u2028\u2029\u202f\u205f\u2060\u3000\ufeff")
)
# Latin, which comes first, kana with its long mark, Chinese, Hangul syllables:
_LETTERS: Final = (
    (0x41, 0x5A), (0x61, 0x7A), (0x3041, 0x3094), (0x30A1, 0x30FA), (0x30FC, 0x30FC), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
)  # fmt: skip
_SPACE: Final = ord(" ")
_MANY_LETTERS: Final = 0.01
SLICE_CHARACTERS = 1 << 17  # worth cutting at once, in the processor's cache

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

Points = np.ndarray  # the characters of a block of texts: uint8 [T] where all are ASCII, else uint32 [T]
Starts = Callable[[Points, np.ndarray], np.ndarray]  # bool [T]: where a chunk begins, given where the texts do


class Chunks(NamedTuple):
    """The chunks of N texts in order: C in all, of which many are equal."""

    text: str  # all texts, one after another
    points: Points  # its characters
    starts: np.ndarray  # int64 [C], where in it a chunk begins, which goes on to the next
    ends: np.ndarray  # int64 [N], the chunks up to and with each text
    dropped: str  # characters that stand between chunks, and are in none

    @property
    def sizes(self) -> np.ndarray:
        """Characters, with those between a chunk and the next; int64 [C]."""
        return np.diff(self.starts, append=len(self.points))

    def strings(self, which: np.ndarray) -> list[str]:
        text, starts = self.text, self.starts[which]
        ends = (starts + self.sizes[which]).tolist()
        found = [text[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        return [chunk.rstrip(self.dropped) for chunk in found] if self.dropped else found


class Cutter:
    """Cuts texts where `starts` says; the characters in `dropped` stand at the ends of chunks and are in none.

    `for_chunks` is the tokenizer that gives the tokens of a chunk; if it is not the one of the texts, then because chunks bring
    the space that it would add to a text.
    """

    def __init__(self, for_chunks: Specified, starts: Starts, *, dropped: str = "", adds_space: bool = False):
        self.for_chunks = for_chunks
        self._starts = starts
        self._dropped = dropped
        self._adds_space = adds_space

    def cut(self, texts: Sequence[str]) -> Chunks:
        """Raises UnicodeEncodeError for a lone surrogate."""
        if self._adds_space:
            texts = [text if not text or text.startswith((" ", SPACE)) else f" {text}" for text in texts]
        text = "".join(texts)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(sizes)
        is_ascii = text.isascii()
        points = np.frombuffer(text.encode("ascii"), np.uint8) if is_ascii else np.frombuffer(text.encode("utf-32-le"), "<u4")
        starts = np.flatnonzero(self._starts(points, (ends - sizes)[sizes > 0]))
        return Chunks(text, points, starts, np.searchsorted(starts, ends), self._dropped)


def cutter(pipeline: Specified) -> Cutter | None:
    """What cuts for this tokenizer, or None when nothing can be promised."""
    specification = pipeline.specification
    if any(not token["special"] for token in specification["added_tokens"]):
        return None  # these are found anywhere in the text, before anything else happens
    normalizers = steps(specification["normalizer"], "normalizers")
    pre_tokenizers = steps(specification["pre_tokenizer"], "pretokenizers")
    if not pre_tokenizers:
        return None
    first, rest = pre_tokenizers[0], {step["type"] for step in pre_tokenizers[1:]}
    names = {step["type"] for step in normalizers}
    if not (names <= _BY_CHARACTER and rest <= _WITHIN_A_WORD):
        return None
    composes = names <= {"Lowercase", "NFC"}  # and takes nothing apart
    match first["type"]:
        case "BertPreTokenizer":
            return _at_kinds(pipeline, *_bert(normalizers))
        case "Whitespace" | "WhitespaceSplit":
            return _at_kinds(pipeline)
        case "ByteLevel" if first.get("use_regex", True) and names <= _KEEPS_BLANKS_APART:
            if not composes or rest or first["add_prefix_space"]:
                return Cutter(pipeline, _lone_spaces)
            return Cutter(pipeline, _letters_and_marks(_lone_spaces, specification["model"], "BPE", names))
        case "Metaspace" if first.get("split", True) and first["prepend_scheme"] in ("always", "never"):
            if not composes or not is_unigram(specification["pre_tokenizer"]):
                return Cutter(pipeline, _every_space)
            adds_space, for_chunks = first["prepend_scheme"] == "always", _without_space_before(pipeline)
            starts = _letters_and_marks(_every_space, specification["model"], "Unigram", names)
            return Cutter(for_chunks, starts, adds_space=adds_space)
    return None


def _without_space_before(unigram: Specified) -> Specified:
    """The same pipeline of our Unigram, but that it puts nothing before a text."""
    tokenizer = Tokenizer(unigram.tokenizer.model)
    tokenizer.normalizer = unigram.tokenizer.normalizer
    tokenizer.pre_tokenizer = unigram_words("never")
    parts = unigram.specification["pre_tokenizer"]["pretokenizers"]
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [{**parts[0], "prepend_scheme": "never"}, *parts[1:]]}
    return Specified(tokenizer, {**unigram.specification, "pre_tokenizer": pre_tokenizer})


def _bert(normalizers: list[dict[str, Any]]) -> tuple[str, Sequence[tuple[int, int]]]:
    """The marks, and the ranges of characters that are words of their own."""
    if [step["type"] for step in normalizers[:1]] != ["BertNormalizer"]:
        return "", ()
    bert, others = normalizers[0], [step["type"] for step in normalizers[1:]]
    if others and not (others == ["NFC"] and bert["strip_accents"]):
        return "", ()
    return _MARKS, _CHINESE if bert["handle_chinese_chars"] else ()


_DROPPED, _WORD, _MARK, _SINGLE = range(4)


def _at_kinds(pipeline: Specified, marks: str = "", singles: Sequence[tuple[int, int]] = ()) -> Cutter:
    """Runs of marks and runs of other characters, without spaces and line ends; each of `singles` alone."""
    table = np.full(0x110000, _WORD, np.uint8)
    table[list(map(ord, marks))] = _MARK
    for first, last in singles:
        table[first : last + 1] = _SINGLE
    table[[_SPACE, ord("\n")]] = _DROPPED

    def starts(points: Points, begins: np.ndarray) -> np.ndarray:
        kinds = table[points]
        found = _changes(kinds)
        found[begins] = True
        if singles:
            found |= kinds == _SINGLE
        found &= kinds != _DROPPED
        return found

    return Cutter(pipeline, starts, dropped=" \n")


def _every_space(points: Points, begins: np.ndarray) -> np.ndarray:
    found = points == _SPACE
    found[begins] = True
    return found


def _lone_spaces(points: Points, begins: np.ndarray) -> np.ndarray:
    """Spaces between two visible characters."""
    is_blank = _IS_BLANK[points]
    found = points == _SPACE
    found[1:] &= ~is_blank[:-1]
    found[:-1] &= ~is_blank[1:]
    found[-1:] = False
    found[begins[1:] - 1] = False  # the last character of a text
    found[begins] = True
    return found


def _letters_and_marks(starts: Starts, model: Mapping[str, Any], kind: str, normalizers: set[str]) -> Starts:
    """Where `starts` says, between letters and marks, and, of a model of this kind, between letters where no token reaches
    across."""
    may_fall_apart = model["type"] == kind and normalizers <= {"Lowercase"}

    @cache
    def seams() -> Crossings | None:
        return crossings(model, np.concatenate([np.arange(first, last + 1, dtype=np.uint32) for first, last in _LETTERS[2:]]))

    def more_starts(points: Points, begins: np.ndarray) -> np.ndarray:
        found = starts(points, begins)
        kinds = _LETTER_OR_MARK[points]
        found[1:] |= kinds[1:] + kinds[:-1] == 3
        if may_fall_apart and _has_many_letters(points) and (letters := seams()) is not None:
            found[1:] |= ~letters.between(points)
        return found

    return more_starts


def _has_many_letters(points: Points) -> bool:
    """Of those between which text may fall apart; looking for a few is not worth what it takes to know all seams."""
    return points.dtype != np.uint8 and bool(np.mean(points >= _LETTERS[2][0]) > _MANY_LETTERS)


_LETTER_OR_MARK: Final = np.zeros(0x110000, np.uint8)
_LETTER_OR_MARK[[ord(mark) for mark in _MARKS if mark != "'"]] = 2
for _first, _last in _LETTERS:
    _LETTER_OR_MARK[_first : _last + 1] = 1

_IS_BLANK: Final = np.zeros(0x110000, bool)
_IS_BLANK[list(map(ord, _BLANK))] = True


def _changes(values: np.ndarray) -> np.ndarray:
    found = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found
