"""How well a vocabulary fits a text: what is unknown, how many tokens it takes, which scripts and documents fare worst."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import itemgetter

from tokenizers import Encoding

from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent, visible
from tpulm.runtime import interrupt
from tpulm.tokenization.hf_files import guarded, watched
from tpulm.tokenization.offsets import Realigner
from tpulm.tokenization.pipelines import without_surrogates
from tpulm.tokenization.tokenization import Tokenization

_EXCERPT_CHARACTERS = 60
_ENOUGH_CHARACTERS = 20  # shorter documents are not ranked by tokens per character
_CUTS, _CUT_WORDS, _CUT_BYTES = 20, 20_000, 20_000_000  # cuts shown, of so many words in the beginning of the texts
_WORD = re.compile(r"\S+")  # as in str.split()


@dataclass(frozen=True)
class ScriptCoverage:
    """How the characters of one script are encoded. `whole`: within one token; `split`: over several tokens, as bytes."""

    script: str
    characters: int
    whole: int
    split: int
    unknown: int


@dataclass(frozen=True)
class DocumentReport:
    """One document; `number` counts the texts from 0 in the order they were given. Dropped characters are in
    `unknown_tokens`."""

    number: int
    excerpt: str
    characters: int
    tokens: int
    unknown_tokens: int


@dataclass(frozen=True, kw_only=True)
class TokenizerReport:
    """Counts over all texts. Words are separated by blanks, which do not count as characters; special tokens do not count.

    A character that the tokenizer drops for want of a token is unknown, without being a token.
    """

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
    documents: int
    words: int
    characters: int
    unknown_texts: tuple[tuple[str, int], ...]  # the most frequent ones, of tokens or dropped, and how often they occurred
    most_unknown: tuple[DocumentReport, ...]
    most_tokens: tuple[DocumentReport, ...]  # per character

    @property
    def cost(self) -> float:
        """The tokens, each unknown one counted as its characters: a vocabulary does not gain from what it does not know."""
        return self.tokens - self.unknown_tokens + round(self.unknown_characters * self.characters)

    @property
    def share_used(self) -> str:
        return percent(self.tokens_used / self.vocab_size, 1)

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
            ("vocabulary used", f"{self.tokens_used:,} of {self.vocab_size:,} ({self.share_used})"),
        ]

    def script_rows(self) -> list[tuple[str, ...]]:
        """(script, characters, whole, split, unknown), under `SCRIPT_HEADER`."""
        return [
            (it.script, f"{it.characters:,}", *(percent(count / it.characters) for count in (it.whole, it.split, it.unknown)))
            for it in self.scripts
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


class _LossyEncoder:
    """Encodes texts; also says which of their characters the tokenizer drops, which shifts the library's own offsets."""

    def __init__(self, tokenization: Tokenization):
        self._tokenization, self._library = tokenization, tokenization.plain()
        self._realigned = Realigner(self._library)

    @guarded()
    def __call__(self, texts: list[str]) -> tuple[list[Encoding], list[set[int]]]:
        """The encoding of each text, and the places of its dropped characters."""
        with watched(self._library, texts):
            encodings = self._library.encode_batch(texts, add_special_tokens=False)
        dropped = self._tokenization.dropped(texts)
        pairs = zip(texts, encodings, dropped, strict=True)
        return [self._realigned(text, one) if places else one for text, one, places in pairs], dropped


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
        self._tokenization, self._encode = tokenization, _LossyEncoder(tokenization)
        self._used: set[int] = set()
        self._tokens = self._unknown_tokens = self._unknown_words = 0
        self._unknown, self._split = Counter[str](), Counter[str]()  # characters
        self.unknown_texts: Counter[str] = Counter()

    def add(self, texts: list[str]) -> list[tuple[int, int]]:
        """Count texts; returns the numbers of tokens and of unknown texts of each."""
        return [self._add(*one) for one in zip(texts, *self._encode(texts), strict=True)]

    def _add(self, text: str, encoding: Encoding, dropped: set[int]) -> tuple[int, int]:
        ids, unknown_id = encoding.ids, self._tokenization.special.unknown
        self._used.update(ids)
        self._tokens += len(ids)
        unknown = [(place, place + 1) for place in sorted(dropped)]
        end = split_until = 0
        for index, (start, stop) in zip(ids, encoding.offsets, strict=True):
            if index == unknown_id:
                unknown.append((start, stop))
            elif start < end and (again := range(max(start, split_until), min(stop, end))):  # begun by an earlier token
                self._split.update(text[place] for place in again if place not in dropped)
                split_until = max(split_until, min(stop, end))
            if stop > end:
                end = stop
        hidden = [text[start:stop] for start, stop in unknown]
        self.unknown_texts.update(hidden)
        self._unknown_tokens += len(hidden) - len(dropped)
        self._unknown.update("".join(hidden))
        if unknown:
            places = {place for start, stop in unknown for place in range(start, stop)}
            self._unknown_words += sum(not places.isdisjoint(range(*word.span())) for word in _WORD.finditer(text))
        return len(ids), len(hidden)

    def report(self, texts: TextTally, documents: list[DocumentReport], worst: int) -> TokenizerReport:
        """The report on the texts, which must have at least one word."""
        characters, unknown_tokens = texts.characters.total(), self._unknown_tokens
        unknown = sum(count for character, count in self._unknown.items() if not character.isspace())
        some = max(1, self._tokens)  # a tokenizer may drop everything
        return TokenizerReport(
            documents=texts.documents,
            words=texts.words,
            characters=characters,
            vocab_size=self._tokenization.vocab_size,
            tokens_used=len(self._used),
            tokens=self._tokens,
            unknown_tokens=unknown_tokens,
            unknown_rate=unknown_tokens / some,
            unknown_words=self._unknown_words / texts.words,
            unknown_characters=unknown / characters,
            tokens_per_word=self._tokens / texts.words,
            tokens_per_character=self._tokens / characters,
            bytes_per_token=texts.text_bytes / some,
            scripts=tuple(self._scripts(texts)),
            unknown_texts=tuple(self.unknown_texts.most_common(worst)),
            most_unknown=tuple(_most_unknown(documents, worst)),
            most_tokens=tuple(_most_tokens(documents, worst)),
        )

    def _scripts(self, texts: TextTally) -> Iterator[ScriptCoverage]:
        characters, split, unknown = map(_by_script, (texts.characters, self._split, self._unknown))
        for script, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
            yield ScriptCoverage(script, count, count - split[script] - unknown[script], split[script], unknown[script])


def _by_script(characters: Counter[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for character, count in characters.items():
        counts[script_of(character)] += count
    return counts


_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han", "KATAKANA-HIRAGANA": "Katakana", "FEMININE": "Latin", "MASCULINE": "Latin"}
_SHARED = {"N": "digits", "M": "marks", "P": "punctuation", "S": "symbols"}


@cache
def script_of(character: str) -> str:
    """ "Latin", "Hangul", "Han", …; "digits", "marks", "punctuation" and "symbols" for shared ones; "other" for the rest."""
    category = unicodedata.category(character)[0]
    if category != "L":
        return _SHARED.get(category, "other")
    plain = unicodedata.normalize("NFKC", character)[0]  # without width, style and ligature
    first = unicodedata.name(plain, "other").split()[0]
    return _NAMES.get(first, first if first == "other" else first.capitalize())


def _most_unknown(documents: Iterable[DocumentReport], worst: int) -> list[DocumentReport]:
    candidates = [item for item in documents if item.unknown_tokens]
    return sorted(candidates, key=lambda item: (-item.unknown_tokens, -item.unknown_tokens / max(1, item.tokens), item.number))[
        :worst
    ]


def _most_tokens(documents: Iterable[DocumentReport], worst: int) -> list[DocumentReport]:
    candidates = [item for item in documents if item.characters >= _ENOUGH_CHARACTERS]
    return sorted(candidates, key=lambda item: (-item.tokens / item.characters, item.number))[:worst]


# -- several tokenizers --


@dataclass(frozen=True)
class Cut:
    """A word that costs tokenizers differently, and its tokens by tokenizer, in its characters; "·" shows no further one."""

    word: str
    times: int
    tokens: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Comparison:
    """Several tokenizers, by their names, on the same texts."""

    reports: Mapping[str, TokenizerReport]
    cuts: Sequence[Cut]  # the most telling first

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each tokenizer, under `COMPARISON_HEADER`."""
        return [
            (
                name,
                f"{one.vocab_size:,}",
                one.share_used,
                f"{one.cost / one.words:.3f}",
                f"{one.characters / max(1, one.cost):.2f}",
                percent(one.unknown_characters),
            )
            for name, one in self.reports.items()
        ]

    def cut_rows(self) -> list[tuple[str, ...]]:
        """(word, times, its tokens by each tokenizer), for display."""
        return [
            (visible(it.word), f"{it.times:,}", *(visible("|".join(cut)) for cut in it.tokens.values())) for it in self.cuts
        ]


COMPARISON_HEADER = ("tokenizer", "vocabulary", "used", "tokens/word", "characters/token", "unknown")


def compare(
    tokenizations: Mapping[str, Tokenization], texts: Iterable[list[str]], *, worst: int = 5, progress: Progress = SILENT
) -> Comparison:
    """Encode the same batches of texts with each tokenizer, and count. Raises DataError without any text.

    `worst`: how many documents and unknown texts to show.
    """
    counted, tallies = TextTally(), {name: TokenTally(tokenization) for name, tokenization in tokenizations.items()}
    documents = {name: list[DocumentReport]() for name in tokenizations}
    words: Counter[str] = Counter()
    progress.start("tokenizer: report", unit="documents")
    for text_batch in texts:
        interrupt.check()
        batch = [without_surrogates(text) for text in text_batch]
        first, split = counted.documents, [counted.add(text) for text in batch]
        if len(tallies) > 1 and counted.text_bytes <= _CUT_BYTES:
            words.update(chain.from_iterable(split))
        excerpts = [(" ".join(some)[:_EXCERPT_CHARACTERS], sum(map(len, some))) for some in split]
        for name, tally in tallies.items():
            documents[name] += [
                DocumentReport(number, *excerpt, *counts)
                for number, (excerpt, counts) in enumerate(zip(excerpts, tally.add(batch), strict=True), start=first)
            ]
            documents[name] = list({*_most_unknown(documents[name], worst), *_most_tokens(documents[name], worst)})
        progress.advance(len(batch))
    if not counted.words:
        raise DataError(f"there is no text to report on: {counted.documents} documents without a single word")
    reports = {name: tally.report(counted, documents[name], worst) for name, tally in tallies.items()}
    return Comparison(reports, _differing_cuts(tokenizations, words))


def _differing_cuts(tokenizations: Mapping[str, Tokenization], words: Counter[str]) -> list[Cut]:
    """The frequent words on which the tokenizers differ by most tokens in all; an unknown token counts as its characters."""
    tried = words.most_common(_CUT_WORDS)
    cut = {name: _cut([word for word, _ in tried], tokenization) for name, tokenization in tokenizations.items()}
    cuts: list[tuple[int, Cut]] = []
    for place, (word, times) in enumerate(tried):
        tokens = {name: some[place] for name, some in cut.items()}
        costs = [sum(cost for _, cost in some) for some in tokens.values()]
        if (more := times * (max(costs) - min(costs))) > 0:
            cuts.append((more, Cut(word, times, {name: [text for text, _ in some] for name, some in tokens.items()})))
    return [one for _, one in sorted(cuts, key=lambda item: -item[0])[:_CUTS]]


def _cut(words: list[str], tokenization: Tokenization) -> list[list[tuple[str, int]]]:
    """The tokens of each word, with their costs, as it stands after another word: here, after itself."""
    pieces: list[list[tuple[str, int]]] = []
    texts = [f"{word} {word}" for word in words]
    for word, text, encoding, dropped in zip(words, texts, *_LossyEncoder(tokenization)(texts), strict=True):
        end, shown = len(word), list[tuple[int, str, int]]()
        for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if start < len(word):
                continue
            part = "".join(text[place] for place in range(max(start, end), stop) if place not in dropped).strip()
            unknown, end = index == tokenization.special.unknown, max(stop, end)
            shown.append((start, f"[UNK {part}]", max(1, len(part))) if unknown else (start, part or "·", 1))
        shown += [(place, f"[UNK {text[place]}]", 1) for place in dropped if place > len(word)]
        pieces.append([(part, cost) for _, part, cost in sorted(shown, key=itemgetter(0))])
    return pieces
