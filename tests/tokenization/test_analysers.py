"""Morphological analysers: what they are fed, what they give, and what is missing without them."""

from __future__ import annotations

import itertools
import random
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import get_args
from unittest.mock import Mock

import pytest
from hypothesis import given, settings, strategies as st

from tpulm.errors import MissingExtra
from tpulm.tokenization import analysers
from tpulm.tokenization.analysers import LONGEST_PIECE, Analyser, Name, TextSpan, cut, word_offsets

PACKAGES: dict[Name, str] = {"mecab": "fugashi", "kiwi": "kiwipiepy"}
assert {*PACKAGES} == {*get_args(Name)}, "each analyser is tested"

TROUBLE = [
    *("猫", "吾輩は", "見た。", "カタカナ", "ｶﾀｶﾅ", "ﾊﾞｲｸ", "ﾞ", "か\u3099", "\u3099", "ＡＢＣ", "①", "㎏", "豈"),
    *("𠮷野家", "\U0002f800", "영화를", "봤다", "했어요", "ㅋㅋㅋ", "ㅏ", "\u1100\u1161\u11a8", "\u1161", "\u11a8"),
    *("하\u11ab", "\u1107\u116a\u11bb\u1103\u1161", "👍🏽", "👨\u200d👩\u200d👧", "❤\ufe0f", "🇰🇷", "#\ufe0f\u20e3"),
    *("\U0001f600", "\u200d", "\ufe0f", "\0", "\x01", "\x0b", "\x1f", "\x7f", "\x85", "\xa0", "\u2028", "\u3000", "\ufeff"),
    *("\ufffd", "\ufffe", "\ue000", " ", "  ", "\n", "\r\n", "\t", "「", "」", "(", "\u201c", "e\u0301", "\u0301"),
    *("http://a.b/c", "a@b.co", "1,000.5", "abc"),
]
no_surrogates = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
trouble = st.lists(st.one_of(st.sampled_from(TROUBLE), no_surrogates), max_size=12)


@pytest.fixture(params=PACKAGES, scope="module")
def analyser(request: pytest.FixtureRequest) -> Analyser:
    pytest.importorskip(PACKAGES[request.param])
    return analysers.load(request.param)


def words(text: str, analyser: Analyser) -> list[str]:
    (offsets,) = word_offsets([text], analyser)
    places = [*offsets.tolist(), len(text)]
    return [text[first:last] for first, last in itertools.pairwise(places)]


class Letters:
    """Each character is a morpheme."""

    def morphemes(self, texts: Sequence[str]) -> Iterator[list[TextSpan]]:
        return ([TextSpan(place, letter) for place, letter in enumerate(text)] for text in texts)


def test_japanese(analyser: Analyser) -> None:
    if isinstance(analyser, analysers.Mecab):
        assert "|".join(words("吾輩は猫である。𠮷野家で食べた", analyser)) == "吾輩|は|猫|で|ある|。|𠮷|野家|で|食べ|た"


def test_korean_contractions_are_one_word(analyser: Analyser) -> None:
    """봤 is 보 and 었, which begin at one character; what lies behind the astral plane keeps its place."""
    if isinstance(analyser, analysers.Kiwi):
        assert words("😀👍🏽영화를 봤다", analyser) == ["😀", "👍🏽", "영화", "를 ", "봤", "다"]
        apart = unicodedata.normalize("NFD", "봤다 영화를")
        found = unicodedata.normalize("NFC", "|".join(words(apart, analyser)))
        assert found in ("봤|다 |영화|를", "봤다 |영화|를", "봤다 |영화를")


@settings(max_examples=80)
@given(parts=trouble)
def test_any_text_has_offsets_between_its_characters(analyser: Analyser, parts: list[str]) -> None:
    text = "".join(parts)
    places = next(iter(word_offsets([text], analyser))).tolist()
    assert places == sorted(set(places)) and places[0] == 0
    assert all(place < max(1, len(text)) for place in places)
    for place in places[1:]:
        assert unicodedata.category(text[place])[0] != "M" and text[place] not in "ﾞﾟ\u200d"
        assert not "\u1160" <= text[place] <= "\u11ff"


def test_a_text_is_analysed_by_itself(analyser: Analyser) -> None:
    """Whatever else it is analysed with, and in whatever order."""
    rng = random.Random(0)
    texts = ["".join(rng.choices(TROUBLE, k=rng.randint(0, 10))) for _ in range(40)]
    together = [offsets.tolist() for offsets in word_offsets(texts, analyser)]
    backwards = [offsets.tolist() for offsets in word_offsets(texts[::-1], analyser)][::-1]
    alone = [next(word_offsets([text], analyser)).tolist() for text in texts]
    assert together == backwards == alone


def test_what_follows_a_nul_is_analysed(analyser: Analyser) -> None:
    text = "猫\0犬は" if isinstance(analyser, analysers.Mecab) else "새\0영화를"
    assert len(words(text, analyser)) >= 3


@pytest.mark.parametrize("unit", ["가", "漢字", "😀", "word ", "。", "ﾊﾞ"])
def test_long_texts(analyser: Analyser, unit: str) -> None:
    text = unit * (3 * LONGEST_PIECE // len(unit) + 1)
    assert "".join(words(text, analyser)) == text


@given(st.text(st.sampled_from("ab .。\n\0é😀"), max_size=60), st.integers(3, 20))
def test_pieces_are_the_text(text: str, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysers, "LONGEST_PIECE", longest)
        pieces = cut(text)
        (offsets,) = word_offsets([text], Letters())
    assert all(0 < len(piece.text) <= longest and "\0" not in piece.text and "\n" not in piece.text for piece in pieces)
    assert all(text[piece.offset :].replace("\0", "\ufffd").startswith(piece.text) for piece in pieces)
    assert sum(len(piece.text) for piece in pieces) == len(text.replace("\n", ""))
    assert offsets.tolist() == [place for place, letter in enumerate(text) if letter != "\n" or not place] or not text


def test_long_lines_are_cut_at_blanks() -> None:
    pieces = cut("word " * 2000)
    assert len(pieces) == 3 and all(piece.text.endswith(" ") for piece in pieces)


@pytest.mark.parametrize(("name", "extra"), [("mecab", "ja"), ("kiwi", "ko")])
def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, name: Name, extra: str) -> None:
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    for ask in (analysers.versions, analysers.load.__wrapped__):
        with pytest.raises(MissingExtra, match=rf"\[{extra}\]"):
            ask(name)
