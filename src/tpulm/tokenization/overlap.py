"""How much of one vocabulary is in another, its tokens compared as forms."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from tpulm.tokenization.forms import Form


class Overlap(NamedTuple):
    """Of the forms A and B: `share` is |A∩B| / |A|, `jaccard` |A∩B| / |A∪B|."""

    both: int
    share: float
    jaccard: float


def overlap(mine: AbstractSet[Form], theirs: AbstractSet[Form]) -> Overlap:
    both = len(mine & theirs)
    return Overlap(both, both / max(1, len(mine)), both / max(1, len(mine | theirs)))
