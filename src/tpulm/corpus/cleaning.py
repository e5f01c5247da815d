"""Cleaning, one batch at a time: a megabyte is checked as a whole, and only what needs it is rewritten.

A line end is "\\n" or "\\r\\n"; all other white space (tabs, U+2028, a lone "\\r", the ideographic space) is a blank. First
the matches of `remove` are deleted, document by document, then control characters, and Unicode is normalized. With `whitespace
= "collapse"`, "\\r\\n" becomes "\\n", a run of blanks becomes one space, and blanks around line ends and white space around
documents are removed. Then personal data are replaced, if requested, runs of more than `max_repeats` equal characters are cut,
except digits (1000000 is a number), and documents are left out by length and by language. Except for `remove`, cleaning twice
changes nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, islice
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from tpulm.config import CleaningConfig
from tpulm.config.schema import PATTERNS
from tpulm.corpus.documents import DocumentBatch, Reason, Samples
from tpulm.errors import ConfigError, MissingExtra, installing, suggest
from tpulm.runtime.interrupt import time_limit

# What str.isspace() accepts, except the space and "\n". Two dozen searches for one character are as fast as one for a class.
ODD_BLANKS: Final = (
    *"\t\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\xa0\u1680", *map(chr, range(0x2000, 0x200B)), *"\u2028\u2029\u202f\u205f\u3000"
)  # fmt: skip
# What BERT's cleaning removes: C0 and C1 controls that are no blanks, invisible marks and U+FFFD; but neither the joiners that
# scripts and emoji need, nor the space of no width by which Thai, Lao, Burmese and Khmer separate words (Unicode 23.2).
_REMOVED_ANYWHERE: Final = (
    *map(chr, (*range(1, 9), *range(0x0E, 0x1C), *range(0x7F, 0x85), *range(0x86, 0xA0))), *"\u2060\ufeff\ufffd"
)  # fmt: skip
_NO_WIDTH: Final = "\u200b"
CONTROLS: Final = f"[{''.join(_REMOVED_ANYWHERE)}]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]){_NO_WIDTH}"
CONTROL_CHARACTERS: Final = "control characters"  # as they are counted
_CONTROLS = re.compile(CONTROLS)
_SPACES = re.compile("  +")
_LINES_AT_EDGE = re.compile(r"(?<!\n)\n++\0\n*+|\0\n++")  # possessive: linear on long runs of line ends

_NORMALIZED_AT_ONCE: Final = 512  # characters
_LEAST_FIRST: Final = -64  # of UTF-8, read as int8: lower bytes continue a character

_MATCHING_SECONDS: Final = 30.0  # of CPU time per megabyte; most patterns take 0.1
_TOO_SLOW: Final = (
    "needs more than 30 seconds for a megabyte of text: nested repetitions such as (a+)+ try every way to divide a text; "
    "make them possessive (a++) or say what may not follow ([^》]*》)"
)

_Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


class Markup(NamedTuple):
    """What shows that a document is no plain text yet."""

    pattern: re.Pattern[str]
    remedy: str


MARKUP: Final = {
    "HTML tags": Markup(
        re.compile(r"</?(?:a|b|br|div|em|font|h[1-6]|hr|i|img|li|p|span|strong|table|td|tr|ul)(?:\s[^<>]*)?/?>", re.IGNORECASE),
        "corpus.cleaning.remove = ['<[^<>]+>'] deletes them",
    ),
    "HTML entities such as &amp;": Markup(
        re.compile(r"&(?:amp|apos|gt|lt|nbsp|quot|#\d+|#x[0-9A-Fa-f]+);"), "decode them first: Python's html.unescape does"
    ),
    "Aozora Bunko's notes ［＃…］": Markup(re.compile("［＃"), "corpus.cleaning.remove = ['aozora'] deletes them and ruby"),
}


class Cleaned(NamedTuple):
    documents: list[bytes]  # UTF-8
    text: str  # the same, separated by NUL
    sizes: np.ndarray  # int64, bytes of each document
    characters: np.ndarray  # int64, of each document


class Cleaner:
    """Applies the settings, and counts by reason what it leaves out."""

    def __init__(self, config: CleaningConfig):
        self._config = config
        repeats = config.max_repeats
        if config.languages:
            _check_languages(config.languages)
        self.counts = defaultdict[str, Counter[str]](Counter)  # in all batches, by the fields of manifest.Counts
        self.samples = Samples()  # of what is left out, deleted or replaced
        self._remove = [re.compile(one) for pattern in config.remove for one in PATTERNS.get(pattern, (pattern,))]
        self._repeats = {mark: re.compile(rf"([^\d{mark}])\1{{{repeats},}}") for mark in "\n\0"} if repeats else {}

    def clean(self, batch: DocumentBatch, skipped: Counter[str]) -> Cleaned:
        text, separator = batch
        for pattern in self._remove:
            text = self._without(pattern, text, separator)
        if any(character in text for character in (_NO_WIDTH, *_REMOVED_ANYWHERE)):
            text = self._without(_CONTROLS, text, separator, CONTROL_CHARACTERS)
        if self._config.unicode_form != "none" and not text.isascii():
            text = _normalized(text, separator, self._config.unicode_form)
        if self._config.whitespace == "collapse":
            text = _collapse(text, separator)
        if self._config.replace:
            text = replaced(text, self._config.replace, self.counts["replaced"], self.samples)
        if repeats := self._config.max_repeats:
            text = self._repeats[separator].sub(lambda run: run[1] * repeats, text)
        for name, markup in MARKUP.items():
            if markup.pattern.search(text):
                self.counts["markup"].update(name for one in text.split(separator) if markup.pattern.search(one))
        data = (text + separator).encode()
        sizes, characters = _lengths(data, separator)
        keep = self._by_length(text, separator, characters, skipped)
        if self._config.languages:
            keep &= self._by_language(text, separator, keep, skipped)
        documents = data.split(separator.encode())[:-1]
        if keep.all():
            return Cleaned(documents, text.replace(separator, "\0"), sizes, characters)
        documents = list(compress(documents, keep.tolist()))
        return Cleaned(documents, b"\0".join(documents).decode(), sizes[keep], characters[keep])

    def _without(self, pattern: re.Pattern[str], text: str, separator: str, name: str = "") -> str:
        """Delete the matches of `pattern`, document by document: no match spans two of them."""
        documents, name = text.split(separator), name or pattern.pattern
        with time_limit(_MATCHING_SECONDS, f"corpus.cleaning.remove: '{name}' {_TOO_SLOW}"):
            matching = [(index, document) for index, document in enumerate(documents) if pattern.search(document)]
            reason = f"/{name}/"
            if self.samples.wants(reason):
                shown = (_with_context(text, match) for _, text in matching for match in pattern.finditer(text))
                self.samples.add(reason, islice(shown, 3))
            for index, document in matching:
                documents[index], number = pattern.subn("", document)
                self.counts["removed_matches"][name] += number
                self.counts["removed_characters"][name] += len(document) - len(documents[index])
        return separator.join(documents) if matching else text

    def _by_length(self, text: str, separator: str, lengths: np.ndarray, skipped: Counter[str]) -> np.ndarray:
        """Which documents are kept, bool [N]; the others are counted under the first reason that applies."""
        config = self._config
        empty = lengths == 0
        if config.whitespace == "keep":
            empty |= np.fromiter(map(str.isspace, text.split(separator)), bool, len(lengths))
        reasons: list[tuple[Reason, np.ndarray]] = [("empty", empty), ("too_short", lengths < config.min_characters)]
        if config.max_characters is not None:
            reasons.append(("too_long", lengths > config.max_characters))
        keep = np.ones(len(lengths), bool)
        for reason, holds in reasons:
            selected = np.flatnonzero(keep & holds)
            if len(selected):
                skipped[reason] += len(selected)
                keep &= ~holds
                if reason != "empty" and self.samples.wants(reason):
                    documents = text.split(separator)
                    self.samples.add(reason, (documents[index] for index in selected.tolist()))
        return keep

    def _by_language(self, text: str, separator: str, keep: np.ndarray, skipped: Counter[str]) -> np.ndarray:
        """Which documents are in one of the languages or an uncertain one, bool [N]; only those in `keep` are examined.

        A document that is too short to tell, or has no words, is uncertain.
        """
        reason: Reason = "other_language"
        documents, matches = text.split(separator), np.ones(len(keep), bool)
        for index in np.flatnonzero(keep).tolist():
            language, probability = _identifier().classify(documents[index][:_CHARACTERS])
            certain = probability >= _CERTAIN
            self.counts["languages"][language if certain else _UNCERTAIN] += 1
            if certain and language not in self._config.languages:
                matches[index] = False
                skipped[reason] += 1
                self.samples.add(reason, [f"{language} {probability:.2f}: {documents[index]}"])
        return matches


def _normalized(text: str, separator: str, form: _Form) -> str:
    """Normalize half by half, skipping normalized halves. No characters compose or are reordered across a separator."""
    if unicodedata.is_normalized(form, text):
        return text
    middle = text.find(separator, len(text) // 2) if len(text) > _NORMALIZED_AT_ONCE else -1
    if middle < 0:
        return unicodedata.normalize(form, text)
    halves = text[:middle], text[middle + 1 :]
    return separator.join([_normalized(half, separator, form) for half in halves])


def _lengths(data: bytes, separator: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and characters of each document, int64 [N] each; `data` is UTF-8 with the separator after each document."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(separator)) + 1
    starts = np.append(0, ends[:-1])
    sizes = ends - starts - 1
    if data.isascii():
        return sizes, sizes
    begins = np.frombuffer(data, np.int8) >= _LEAST_FIRST
    return sizes, np.add.reduceat(begins, starts, dtype=np.int32).astype(np.int64) - 1  # without the separator


def _collapse(text: str, separator: str) -> str:
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    for blank in ODD_BLANKS:
        if blank in text:
            text = text.replace(blank, " ")
    if "  " in text:
        text = _SPACES.sub(" ", text)
    text = text.replace(" \n", "\n").replace("\n ", "\n")
    if separator == "\n":
        return text.strip(" ")
    text = text.replace(" \0", "\0").replace("\0 ", "\0").strip(" \n")
    return _LINES_AT_EDGE.sub("\0", text) if "\n" in text else text


# Personal data are found only by form: an order number written like a telephone number is replaced too, and names are not
# found. Ungrouped digits count as a telephone number only after a "+".
EMAIL, PHONE = "<email>", "<phone>"
_CONTEXT: Final = 60  # characters of a sample on each side
_LINE_END: Final = re.compile(r"[\n\0]")

_EMAIL: Final = re.compile(
    r"(?<![\w.+%@-])[a-zA-Z0-9_](?:[\w.+%-]{0,62}[\w+%-])?@(?:[a-zA-Z0-9-]{1,63}\.){1,8}[a-zA-Z]{2,24}(?![\w@])", re.ASCII
)
_PHONE: Final = re.compile(
    r"(?<![\w./,:+-])"
    r"(?:"
    r"\+\d{1,3}[ .-]?(?:\(0?\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,3}"  # +82 10-1234-5678
    r"|\(0\d{1,4}\)[ .-]?\d{2,4}[ .-]\d{3,4}"  # (02) 123-4567
    r"|0\d{1,4}([ .-])\d{3,4}\1\d{4}"  # 010-1234-5678, 03-1234-5678
    r"|\(\d{3}\)[ .-]?\d{3}[ .-]\d{4}|\d{3}([.-])\d{3}\2\d{4}"  # (212) 555-0123
    r")"
    r"(?![\w+-]|[./,:]\d)",
    re.ASCII,
)
_FORMS: Final = {"email": (_EMAIL, "@", EMAIL), "phone": (_PHONE, "", PHONE)}


def replaced(text: str, kinds: Sequence[str], counts: Counter[str], samples: Samples) -> str:
    """The text with data of these kinds ("email", "phone") replaced by placeholders, whose numbers are added to `counts`."""
    for kind in kinds:
        form, sign, placeholder = _FORMS[kind]
        if sign in text:
            if samples.wants(kind):
                samples.add(kind, (_with_context(text, match) for match in form.finditer(text)))
            text, number = form.subn(placeholder, text)
            if number:
                counts[kind] += number
    return text


def _with_context(text: str, match: re.Match[str]) -> str:
    """The match in brackets, with nearby text of its line."""
    before = _LINE_END.split(text[max(0, match.start() - _CONTEXT) : match.start()])[-1]
    after = _LINE_END.split(text[match.end() : match.end() + _CONTEXT])[0]
    return f"{before}[{match[0]}]{after}"


_CHARACTERS: Final = 1_000  # examined per document: enough to tell, and 97 languages are compared
_CERTAIN: Final = 0.5  # of the probability
_UNCERTAIN: Final = "uncertain"


def _check_languages(languages: Sequence[str]) -> None:
    """Raise ConfigError for a language that cannot be recognized, and MissingExtra without the package."""
    _package()
    known = _identifier().labels
    for language in languages:
        if language not in known:
            raise ConfigError(
                f"corpus.cleaning.languages: '{language}' is not among the {len(known)} languages that can be "
                f"recognized, by codes of ISO 639.{suggest(language, known)}"
            )


def languages_version() -> str:
    """The package and its version: another version may decide differently."""
    return f"py3langid {_package().__version__}"


@lru_cache(maxsize=1)
def _identifier() -> Any:
    """py3langid (Lui and Baldwin 2012; Barbaresi): `classify` gives a language, by its code of ISO 639, and its probability."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _package() -> Any:
    try:
        import py3langid
    except ImportError as error:
        raise MissingExtra(f"corpus.cleaning.languages needs a package more: {installing('languages')}") from error
    return py3langid
