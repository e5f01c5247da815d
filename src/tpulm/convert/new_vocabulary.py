"""A model's weights for another vocabulary: shared tokens keep theirs, and new ones begin as the mean of their pieces."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np

from tpulm.errors import ConfigError
from tpulm.tokenization import Tokenization
from tpulm.tokenization.forms import Form, forms

_LETTER = "a"
_MOST_LETTERS = 16  # tried before a token, until none joins its first characters


class NewVocabulary(NamedTuple):
    """For each token of the new vocabulary the old ids whose rows' mean it begins with; none: the mean of all rows."""

    sources: list[tuple[int, ...]]
    kept: int  # tokens in both, including special ones
    composed: int
    ordinary: np.ndarray  # int64: the old ids except special tokens

    def __str__(self) -> str:
        rest = len(self.sources) - self.kept - self.composed
        return (
            f"another vocabulary: {self.kept:,} of {len(self.sources):,} tokens keep their weights, {self.composed:,} begin as "
            f"the mean of their pieces in the old one, and {rest:,} as the mean of all"
        )

    def rows(self, old: np.ndarray, count: int) -> np.ndarray:
        """A parameter [V, …] of the old vocabulary for the new one, with `count` rows; rows beyond its tokens are 0."""
        result = np.zeros((count, *old.shape[1:]), old.dtype)
        result[: len(self.sources)] = old[self.ordinary].mean(axis=0)
        for index, ids in enumerate(self.sources):
            if ids:
                result[index] = old[list(ids)].mean(axis=0)
        return result


def new_vocabulary(old: Tokenization, new: Tokenization) -> NewVocabulary:
    """Match tokens that read the same in the same place, at the beginning of a word or within one, however the vocabularies
    write them, and special tokens by role. Raises ConfigError if the two share only special tokens."""
    old_ids = {form: index for index, form in forms(old).items()}
    pieces_of, special = _Pieces(old), tuple(old.special)
    sources: list[tuple[int, ...]] = [() for _ in range(new.vocab_size)]
    for mine, their in zip(new.special, old.special, strict=True):
        sources[mine] = (their,)
    copied = composed = 0
    for index, form in forms(new).items():
        if form in old_ids:
            sources[index], copied = (old_ids[form],), copied + 1
        elif isinstance(form.text, str) and form.text.strip():
            stands_alone = form.begins_word and new.encode([_LETTER + form.text]).ids.tolist()[-1:] == [index]
            if pieces := [one for one in pieces_of(form, stands_alone=stands_alone) if one not in special]:
                sources[index], composed = tuple(pieces), composed + 1
    if not copied:
        raise ConfigError("the two vocabularies have no token in common; begin without --init")
    return NewVocabulary(sources, copied + len(special), composed, np.array(sorted(old_ids.values()), np.int64))


class _Pieces:
    """The ids with which a tokenizer writes a token in its context: after a space, or within a word."""

    def __init__(self, tokenization: Tokenization):
        self._encode, self._forms = tokenization.encode, forms(tokenization)
        texts = (form.text for form in self._forms.values() if isinstance(form.text, str))
        letters = dict.fromkeys(text for text in texts if len(text) == 1 and text.isalpha())
        heads = ((letter, self._ids(letter)) for letter in letters)
        self._heads = list(islice((head for head in heads if tokenization.special.unknown not in head[1]), _MOST_LETTERS))

    def __call__(self, form: Form, *, stands_alone: bool) -> list[int]:
        """`stands_alone`: a word without a space before it, such as a punctuation mark."""
        space = " " if form.begins_word and not stands_alone else ""
        for letter, head in self._heads:
            ids = self._ids(f"{letter}{space}{form.text}")
            rest = ids[len(head) :]
            # Else a token lies across the letter and the text, or the text is a word of its own.
            if rest and ids[: len(head)] == head and (form.begins_word or not self._begins_word(rest[0])):
                return rest
        return self._ids(str(form.text))

    def _begins_word(self, index: int) -> bool:
        return index in self._forms and self._forms[index].begins_word

    def _ids(self, text: str) -> list[int]:
        return self._encode([text]).ids.tolist()
