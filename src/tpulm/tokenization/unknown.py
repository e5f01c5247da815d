"""How much of a text a vocabulary has no tokens for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.training import count_characters

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
