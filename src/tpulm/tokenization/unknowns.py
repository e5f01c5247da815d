"""How much of a text a vocabulary does not know."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tpulm.tokenization.encode import Encoded, slices
from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.training import count_characters

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
    hidden: int  # within unknown tokens, or dropped
    long: int  # of these, in words of more than `limit` characters
    limit: int
    characters: tuple[str, ...]
    words: tuple[str, ...]
    written: tuple[tuple[str, str], ...] = ()  # of these characters, what the vocabulary has in their place: ㅋ for U+110F

    @property
    def fraction(self) -> float:
        return self.hidden / max(1, self.visible)

    @property
    def is_long(self) -> bool:
        """Whether words too long for the vocabulary are the main cause, which a larger vocabulary does not cure."""
        return self.long > self.hidden / 2

    def __str__(self) -> str:
        shown = [word if len(word) <= _SHOWN_CHARACTERS else f"{word[:_SHOWN_CHARACTERS]}…" for word in self.words]
        kinds = (f"characters {' '.join(self.characters)}", self.characters), (f"words {', '.join(shown)}", shown)
        examples = [text for text, some in kinds if some]
        both = ", ".join(f"{other} U+{ord(other):04X} for {one} U+{ord(one):04X}" for one, other in self.written)
        if both:
            examples.append(f"the vocabulary has {both}: replace them")
        if self.is_long:
            examples.append(f"a word of more than {self.limit} characters is unknown as a whole")
        return f"{self.fraction:.1%} of the text's characters are unknown" + (f" ({'; '.join(examples)})" if examples else "")


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
        hidden += sum(map(len, tokenization.dropped(batch)))
        for text in batch:
            words.update(text.split())
    visible = sum(len(word) * count for word, count in words.items())
    if not hidden:
        return Unknowns(visible, 0, 0, limit, (), ())
    characters = count_characters((unicodedata.normalize("NFC", word), count) for word, count in words.items())
    alone, in_words = (_unknown(tokenization, counts) for counts in (characters, words))
    known = {unicodedata.normalize("NFKC", token): token for token in tokenization.vocabulary() if len(token) == 1}
    forms = {one: known.get(unicodedata.normalize("NFKC", one), one) for one in alone}
    written = tuple((one, other) for one, other in forms.items() if one != other)
    return Unknowns(visible, round(hidden), round(long), limit, alone, in_words, written)


def vocabulary_warnings(tokenization: Tokenization, texts: Sequence[str], name: str, *, words: bool = True) -> list[str]:
    """A warning if much of the texts is unknown, judged by a million characters of them; with `words` of them, which where
    words are not separated are sentences, or without."""
    unknown = count_unknown(tokenization, [list(texts[:: 1 + sum(map(len, texts)) // _CHARACTERS_JUDGED])])
    unknown = unknown if words else unknown._replace(words=())
    return [f"{name}: {unknown}: the model's vocabulary does not fit it"] if unknown.fraction >= UNKNOWN_WARNING else []


def hidden_characters(
    tokenization: Tokenization, texts: list[str], encoded: Encoded, at_most: int = _MEASURED
) -> tuple[np.ndarray, float]:
    """How many characters each unknown token hides, int64, measured in about `at_most` characters of the texts that have such
    tokens; and how many of them a measured one stands for."""
    unknown = tokenization.special.unknown
    owners = np.repeat(np.arange(len(texts)), encoded.lengths)[encoded.ids == unknown]
    if not owners.size:
        return np.zeros(0, np.int64), 0.0
    some = next(slices([texts[index] for index in np.unique(owners).tolist()], at_most))
    ids, _, spans = tokenization.encode_with_offsets(some)
    sizes = np.diff(spans[ids == unknown], axis=1).reshape(-1)
    return sizes, owners.size / max(1, sizes.size)


def _unknown(tokenization: Tokenization, counts: Counter[str]) -> tuple[str, ...]:
    """The most frequent strings that contain an unknown token, or of which something is dropped."""
    tried = [string for string, _ in counts.most_common(_WORDS_TRIED)]
    ids, lengths = tokenization.encode(tried)
    hits = np.repeat(np.arange(len(tried)), lengths)[ids == tokenization.special.unknown]
    hits = [*hits.tolist(), *(index for index, places in enumerate(tokenization.dropped(tried)) if places)]
    return tuple(tried[index] for index in sorted(set(hits))[:_SHOWN])
