"""How well a vocabulary fits a text, counted a text at a time: for the report on one and the comparison of several."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tokenizers import Encoding

from tpulm.tokenization.tokenization import Tokenization

_WORD = re.compile(r"\S+")  # as str.split() has it


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


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Words are what blanks separate; characters do not count blanks. Special tokens are counted nowhere."""

    vocab_size: int
    tokens_used: int  # distinct ids that occurred
    tokens: int
    unknown_tokens: int
    unknown_rate: float  # of the tokens
    unknown_words: float  # share of the words that are unknown in part or as a whole
    unknown_characters: float  # share of the characters
    tokens_per_word: float
    tokens_per_character: float
    bytes_per_token: float
    scripts: tuple[ScriptCoverage, ...]  # the most frequent first


class CountedTokens(NamedTuple):
    tokens: int
    unknown_tokens: int
    hidden_characters: int  # those that stand behind the unknown tokens

    @property
    def cost(self) -> int:
        """Tokens, an unknown one counted for every character it hides."""
        return self.tokens - self.unknown_tokens + self.hidden_characters


class TextTally:
    """What the texts have whoever cuts them up."""

    def __init__(self) -> None:
        self.documents = self.words = self.text_bytes = 0
        self.characters: Counter[str] = Counter()

    def add(self, text: str) -> list[str]:
        """Its words."""
        words = text.split()
        self.characters.update("".join(words))
        self.documents += 1
        self.words += len(words)
        self.text_bytes += len(text.encode())
        return words


class TokenTally:
    """What one tokenizer makes of the texts."""

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
            elif start < end and (again := text[max(start, split_until) : min(stop, end)]):  # begun by a token before it
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
        """To the texts, of which there is at least a word."""
        tokens, characters = sum(length * count for length, count in self.lengths.items()), texts.characters.total()
        unknown = sum(count for character, count in self._unknown.items() if not character.isspace())
        some = max(1, tokens)  # a tokenizer may drop all there is
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
