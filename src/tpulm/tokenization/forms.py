"""Tokens as text, without the marks of their vocabularies, so that those of different vocabularies can be compared.

WordPiece marks the continuation of a word ("##ing"); SentencePiece ("▁the") and byte-level BPE ("Ġthe") the space before it.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tpulm.tokenization.pipelines import CONTINUATION, SPACE, from_byte_characters
from tpulm.tokenization.special import is_slot
from tpulm.tokenization.tokenization import Tokenization

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character that is not in the vocabulary


class Form(NamedTuple):
    """A token's text without marks; bytes if the token is a named byte, or a part of a character."""

    text: str | bytes
    begins_word: bool


def forms(tokenization: Tokenization) -> dict[int, Form]:
    """Id -> form, for all tokens except special tokens and unused slots."""
    specification = json.loads(tokenization.canonical_json)
    special = {token["id"] for token in specification["added_tokens"] if token["special"]} | set(tokenization.special)
    byte_level = '"ByteLevel"' in json.dumps([specification.get("pre_tokenizer"), specification.get("decoder")])
    sign = specification["model"].get("continuing_subword_prefix") or CONTINUATION
    wordpiece = tokenization.algorithm == "WordPiece"
    forms_by_id: dict[int, Form] = {}
    for token, index in tokenization.vocabulary().items():
        if index in special or is_slot(token):
            continue
        if byte_level:
            forms_by_id[index] = _of_bytes(token)
        elif wordpiece:
            goes_on = token.startswith(sign) and token != sign
            forms_by_id[index] = Form(token[len(sign) :] if goes_on else token, not goes_on)
        else:
            forms_by_id[index] = _of_pieces(token)
    return forms_by_id


def _of_bytes(token: str) -> Form:
    data = from_byte_characters(token)
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
