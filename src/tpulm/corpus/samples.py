"""Texts from the user's data as they are shown: in messages, and as samples of what was left out or replaced, by reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice, zip_longest
from typing import Final

from tpulm.errors import shorten

_OF_A_PIECE: Final = 3  # of each reason
_OF_ALL: Final = 20
_CHARACTERS: Final = 200

Removed = dict[str, tuple[str, ...]]  # samples by reason


class Samples:
    """Keeps the first few of each reason."""

    def __init__(self) -> None:
        self._kept: dict[str, list[str]] = {}

    def wants(self, reason: str) -> bool:
        return len(self._kept.get(reason, ())) < _OF_A_PIECE

    def add(self, reason: str, texts: Iterable[str]) -> None:
        """Texts of the corpus, of which the beginning is kept."""
        self.keep(reason, (shorten(" ".join(text[: 2 * _CHARACTERS].split()), _CHARACTERS, quoted=False) for text in texts))

    def keep(self, reason: str, shown: Iterable[str]) -> None:
        """What is to be shown as it is."""
        kept = self._kept.setdefault(reason, [])
        kept.extend(islice(shown, _OF_A_PIECE - len(kept)))

    def removed(self) -> Removed:
        return {reason: tuple(texts) for reason, texts in sorted(self._kept.items()) if texts}


def merged(parts: Iterable[Mapping[str, Iterable[str]]]) -> Removed:
    """Of all pieces: the first of each, then the second of each, …, without repetitions."""
    by_reason: dict[str, list[Iterable[str]]] = {}
    for part in parts:
        for reason, texts in part.items():
            by_reason.setdefault(reason, []).append(texts)
    return {
        reason: tuple(dict.fromkeys(text for text in chain(*zip_longest(*lists)) if text is not None))[:_OF_ALL]
        for reason, lists in sorted(by_reason.items())
    }
