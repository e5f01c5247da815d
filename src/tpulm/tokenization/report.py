"""How well a vocabulary fits a text: what is unknown, how many tokens it takes, which scripts and documents fare worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.runtime import interrupt
from tpulm.tokenization.pipelines import without_surrogates
from tpulm.tokenization.tally import Fit, TextTally, TokenTally
from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.training import count_characters

_EXCERPT_CHARACTERS = 60
_ENOUGH_CHARACTERS = 20  # shorter documents are not ranked by tokens per character


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
    unknown_texts: tuple[tuple[str, int], ...]  # the commonest texts of unknown tokens, and how often they occurred
    most_unknown: tuple[DocumentReport, ...]
    most_tokens: tuple[DocumentReport, ...]  # per character

    def summary_rows(self) -> list[tuple[str, str]]:
        """(what, value), ready to be drawn."""
        return [
            ("documents", f"{self.documents:,}"),
            ("words", f"{self.words:,}"),
            ("characters", f"{self.characters:,}"),
            ("tokens", f"{self.tokens:,}"),
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
    return sorted(found, key=lambda item: (-item.unknown_tokens, -_ratio(item.unknown_tokens, item.tokens), item.number))[
        :worst
    ]


def _most_tokens(documents: Iterable[DocumentReport], worst: int) -> list[DocumentReport]:
    found = [item for item in documents if item.characters >= _ENOUGH_CHARACTERS]
    return sorted(found, key=lambda item: (-_ratio(item.tokens, item.characters), item.number))[:worst]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


UNKNOWN_WARNING: Final = 0.02  # of the tokens; from here on the vocabulary does not quite fit
UNKNOWN_REFUSED: Final = 0.3  # … and does not fit at all
_SHOWN = 8  # characters, and words
_WORDS_TRIED = 20_000


class Unknowns(NamedTuple):
    """Unknown tokens of texts, and the commonest characters and words that make them."""

    tokens: int
    unknown: int
    characters: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def fraction(self) -> float:
        return self.unknown / max(1, self.tokens)

    def __str__(self) -> str:
        examples = [(f"characters {' '.join(self.characters)}" if self.characters else ""), f"words {', '.join(self.words)}"]
        return f"{self.fraction:.1%} of the text's tokens are unknown ({'; '.join(filter(None, examples))})"


def count_unknown(tokenization: Tokenization, texts: Iterable[list[str]]) -> Unknowns:
    """Encode batches of texts and count; blanks separate words."""
    tokens = unknown = 0
    words: Counter[str] = Counter()
    for batch in texts:
        ids = tokenization.encode(batch).ids
        tokens += ids.size
        unknown += int(np.count_nonzero(ids == tokenization.special.unknown))
        for text in batch:
            words.update(text.split())
    if not unknown:
        return Unknowns(tokens, 0, (), ())
    return Unknowns(tokens, unknown, _unknown(tokenization, count_characters(words.items())), _unknown(tokenization, words))


def _unknown(tokenization: Tokenization, counts: Counter[str]) -> tuple[str, ...]:
    """The commonest strings with an unknown token in them."""
    tried = [string for string, _ in counts.most_common(_WORDS_TRIED)]
    ids, lengths = tokenization.encode(tried)
    hits = np.repeat(np.arange(len(tried)), lengths)[ids == tokenization.special.unknown]
    return tuple(tried[index] for index in np.unique(hits)[:_SHOWN])
