"""From documents to token ids with the ends of sentences and documents and, optionally, the beginnings of words.

`WordEncoder` aligns the tokens of a text with an analyser's word boundaries, by character offsets. The tokenizer is unchanged
and knows nothing about words.

The rule: a token's place is that of its first visible character, and it begins a word if a word begins after the place of the
previous token and not after its own. So a token that spans a boundary belongs to the word in which it begins, and of several
tokens of one character only the first may begin a word.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

import numpy as np
from tokenizers import Encoding

from tpulm.corpus import split_sentences
from tpulm.dataset.layouts import TokenizedDocuments
from tpulm.dataset.manifest import Counts, rounded_up
from tpulm.tokenization import Tokenization, analysers
from tpulm.tokenization.encode import NOTHING, Encoded, joined, slices
from tpulm.tokenization.pipelines import without_surrogates
from tpulm.tokenization.unknowns import hidden_characters

_CHARACTERS_AT_ONCE: Final = 1 << 20  # after which progress is reported
_MEASURED: Final = 1_000  # of these, in texts with unknown tokens: more takes noticeably longer
_WORD_CHARACTERS_AT_ONCE: Final = 1 << 17  # encodings with offsets take several hundred bytes per token
_IS_BLANK: Final = np.array([chr(code).isspace() for code in range(0x3001)] + [False])  # the last is for all codes above


def encode_documents(
    documents: list[str],
    tokenization: Tokenization,
    *,
    sentences: bool,
    dtype: np.dtype,
    apart: bool = False,
    words: WordEncoder | None = None,
    at_once: int | None = None,
    advance: Callable[[int, int], None] = lambda text_bytes, documents: None,
) -> tuple[TokenizedDocuments, Counts]:
    """Tokenize the documents, in order, and count text and tokens; with `sentences` each is split into sentences.

    With `apart` each sentence is a document of its own, without the white space around it; counts stay the documents'.
    `words` (of the same tokenizer) says where words begin; every sentence begins one. `advance` gets the numbers of bytes
    and documents done, after about every `at_once` characters.
    """
    ids: list[np.ndarray] = [np.empty(0, dtype)]
    lengths: list[np.ndarray] = [np.zeros(1, np.int64)]
    sentence_counts: list[np.ndarray] = [np.empty(0, np.int64)]
    word_start: list[np.ndarray] = [np.empty(0, np.int8)]
    splitter = split_sentences if apart else _sentences if sentences else None
    num_bytes = blanks = num_words = 0
    unknown_characters = 0.0
    for some in slices(documents, at_once or _CHARACTERS_AT_ONCE):
        split = list(map(splitter, some)) if splitter else [[document] for document in some]
        texts = list(chain.from_iterable(split))
        if words is None:
            encoded = tokenization.encode(texts)
        else:
            encoded, starts = words.encode(texts)
            word_start.append(starts)
        ids.append(encoded.ids.astype(dtype))
        lengths.append(encoded.lengths.astype(np.int64))
        sentence_counts.append(np.fromiter(map(len, split), np.int64, len(split)))
        sizes, each = hidden_characters(tokenization, texts, encoded, _MEASURED)
        unknown_characters += each * sizes.sum()
        data = "\n".join(["", *some]).encode()
        is_blank = np.frombuffer(data, np.uint8) <= ord(" ")  # collapsed text has no others
        blanks += np.count_nonzero(is_blank) - len(some)
        num_words += np.count_nonzero(is_blank[:-1] & ~is_blank[1:])
        advance(len(data) - len(some), len(some))
        num_bytes += len(data) - len(some)
    all_ids = np.concatenate(ids)
    ends = np.cumsum(np.concatenate(lengths))
    document_ends = ends[np.cumsum(np.concatenate(sentence_counts))]
    characters = np.fromiter(map(len, documents), np.int64, len(documents))
    beginnings = None if words is None else np.concatenate(word_start)
    tokens = TokenizedDocuments(all_ids, _rising(ends), _rising(ends if apart else document_ends), beginnings)
    counted = Counts(
        documents=len(documents),
        one_sentence_documents=int(np.count_nonzero(np.concatenate(sentence_counts) == 1)) if sentences else 0,
        empty_documents=len(documents) - _rising(document_ends).size,
        bytes=num_bytes,
        characters=int(characters.sum()),
        tokens=all_ids.size,
        blanks=int(blanks),
        words=int(num_words),
        unknown_characters=round(unknown_characters),
        unknown_tokens=int(np.count_nonzero(all_ids == tokenization.special.unknown)),
        character_lengths=rounded_up(characters),
        token_lengths=rounded_up(np.diff(document_ends, prepend=0)),
    )
    return tokens, counted


def _sentences(document: str) -> list[str]:
    """The sentences, each with the white space before it: some tokenizers distinguish " word" and "word"."""
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
    """The ends, without those of empty sentences or documents."""
    return ends[np.flatnonzero(np.diff(ends, prepend=0))]


class WordEncoder:
    """Encodes like `Tokenization.encode`, but slower, and finds where words begin."""

    def __init__(self, tokenization: Tokenization, analyser: analysers.Name):
        self._tokenizer = tokenization.plain()
        self._analyser = analysers.load(analyser)

    def encode(self, texts: list[str]) -> tuple[Encoded, np.ndarray]:
        """Ids, and word starts: int8 [T], 1 where a token begins a word, as the first token of a text always does.

        A lone surrogate counts as U+FFFD.
        """
        parts, starts = [NOTHING], [np.zeros(0, np.int8)]
        for some in slices(texts, _WORD_CHARACTERS_AT_ONCE):
            some = list(map(without_surrogates, some))
            encodings = self._tokenizer.encode_batch(some, add_special_tokens=False)
            ids = [np.array(encoding.ids, np.uint32) for encoding in encodings]
            parts.append(Encoded(np.concatenate(ids), np.array(list(map(len, ids)), np.int32)))
            for text, encoding, words in zip(some, encodings, analysers.word_offsets(some, self._analyser), strict=True):
                starts.append(first_of_words(_places(text, encoding), words))
        return joined(parts), np.concatenate(starts)


def first_of_words(places: np.ndarray, words: np.ndarray) -> np.ndarray:
    """int8 [T]: 1 where a token begins a word, given the offsets of tokens [T] and of words [W], which rise from 0."""
    return (np.diff(np.searchsorted(words, places, "right"), prepend=0) > 0).astype(np.int8)


def _places(text: str, encoding: Encoding) -> np.ndarray:
    """The offset of each token's first visible character, or of its end if it has none; int64 [T], never decreasing."""
    if not len(encoding):
        return np.zeros(0, np.int64)
    begin, end = np.array(encoding.offsets, np.int64).T
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    visible = np.append(np.flatnonzero(~_IS_BLANK[np.minimum(points, len(_IS_BLANK) - 1)]), len(text))
    first = visible[np.searchsorted(visible, np.minimum(begin, len(text)))]
    return np.maximum.accumulate(np.minimum(first, np.maximum(begin, end)))
