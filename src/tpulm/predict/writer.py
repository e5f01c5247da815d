"""Text from tokens that arrive one by one: whole characters only, with the spaces that decoding all at once would give."""

from __future__ import annotations

from collections.abc import Sequence

from tpulm.tokenization import Tokenization

_TORN = "\ufffd"  # what decoding makes of bytes that are not, or not yet, a character


class Writer:
    """What follows a prompt. The pieces that `add` and `end` return make up the text."""

    def __init__(self, tokenization: Tokenization, prompt: Sequence[int]):
        self._tokenization = tokenization
        self._ids = list(prompt)
        self._written = tokenization.decode(self._ids)

    def add(self, token_id: int) -> str:
        """What can be written now: nothing where the token ends within a character."""
        self._ids.append(token_id)
        text = self._tokenization.decode(self._ids).rstrip(_TORN)
        if not text.startswith(self._written):  # a run of bytes is decoded as a whole: a character begun tears those before it
            return ""
        return self._write(text)

    def end(self) -> str:
        """What was held back, when nothing follows any more."""
        text = self._tokenization.decode(self._ids)
        return self._write(text) if text.startswith(self._written) else _TORN

    def _write(self, text: str) -> str:
        piece = text[len(self._written) :]
        self._written = text
        return piece
