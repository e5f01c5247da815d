from __future__ import annotations

import json
from collections import Counter

import pytest
from made_up import make_texts
from tokenizers import Tokenizer

from tpulm.config import TokenizerConfig
from tpulm.tokenization import Tokenization, training
from tpulm.tokenization.pipelines import SPACE
from tpulm.tokenization.special import TOKENS
from tpulm.tokenization.training import BYTES


def pieces(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def test_special_tokens_slots_bytes_then_pieces_by_falling_score(trained: dict[str, Tokenization]):
    vocabulary = pieces(Tokenizer.from_str(trained["unigram"].canonical_json))
    reserved = [*TOKENS, "[unused0]", "[unused1]", *BYTES]
    assert [piece for piece, _ in vocabulary[: len(reserved)]] == reserved
    assert {score for _, score in vocabulary[: len(reserved)]} == {-1000.0}
    scores = [score for _, score in vocabulary[len(reserved) :]]
    assert scores == sorted(scores, reverse=True) and all(score > -100 and (1024 * score).is_integer() for score in scores)
    assert len({piece for piece, _ in vocabulary}) == len(vocabulary)


def test_characters_without_a_token_are_written_in_bytes(trained: dict[str, Tokenization]):
    made = trained["unigram"]
    ids = made.encode(["the 龘 was"]).ids
    assert [made.token(index) for index in ids if made.token(index) in BYTES] == ["<0xE9>", "<0xBE>", "<0x98>"]
    assert made.decode(ids) == "the 龘 was" and made.special.unknown not in ids


@pytest.mark.parametrize("name", [*TOKENS, "[unused0]", "<0x41>"])
def test_a_reserved_name_common_in_the_text_is_no_second_piece(name: str):
    words = Counter({SPACE + word: 5 for text in make_texts(500) for word in text.split()} | {SPACE + name: 1_000, name: 1_000})
    config = TokenizerConfig(algorithm="unigram", vocab_size=600, unused_slots=2)
    vocabulary = [piece for piece, _ in pieces(Tokenizer(training.learn_unigram(words, config)))]
    assert vocabulary.count(name) == 1 and vocabulary.index(name) < 263


def test_only_so_much_is_trained_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "_UNIGRAM_CHARACTERS", 2_000)
    monkeypatch.setattr(training, "_LONGEST_WORD", 10)
    words = Counter({SPACE + "abcdefghij"[n % 10 :] + "klmnopqrst"[: n % 7] + str(n): 1 + n % 3 for n in range(2_000)})
    words["x" * 10_000] = 1
    config = TokenizerConfig(algorithm="unigram", vocab_size=5 + 256 + 130)
    found = [
        pieces(Tokenizer(training.learn_unigram(given, config))) for given in (words, Counter(dict(reversed(words.items()))))
    ]
    assert found[0] == found[1] and len(found[0]) == config.vocab_size
