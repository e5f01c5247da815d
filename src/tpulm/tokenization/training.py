"""Train a tokenizer on a sample of the corpus: WordPiece, byte-level BPE or Unigram, with the library's trainers.

The same texts and settings give the same vocabulary every time, which the trainers alone do not guarantee:
docs/design/tokenizer-determinism.md says why, and what is done here about it.

Not every character gets its own token: Chinese and Japanese corpora contain over ten thousand, most of them a few times. The
most frequent ones come first (ties by code point), as long as they occur twice (`_MIN_FREQUENCY`) and their tokens fit
in half of the vocabulary. WordPiece, for which the rest is unknown, always takes as many as it needs to write 99 % of the text.
Unigram writes the rest in bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tpulm.config import CleaningConfig, TokenizerConfig
from tpulm.errors import ConfigError, DataError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.runtime import interrupt
from tpulm.tokenization import pipelines, special
from tpulm.tokenization.analysers import CHARACTERS_AT_ONCE
from tpulm.tokenization.encode import slices
from tpulm.tokenization.pipelines import CONTINUATION, MAX_WORD_CHARACTERS, SPACE, without_surrogates, wordpiece_model
from tpulm.tokenization.segmenter import Segmenter
from tpulm.tokenization.tokenization import Tokenization

BYTES = [f"<0x{value:02X}>" for value in range(256)]  # how Unigram writes characters without a token
# Total size of the distinct words trained on, the most frequent first: bounds memory (1 GB, Unigram 1.5 GB) and time.
_WORDPIECE_CHARACTERS, _BPE_BYTES, _UNIGRAM_CHARACTERS = 5_000_000, 6_000_000, 2_500_000
_MIN_FREQUENCY = 2  # of a word, merge or character, in the text
_LEAST_COVERAGE = 0.99  # WordPiece, of the text's characters: less leaves so many unknown words that it must be a mistake
_SHRINKING = 0.5  # fraction of Unigram's pieces kept per round; the library's 0.75 takes twice as long for 0.5% fewer tokens
_LONGEST_WORD = 200  # Unigram, characters; longer ones are cut for training
_SPARE = 50  # Unigram: one extra piece is requested from the trainer for this many
_RARE_STEP = 1e-4  # by which the trainer spaces the scores of characters that no piece needs
_STEPS = 1024  # scores are multiples of 1 / _STEPS
_NEVER = -1000.0  # the score of what text must not match: special tokens, and bytes, which only the fallback uses
_ALWAYS = frozenset(SPACE + "".join((*special.TOKENS, *BYTES, "[unused0123456789]")))  # so that these names can be spelled
_BATCH_WORDS = 20_000  # passed to a trainer at a time
_POLL_SECONDS = 0.2
_CHARACTERS_HELD = 8_000_000  # of chunks, before the distinct ones are turned into words

# Where pipelines always begin a word: all of them before a single space, two of them also between letters and marks.
_SPACES = re.compile(r"(?<=\S)(?= \S)")
_LETTERS, _MARKS = "A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3", r",.!?:;()\u3001\u3002\u300c\u300d\u2026"
_SPACES_AND_MARKS = re.compile(rf"{_SPACES.pattern}|(?<=[{_LETTERS}])(?=[{_MARKS}])|(?<=[{_MARKS}])(?=[{_LETTERS}])")


def train(
    texts: Iterable[list[str]], config: TokenizerConfig, *, cleaning: CleaningConfig | None = None, progress: Progress = SILENT
) -> Tokenization:
    """Train on batches of texts, read once. The result depends on the texts and the configuration, not on order or threads.

    `cleaning` says how the texts were normalized: the tokenizer, or the segmenter before it, does it to every later text.

    Raises ConfigError when `vocab_size` is too small or cannot be reached, DataError when there is no text.
    """
    if config.path is not None:
        raise ConfigError(f"tokenizer.path is '{config.path}', so there is nothing to train; load it, or leave the path out")
    make_pipeline, learn = _ALGORITHMS[config.algorithm]
    tokenizer = make_pipeline(config)
    before = [] if cleaning is None else pipelines.normalization(cleaning)
    segmenter = None
    if config.morphemes != "none":
        segmenter = Segmenter(config.morphemes, config.lowercase, json.dumps(before))
        texts = (segmenter.segment(some) for batch in texts for some in slices(batch, CHARACTERS_AT_ONCE))
    words = count_words(texts, tokenizer, progress)
    try:
        tokenizer.model = learn(words, config, progress)
    except Unreached as error:
        raise _unreachable(words, config, error.reached) from None
    tokens = special.locate(tokenizer.get_vocab(), "the trained vocabulary")
    pipelines.add_special_tokens(tokenizer, tokens)
    if before and segmenter is None:
        own = pipelines.steps(json.loads(tokenizer.to_str())["normalizer"], "normalizers")
        tokenizer.normalizer = pipelines.normalizer([*before, *own])
    return Tokenization(tokenizer, tokens, segmenter)


def _unreachable(words: Counter[str], config: TokenizerConfig, reached: int) -> ConfigError:
    """An error that names a reachable size, found by trial since a smaller vocabulary has a smaller alphabet."""
    _, learn = _ALGORITHMS[config.algorithm]
    what, more = f"tokenizer.vocab_size {config.vocab_size:,} cannot be reached", "give more text"
    total, long = (sum(len(w) * n for w, n in words.items() if len(w) > least) for least in (0, MAX_WORD_CHARACTERS))
    if config.algorithm == "wordpiece" and 2 * long > total:
        more = (
            f"set tokenizer.algorithm to 'bpe' or 'unigram': {long / total:.0%} of the text is in words of more than "
            f"{MAX_WORD_CHARACTERS} characters, of which WordPiece learns nothing"
        )
    while True:
        try:
            learn(words, config.model_copy(update={"vocab_size": reached}), SILENT)
        except Unreached as fewer:
            reached = fewer.reached
        except ConfigError:
            return ConfigError(f"{what}: this text yields {reached:,} tokens, too few for any vocabulary: {more}.")
        else:
            return ConfigError(
                f"{what}: this text yields {reached:,} tokens. Set tokenizer.vocab_size to {reached:,} or less, or {more}."
            )


def learn_wordpiece(words: Counter[str], config: TokenizerConfig, progress: Progress = SILENT) -> models.WordPiece:
    """A model of exactly `config.vocab_size` tokens. A word with a character outside the alphabet is unknown as a whole."""
    alphabet = choose_alphabet(
        words,
        progress,
        vocab_size=config.vocab_size,
        reserved=len(special.TOKENS),
        least_coverage=_LEAST_COVERAGE,
        continuing={character for word in words for character in word[1:]},
        rest="words with any other are unknown",
    )
    writable = {w: n for w, n in words.items() if len(w) <= MAX_WORD_CHARACTERS and alphabet.issuperset(w)}
    characters = sorted({character for word in writable for character in word})
    inside = sorted({character for word in writable for character in word[1:]})
    known = [*special.TOKENS, *characters, *(CONTINUATION + character for character in inside)]
    chosen = most_frequent(writable, _WORDPIECE_CHARACTERS, progress)
    tokenizer = Tokenizer(wordpiece_model({}))
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=known,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    vocabulary = run_trainer(tokenizer, trainer, chosen, progress)["vocab"]
    check_reached(len(vocabulary), config.vocab_size)
    return wordpiece_model(vocabulary)


def learn_bpe(words: Counter[str], config: TokenizerConfig, progress: Progress = SILENT) -> models.BPE:
    """A model of exactly `config.vocab_size` tokens, including the five special ones."""
    reserved = [*special.TOKENS]
    bytes_as_characters = pre_tokenizers.ByteLevel.alphabet()
    _check_least(config, len(reserved) + len(bytes_as_characters))
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=reserved,
        initial_alphabet=bytes_as_characters,
        show_progress=False,
    )
    chosen = most_frequent(words, _BPE_BYTES, progress, size_of=lambda word: len(word.encode()))
    in_bytes = {pipelines.to_byte_characters(word): count for word, count in chosen.items()}
    model = run_trainer(tokenizer, trainer, in_bytes, progress)
    check_reached(len(model["vocab"]), config.vocab_size)
    return models.BPE(model["vocab"], [(left, right) for left, right in model["merges"]])


def learn_unigram(words: Counter[str], config: TokenizerConfig, progress: Progress = SILENT) -> models.Unigram:
    """A model of exactly `config.vocab_size` tokens: special ones, 256 bytes, then pieces by descending score."""
    reserved = [*special.TOKENS, *BYTES]
    _check_least(config, len(reserved) + 2 * len(_ALWAYS))
    num_pieces = config.vocab_size - len(reserved)
    alphabet = choose_alphabet(
        words,
        progress,
        vocab_size=config.vocab_size,
        reserved=len(reserved) + len(_ALWAYS),
        least_coverage=0.0,
        rest="the others are written in bytes",
    )
    chosen = most_frequent(_cut(interruptible(words, progress), alphabet | _ALWAYS), _UNIGRAM_CHARACTERS, progress)
    tokenizer = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=1 + num_pieces + max(len(_ALWAYS), num_pieces // _SPARE),
        special_tokens=[special.UNKNOWN],
        unk_token=special.UNKNOWN,
        initial_alphabet=sorted(_ALWAYS),
        shrinking_factor=_SHRINKING,
        show_progress=False,
    )
    trained = dict(run_trainer(tokenizer, trainer, chosen, progress)["vocab"])
    pieces = _canonical({piece: score for piece, score in trained.items() if piece not in set(reserved)}, num_pieces)
    check_reached(len(reserved) + len(pieces), config.vocab_size)
    vocabulary = [*((token, _NEVER) for token in reserved), *pieces]
    return models.Unigram(vocabulary, unk_id=reserved.index(special.UNKNOWN), byte_fallback=True)


def _check_least(config: TokenizerConfig, least: int) -> None:
    if config.vocab_size < least:
        what = f"tokenizer.vocab_size {config.vocab_size:,} is too small: special tokens and bytes take most of it"
        raise ConfigError(f"{what}. The least possible is {least:,}; several thousand are usual.")


def _cut(words: Iterable[tuple[str, int]], alphabet: frozenset[str]) -> Counter[str]:
    """The words without the characters that get no token; very long words are cut into parts."""
    within = re.compile(f"[{re.escape(''.join(sorted(alphabet)))}]{{1,{_LONGEST_WORD}}}")
    parts: Counter[str] = Counter()
    for word, count in words:
        if within.fullmatch(word):
            parts[word] += count  # the same string, not a copy
        else:
            for part in within.findall(word):
                parts[part] += count
    return parts


def _canonical(trained: Mapping[str, float], num_pieces: int) -> list[tuple[str, float]]:
    """The `num_pieces` best pieces, including all single characters, with scores that are the same in every run."""
    lowest = min(trained.values())
    characters = {piece for piece in trained if len(piece) == 1}
    rare_below = lowest + _RARE_STEP * len(characters)
    scores = {
        piece: round(_STEPS * (lowest if piece in characters and score < rare_below else score)) / _STEPS
        for piece, score in trained.items()
    }
    best = sorted(scores, key=lambda piece: (piece not in characters, -scores[piece], piece))[:num_pieces]
    return sorted(((piece, scores[piece]) for piece in best), key=lambda item: (-item[1], item[0]))


# -- counting words --

# Trainers only use distinct words and how often each occurs, which depends neither on the order of the text nor on its batches;
# a chunk that occurs a thousand times is normalized once.


def count_words(texts: Iterable[list[str]], pipeline: Tokenizer, progress: Progress = SILENT) -> Counter[str]:
    """How often each word occurs in the texts, as split by `pipeline`'s normalizer and pre-tokenizer.

    Words of a byte-level pipeline are counted as the text they stand for, which takes two thirds of the memory for Japanese.
    Raises DataError when there is nothing but blanks.
    """
    # WhitespaceSplit splits only at spaces, and Metaspace, in a sequence, puts a space before what has none.
    at_marks = isinstance(pipeline.pre_tokenizer, pre_tokenizers.BertPreTokenizer) or isinstance(pipeline.model, models.BPE)
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
    """The words and their counts, for a pass over millions of them; raises Stopped when a stop is requested."""
    for number, item in enumerate(words.items()):
        if number % 100_000 == 0:
            interrupt.check("no tokenizer was written yet")
            progress.advance(0)  # shows that it is alive
        yield item


def most_frequent(
    words: Mapping[str, int], max_size: int, progress: Progress = SILENT, *, size_of: Callable[[str], int] = len
) -> Mapping[str, int]:
    """The most frequent distinct words, of `max_size` in all; equally frequent words are chosen by hash."""
    sizes: Counter[int] = Counter()  # total size of the words with each count
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
    is_byte_level = isinstance(pipeline.model, models.BPE)
    for chunk, count in chunks.items():
        normalized = normalizer.normalize_str(chunk) if normalizer else chunk
        split = pre_tokenizer.pre_tokenize_str(normalized)
        if is_byte_level:
            text = normalized.encode().decode()  # a copy: the library caches UTF-8 in the strings it is given
            for _, (start, end) in split:
                words[text[start:end]] += count
        else:
            for word, _ in split:
                words[word] += count


# -- the alphabet, and running a trainer --


def choose_alphabet(
    words: Mapping[str, int],
    progress: Progress = SILENT,
    *,
    vocab_size: int,
    reserved: int,
    least_coverage: float,
    continuing: Collection[str] = (),
    rest: str = "",
) -> frozenset[str]:
    """Choose by the rule in the module's docstring; `reserved` tokens are taken already, and `continuing` characters take two.

    A note says how many characters get tokens, and what becomes of the `rest`.

    Raises ConfigError, with the smallest possible vocabulary, when `least_coverage` of the text cannot be written.
    """
    occurrences = count_characters(interruptible(words, progress))
    room, total = vocab_size - reserved, sum(occurrences.values())
    chosen: set[str] = set()
    tokens = written = 0
    for character, count in sorted(occurrences.items(), key=lambda item: (-item[1], item[0])):
        cost = 1 + (character in continuing)
        within_the_rule = count >= _MIN_FREQUENCY and tokens + cost <= room // 2
        if not within_the_rule and written >= least_coverage * total:
            break
        chosen.add(character)
        tokens += cost
        written += count
    if tokens > room:
        raise ConfigError(
            f"tokenizer.vocab_size {vocab_size:,} is too small for this text: special tokens take {reserved:,}, and "
            f"the {len(chosen):,} characters that make up {least_coverage:.0%} of the text take {tokens:,} more. "
            f"The least possible is {reserved + tokens:,}; several times that is usual."
        )
    if len(chosen) < len(occurrences):
        counts = f"{len(chosen):,} of {len(occurrences):,} characters"
        progress.note(f"tokenizer: {counts} get tokens, {percent(written / total)} of the text; {rest}")
    return frozenset(chosen)


def count_characters(words: Iterable[tuple[str, int]]) -> Counter[str]:
    """How often each character occurs in words with these counts."""
    occurrences: Counter[str] = Counter()
    for word, count in words:
        for character in word:
            occurrences[character] += count
    return occurrences


def run_trainer(
    tokenizer: Tokenizer, trainer: trainers.Trainer, words: Mapping[str, int], progress: Progress = SILENT
) -> dict[str, Any]:
    """Train `tokenizer`'s model on `words`, a mapping from each word to its count. Returns it as tokenizer.json has it.

    The library cannot be interrupted and holds no Python lock while it computes, so it runs in a thread: a requested stop
    raises Stopped at once, and the thread ends with the process.
    """
    failures: list[BaseException] = []
    taken = 0

    def batches() -> Iterator[list[str]]:
        """Every word as often as it occurred, in sorted order: the trainer does not accept counts."""
        nonlocal taken
        repeated = itertools.chain.from_iterable(itertools.repeat(word, words[word]) for word in sorted(words))
        while batch := list(itertools.islice(repeated, _BATCH_WORDS)):
            taken += len(batch)
            yield batch

    def work() -> None:
        try:
            tokenizer.train_from_iterator(batches(), trainer)
        except BaseException as error:  # a panic of the library is not an Exception
            failures.append(error)

    reported, total, is_choosing = 0, sum(words.values()), False
    progress.start("Words for the tokenizer", total, "word")
    thread = threading.Thread(target=work, name="tokenizer-training", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        if reported < taken:
            progress.advance(taken - reported)
            reported = taken
        elif reported == total and not is_choosing:
            progress.start("Training the tokenizer")  # the library does not report progress
            is_choosing = True
        interrupt.check("no tokenizer was written yet")
    if failures:
        raise failures[0]
    return json.loads(tokenizer.to_str())["model"]


class Unreached(Exception):
    """Training ended with fewer tokens than were asked for."""

    def __init__(self, reached: int):
        super().__init__(reached)
        self.reached = reached


def check_reached(reached: int, vocab_size: int) -> None:
    if reached != vocab_size:
        raise Unreached(reached)


_ALGORITHMS = {
    "wordpiece": (pipelines.wordpiece, learn_wordpiece),
    "bpe": (pipelines.bpe, learn_bpe),
    "unigram": (pipelines.unigram, learn_unigram),
}
