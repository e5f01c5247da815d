"""Identity: ids in bulk are the stock tokenizer's, however the texts come; and no string stops it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import make_texts, troublesome_text
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tpulm.config import TokenizerConfig
from tpulm.tokenization import Encoded, Tokenization, bulk, byte_level, pipelines, special
from tpulm.tokenization.pipelines import unigram_words


def stock_ids(made: Tokenization, texts: list[str]) -> list[list[int]]:
    """What the library gives when it is told that special tokens are text."""
    tokenizer = Tokenizer.from_str(made.canonical_json)
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def lists(encoded: Encoded) -> list[list[int]]:
    assert encoded.ids.dtype == np.uint32 and encoded.lengths.dtype == np.int32
    assert encoded.ids.size == encoded.lengths.sum()
    return [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])] if encoded.lengths.size else []


def test_any_string_has_the_stock_tokenizers_ids(made: Tokenization):
    @settings(max_examples=200)
    @given(st.lists(troublesome_text, max_size=4))
    def check(texts: list[str]):
        assert lists(made.encode(texts)) == stock_ids(made, texts)

    check()


def test_natural_text_however_it_is_cut_into_calls(made: Tokenization):
    texts = make_texts(2_000, seed=1)
    expected = stock_ids(made, texts)
    assert lists(made.encode(texts)) == expected
    fresh = pickle.loads(pickle.dumps(made))
    rng, start, found = random.Random(0), 0, []
    while start < len(texts):
        stop = start + rng.randint(1, 400)
        found += lists(fresh.encode(texts[start:stop]))
        start = stop
    assert found == expected


@pytest.mark.parametrize("most_kept", [0, 10, 200])
def test_forgetting_changes_nothing(made: Tokenization, monkeypatch: pytest.MonkeyPatch, most_kept: int):
    monkeypatch.setattr(bulk, "_MOST_KEPT", most_kept)
    monkeypatch.setattr(bulk, "SLICE_CHARACTERS", 500)
    monkeypatch.setattr(bulk, "LONGEST_KNOWN", 3)
    fresh, texts = pickle.loads(pickle.dumps(made)), make_texts(300, seed=2)
    assert lists(fresh.encode(texts)) == stock_ids(made, texts)


def test_text_that_repeats_nothing_goes_whole_with_the_same_ids(made: Tokenization, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bulk, "SLICE_CHARACTERS", 2_000)
    rng = random.Random(3)
    texts = ["".join(chr(rng.randrange(0x3041, 0x3097)) for _ in range(60)) for _ in range(1_000)]
    fresh = pickle.loads(pickle.dumps(made))
    assert lists(fresh.encode(texts)) == stock_ids(made, texts)


def test_nothing_blank_and_empty(made: Tokenization):
    assert lists(made.encode([])) == []
    assert lists(made.encode([""])) == [[]]
    texts = ["", " ", "\n", "a", "", "   ", "a "]
    assert lists(made.encode(texts)) == stock_ids(made, texts)


def test_lone_surrogates_count_as_the_replacement_character(made: Tokenization):
    assert lists(made.encode(["the \ud800cat", "dog\udfff"])) == stock_ids(made, ["the \ufffdcat", "dog\ufffd"])


def test_the_private_marks_are_characters_like_others(made: Tokenization):
    texts = ["a\U0010fffdb", "the cat", "\U0010fffc[MASK]\U0010fffc"]
    assert lists(made.encode(texts)) == stock_ids(made, texts)


def test_a_wrong_type_is_said_so(made: Tokenization):
    with pytest.raises((TypeError, AttributeError)):
        made.encode(["a", None])  # pyright: ignore[reportArgumentType]


def test_a_vocabulary_with_gaps_is_encoded_by_its_own_ids():
    tokenizer = pipelines.wordpiece(TokenizerConfig(lowercase=True))
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "cat": 5, "##s": 7}
    tokenizer.model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="##")
    made = Tokenization(tokenizer, special.locate(vocabulary, "here"))
    assert lists(made.encode(["Cats", "cat CATS"])) == stock_ids(made, ["Cats", "cat CATS"]) == [[5, 7], [5, 5, 7]]


SPECIALS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
BYTES = byte_level.CHARACTERS


def elsewhere(model: models.Model, pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenization:
    """A tokenizer of another maker, whose vocabulary begins with the five."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    return Tokenization(tokenizer, special.locate(tokenizer.get_vocab(), "here"))


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def as_bytes(text: str) -> str:
    return "".join(BYTES[byte] for byte in text.encode())


def test_a_name_that_merges_make_is_text():
    vocabulary = numbered([*SPECIALS, "<", "s", ">", "<s", "[unused0]", "[unused0", "]"])
    merges = [("<", "s"), ("<s", ">"), ("[unused0", "]"), ("<s>", "s")]
    made = elsewhere(models.BPE(vocabulary | {"<s>s": 12}, merges, unk_token="<unk>"), pre_tokenizers.WhitespaceSplit())
    assert lists(made.encode(["<s> s", "<s>s"])) == [[8, 7, 6], [8, 7, 6]]
    made = elsewhere(
        models.BPE(
            numbered([*SPECIALS, "a", "##<", "##s>", "a<s>", "##<s>", "##s", "##>"]),
            [("##s", "##>"), ("##<", "##s>"), ("a", "##<s>")],
            unk_token="<unk>",
            continuing_subword_prefix="##",
        ),
        pre_tokenizers.WhitespaceSplit(),
    )
    assert lists(made.encode(["a<s>"])) == stock_ids(made, ["a<s>"]) == [[8]]


def test_words_that_no_merge_makes_are_not_cut_apart():
    model = models.BPE(numbered([*SPECIALS, *BYTES, as_bytes("日本")]), [], ignore_merges=True)
    made = elsewhere(model, pre_tokenizers.ByteLevel(add_prefix_space=False))
    texts = ["日本語", "日本", "日 日本 語"]
    assert lists(made.encode(texts)) == stock_ids(made, texts)


@pytest.mark.parametrize(
    ("model", "pre_tokenizer"),
    [
        (models.BPE(numbered([*SPECIALS, *BYTES]), [], unk_token="<unk>", fuse_unk=True), unigram_words("always")),
        (
            models.Unigram([(name, -1.0) for name in (*SPECIALS, *BYTES, "日", "本")] + [(as_bytes("日本"), -2.0)], unk_id=1),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ),
    ],
)
def test_bytes_and_characters_are_not_mistaken_for_each_other(model: models.Model, pre_tokenizer: pre_tokenizers.PreTokenizer):
    made = elsewhere(model, pre_tokenizer)
    assert lists(made.encode(["日本語", "日本 語!"])) == stock_ids(made, ["日本語", "日本 語!"])


def test_a_vocabulary_with_the_mark_is_not_cut_at_it():
    model = models.Unigram([(name, -1.0) for name in (*SPECIALS, "\U0010fffd", "▁", "b")], unk_id=5)
    made = elsewhere(model, pre_tokenizers.Metaspace())
    assert lists(made.encode(["a b c", "b"])) == stock_ids(made, ["a b c", "b"])


def test_no_text_has_a_hidden_name():
    made = elsewhere(
        models.Unigram([(name, -1.0) for name in (*SPECIALS, "▁", "a", "▁a")], unk_id=1), pre_tokenizers.Metaspace()
    )
    assert made.special.mask not in made.encode(["a \U0010fffc<mask>\U0010fffc a", "<mask>"]).ids


def test_a_byte_that_is_also_a_special_token_is_not_lost():
    tokenizer = Tokenizer.from_str(
        elsewhere(
            models.BPE(numbered([*SPECIALS, *BYTES]), []), pre_tokenizers.ByteLevel(add_prefix_space=False)
        ).canonical_json
    )
    tokenizer.add_special_tokens(["!"])
    made = Tokenization(tokenizer, special.locate(tokenizer.get_vocab(), "here"))
    assert lists(made.encode(["a!b"])) == stock_ids(made, ["a!b"])
