"""Learning a WordPiece vocabulary, the same one every time.

The library's trainer numbers the "##" characters in the order of a randomly seeded hash table, and breaks ties between equally
frequent pairs by those numbers: two runs on the same text give a third of the tokens other numbers, and some have other tokens
(docs/design/tokenizer-determinism.md). Here every character and every "##" character is given to it as a token from the start,
in sorted order, and nothing random is left.
"""

from __future__ import annotations

import json
from collections import Counter

from tokenizers import Tokenizer, models, trainers

from tpulm.config import TokenizerConfig
from tpulm.progress import SILENT, Progress
from tpulm.readable import percent
from tpulm.tokenization import alphabet, special
from tpulm.tokenization.pipelines import CONTINUATION, MAX_WORD_CHARACTERS
from tpulm.tokenization.trainer import check_reached, run_trainer
from tpulm.tokenization.words import interruptible, most_frequent

_DISTINCT_CHARACTERS = 5_000_000  # of distinct words are trained on: bounds memory (about 1 GB)
_LEAST_COVERAGE = 0.99  # of the text's characters: more unknown words than that leaves is a mistake, not a choice


def learn(words: Counter[str], config: TokenizerConfig, progress: Progress = SILENT) -> models.WordPiece:
    """A model of exactly `config.vocab_size` tokens. A word with a character outside the alphabet is unknown as a whole."""
    reserved = [*special.TOKENS, *special.slots(config.unused_slots)]
    continuing = {character for word in words for character in word[1:]}
    occurrences = alphabet.count_characters(interruptible(words, progress))
    kept = alphabet.choose(
        occurrences,
        {character: 1 + (character in continuing) for character in occurrences},
        vocab_size=config.vocab_size,
        reserved=len(reserved),
        min_frequency=config.min_frequency,
        least_coverage=_LEAST_COVERAGE,
    )
    if len(kept.characters) < len(occurrences):
        counts = f"{len(kept.characters):,} of {len(occurrences):,} characters"
        progress.note(f"tokenizer: {counts} get tokens, {percent(kept.coverage)} of the text; words with any other are unknown")
    writable = {w: n for w, n in words.items() if len(w) <= MAX_WORD_CHARACTERS and kept.characters.issuperset(w)}
    characters = sorted({character for word in writable for character in word})
    inside = sorted({character for word in writable for character in word[1:]})
    known = [*reserved, *characters, *(CONTINUATION + character for character in inside)]
    chosen = most_frequent(writable, _DISTINCT_CHARACTERS, progress)
    tokenizer = Tokenizer(models.WordPiece(unk_token=special.UNKNOWN, max_input_chars_per_word=MAX_WORD_CHARACTERS))
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=known,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    run_trainer(tokenizer, trainer, chosen, progress)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    check_reached(len(vocabulary), config.vocab_size)
    return models.WordPiece(
        vocabulary,
        unk_token=special.UNKNOWN,
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
        continuing_subword_prefix=CONTINUATION,
    )
