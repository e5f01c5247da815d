from __future__ import annotations

from collections import Counter

from made_up import in_order
from tokenizers import Tokenizer, pre_tokenizers

from tpulm.config import TokenizerConfig
from tpulm.tokenization.special import TOKENS
from tpulm.tokenization.training import learn_bpe


def test_special_tokens_slots_bytes_merges():
    words = Counter({"low": 5, "lower": 2, "newest": 6, "widest": 3})
    found = in_order(Tokenizer(learn_bpe(words, TokenizerConfig(algorithm="bpe", vocab_size=5 + 1 + 256 + 3, unused_slots=1))))
    assert found == [*TOKENS, "[unused0]", *sorted(pre_tokenizers.ByteLevel.alphabet()), "es", "est", "lo"]
