"""How well a vocabulary fits a text: what is unknown, how many tokens it takes, which scripts and documents fare worst."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from tokenizers import Encoding

from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.runtime import interrupt
from tpulm.tokenization.encode import Encoded, slices
from tpulm.tokenization.pipelines import without_surrogates
from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.training import count_characters

_EXCERPT_CHARACTERS = 60
_ENOUGH_CHARACTERS = 20  # shorter documents are not ranked by tokens per character
_WORD = re.compile(r"\S+")  # as in str.split()


@dataclass(frozen=True)
class ScriptCoverage:
    """How the characters of one script are encoded. `whole`: within one token; `split`: over several tokens, as bytes."""

    script: str
    characters: int
    whole: int
    split: int
    unknown: int

    @property
    def coverage(self) -> float:
        return self.whole / self.characters


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Words are separated by blanks, which do not count as characters. Special tokens are not counted."""

    vocab_size: int
    tokens_used: int  # distinct ids that occurred
    tokens: int
    unknown_tokens: int
    unknown_rate: float  # of the tokens
    unknown_words: float  # share of the words that are partly or wholly unknown
    unknown_characters: float  # share of the characters
    tokens_per_word: float
    tokens_per_character: float
    bytes_per_token: float
    scripts: tuple[ScriptCoverage, ...]  # the most frequent first


class CountedTokens(NamedTuple):
    tokens: int
    unknown_tokens: int
    hidden_characters: int  # those in unknown tokens

    @property
    def cost(self) -> int:
        """The number of tokens, with an unknown one counted once for each character it hides."""
        return self.tokens - self.unknown_tokens + self.hidden_characters


class TextTally:
    """Counts that do not depend on the tokenizer."""

    def __init__(self) -> None:
        self.documents = self.words = self.text_bytes = 0
        self.characters: Counter[str] = Counter()

    def add(self, text: str) -> list[str]:
        """Count a text; returns its words."""
        words = text.split()
        self.characters.update("".join(words))
        self.documents += 1
        self.words += len(words)
        self.text_bytes += len(text.encode())
        return words


class TokenTally:
    """Counts of one tokenizer's tokens."""

    def __init__(self, tokenization: Tokenization):
        self._tokenization, self._encoder = tokenization, tokenization.plain()
        self._used: set[int] = set()
        self._unknown_words = 0
        self._unknown, self._split = Counter[str](), Counter[str]()  # characters
        self.unknown_texts: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()  # of the texts, in tokens

    def add(self, texts: list[str]) -> list[CountedTokens]:
        encodings = self._encoder.encode_batch(texts, add_special_tokens=False)
        return [self._add(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def _add(self, text: str, encoding: Encoding) -> CountedTokens:
        ids, unknown_id = encoding.ids, self._tokenization.special.unknown
        self._used.update(ids)
        self.lengths[len(ids)] += 1
        unknown: list[tuple[int, int]] = []
        end = split_until = 0
        for index, (start, stop) in zip(ids, encoding.offsets, strict=True):
            if index == unknown_id:
                unknown.append((start, stop))
            elif start < end and (again := text[max(start, split_until) : min(stop, end)]):  # begun by an earlier token
                self._split.update(again)
                split_until = max(split_until, min(stop, end))
            if stop > end:
                end = stop
        hidden = [text[start:stop] for start, stop in unknown]
        self.unknown_texts.update(hidden)
        self._unknown.update("".join(hidden))
        if unknown:
            places = {place for start, stop in unknown for place in range(start, stop)}
            self._unknown_words += sum(not places.isdisjoint(range(*word.span())) for word in _WORD.finditer(text))
        return CountedTokens(len(ids), len(hidden), sum(map(len, hidden)))

    def fit(self, texts: TextTally) -> Fit:
        """The fit to the texts, which must have at least one word."""
        tokens, characters = sum(length * count for length, count in self.lengths.items()), texts.characters.total()
        unknown = sum(count for character, count in self._unknown.items() if not character.isspace())
        some = max(1, tokens)  # a tokenizer may drop everything
        return Fit(
            vocab_size=self._tokenization.vocab_size,
            tokens_used=len(self._used),
            tokens=tokens,
            unknown_tokens=self.unknown_texts.total(),
            unknown_rate=self.unknown_texts.total() / some,
            unknown_words=self._unknown_words / texts.words,
            unknown_characters=unknown / characters,
            tokens_per_word=tokens / texts.words,
            tokens_per_character=tokens / characters,
            bytes_per_token=texts.text_bytes / some,
            scripts=tuple(self._scripts(texts)),
        )

    def _scripts(self, texts: TextTally) -> Iterator[ScriptCoverage]:
        characters, split, unknown = map(_by_script, (texts.characters, self._split, self._unknown))
        for script, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
            yield ScriptCoverage(script, count, count - split[script] - unknown[script], split[script], unknown[script])


def _by_script(characters: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for character, count in characters.items():
        found[script_of(character)] += count
    return found


_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han", "KATAKANA-HIRAGANA": "Katakana", "FEMININE": "Latin", "MASCULINE": "Latin"}


@cache
def script_of(character: str) -> str:
    """ "Latin", "Hangul", "Han", …; "digits", "marks", "punctuation" and "symbols" for shared ones; "other" for the rest."""
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


# -- the report on one tokenizer --


@dataclass(frozen=True)
class DocumentReport:
    """One document; `number` counts the texts from 0 in the order they were given."""

    number: int
    excerpt: str
    characters: int
    tokens: int
    unknown_tokens: int


@dataclass(frozen=True, kw_only=True)
class TokenizerReport(Fit):
    """Counts over all texts."""

    documents: int
    words: int
    characters: int
    unknown_texts: tuple[tuple[str, int], ...]  # the most frequent texts of unknown tokens, and how often they occurred
    most_unknown: tuple[DocumentReport, ...]
    most_tokens: tuple[DocumentReport, ...]  # per character

    def summary_rows(self) -> list[tuple[str, str]]:
        """(what, value), for display."""
        return [
            ("documents", f"{self.documents:,}"),
            ("words", f"{self.words:,}"),
            ("characters", f"{self.characters:,}"),
            ("tokens", f"{self.tokens:,}"),
            ("unknown characters", percent(self.unknown_characters)),
            ("unknown tokens", f"{self.unknown_tokens:,} ({percent(self.unknown_rate)})"),
            ("tokens per word", f"{self.tokens_per_word:.3f}"),
            ("tokens per character", f"{self.tokens_per_character:.3f}"),
            (
                "vocabulary used",
                f"{self.tokens_used:,} of {self.vocab_size:,} ({percent(self.tokens_used / self.vocab_size, 1)})",
            ),
        ]

    def script_rows(self) -> list[tuple[str, str, str, str, str]]:
        """(script, characters, whole, split, unknown), under `SCRIPT_HEADER`."""
        return [
            (
                item.script,
                f"{item.characters:,}",
                percent(item.coverage),
                percent(item.split / item.characters),
                percent(item.unknown / item.characters),
            )
            for item in self.scripts
        ]

    def document_rows(self) -> list[tuple[str, str, str, str, str, str]]:
        """(why, number, characters, tokens, unknown, excerpt), under `DOCUMENT_HEADER`."""
        return [
            (why, f"{item.number:,}", f"{item.characters:,}", f"{item.tokens:,}", f"{item.unknown_tokens:,}", item.excerpt)
            for why, items in (("most unknown", self.most_unknown), ("most tokens per character", self.most_tokens))
            for item in items
        ]


SCRIPT_HEADER = ("script", "characters", "in one token", "split", "unknown")
DOCUMENT_HEADER = ("why", "document", "characters", "tokens", "unknown", "begins")


def report(
    tokenization: Tokenization, texts: Iterable[list[str]], *, worst: int = 5, progress: Progress = SILENT
) -> TokenizerReport:
    """Encode batches of texts and count. `worst`: how many documents and unknown texts to show. DataError without any text."""
    counted_texts, counted_tokens = TextTally(), TokenTally(tokenization)
    documents: list[DocumentReport] = []
    progress.start("tokenizer: report", unit="documents")
    for given in texts:
        interrupt.check()
        batch = [without_surrogates(text) for text in given]
        for text, found in zip(batch, counted_tokens.add(batch), strict=True):
            number, words = counted_texts.documents, counted_texts.add(text)
            excerpt, characters = " ".join(words)[:_EXCERPT_CHARACTERS], sum(map(len, words))
            documents.append(DocumentReport(number, excerpt, characters, found.tokens, found.unknown_tokens))
        documents = list({*_most_unknown(documents, worst), *_most_tokens(documents, worst)})
        progress.advance(len(batch))
    if not counted_texts.words:
        raise DataError(f"there is no text to report on: {counted_texts.documents} documents without a single word")
    return TokenizerReport(
        **vars(counted_tokens.fit(counted_texts)),
        documents=counted_texts.documents,
        words=counted_texts.words,
        characters=counted_texts.characters.total(),
        unknown_texts=tuple(counted_tokens.unknown_texts.most_common(worst)),
        most_unknown=tuple(_most_unknown(documents, worst)),
        most_tokens=tuple(_most_tokens(documents, worst)),
    )


def _most_unknown(documents: Iterable[DocumentReport], worst: int) -> list[DocumentReport]:
    found = [item for item in documents if item.unknown_tokens]
    return sorted(found, key=lambda item: (-item.unknown_tokens, -item.unknown_tokens / item.tokens, item.number))[:worst]


def _most_tokens(documents: Iterable[DocumentReport], worst: int) -> list[DocumentReport]:
    found = [item for item in documents if item.characters >= _ENOUGH_CHARACTERS]
    return sorted(found, key=lambda item: (-item.tokens / item.characters, item.number))[:worst]


UNKNOWN_WARNING: Final = 0.02  # fraction of the characters within unknown tokens from which the vocabulary fits poorly
UNKNOWN_REFUSED: Final = 0.3  # … and from which it does not fit at all
_CHARACTERS_JUDGED: Final = 1_000_000
_SHOWN = 8  # characters, and words
_SHOWN_CHARACTERS = 20  # of a word
_WORDS_TRIED = 20_000
_MEASURED: Final = 100_000  # characters of texts with unknown tokens


class Unknowns(NamedTuple):
    """What a vocabulary does not know of texts, in visible characters, and the most frequent characters and words in it."""

    visible: int
    hidden: int  # within unknown tokens
    long: int  # of these, in words of more than `limit` characters
    limit: int
    characters: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def fraction(self) -> float:
        return self.hidden / max(1, self.visible)

    @property
    def is_long(self) -> bool:
        """Whether words too long for the vocabulary are the main cause, which a larger vocabulary does not cure."""
        return self.long > self.hidden / 2

    def __str__(self) -> str:
        shown = [word if len(word) <= _SHOWN_CHARACTERS else f"{word[:_SHOWN_CHARACTERS]}…" for word in self.words]
        examples = [(f"characters {' '.join(self.characters)}" if self.characters else ""), f"words {', '.join(shown)}"]
        why = f"; a word of more than {self.limit} characters is unknown as a whole" if self.is_long else ""
        return f"{self.fraction:.1%} of the text's characters are unknown ({'; '.join(filter(None, examples))}{why})"


def count_unknown(tokenization: Tokenization, texts: Iterable[list[str]]) -> Unknowns:
    """Encode batches of texts and count; blanks separate words."""
    hidden = long = 0.0
    words: Counter[str] = Counter()
    limit = tokenization.max_word_characters
    for batch in texts:
        encoded = tokenization.encode(batch)
        sizes, each = hidden_characters(tokenization, batch, encoded)
        hidden += each * sizes.sum()
        long += each * sizes[sizes > limit].sum()
        for text in batch:
            words.update(text.split())
    visible = sum(len(word) * count for word, count in words.items())
    if not hidden:
        return Unknowns(visible, 0, 0, limit, (), ())
    characters = count_characters((unicodedata.normalize("NFC", word), count) for word, count in words.items())
    alone = [_unknown(tokenization, counts) for counts in (characters, words)]
    return Unknowns(visible, round(hidden), round(long), limit, *alone)


def vocabulary_doubts(tokenization: Tokenization, texts: Sequence[str], name: str) -> list[str]:
    """Warnings if much of the texts is unknown, judged by a million characters of them, or added tokens are not read."""
    cut = tokenization.cut_names(texts)
    unread = [f"{name}: {', '.join(cut)}: cut into morphemes, and not read as the tokens of these names"] if cut else []
    found = count_unknown(tokenization, [list(texts[:: 1 + sum(map(len, texts)) // _CHARACTERS_JUDGED])])
    unfit = [f"{name}: {found}: the model's vocabulary does not fit it"] if found.fraction >= UNKNOWN_WARNING else []
    return unfit + unread


class Hidden(NamedTuple):
    sizes: np.ndarray  # int64, characters within each unknown token that was measured
    each: float  # how many unknown tokens a measured one stands for


def hidden_characters(tokenization: Tokenization, texts: list[str], encoded: Encoded, at_most: int = _MEASURED) -> Hidden:
    """How many characters unknown tokens hide, measured in about `at_most` characters of the texts that have such tokens."""
    unknown = tokenization.special.unknown
    owners = np.repeat(np.arange(len(texts)), encoded.lengths)[encoded.ids == unknown]
    if not owners.size:
        return Hidden(np.zeros(0, np.int64), 0.0)
    some = next(slices([texts[index] for index in np.unique(owners).tolist()], at_most))
    ids, _, spans = tokenization.encode_with_offsets(some)
    sizes = np.diff(spans[ids == unknown], axis=1).reshape(-1)
    return Hidden(sizes, owners.size / max(1, sizes.size))


def _unknown(tokenization: Tokenization, counts: Counter[str]) -> tuple[str, ...]:
    """The most frequent strings that contain an unknown token."""
    tried = [string for string, _ in counts.most_common(_WORDS_TRIED)]
    ids, lengths = tokenization.encode(tried)
    hits = np.repeat(np.arange(len(tried)), lengths)[ids == tokenization.special.unknown]
    return tuple(tried[index] for index in np.unique(hits)[:_SHOWN])
