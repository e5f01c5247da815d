"""Tokens as text: what a token writes, and whether a word begins with it, whatever sign its vocabulary has for that.

WordPiece marks what goes on with a word ("##ing"); SentencePiece ("▁the") and byte-level BPE ("Ġthe") mark the space before a
word. The form of a token is free of these signs, so that the tokens of different vocabularies can be compared.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import NamedTuple

from tpulm.tokenization import byte_level
from tpulm.tokenization.pipelines import CONTINUATION, SPACE
from tpulm.tokenization.special import is_slot
from tpulm.tokenization.tokenization import Tokenization

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character that the vocabulary does not have
_JOINER = "\u200d"  # between the parts of one emoji; other invisible signs are shown by their number
_BYTES_SHOWN = "⟨{}⟩"


class Form(NamedTuple):
    """`text` is bytes where a token is a byte by name, or a part of a character."""

    text: str | bytes
    begins_word: bool


def forms(tokenization: Tokenization) -> dict[int, Form]:
    """Id -> form, of all tokens but the special ones and unused slots."""
    specification = json.loads(tokenization.canonical_json)
    special = {token["id"] for token in specification["added_tokens"] if token["special"]} | tokenization.special.ids
    byte_level = _is_byte_level(specification)
    sign = specification["model"].get("continuing_subword_prefix") or CONTINUATION
    wordpiece = tokenization.algorithm == "WordPiece"
    found: dict[int, Form] = {}
    for token, index in tokenization.vocabulary().items():
        if index in special or is_slot(token):
            continue
        if byte_level:
            found[index] = _of_bytes(token)
        elif wordpiece:
            goes_on = token.startswith(sign) and token != sign
            found[index] = Form(token[len(sign) :] if goes_on else token, not goes_on)
        else:
            found[index] = _of_pieces(token)
    return found


def _is_byte_level(specification: dict) -> bool:
    return '"ByteLevel"' in json.dumps([specification.get("pre_tokenizer"), specification.get("decoder")])


def _of_bytes(token: str) -> Form:
    data = byte_level.bytes_of(token)
    if data is None:
        return Form(token, False)
    begins = data.startswith(b" ") and data != b" "
    data = data[1:] if begins else data
    try:
        return Form(data.decode(), begins)
    except UnicodeDecodeError:
        return Form(data, begins)


def _of_pieces(token: str) -> Form:
    if match := _BYTE.fullmatch(token):
        return Form(bytes.fromhex(match[1]), False)
    begins = token.startswith(SPACE) and token != SPACE
    return Form((token[1:] if begins else token).replace(SPACE, " "), begins)


def visible(text: str | bytes) -> str:
    """Fit to be shown: bytes but those of ASCII in hexadecimal, invisible characters as pictures or by number."""
    if isinstance(text, bytes):
        if all(0x20 < byte < 0x7F for byte in text):
            return text.decode()
        return _BYTES_SHOWN.format(text.hex(" ").upper())
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    kind = unicodedata.category(character)
    if character == _JOINER or kind[0] not in "CZ" or character == " ":
        return character
    return " " if kind == "Zs" else f"⟨U+{code:04X}⟩"
