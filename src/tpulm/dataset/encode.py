"""From documents to token ids with the ends of sentences and documents."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from tpulm.corpus import split_sentences
from tpulm.dataset.manifest import Counts
from tpulm.dataset.rows import Tokens
from tpulm.tokenization import Tokenization

_AT_ONCE = 10_000  # documents


class EncodedDocuments(NamedTuple):
    tokens: Tokens
    counts: Counts  # of text and tokens; rows are yet to come


def encode_documents(documents: list[str], tokenization: Tokenization, *, sentences: bool, dtype: np.dtype) -> EncodedDocuments:
    """The documents in their order; with `sentences` each is split into sentences, else it counts as one."""
    if sentences:
        split = list(map(_sentences, documents))
        encoded = tokenization.encode(list(chain.from_iterable(split)))
        document_sentences = np.cumsum(np.fromiter(map(len, split), np.int64, len(split)))
    else:
        encoded = tokenization.encode(documents)
        document_sentences = np.arange(1, len(documents) + 1)
    all_ids = encoded.ids.astype(dtype)
    ends = np.concatenate([[0], np.cumsum(encoded.lengths, dtype=np.int64)])
    document_ends = ends[document_sentences]
    tokens = Tokens(all_ids, _rising(ends), _rising(document_ends))
    counts = Counts(
        documents=len(documents),
        empty_documents=len(documents) - tokens.document_ends.size,
        bytes=_utf8_bytes(documents),
        characters=sum(map(len, documents)),
        tokens=all_ids.size,
        unknown_tokens=int(np.count_nonzero(all_ids == tokenization.special.unknown)),
    )
    return EncodedDocuments(tokens, counts)


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


def _utf8_bytes(documents: list[str]) -> int:
    return sum(len("".join(documents[first : first + _AT_ONCE]).encode()) for first in range(0, len(documents), _AT_ONCE))


def _rising(ends: np.ndarray) -> np.ndarray:
    """The ends without those of empty pieces."""
    return ends[np.flatnonzero(np.diff(ends, prepend=0))]
