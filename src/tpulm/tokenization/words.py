"""Counting the words of a sample: what training starts from.

Trainers look at distinct words and how often each occurs, so the counts do not depend on the order of the text nor on how it
was batched, and a chunk that occurs a thousand times is normalised once.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer, pre_tokenizers

from tpulm import interrupt
from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.tokenization.plain import without_surrogates

_CHARACTERS_HELD = 32_000_000  # of chunks, before the distinct ones are turned into words

# Where pipelines begin a word, whatever else is there: all before a single space, two of them between letters and marks.
_SPACES = re.compile(r"(?<=\S)(?= \S)")
_LETTERS, _MARKS = "A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3", r",.!?:;()\u3001\u3002\u300c\u300d\u2026"
_SPACES_AND_MARKS = re.compile(rf"{_SPACES.pattern}|(?<=[{_LETTERS}])(?=[{_MARKS}])|(?<=[{_MARKS}])(?=[{_LETTERS}])")


def count_words(texts: Iterable[list[str]], pipeline: Tokenizer, progress: Progress = SILENT) -> Counter[str]:
    """How often each word occurs, words being what `pipeline`'s normaliser and pre-tokenizer make of the texts.

    Raises DataError when there is nothing but blanks.
    """
    # WhitespaceSplit splits at spaces alone, and Metaspace, a sequence, puts a space before what has none.
    at_marks = isinstance(pipeline.pre_tokenizer, pre_tokenizers.BertPreTokenizer | pre_tokenizers.ByteLevel)
    cuts = _SPACES_AND_MARKS if at_marks else _SPACES
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    held = num_texts = 0
    is_blank = True
    progress.start("Counting words", unit="characters")
    for batch in texts:
        interrupt.check("no tokenizer was written yet")
        characters = sum(map(len, batch))
        for text in batch:
            chunks.update(cuts.split(without_surrogates(text)))
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
