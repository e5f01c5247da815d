"""Counting what tokenizers make of texts, a text at a time: shared by the report on one and the comparison of several."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Encoding

from tpulm.tokenization.scripts import script_of
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


class CountedText(NamedTuple):
    words: list[str]
    characters: int  # without blanks


class CountedTokens(NamedTuple):
    tokens: int
    unknown_tokens: int
    hidden_characters: int  # those that stand behind the unknown tokens


class TextTally:
    """What the texts have whoever cuts them up. Words are what blanks separate; characters do not count blanks."""

    def __init__(self) -> None:
        self.documents = self.words = self.text_bytes = 0
        self.characters: Counter[str] = Counter()

    def add(self, text: str) -> CountedText:
        words = text.split()
        joined = "".join(words)
        self.characters.update(joined)
        self.documents += 1
        self.words += len(words)
        self.text_bytes += len(text.encode())
        return CountedText(words, len(joined))


class TokenTally:
    """What one tokenizer makes of the texts."""

    def __init__(self, tokenization: Tokenization):
        self._unknown_id = tokenization.special.unknown
        self.tokens = self.unknown_tokens = self.unknown_words = 0
        self.used: set[int] = set()
        self.unknown_texts: Counter[str] = Counter()
        self.unknown_characters: Counter[str] = Counter()
        self.split_characters: Counter[str] = Counter()

    def add(self, text: str, encoding: Encoding) -> CountedTokens:
        """Count the encoding of a text, made without special tokens."""
        ids, offsets = encoding.ids, encoding.offsets
        self.used.update(ids)
        self.tokens += len(ids)
        unknown = []
        end = split_until = 0
        for index, (start, stop) in zip(ids, offsets, strict=True):
            if index == self._unknown_id:
                unknown.append((start, stop))
            elif start < end:  # what the tokens before it have begun already is split over several
                overlap = text[max(start, split_until) : min(stop, end)]
                if overlap:
                    self.split_characters.update(overlap)
                    split_until = max(split_until, min(stop, end))
            if stop > end:
                end = stop
        hidden = sum(self._add_unknown(text[start:stop]) for start, stop in unknown)
        if unknown:
            self.unknown_words += _words_hit(text, unknown)
        return CountedTokens(len(ids), len(unknown), hidden)

    def _add_unknown(self, hidden: str) -> int:
        self.unknown_tokens += 1
        self.unknown_texts[hidden] += 1
        self.unknown_characters.update(hidden)
        return len(hidden)


def _words_hit(text: str, spans: list[tuple[int, int]]) -> int:
    """How many words of the text have a character within one of the spans."""
    words = [match.span() for match in _WORD.finditer(text)]
    starts = [start for start, _ in words]
    hit: set[int] = set()
    for start, stop in spans:
        first = max(bisect_right(starts, start) - 1, 0)
        last = bisect_right(starts, stop - 1) - 1
        hit.update(number for number in range(first, last + 1) if words[number][1] > start)
    return len(hit)


def script_coverage(texts: TextTally, tokens: TokenTally) -> tuple[ScriptCoverage, ...]:
    """Of every script that occurs, the most frequent first."""
    totals = [Counter[str](), Counter[str](), Counter[str]()]
    for total, counted in zip(totals, (texts.characters, tokens.split_characters, tokens.unknown_characters), strict=True):
        for character, count in counted.items():
            total[script_of(character)] += count
    characters, split, unknown = totals
    return tuple(
        ScriptCoverage(
            script=script,
            characters=count,
            whole=count - split[script] - unknown[script],
            split=split[script],
            unknown=unknown[script],
        )
        for script, count in sorted(characters.items(), key=lambda item: (-item[1], item[0]))
    )
