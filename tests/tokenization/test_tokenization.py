from __future__ import annotations

import pickle

import numpy as np
import pytest

from tpulm.errors import DataError
from tpulm.tokenization import Tokenization


def test_one_text_framed_and_unframed_and_decoded(made: Tokenization):
    """As transformers frames it: test_files.py."""
    framed = made.encode_one("the bad was 영화는")
    assert made.encode_one("the bad was 영화는", special_tokens=False) == framed[1:-1]
    assert made.encode_one("") == [made.special.cls, made.special.sep]
    assert made.encode_one("a\ud800") == made.encode_one("a\ufffd")
    assert made.special.mask not in made.encode_one("the [MASK] cat", special_tokens=False)
    assert made.decode(np.array(framed, np.uint16)) == "the bad was 영화는" and made.decode([]) == ""
    assert "[CLS]" in made.decode(framed, special_tokens=True)
    assert made.algorithm == "WordPiece" or made.decode(made.encode_one("the 龘 was")) == "the 龘 was"


def test_tokens_and_continuations(made: Tokenization):
    ids = made.encode(["the qqq"]).ids.tolist()
    assert made.token(ids[0]) == {"WordPiece": "the", "BPE": "the", "Unigram": "▁t"}[made.algorithm]
    assert made.is_continuation(ids[-1]) is (made.algorithm != "WordPiece")  # there, "qqq" is one unknown word
    assert not any(made.is_continuation(index) for index in set(made.special))


def test_where_words_begin(made: Tokenization):
    text = "because the cat, well-made 영화는\n映画を"
    starts = made.word_starts()
    assert starts.shape == (made.vocab_size,) and starts[list(set(made.special))].all()
    tokens = [(made.token(index), bool(starts[index])) for index in made.encode([text]).ids.tolist()]
    if made.algorithm == "WordPiece":
        assert all(token.startswith("##") == (not begins) for token, begins in tokens)
    else:
        line_ends = {"BPE": ("Ċ",), "Unigram": ("\n", "<0x0A>")}[made.algorithm]
        assert all(token.startswith(("Ġ", "▁", *line_ends)) == begins for token, begins in tokens)
        assert any((line_end, True) in tokens for line_end in line_ends)
    assert not all(begins for _, begins in tokens)


@pytest.mark.parametrize("index", [100_000, 2**31])
def test_ids_beyond_the_vocabulary_are_refused(made: Tokenization, index: int):
    with pytest.raises(DataError, match=f"id {index} .*{made.vocab_size - 1:,}"):
        made.token(index)


def test_pickled_and_described(made: Tokenization):
    again = pickle.loads(pickle.dumps(made))
    assert again.fingerprint == made.fingerprint and again.special == made.special
    assert len(made.fingerprint) == 64 and made.fingerprint[:12] in repr(made)
    assert list(made.vocabulary().values()) == list(range(made.vocab_size))
