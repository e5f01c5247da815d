"""Encoding text in bulk: the hot loop of dataset preparation.

Natural text repeats its words, so most of it needs no tokenizer: each distinct chunk (see chunks.py) is encoded once, its ids
are kept as bytes, and a text's ids are the bytes of its chunks joined. Text that cannot be cut, or that repeats nothing, goes
to the tokenizer whole; the ids are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from tpulm.tokenization import bare_words
from tpulm.tokenization.bare_words import BareWords
from tpulm.tokenization.chunks import cutter
from tpulm.tokenization.plain import without_special_names, without_surrogates
from tpulm.tokenization.special import SpecialTokens

_SLICE_CHARACTERS = 1 << 18  # handled at a time
_JOINED_CHUNKS = 128  # handed to the tokenizer as one string; the longer it is, the more a character costs
_LONGEST_KEPT = 48  # characters; longer chunks hardly ever return
_MOST_KEPT = 1 << 20  # chunks, about 200 MB; then all are forgotten and learnt anew
_USELESS_SHARE = 0.8  # of a slice's characters had to be encoded: cutting gained nothing
_USELESS_SLICES = 15  # so the next ones go to the tokenizer whole

_MARK = "\U0010fffd"  # between two chunks; a text that has this private character is encoded whole


class Encoded(NamedTuple):
    """The ids of several texts one after another: `ids` uint32 [T], and how many each text has: `lengths` int32 [N]."""

    ids: np.ndarray
    lengths: np.ndarray


class BulkEncoder:
    """Encodes texts and adds nothing; the name of a special token within a text is plain text."""

    def __init__(self, tokenizer: Tokenizer, specials: SpecialTokens):
        self._tokenizer = without_special_names(tokenizer, specials)
        self._cut = cutter(self._tokenizer)
        self._marked = without_special_names(tokenizer, specials)
        self._marked.add_tokens([AddedToken(_MARK, normalized=False)])
        self._mark = self._marked.token_to_id(_MARK)
        self._bare_words = BareWords(self._tokenizer) if bare_words.possible(self._tokenizer) else None
        self._known: dict[str, bytes] = {}
        self._slices_to_skip = 0

    def encode(self, texts: list[str]) -> Encoded:
        parts = [Encoded(np.zeros(0, np.uint32), np.zeros(0, np.int32))]
        for part in _slices(texts):
            try:
                parts.append(self._encode(part))
            except (UnicodeEncodeError, TypeError):  # what the library makes of a lone surrogate
                parts.append(self._encode([without_surrogates(text) for text in part]))
        return Encoded(np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts]))

    def _encode(self, texts: list[str]) -> Encoded:
        if self._cut is None or any(_MARK in text for text in texts):
            return self._encode_whole(texts)
        if self._slices_to_skip:
            self._slices_to_skip -= 1
            return self._encode_whole(texts)
        if len(self._known) > _MOST_KEPT:
            self._known.clear()
        cut = list(map(self._cut, texts))
        missing = list(set(chain.from_iterable(cut)).difference(self._known))
        self._learn(missing)
        if sum(map(len, missing)) > _USELESS_SHARE * sum(map(len, texts)):
            self._slices_to_skip = _USELESS_SLICES
        ids_of = self._known.__getitem__
        per_text = [b"".join(map(ids_of, pieces)) for pieces in cut]
        for chunk in missing:
            if len(chunk) > _LONGEST_KEPT:
                del self._known[chunk]
        return _encoded(per_text)

    def _learn(self, missing: list[str]) -> None:
        """Encode chunks, many at a time because a call costs more than a word."""
        if self._bare_words is not None:
            bare, missing = self._bare_words.divide(missing)
            self._known.update(zip(bare, self._bare_words.encode(bare), strict=True))
        groups = [missing[start : start + _JOINED_CHUNKS] for start in range(0, len(missing), _JOINED_CHUNKS)]
        joined = self._marked.encode_batch_fast([_MARK.join(group) for group in groups], add_special_tokens=False)
        for group, encoding in zip(groups, joined, strict=True):
            ids = np.array(encoding.ids, np.uint32)
            ends = [*(4 * np.flatnonzero(ids == self._mark)).tolist(), 4 * len(ids)]
            data, start = ids.tobytes(), 0
            for chunk, end in zip(group, ends, strict=True):
                self._known[chunk] = data[start:end]
                start = end + 4

    def _encode_whole(self, texts: list[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return _encoded([np.array(encoding.ids, np.uint32).tobytes() for encoding in encodings])


def _encoded(per_text: list[bytes]) -> Encoded:
    lengths = np.fromiter(map(len, per_text), np.int64, len(per_text)) // 4
    return Encoded(np.frombuffer(b"".join(per_text), np.uint32), lengths.astype(np.int32))


def _slices(texts: list[str]) -> Iterator[list[str]]:
    start = characters = 0
    for index, text in enumerate(texts):
        characters += len(text)
        if characters >= _SLICE_CHARACTERS:
            yield texts[start : index + 1]
            start, characters = index + 1, 0
    if start < len(texts):
        yield texts[start:]
