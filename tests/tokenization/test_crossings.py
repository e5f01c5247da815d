"""Law: where no token reaches across, a word's tokens are those of its two halves."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tpulm.tokenization import Tokenization, crossings
from tpulm.tokenization.chunks import cutter
from tpulm.tokenization.crossings import Crossings
from tpulm.tokenization.pipelines import specified

KANA = [chr(point) for point in range(0x3041, 0x3094)]
LETTERS = np.array([*map(ord, KANA), *map(ord, "山川田中日本人大가나다라")], np.uint32)


def made(tokens: list[bytes], letters: np.ndarray) -> Crossings:
    found = crossings.crossings_of(tokens, letters)
    assert found is not None
    return found


def across(crossed: Crossings, text: str) -> list[bool]:
    return crossed.between(np.array(list(map(ord, text)), np.uint32)).tolist()


def test_a_token_crosses_between_its_characters_and_wherever_it_may_begin_or_end_within_one():
    crossed = made(["かき".encode(), "山田".encode()[:4], "なに".encode()[1:], "さ".encode()[:2]], LETTERS)
    assert across(crossed, "かきか") == [True, False]
    assert across(crossed, "山田山日") == [True, False, False]  # 日 begins with another byte than 田
    assert across(crossed, "なにさに") == [True, False, False]  # さ ends with other bytes than な


def test_a_longer_token_crosses_only_where_its_other_letters_stand_too():
    crossed = made(["かきく".encode()], LETTERS)
    assert across(crossed, "かきく") == [True, True]
    assert across(crossed, "かきこ") == [False, False] == across(crossed, "さきく")
    crossed = made(["かきくけ".encode()], LETTERS)
    assert across(crossed, "かきくけ") == [True, True, True]
    assert across(crossed, "さきくけ")[1] is False is across(crossed, "かきくこ")[1]
    crossed = made(["かきく".encode(), "きく".encode()], LETTERS)
    assert across(crossed, "さきく") == [False, True]


def test_a_neighbour_that_is_no_letter_may_be_written_otherwise_in_the_text():
    """A vocabulary's "▁" is a space, its "a" may be an "A"."""
    for first in ("▁", "a", " ", "。"):
        assert across(made([f"{first}かき".encode()], LETTERS), "さかきく") == [False, True, False]
        assert across(made([f"かき{first}".encode()], LETTERS), "さかきく") == [False, True, False]


def test_of_characters_that_are_not_asked_about_it_promises_nothing():
    assert across(made(["かき".encode()], LETTERS), "aかな!かa") == [True, False, True, True, True]
    assert across(made([], LETTERS[:0]), "かな") == [True]


def test_a_table_that_would_be_too_large_is_not_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crossings, "_MOST_PAIRS", 3)
    assert crossings.crossings_of(["かき".encode()], LETTERS) is None


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_halves_have_the_tokens_of_the_whole(trained: dict[str, Tokenization], algorithm: str):
    tokenizer = alone(trained[algorithm])
    seams = crossings.crossings(json.loads(tokenizer.to_str())["model"], LETTERS)
    assert seams is not None
    found = 0

    @settings(max_examples=200)
    @given(st.text(st.sampled_from(list(map(chr, LETTERS.tolist()))), min_size=2, max_size=12))
    def check(word: str):
        nonlocal found
        for place, reaches in enumerate(across(seams, word), start=1):
            if not reaches:
                found += 1
                halves = tokenizer.encode(word[:place]).ids + tokenizer.encode(word[place:]).ids
                assert halves == tokenizer.encode(word).ids

    check()
    assert found > 100


def test_equally_good_paths_are_chosen_alike_whatever_stands_before():
    """With scores in thousandths, a word alone and after another differ; with exact ones they never do."""
    differ: dict[int, int] = {}
    for steps in (1000, 1024):
        rng = random.Random(0)
        pieces = [(piece, -round(rng.uniform(2, 9) * steps) / steps) for piece in ["あ", "ああ", "あああ", "い", "う", "いう"]]
        tokenizer = Tokenizer(models.Unigram([("?", -20.0), *pieces], unk_id=0))
        specification = json.loads(tokenizer.to_str())["model"]
        assert (crossings.crossings(specification, LETTERS) is not None) is (steps == 1024)
        differ[steps] = 0
        for _ in range(2_000):
            before = "".join(rng.choices(["い", "う", "いう"], k=rng.randint(1, 9)))
            word = "あ" * rng.randint(2, 9)
            apart = tokenizer.encode(before).ids + tokenizer.encode(word).ids
            differ[steps] += tokenizer.encode(before + word).ids != apart
    assert differ[1024] == 0 < differ[1000]


def test_unknown_letters_are_not_asked_about():
    """Two in a row become one token."""
    tokenizer = Tokenizer(models.Unigram([("?", -20.0), ("か", -1.0)], unk_id=0))
    seams = crossings.crossings(json.loads(tokenizer.to_str())["model"], LETTERS)
    assert seams is not None and across(seams, "かかきくか") == [False, True, True, True]


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"),
        models.BPE({"a": 0}, []),
        models.Unigram([("?", 0.1)], unk_id=0),
        models.Unigram([("?", -4096.0)], unk_id=0),
    ],
)
def test_of_other_models_nothing_is_known(model: models.Model):
    assert crossings.crossings(json.loads(Tokenizer(model).to_str())["model"], LETTERS) is None


def test_clauses_fall_apart(trained: dict[str, Tokenization]):
    for algorithm in ("bpe", "unigram"):
        cut = cutter(specified(trained[algorithm].plain()))
        assert cut is not None
        text = "".join(random.Random(0).choices(KANA, k=1_000))
        assert 200 < len(cut.cut([text]).starts) < 1_000


def test_nothing_is_promised_where_letters_are_composed(trained: dict[str, Tokenization]):
    """か and a voiced mark are が to the vocabulary, and が may be in a token with what stands before."""
    for algorithm in ("bpe", "unigram"):
        tokenizer = trained[algorithm].plain()
        tokenizer.normalizer = normalizers.NFC()
        cut = cutter(specified(tokenizer))
        assert cut is not None and len(cut.cut(["".join(KANA)]).starts) == 1


def alone(made: Tokenization) -> Tokenizer:
    """Without what is put before a text."""
    specification = json.loads(made.canonical_json)
    specification |= {"normalizer": None, "post_processor": None}
    if specification["pre_tokenizer"]["type"] == "Sequence":
        specification["pre_tokenizer"] = None
    else:
        assert isinstance(made.plain().pre_tokenizer, pre_tokenizers.ByteLevel)
    return Tokenizer.from_str(json.dumps(specification))
