"""Learning a Unigram vocabulary: likely pieces by expectation-maximisation, bytes for the characters that get no token.

The library sums probabilities in the order of a randomly seeded hash table and over threads, so scores differ between two runs
in the eleventh digit, and the scores given to rare characters, which it numbers in that order, in the second.
docs/design/tokenizer-determinism.md has the measurements. What is done here: rare characters all get the lowest score; scores
are rounded to multiples of 1/1024; the trainer is asked for some pieces too many, and the cut is made afterwards, by rounded
score and then by the piece itself. Sums of such scores are exact, so that which of two paths is better never depends on what
stands before them in a text (encode.py relies on it).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer, models, trainers

from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.tokenization import alphabet, special
from tpulm.tokenization.pipelines import SPACE
from tpulm.tokenization.trainer import check_reached, run_trainer
from tpulm.tokenization.words import interruptible, most_frequent

BYTES = [f"<0x{value:02X}>" for value in range(256)]
_DISTINCT_CHARACTERS = 2_500_000  # of distinct words are trained on: bounds time (a minute or two) and memory (1.5 GB)
_SHRINKING = 0.5  # of the pieces survive a round; the library's 0.75 takes twice as long for half a percent fewer tokens
_LONGEST_WORD = 200  # characters; longer ones are cut for training
_SPARE = 50  # the trainer is asked for one in this many pieces more than needed
_RARE_STEP = 1e-4  # by which the trainer spaces the scores of characters that no piece needs
_STEPS = 1024  # of a score, from one whole number to the next
_NEVER = -1000.0  # the score of what text must not match: special tokens, slots, and bytes, which are reached by fallback only
_ALWAYS = frozenset(SPACE + "".join((*special.TOKENS, *BYTES, "[unused0123456789]")))  # so that those names can be spelt


def learn(words: Counter[str], config: TokenizerConfig, progress: Progress = SILENT) -> models.Unigram:
    """A model of exactly `config.vocab_size` tokens: special ones, slots, 256 bytes, then pieces by falling score."""
    reserved = [*special.TOKENS, *special.slots(config.unused_slots), *BYTES]
    least = len(reserved) + 2 * len(_ALWAYS)
    if config.vocab_size < least:
        raise ConfigError(
            f"tokenizer.vocab_size {config.vocab_size:,} is too small: special tokens and slots take "
            f"{len(reserved) - len(BYTES):,}, bytes {len(BYTES)}. The least possible is {least:,}; several thousand are usual."
        )
    wanted = config.vocab_size - len(reserved)
    occurrences = alphabet.count_characters(interruptible(words, progress))
    kept = alphabet.choose(
        occurrences,
        dict.fromkeys(occurrences, 1),
        vocab_size=config.vocab_size,
        reserved=len(reserved) + len(_ALWAYS),
        min_frequency=config.min_frequency,
        least_coverage=0.0,
    )
    if len(kept.characters) < len(occurrences):
        counts = f"{len(kept.characters):,} of {len(occurrences):,} characters"
        progress.note(f"tokenizer: {counts} get tokens, {percent(kept.coverage)} of the text; the others are written in bytes")
    chosen = most_frequent(_cut(interruptible(words, progress), kept.characters | _ALWAYS), _DISTINCT_CHARACTERS, progress)
    tokenizer = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=1 + wanted + max(len(_ALWAYS), wanted // _SPARE),
        special_tokens=[special.UNKNOWN],
        unk_token=special.UNKNOWN,
        initial_alphabet=sorted(_ALWAYS),
        shrinking_factor=_SHRINKING,
        show_progress=False,
    )
    run_trainer(tokenizer, trainer, chosen, progress)
    trained = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    pieces = _canonical({piece: score for piece, score in trained.items() if piece not in set(reserved)}, wanted)
    check_reached(len(reserved) + len(pieces), config.vocab_size)
    vocabulary = [*((token, _NEVER) for token in reserved), *pieces]
    return models.Unigram(vocabulary, unk_id=reserved.index(special.UNKNOWN), byte_fallback=True)


def _cut(words: Iterable[tuple[str, int]], kept: frozenset[str]) -> Counter[str]:
    """The words without the characters that get no token, and in parts where they are very long."""
    within = re.compile(f"[{re.escape(''.join(sorted(kept)))}]{{1,{_LONGEST_WORD}}}")
    parts: Counter[str] = Counter()
    for word, count in words:
        if within.fullmatch(word):
            parts[word] += count  # the same string, not a copy
        else:
            for part in within.findall(word):
                parts[part] += count
    return parts


def _canonical(trained: Mapping[str, float], wanted: int) -> list[tuple[str, float]]:
    """The `wanted` best pieces, all single characters among them, with scores that are the same in every run."""
    lowest = min(trained.values())
    characters = {piece for piece in trained if len(piece) == 1}
    rare_below = lowest + _RARE_STEP * len(characters)
    scores = {
        piece: round(_STEPS * (lowest if piece in characters and score < rare_below else score)) / _STEPS
        for piece, score in trained.items()
    }
    best = sorted(scores, key=lambda piece: (piece not in characters, -scores[piece], piece))[:wanted]
    return sorted(((piece, scores[piece]) for piece in best), key=lambda item: (-item[1], item[0]))
