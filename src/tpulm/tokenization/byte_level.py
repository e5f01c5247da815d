"""How byte-level vocabularies write bytes: visible ones of Latin-1 as themselves, the others from U+0100 on.

Source: GPT-2, encoder.py, bytes_to_unicode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_VISIBLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = tuple(byte for byte in range(256) if byte not in _VISIBLE)
_BYTE_OF: Final = {chr(byte): byte for byte in _VISIBLE} | {chr(0x100 + number): byte for number, byte in enumerate(_OTHERS)}
CHARACTERS: Final = tuple(sorted(_BYTE_OF, key=_BYTE_OF.__getitem__))  # by byte


def written(text: str) -> str:
    return "".join(map(CHARACTERS.__getitem__, text.encode()))


def bytes_of(token: str) -> bytes | None:
    """None for a token that is written otherwise: one that was added by its name."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return None


def writes_bytes(model: Mapping[str, Any]) -> bool:
    """Whether a model of tokenizer.json is BPE with a token for each byte."""
    return model["type"] == "BPE" and all(character in model["vocab"] for character in CHARACTERS)


def is_plain(model: Mapping[str, Any]) -> bool:
    """Whether that is so, and its tokens are bytes and nothing more."""
    return writes_bytes(model) and not any(
        model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout")
    )
