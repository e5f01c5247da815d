"""A few samples of what was left out or replaced, by reason: what `tpulm dataset inspect --removed` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, zip_longest
from typing import Final

from tpulm.corpus.faults import shorten

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
        kept = self._kept.setdefault(reason, [])
        for text in texts:
            if len(kept) >= _OF_A_PIECE:
                return
            kept.append(shorten(" ".join(text[: 2 * _CHARACTERS].split()), _CHARACTERS, quoted=False))

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
