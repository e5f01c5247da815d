from __future__ import annotations

from collections import Counter

from made_up import in_order
from tokenizers import Tokenizer

from tpulm.config import TokenizerConfig
from tpulm.tokenization.special import TOKENS
from tpulm.tokenization.training import learn_wordpiece

WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}  # the example of Sennrich et al. 2016


def learn(words: dict[str, int], vocab_size: int, **settings: int) -> list[str]:
    config = TokenizerConfig.model_validate({"vocab_size": vocab_size} | settings)
    return in_order(Tokenizer(learn_wordpiece(Counter(words), config)))


def test_special_tokens_slots_characters_their_continuations_merges():
    inside = ["##d", "##e", "##i", "##o", "##r", "##s", "##t", "##w"]
    start = [*TOKENS, "[unused0]", *"deilnorstw", *inside]
    assert learn(WORDS, len(start) + 3, unused_slots=1) == [*start, "##es", "##est", "lo"]


def test_words_with_a_rare_character_teach_nothing():
    words = {**{word: 100 * count for word, count in WORDS.items()}, "low\u9f98": 1}
    assert "\u9f98" not in "".join(learn(words, 30))


def test_words_longer_than_bert_reads_teach_nothing():
    assert "##z" not in learn({**WORDS, "lo" + "w" * 99 + "z": 1, "z": 1}, 30, min_frequency=1)


def test_ties_are_broken_by_characters_and_not_by_chance():
    words = {f"{first}{second}": 3 for first in "abcdefgh" for second in "ijklmnop"}
    results = {
        tuple(learn(dict(sorted(words.items(), reverse=turn)), 5 + 8 + 16 + 10)) for turn in (False, True) for _ in range(3)
    }
    assert len(results) == 1
    assert results.pop()[-10:] == (*("a" + second for second in "ijklmnop"), "bi", "bj")
