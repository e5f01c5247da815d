"""How long documents are in tokens, from the exact count of every length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

PERCENTILES = (5, 25, 50, 75, 95, 99)


class Lengths:
    """`counts`: length -> how many documents have it. There are few distinct lengths, however many documents."""

    def __init__(self, counts: Mapping[int, int]):
        self.counts = dict(sorted(counts.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lengths) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def documents(self) -> int:
        return sum(self.counts.values())

    @property
    def longest(self) -> int:
        return max(self.counts)

    def percentile(self, percent: float) -> int:
        """The least length that so many percent of the documents do not exceed."""
        wanted = max(1, math.ceil(self.documents * percent / 100))
        for length, so_far in self.cumulative():
            if so_far >= wanted:
                return length
        return self.longest

    def cumulative(self) -> list[tuple[int, int]]:
        """(length, documents of at most this length), by rising length."""
        so_far, found = 0, []
        for length, count in self.counts.items():
            so_far += count
            found.append((length, so_far))
        return found

    def share_over(self, tokens: int) -> float:
        """Of the documents that have more tokens than this."""
        return sum(count for length, count in self.counts.items() if length > tokens) / self.documents

    def as_json(self, over: tuple[int, ...]) -> dict[str, dict[str, float]]:
        percentiles: dict[str, float] = {str(percent): self.percentile(percent) for percent in PERCENTILES}
        return {
            "percentiles": percentiles | {"max": self.longest},
            "share_over": {str(tokens): self.share_over(tokens) for tokens in over},
        }
