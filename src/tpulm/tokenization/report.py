"""How well a vocabulary fits a text: what is unknown, how many tokens it takes, which scripts and documents fare worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tpulm import interrupt
from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.tokenization.plain import without_surrogates
from tpulm.tokenization.scripts import script_of
from tpulm.tokenization.tokenization import Tokenization

_EXCERPT_CHARACTERS = 60
_ENOUGH_CHARACTERS = 20  # shorter documents are not ranked by tokens per character


@dataclass(frozen=True)
class ScriptCoverage:
    """How the characters of one script are written. `whole`: within one token; `split`: over several tokens, as bytes."""

    script: str
    characters: int
    whole: int
    split: int
    unknown: int

    @property
    def coverage(self) -> float:
        return self.whole / self.characters


@dataclass(frozen=True)
class DocumentReport:
    """One document; `number` counts the texts from 0 in the order they were given."""

    number: int
    excerpt: str
    characters: int
    tokens: int
    unknown_tokens: int


@dataclass(frozen=True)
class TokenizerReport:
    """Counts over all texts. Words are what blanks separate; characters do not count blanks. No special token is counted."""

    vocab_size: int
    documents: int
    words: int
    characters: int
    tokens: int
    unknown_tokens: int
    tokens_used: int  # distinct ids that occurred
    scripts: tuple[ScriptCoverage, ...]  # the most frequent first
    unknown_texts: tuple[tuple[str, int], ...]  # the commonest texts of unknown tokens, and how often they occurred
    most_unknown: tuple[DocumentReport, ...]
    most_tokens: tuple[DocumentReport, ...]  # per character

    @property
    def unknown_rate(self) -> float:
        """Unknown tokens per token."""
        return _ratio(self.unknown_tokens, self.tokens)

    @property
    def tokens_per_word(self) -> float:
        return _ratio(self.tokens, self.words)

    @property
    def tokens_per_character(self) -> float:
        return _ratio(self.tokens, self.characters)

    def summary_rows(self) -> list[tuple[str, str]]:
        """(what, value), ready to be drawn."""
        return [
            ("documents", f"{self.documents:,}"),
            ("words", f"{self.words:,}"),
            ("characters", f"{self.characters:,}"),
            ("tokens", f"{self.tokens:,}"),
            ("unknown tokens", f"{self.unknown_tokens:,} ({self.unknown_rate:.3%})"),
            ("tokens per word", f"{self.tokens_per_word:.3f}"),
            ("tokens per character", f"{self.tokens_per_character:.3f}"),
            ("vocabulary used", f"{self.tokens_used:,} of {self.vocab_size:,} ({self.tokens_used / self.vocab_size:.1%})"),
        ]

    def script_rows(self) -> list[tuple[str, str, str, str, str]]:
        """(script, characters, whole, split, unknown), under `SCRIPT_HEADER`."""
        return [
            (
                item.script,
                f"{item.characters:,}",
                f"{item.coverage:.3%}",
                f"{item.split / item.characters:.3%}",
                f"{item.unknown / item.characters:.3%}",
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
    tokenizer, unknown_id = tokenization.plain(), tokenization.special.unknown
    all_characters: Counter[str] = Counter()
    unknown_characters: Counter[str] = Counter()
    split_characters: Counter[str] = Counter()
    unknown_texts: Counter[str] = Counter()
    used: set[int] = set()
    documents: list[DocumentReport] = []
    num_documents = words = tokens = unknown_tokens = 0
    progress.start("tokenizer: report", unit="documents")
    for given in texts:
        interrupt.check()
        batch = [without_surrogates(text) for text in given]
        for text, encoding in zip(batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True):
            ids = encoding.ids
            used.update(ids)
            parts = text.split()
            here = Counter("".join(parts))
            all_characters.update(here)
            num_unknown = ids.count(unknown_id)
            end = split_until = 0
            for index, (start, stop) in zip(ids, encoding.offsets, strict=True):
                if index == unknown_id:
                    unknown_texts[text[start:stop]] += 1
                    unknown_characters.update(text[start:stop])
                else:  # what the tokens before it have begun already is split over several
                    overlap = text[max(start, split_until) : min(stop, end)]
                    split_characters.update(overlap)
                    split_until = max(split_until, min(stop, end)) if overlap else split_until
                end = max(end, stop)
            excerpt = " ".join(parts)[:_EXCERPT_CHARACTERS]
            documents.append(DocumentReport(num_documents, excerpt, here.total(), len(ids), num_unknown))
            num_documents, words = num_documents + 1, words + len(parts)
            tokens, unknown_tokens = tokens + len(ids), unknown_tokens + num_unknown
        documents = list({*_most_unknown(documents, worst), *_most_tokens(documents, worst)})
        progress.advance(len(batch))
    if not all_characters:
        raise DataError(f"there is no text to report on: {num_documents} documents without a single word")
    return TokenizerReport(
        vocab_size=tokenization.vocab_size,
        documents=num_documents,
        words=words,
        characters=all_characters.total(),
        tokens=tokens,
        unknown_tokens=unknown_tokens,
        tokens_used=len(used),
        scripts=_scripts(all_characters, split_characters, unknown_characters),
        unknown_texts=tuple(unknown_texts.most_common(worst)),
        most_unknown=tuple(_most_unknown(documents, worst)),
        most_tokens=tuple(_most_tokens(documents, worst)),
    )


def _scripts(everything: Counter[str], split: Counter[str], unknown: Counter[str]) -> tuple[ScriptCoverage, ...]:
    totals = [Counter[str](), Counter[str](), Counter[str]()]
    for total, characters in zip(totals, (everything, split, unknown), strict=True):
        for character, count in characters.items():
            total[script_of(character)] += count
    characters, split_by_script, unknown_by_script = totals
    return tuple(
        ScriptCoverage(
            script=script,
            characters=count,
            whole=count - split_by_script[script] - unknown_by_script[script],
            split=split_by_script[script],
            unknown=unknown_by_script[script],
        )
        for script, count in sorted(characters.items(), key=lambda item: (-item[1], item[0]))
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
