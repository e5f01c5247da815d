"""Which characters get a token of their own.

Chinese and Japanese corpora hold over ten thousand characters, most of them a handful of times. The rule: the most frequent
characters first (ties by code point), as long as they occur at least `min_frequency` times and their tokens fit into half of
the vocabulary. WordPiece, to which the rest is unknown, takes in any case as many as it needs to write 99 % of the text.
Unigram writes the rest in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tpulm.errors import ConfigError


class Alphabet(NamedTuple):
    """The characters kept, and the share of the text's characters that they write."""

    characters: frozenset[str]
    coverage: float


def choose(
    occurrences: Mapping[str, int],
    tokens_each: Mapping[str, int],
    *,
    vocab_size: int,
    reserved: int,
    min_frequency: int,
    least_coverage: float,
) -> Alphabet:
    """Choose by the rule above; `tokens_each` says how many tokens a character takes, `reserved` how many are taken already.

    Raises ConfigError, with the smallest possible vocabulary, when `least_coverage` of the text cannot be written.
    """
    room = vocab_size - reserved
    total = sum(occurrences.values())
    kept: set[str] = set()
    tokens = written = 0
    for character, count in sorted(occurrences.items(), key=lambda item: (-item[1], item[0])):
        within_the_rule = count >= min_frequency and tokens + tokens_each[character] <= room // 2
        if not within_the_rule and written >= least_coverage * total:
            break
        kept.add(character)
        tokens += tokens_each[character]
        written += count
    if tokens > room:
        raise ConfigError(
            f"tokenizer.vocab_size {vocab_size:,} is too small for this text: special tokens and slots take {reserved:,}, and "
            f"the {len(kept):,} characters that make up {least_coverage:.0%} of the text take {tokens:,} more. "
            f"The least possible is {reserved + tokens:,}; several times that is usual."
        )
    return Alphabet(frozenset(kept), written / total)


def count_characters(words: Iterable[tuple[str, int]]) -> Counter[str]:
    """How often each character occurs in words that come with their counts."""
    occurrences: Counter[str] = Counter()
    for word, count in words:
        for character in word:
            occurrences[character] += count
    return occurrences
