"""Encoding text in bulk: the hot loop of dataset preparation.

Natural text repeats its words, so most of it needs no tokenizer: each distinct chunk (see chunks.py) is encoded once, its ids
are kept in one long array, and those of a text are gathered from there. Text that cannot be cut, or that repeats nothing, goes
to the tokenizer whole; the ids are the same.
"""

from __future__ import annotations

from functools import cached_property
from itertools import repeat
from typing import Final

import numpy as np
from tokenizers import AddedToken, Tokenizer

from tpulm.tokenization.bare_words import bare_words
from tpulm.tokenization.chunks import SLICE_CHARACTERS, Chunks, cutter
from tpulm.tokenization.encoded import NOTHING, Encoded, gather, ids_of, joined, slices
from tpulm.tokenization.plain import without_special_names, without_surrogates
from tpulm.tokenization.special import SpecialTokens

_JOINED_CHUNKS = 128  # handed to the tokenizer as one string; the longer it is, the more a character costs
_LONGEST_KEPT = 48  # characters; longer chunks hardly ever return
_MOST_KEPT = 1 << 20  # chunks, about 150 MB; then all are forgotten and learnt anew
_USELESS_SHARE = 0.8  # of a slice's characters went through the whole pipeline: cutting gained nothing
_USELESS_SLICES = 7  # so the next ones go to the tokenizer whole

_MARK: Final = "\U0010fffd"  # between two chunks; a text that has this private character is encoded whole


class BulkEncoder:
    """Encodes texts and adds nothing; the name of a special token within a text is plain text."""

    def __init__(self, tokenizer: Tokenizer, specials: SpecialTokens):
        self._tokenizer = without_special_names(tokenizer, specials)
        self._cutter = cutter(self._tokenizer)
        self._bare_words = bare_words(self._tokenizer)
        self._forget()
        self._slices_to_skip = 0
        self._slowly_encoded = 0  # characters of this slice that were no bare words

    def _forget(self) -> None:
        self._known: dict[str, int] = {}  # its place in the arrays
        self._ids, self._lengths = NOTHING

    def encode(self, texts: list[str]) -> Encoded:
        parts = [NOTHING]
        for part in slices(texts, SLICE_CHARACTERS):
            try:
                parts.append(self._encode(part))
            except (UnicodeEncodeError, TypeError):  # what the library makes of a lone surrogate
                parts.append(self._encode([without_surrogates(text) for text in part]))
        return joined(parts)

    def _encode(self, texts: list[str]) -> Encoded:
        if self._cutter is None or any(_MARK in text for text in texts):
            return self._encode_whole(texts)
        if self._slices_to_skip:
            self._slices_to_skip -= 1
            return self._encode_whole(texts)
        return self._from_chunks(self._cutter.cut(texts))

    def _from_chunks(self, chunks: Chunks) -> Encoded:
        if len(self._known) > _MOST_KEPT:
            self._forget()
        self._slowly_encoded = 0
        number = len(chunks.distinct)
        place = np.fromiter(map(self._known.get, chunks.distinct, repeat(-1)), np.int64, number)
        missing = np.flatnonzero(place < 0)
        sizes = np.fromiter(map(len, chunks.distinct), np.int64, number)
        kept = missing[sizes[missing] <= _LONGEST_KEPT]
        passing = missing[sizes[missing] > _LONGEST_KEPT]
        place[np.concatenate([kept, passing])] = len(self._known) + np.arange(len(missing))

        learnt = [chunks.distinct[index] for index in kept.tolist()]
        self._ids, self._lengths = joined([Encoded(self._ids, self._lengths), self._learn(learnt)])
        self._known.update(zip(learnt, range(len(self._known), len(self._known) + len(learnt)), strict=True))
        some = self._learn([chunks.distinct[index] for index in passing.tolist()])
        found = gather(joined([Encoded(self._ids, self._lengths), some]), place[chunks.which])

        if self._slowly_encoded > _USELESS_SHARE * sizes[chunks.which].sum():
            self._slices_to_skip = _USELESS_SLICES
        ends = np.concatenate([[0], np.cumsum(found.lengths, dtype=np.int64)])[chunks.ends]
        return Encoded(found.ids, np.diff(ends, prepend=0).astype(np.int32))

    def _learn(self, chunks: list[str]) -> Encoded:
        """Encode chunks, many at a time because a call costs more than a word."""
        if self._bare_words is None:
            return self._encode_marked(chunks)
        bare = self._bare_words.are_bare(chunks)
        others = np.flatnonzero(~bare)
        if not len(others):
            return self._bare_words.encode(chunks)
        whole = self._encode_marked([chunks[index] for index in others.tolist()])
        words = self._bare_words.encode([chunks[index] for index in np.flatnonzero(bare).tolist()])
        back = np.empty(len(chunks), np.int64)
        back[np.concatenate([np.flatnonzero(bare), others])] = np.arange(len(chunks))
        return gather(joined([words, whole]), back)

    def _encode_marked(self, chunks: list[str]) -> Encoded:
        self._slowly_encoded += sum(map(len, chunks))
        groups = [chunks[start : start + _JOINED_CHUNKS] for start in range(0, len(chunks), _JOINED_CHUNKS)]
        found = [NOTHING]
        mark = self._marked.token_to_id(_MARK)
        for ids in ids_of(self._marked, [_MARK.join(group) for group in groups]):
            is_mark = ids == mark
            ends = np.append(np.flatnonzero(is_mark), len(ids))
            found.append(Encoded(ids[~is_mark], np.diff(ends, prepend=-1).astype(np.int32) - 1))
        return joined(found)

    @cached_property
    def _marked(self) -> Tokenizer:
        """The same tokenizer, but that it finds the mark between chunks."""
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        tokenizer.add_tokens([AddedToken(_MARK, normalized=False)])
        return tokenizer

    def _encode_whole(self, texts: list[str]) -> Encoded:
        found = list(ids_of(self._tokenizer, texts))
        return Encoded(np.concatenate([NOTHING.ids, *found]), np.fromiter(map(len, found), np.int32, len(found)))
