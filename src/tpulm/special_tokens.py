"""The special tokens of a tokenizer, as later stages see them; `tokenization.special` finds them in a vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the special tokens, by role; iterating gives them in this order."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}  # when read from manifests

    def __iter__(self) -> Iterator[int]:
        return iter(astuple(self))
