"""Text that a vocabulary has no tokens for is counted, and shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpulm import tokenization

KNOWN = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "."]


@pytest.fixture
def tokenizer(tmp_path: Path) -> tokenization.Tokenization:
    (tmp_path / "vocab.txt").write_text("\n".join(KNOWN))
    return tokenization.load(tmp_path / "vocab.txt")


def test_unknown_tokens_with_their_characters_and_words(tokenizer: tokenization.Tokenization):
    found = tokenization.count_unknown(tokenizer, iter([["ab zz .", "zz a"], ["xb zz"]]))
    assert (found.tokens, found.unknown) == (8, 4)  # a ##b zz . zz a xb zz
    assert found.characters == ("z", "x")
    assert found.words == ("zz", "xb")
    assert str(found) == "50.0% of the text's tokens are unknown (characters z x; words zz, xb)"


def test_text_that_is_known(tokenizer: tokenization.Tokenization):
    assert tokenization.count_unknown(tokenizer, [["ab ba."]]) == (5, 0, (), ())
    assert tokenization.count_unknown(tokenizer, []).fraction == 0.0


def test_korean_with_an_english_vocabulary(real_data: Path):
    import gzip
    from itertools import islice

    english = tokenization.load(real_data / "vocab" / "bert_base_uncased_vocab.txt")
    with gzip.open(real_data / "ko" / "nsmc_reviews.txt.gz", "rt", encoding="utf-8") as stream:
        found = tokenization.count_unknown(english, [list(islice(stream, 2_000))])
    assert found.fraction > tokenization.UNKNOWN_REFUSED
    assert "영화" in found.words and "이" in found.characters
