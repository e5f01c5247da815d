"""Encoding text in bulk: the hot loop of dataset preparation.

Natural text repeats its words, so most of it needs no tokenizer: each distinct chunk (see chunks.py) is encoded once, its ids
are kept in one long array, and those of a text are gathered from there. Text that cannot be cut, or that repeats nothing, goes
to the tokenizer whole; the ids are the same.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from tpulm.tokenization.bare_words import bare_words
from tpulm.tokenization.chunks import SLICE_CHARACTERS, Chunks, cutter, distinct
from tpulm.tokenization.encoded import NOTHING, Encoded, gather, ids_of, joined, slices
from tpulm.tokenization.pipelines import Specified
from tpulm.tokenization.plain import without_special_names, without_surrogates
from tpulm.tokenization.special import SpecialTokens

if TYPE_CHECKING:
    import pyarrow as pa

_JOINED_CHUNKS = 128  # handed to the tokenizer as one string; the longer it is, the more a character costs
_LONGEST_KEPT = 48  # characters; longer chunks hardly ever return
_MOST_KEPT = 1 << 19  # chunks, about 40 MB; when there are more, the rare ones are forgotten
_WORTH_A_LOOK = 8  # known chunks for each of a block, at most: hashing them costs as much as encoding new ones
_MOST_SLICES = 8  # of a block: the larger it is, the more of its chunks are equal
_USELESS_SHARE = 0.8  # of a block's characters went through the whole pipeline: cutting gained nothing
_USELESS_SLICES = 7  # so the next ones go to the tokenizer whole

_MARK: Final = "\U0010fffd"  # between two chunks; a text that has this private character is encoded whole


class _Known(NamedTuple):
    """Chunks and their ids, in the same order."""

    chunks: pa.StringArray | tuple[()]
    encoded: Encoded


_NONE_KNOWN: Final = _Known((), NOTHING)


class BulkEncoder:
    """Encodes texts and adds nothing; the name of a special token within a text is plain text."""

    def __init__(self, tokenizer: Tokenizer, specials: SpecialTokens):
        pipeline = without_special_names(tokenizer, specials)
        self._tokenizer = pipeline.tokenizer
        self._cutter = cutter(pipeline) if _has_no_gaps(pipeline) else None  # the mark would get the id of a gap
        for_chunks = self._cutter.for_chunks if self._cutter else pipeline
        self._for_chunks = for_chunks.tokenizer
        self._bare_words = bare_words(for_chunks)
        self._known = _NONE_KNOWN
        self._slices_to_skip = 0
        self._slices_at_once = 1
        self._slowly_encoded = 0  # characters of this block that were no bare words

    def encode(self, texts: list[str]) -> Encoded:
        parts, waiting = [NOTHING], deque(slices(texts, SLICE_CHARACTERS))
        while waiting:
            block = [waiting.popleft() for _ in range(min(self._slices_at_once, len(waiting)))]
            try:
                parts.append(self._encode(block))
            except (UnicodeEncodeError, TypeError):  # what the library makes of a lone surrogate
                parts.append(self._encode([list(map(without_surrogates, part)) for part in block]))
        return joined(parts)

    def _encode(self, block: list[list[str]]) -> Encoded:
        if self._cutter is None or any(_MARK in "".join(part) for part in block):
            return joined(list(map(self._encode_whole, block)))
        if self._slices_to_skip:
            self._slices_to_skip -= len(block)
            return joined(list(map(self._encode_whole, block)))
        self._slowly_encoded = 0
        found = self._from_chunks([self._cutter.cut(part) for part in block])
        is_useless = self._slowly_encoded > _USELESS_SHARE * sum(len(text) for part in block for text in part)
        self._slices_to_skip = _USELESS_SLICES if is_useless else 0
        self._slices_at_once = 1 if is_useless else min(2 * self._slices_at_once, _MOST_SLICES)
        return found

    def _from_chunks(self, block: list[Chunks]) -> Encoded:
        sizes = [len(part.all) for part in block]
        known = self._known
        if len(known.chunks) > _WORTH_A_LOOK * sum(sizes):
            known = _NONE_KNOWN
        chunks, which = distinct([part.all for part in block], known.chunks)
        new = chunks[len(known.chunks) :].to_pylist()
        encoded = joined([known.encoded, self._learn(new)])
        if known is self._known:
            is_kept = np.ones(len(chunks), bool)
            is_kept[len(chunks) - len(new) :] = np.fromiter(map(len, new), np.int64, len(new)) <= _LONGEST_KEPT
            self._known = _kept(_Known(chunks, encoded), is_kept, which, len(known.chunks))
        places = np.split(which, np.cumsum(sizes)[:-1])
        return joined([_of_texts(encoded, here, part.ends) for here, part in zip(places, block, strict=True)])

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


def _has_no_gaps(pipeline: Specified) -> bool:
    vocabulary = pipeline.specification["model"]["vocab"]
    return isinstance(vocabulary, list) or max(vocabulary.values(), default=-1) < len(vocabulary)


def _of_texts(encoded: Encoded, which: np.ndarray, ends: np.ndarray) -> Encoded:
    """What texts have whose chunks are `which` of the encoded ones, up to `ends` each."""
    found = gather(encoded, which)
    token_ends = np.concatenate([[0], np.cumsum(found.lengths, dtype=np.int64)])[ends]
    return Encoded(found.ids, np.diff(token_ends, prepend=0).astype(np.int32))


def _kept(known: _Known, is_kept: np.ndarray, which: np.ndarray, number_old: int) -> _Known:
    """Those that are kept; where they would be too many, only what occurs a second time.

    That is, the last block, at `which`, has it more than once, or it was among the first `number_old` before.
    """
    if is_kept.sum() > _MOST_KEPT:
        occurrences = np.bincount(which, minlength=len(is_kept))
        occurrences[:number_old] *= 2
        is_kept &= occurrences > 1
    if is_kept.all() or isinstance(known.chunks, tuple):
        return known
    import pyarrow as pa

    return _Known(known.chunks.filter(pa.array(is_kept)), gather(known.encoded, np.flatnonzero(is_kept)))
