"""Training a tokenizer on a sample of the corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError
from tpulm.progress import SILENT, Progress
from tpulm.tokenization import byte_bpe, pipelines, special, unigram, wordpiece
from tpulm.tokenization.analysers import CHARACTERS_AT_ONCE
from tpulm.tokenization.encode import slices
from tpulm.tokenization.segmenter import Segmenter
from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.trainer import Unreached
from tpulm.tokenization.words import count_words

_ALGORITHMS = {
    "wordpiece": (pipelines.wordpiece, wordpiece.learn),
    "bpe": (pipelines.bpe, byte_bpe.learn),
    "unigram": (pipelines.unigram, unigram.learn),
}


def train(texts: Iterable[list[str]], config: TokenizerConfig, *, progress: Progress = SILENT) -> Tokenization:
    """Train on batches of texts, read once. The result depends on the texts and the configuration, not on order or threads.

    Raises ConfigError when `vocab_size` is too small or cannot be reached, DataError when there is no text.
    """
    if config.path is not None:
        raise ConfigError(f"tokenizer.path is '{config.path}', so there is nothing to train; load it, or leave the path out")
    make_pipeline, learn = _ALGORITHMS[config.algorithm]
    tokenizer = make_pipeline(config)
    segmenter = None if config.morphemes == "none" else Segmenter(config.morphemes, config.lowercase)
    if segmenter is not None:
        texts = (segmenter.segment(some) for batch in texts for some in slices(batch, CHARACTERS_AT_ONCE))
    words = count_words(texts, tokenizer, progress)
    try:
        tokenizer.model = learn(words, config, progress)
    except Unreached as error:
        raise _unreachable(words, config, error.reached) from None
    tokens = special.locate(tokenizer.get_vocab(), "the trained vocabulary")
    pipelines.add_special_tokens(tokenizer, tokens)
    return Tokenization(tokenizer, tokens, segmenter)


def _unreachable(words: Counter[str], config: TokenizerConfig, reached: int) -> ConfigError:
    """The error that names a size which can be reached. A smaller vocabulary has a smaller alphabet, hence the trials."""
    _, learn = _ALGORITHMS[config.algorithm]
    what = f"tokenizer.vocab_size {config.vocab_size:,} cannot be reached"
    while True:
        try:
            learn(words, config.model_copy(update={"vocab_size": reached}), SILENT)
        except Unreached as fewer:
            reached = fewer.reached
        except ConfigError:
            return ConfigError(f"{what}: this text yields {reached:,} tokens, too few for any vocabulary. Give more text.")
        else:
            rare = f" or a min_frequency below {config.min_frequency}" if config.min_frequency > 1 else ""
            return ConfigError(
                f"{what}: this text yields {reached:,} tokens. Set tokenizer.vocab_size to {reached:,} or less, "
                f"or give more text{rare}."
            )
