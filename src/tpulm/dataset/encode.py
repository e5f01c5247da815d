"""From documents to token ids with the ends of sentences and documents."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np

from tpulm.corpus import split_sentences
from tpulm.dataset.manifest import Counts
from tpulm.dataset.rows import Tokens
from tpulm.dataset.words import WordEncoder
from tpulm.tokenization import Tokenization
from tpulm.tokenization.encode import slices

_CHARACTERS_AT_ONCE = 1 << 20  # after which progress is told


class EncodedDocuments(NamedTuple):
    tokens: Tokens
    counts: Counts  # of text and tokens; rows are yet to come


def encode_documents(
    documents: list[str],
    tokenization: Tokenization,
    *,
    sentences: bool,
    dtype: np.dtype,
    words: WordEncoder | None = None,
    at_once: int | None = None,
    advance: Callable[[float], None] = lambda text_bytes: None,
) -> EncodedDocuments:
    """The documents in their order; with `sentences` each is split into sentences, else it counts as one.

    `words` of the same tokenizer says where words begin; a sentence begins one. `advance` is told the bytes of text that
    are done, after each `at_once` characters or so.
    """
    ids: list[np.ndarray] = [np.empty(0, dtype)]
    lengths: list[np.ndarray] = [np.zeros(1, np.int64)]
    sentence_counts: list[np.ndarray] = [np.empty(0, np.int64)]
    word_start: list[np.ndarray] = [np.empty(0, np.int8)]
    num_bytes = 0
    for some in slices(documents, at_once or _CHARACTERS_AT_ONCE):
        texts, counts = _in_sentences(some) if sentences else (some, np.ones(len(some), np.int64))
        if words is None:
            encoded = tokenization.encode(texts)
        else:
            encoded, starts = words.encode(texts)
            word_start.append(starts)
        ids.append(encoded.ids.astype(dtype))
        lengths.append(encoded.lengths.astype(np.int64))
        sentence_counts.append(counts)
        advance(size := len("".join(some).encode()))
        num_bytes += size
    all_ids = np.concatenate(ids)
    ends = np.cumsum(np.concatenate(lengths))
    document_ends = ends[np.cumsum(np.concatenate(sentence_counts))]
    tokens = Tokens(all_ids, _rising(ends), _rising(document_ends), None if words is None else np.concatenate(word_start))
    counted = Counts(
        documents=len(documents),
        one_sentence_documents=int(np.count_nonzero(np.concatenate(sentence_counts) == 1)) if sentences else 0,
        empty_documents=len(documents) - tokens.document_ends.size,
        bytes=num_bytes,
        characters=sum(map(len, documents)),
        tokens=all_ids.size,
        unknown_tokens=int(np.count_nonzero(all_ids == tokenization.special.unknown)),
    )
    return EncodedDocuments(tokens, counted)


def _in_sentences(documents: list[str]) -> tuple[list[str], np.ndarray]:
    """The sentences of all, and how many each has; int64 [N]."""
    split = list(map(_sentences, documents))
    return list(chain.from_iterable(split)), np.fromiter(map(len, split), np.int64, len(split))


def _sentences(document: str) -> list[str]:
    """The sentences, each with the white space before it: to some tokenizers " word" and "word" are not the same."""
    stripped = split_sentences(document)
    if len(stripped) <= 1:
        return [document]
    sentences = []
    position = 0
    for sentence in stripped:
        end = document.index(sentence, position) + len(sentence)
        sentences.append(document[position:end])
        position = end
    return sentences


def _rising(ends: np.ndarray) -> np.ndarray:
    """The ends without those of empty pieces."""
    return ends[np.flatnonzero(np.diff(ends, prepend=0))]
