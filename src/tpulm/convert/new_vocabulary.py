"""A model's weights for another vocabulary: shared tokens keep theirs, and new ones begin as the mean of their pieces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpulm.errors import ConfigError
from tpulm.tokenization import Tokenization
from tpulm.tokenization.forms import Form, forms


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
    texts = {index: form.text for form, index in old_ids.items()}
    new_forms, special = forms(new), tuple(old.special)
    sources: list[tuple[int, ...]] = [() for _ in range(new.vocab_size)]
    for mine, their in zip(new.special, old.special, strict=True):
        sources[mine] = (their,)
    copied = composed = 0
    for index, form in new_forms.items():
        if form in old_ids:
            sources[index], copied = (old_ids[form],), copied + 1
        elif pieces := _pieces(old, form, special):
            if not form.begins_word:  # its first piece, too, within a word
                pieces[0] = old_ids.get(Form(texts.get(pieces[0], ""), False), pieces[0])
            sources[index], composed = tuple(pieces), composed + 1
    if not copied:
        raise ConfigError("the two vocabularies have no token in common; begin without --init")
    return NewVocabulary(sources, copied + len(special), composed, np.array(sorted(texts), np.int64))


def _pieces(old: Tokenization, form: Form, special: tuple[int, ...]) -> list[int]:
    if not isinstance(form.text, str) or not form.text.strip():
        return []
    return [index for index in old.encode([form.text]).ids.tolist() if index not in special]
