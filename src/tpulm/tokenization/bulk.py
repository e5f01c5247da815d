"""Encoding text in bulk: the hot loop of dataset preparation.

Natural text repeats its words, so most of it needs no tokenizer: each distinct chunk (see chunks.py) is encoded once, its ids
are kept in one long array, and those of a text are gathered from there. Text that cannot be cut, or that repeats nothing, goes
to the tokenizer whole; the ids are the same.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from tpulm.tokenization.bare_words import bare_words
from tpulm.tokenization.chunks import SLICE_CHARACTERS, Chunks, cutter
from tpulm.tokenization.encoded import NOTHING, Encoded, gather, ids_of, joined, slices
from tpulm.tokenization.known_chunks import LONGEST_KNOWN, Fingerprints, KnownChunks, fingerprints
from tpulm.tokenization.pipelines import Specified
from tpulm.tokenization.plain import without_special_names, without_surrogates
from tpulm.tokenization.special import SpecialTokens

_JOINED_CHUNKS = 128  # handed to the tokenizer as one string; the longer it is, the more a character costs
_MOST_KEPT = 1 << 21  # chunks, about 120 MB; when there are more, the rare ones are forgotten
_USELESS_SHARE = 0.8  # of a slice's characters went through the whole pipeline: cutting gained nothing
_USELESS_SLICES = 7  # so the next ones go to the tokenizer whole

_MARK: Final = "\U0010fffd"  # between two chunks; a text that has this private character is encoded whole


class BulkEncoder:
    """Encodes texts and adds nothing; the name of a special token within a text is plain text."""

    def __init__(self, tokenizer: Tokenizer, specials: SpecialTokens):
        pipeline = without_special_names(tokenizer, specials)
        self._tokenizer = pipeline.tokenizer
        self._cutter = cutter(pipeline) if _takes_a_mark(pipeline) else None
        for_chunks = self._cutter.for_chunks if self._cutter else pipeline
        self._for_chunks = for_chunks.tokenizer
        self._bare_words = bare_words(for_chunks)
        self._known = KnownChunks()
        self._slices_to_skip = 0
        self._slowly_encoded = 0  # characters of this slice that were no bare words

    def encode(self, texts: list[str]) -> Encoded:
        parts = [NOTHING]
        for some in slices(texts, SLICE_CHARACTERS):
            try:
                parts.append(self._encode(some))
            except (UnicodeEncodeError, TypeError):  # what the library makes of a lone surrogate
                parts.append(self._encode(list(map(without_surrogates, some))))
        return joined(parts)

    def _encode(self, texts: list[str]) -> Encoded:
        if self._cutter is None:
            return self._encode_whole(texts)
        if self._slices_to_skip:
            self._slices_to_skip -= 1
            return self._encode_whole(texts)
        chunks = self._cutter.cut(texts)
        if _MARK in chunks.text:
            return self._encode_whole(texts)
        self._slowly_encoded = 0
        found = self._from_chunks(chunks)
        if self._slowly_encoded > _USELESS_SHARE * len(chunks.text):
            self._slices_to_skip = _USELESS_SLICES
        if len(self._known) > _MOST_KEPT:
            self._known = self._known.without_rare()
        return found

    def _from_chunks(self, chunks: Chunks) -> Encoded:
        prints = fingerprints(chunks.points, chunks.starts, chunks.dropped)
        numbers = self._known.find(prints)
        is_short = chunks.sizes <= LONGEST_KNOWN
        new = np.flatnonzero((numbers == 0) | ~is_short)
        distinct = _distinct(prints.take(new), is_short[new])
        learnt = self._learn(chunks.strings(new[distinct.places]))
        numbers[new] = self._known.append(learnt) + distinct.which
        found = self._known.encoded(numbers)
        self._known.keep(prints.take(new[distinct.places[: distinct.number_short]]))
        token_ends = np.append(0, np.cumsum(found.lengths, dtype=np.int64))[chunks.ends]
        return Encoded(found.ids, np.diff(token_ends, prepend=0).astype(np.int32))

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
        """What encodes chunks, but that it finds the mark between them."""
        tokenizer = Tokenizer(self._for_chunks.model)
        tokenizer.normalizer, tokenizer.pre_tokenizer = self._for_chunks.normalizer, self._for_chunks.pre_tokenizer
        tokenizer.add_tokens([AddedToken(_MARK, normalized=False)])
        return tokenizer

    def _encode_whole(self, texts: list[str]) -> Encoded:
        found = list(ids_of(self._tokenizer, texts))
        return Encoded(np.concatenate([NOTHING.ids, *found]), np.fromiter(map(len, found), np.int32, len(found)))


def _takes_a_mark(pipeline: Specified) -> bool:
    """Whether the mark would be a token, with an id of its own: it would get that of a gap."""
    vocabulary = pipeline.specification["model"]["vocab"]
    has_gaps = isinstance(vocabulary, dict) and max(vocabulary.values(), default=-1) >= len(vocabulary)
    return not has_gaps and pipeline.tokenizer.token_to_id(_MARK) is None


class _Distinct(NamedTuple):
    """Of N chunks the different ones, short ones first: `places`, int64 [M], and which of them each chunk is, int64 [N]."""

    places: np.ndarray
    which: np.ndarray
    number_short: int


def _distinct(prints: Fingerprints, is_short: np.ndarray) -> _Distinct:
    """Long ones, whose fingerprints are void, count as different."""
    short = np.flatnonzero(is_short)
    first, second = prints.take(short)
    _, places, which = np.unique(first, return_index=True, return_inverse=True)
    is_same = second == second[places][which]
    alone = np.concatenate([np.flatnonzero(~is_short), short[~is_same]])
    found = np.empty(len(is_short), np.int64)
    found[short] = which
    found[alone] = len(places) + np.arange(len(alone))
    return _Distinct(np.concatenate([short[places], alone]), found, len(places))
