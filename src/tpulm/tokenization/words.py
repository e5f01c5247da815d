"""Counting the words of a sample: what training starts from.

Trainers look at distinct words and how often each occurs, so the counts do not depend on the order of the text nor on how it
was batched, and a chunk that occurs a thousand times is normalized once.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from tokenizers import Tokenizer, pre_tokenizers

from tpulm.errors import DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.runtime import interrupt
from tpulm.tokenization.plain import without_surrogates

_CHARACTERS_HELD = 8_000_000  # of chunks, before the distinct ones are turned into words

# Where pipelines begin a word, whatever else is there: all before a single space, two of them between letters and marks.
_SPACES = re.compile(r"(?<=\S)(?= \S)")
_LETTERS, _MARKS = "A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3", r",.!?:;()\u3001\u3002\u300c\u300d\u2026"
_SPACES_AND_MARKS = re.compile(rf"{_SPACES.pattern}|(?<=[{_LETTERS}])(?=[{_MARKS}])|(?<=[{_MARKS}])(?=[{_LETTERS}])")


def count_words(texts: Iterable[list[str]], pipeline: Tokenizer, progress: Progress = SILENT) -> Counter[str]:
    """How often each word occurs, words being what `pipeline`'s normalizer and pre-tokenizer make of the texts.

    Words of a byte-level pipeline are counted as the text that they stand for: in Japanese that takes two thirds of the memory.
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


def interruptible(words: Mapping[str, int], progress: Progress = SILENT) -> Iterator[tuple[str, int]]:
    """The words and their counts, for a pass over millions of them: it ends when a stop is requested."""
    for number, item in enumerate(words.items()):
        if number % 100_000 == 0:
            interrupt.check("no tokenizer was written yet")
            progress.advance(0)  # a sign of life
        yield item


def most_frequent(
    words: Mapping[str, int], max_size: int, progress: Progress = SILENT, *, size_of: Callable[[str], int] = len
) -> Mapping[str, int]:
    """The most frequent distinct words of `max_size` in all; of words that are equally frequent, a choice by hash."""
    sizes: Counter[int] = Counter()  # of all words that occur so often
    for word, count in words.items():
        sizes[count] += size_of(word)
    if sum(sizes.values()) <= max_size:
        return words
    room, least = max_size, 0
    for least in sorted(sizes, reverse=True):
        if sizes[least] > room:
            break
        room -= sizes[least]
    chosen = {word: count for word, count in words.items() if count > least}
    for word in sorted((word for word, count in words.items() if count == least), key=_hash):
        room -= size_of(word)
        if room < 0:
            break
        chosen[word] = least
    share = sum(chosen.values()) / sum(words.values())
    counts = f"{len(chosen):,} most frequent of {len(words):,} distinct words"
    progress.note(f"tokenizer: trained on the {counts}, {percent(share, 1)} of the sample's words")
    return chosen


def _hash(word: str) -> bytes:
    return hashlib.blake2b(word.encode(), digest_size=8).digest()


def _add_words(words: Counter[str], chunks: Counter[str], pipeline: Tokenizer) -> None:
    normalizer, pre_tokenizer = pipeline.normalizer, pipeline.pre_tokenizer
    assert pre_tokenizer is not None, "every pipeline of ours has one"
    is_byte_level = isinstance(pre_tokenizer, pre_tokenizers.ByteLevel)
    for chunk, count in chunks.items():
        normalized = normalizer.normalize_str(chunk) if normalizer else chunk
        split = pre_tokenizer.pre_tokenize_str(normalized)
        if is_byte_level:
            text = normalized.encode().decode()  # a copy: the library leaves UTF-8 in the strings that it was given
            for _, (start, end) in split:
                words[text[start:end]] += count
        else:
            for word, _ in split:
                words[word] += count
