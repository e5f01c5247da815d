"""Counting the words of a sample: what training starts from.

Trainers look at distinct words and how often each occurs, so the counts do not depend on the order of the text nor on how it
was batched, and a chunk that occurs a thousand times is normalised once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from tokenizers import Tokenizer

from tpulm import interrupt
from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.tokenization.chunks import SLICE_CHARACTERS, Cutter, cutter
from tpulm.tokenization.encoded import slices
from tpulm.tokenization.pipelines import specified
from tpulm.tokenization.plain import without_surrogates

_CHARACTERS_HELD = 32_000_000  # of distinct chunks, before they are turned into words


def count_words(texts: Iterable[list[str]], pipeline: Tokenizer, progress: Progress = SILENT) -> Counter[str]:
    """How often each word occurs, words being what `pipeline`'s normaliser and pre-tokenizer make of the texts.

    Raises DataError when there is nothing but blanks.
    """
    cut = cutter(specified(pipeline))
    pipeline = cut.for_chunks.tokenizer if cut else pipeline
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    held = num_texts = 0
    is_blank = True
    progress.start("Counting words", unit="characters")
    for batch in texts:
        interrupt.check("no tokenizer was written yet")
        characters = sum(map(len, batch))
        chunks.update(_counted(cut, batch))
        num_texts += len(batch)
        is_blank = is_blank and not any(text and not text.isspace() for text in batch)
        held += characters
        progress.advance(characters)
        if held > _CHARACTERS_HELD:
            _add_words(words, chunks, pipeline)
            chunks.clear()
            held = 0
    _add_words(words, chunks, pipeline)
    if is_blank or not words:
        raise DataError(f"there is no text to train a tokenizer on: {num_texts} documents without a single word")
    return words


def _counted(cut: Cutter | None, texts: list[str]) -> Counter[str]:
    """How often each chunk of the texts occurs."""
    if cut is None:
        return Counter(map(without_surrogates, texts))
    counted: Counter[str] = Counter()
    for part in slices(texts, SLICE_CHARACTERS):
        try:
            chunks = cut.cut(part)
        except UnicodeEncodeError:
            chunks = cut.cut(list(map(without_surrogates, part)))
        counted.update(chunks.strings(np.arange(len(chunks.starts))))
    return counted


def most_frequent(words: Mapping[str, int], max_characters: int, progress: Progress = SILENT) -> Mapping[str, int]:
    """The most frequent distinct words with `max_characters` in all; of words that are equally frequent, a choice by hash."""
    if sum(map(len, words)) <= max_characters:
        return words
    chosen: dict[str, int] = {}
    characters = 0
    for word in sorted(words, key=lambda word: (-words[word], hashlib.blake2b(word.encode(), digest_size=8).digest())):
        characters += len(word)
        if characters > max_characters:
            break
        chosen[word] = words[word]
    share = sum(chosen.values()) / sum(words.values())
    counts = f"{len(chosen):,} most frequent of {len(words):,} distinct words"
    progress.note(f"tokenizer: trained on the {counts}, {percent(share, 1)} of the sample's words")
    return chosen


def _add_words(words: Counter[str], chunks: Counter[str], pipeline: Tokenizer) -> None:
    normalizer, pre_tokenizer = pipeline.normalizer, pipeline.pre_tokenizer
    assert pre_tokenizer is not None, "every pipeline of ours has one"
    for chunk, count in chunks.items():
        normalized = normalizer.normalize_str(chunk) if normalizer else chunk
        for word, _ in pre_tokenizer.pre_tokenize_str(normalized):
            words[word] += count
