"""Morphological analysers, and texts that they cut before WordPiece: the same ids as transformers where it can do that."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
from hypothesis import given, settings, strategies as st
from made_up import make_texts, of_transformers, write_vocabulary

from tpulm import tokenization
from tpulm.config import CleaningConfig, RunConfig, TokenizerConfig
from tpulm.corpus.cleaning import Cleaner
from tpulm.corpus.documents import DocumentBatch
from tpulm.errors import ConfigError, DataError, MissingExtra
from tpulm.tokenization import Tokenization, analysers
from tpulm.tokenization.analysers import LONGEST_PIECE, Analyser, Name, TextSpan, cut, word_offsets
from tpulm.tokenization.segmenter import Segmenter

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
texts_of_trouble = st.lists(st.one_of(st.sampled_from(TROUBLE), no_surrogates), max_size=12).map("".join)


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


def test_japanese_and_korean(analyser: Analyser) -> None:
    """봤 is 보 and 었, which begin at one character; what lies behind the astral plane keeps its place."""
    if isinstance(analyser, analysers.Mecab):
        assert "|".join(words("吾輩は猫である。𠮷野家で食べた", analyser)) == "吾輩|は|猫|で|ある|。|𠮷|野家|で|食べ|た"
    else:
        assert words("😀👍🏽영화를 봤다", analyser) == ["😀", "👍🏽", "영화", "를 ", "봤", "다"]
        apart = unicodedata.normalize("NFD", "봤다 영화를")
        found = unicodedata.normalize("NFC", "|".join(words(apart, analyser)))
        assert found in ("봤|다 |영화|를", "봤다 |영화|를", "봤다 |영화를")


@settings(max_examples=80)
@given(text=texts_of_trouble)
def test_any_text_has_offsets_between_its_characters(analyser: Analyser, text: str) -> None:
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


def test_long_texts_are_cut_at_blanks(analyser: Analyser) -> None:
    for unit in ["가", "漢字", "😀", "word ", "。", "ﾊﾞ"]:
        text = unit * (3 * LONGEST_PIECE // len(unit) + 1)
        assert "".join(words(text, analyser)) == text
    pieces = cut("word " * 2000)
    assert len(pieces) == 3 and all(piece.text.endswith(" ") for piece in pieces)


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


@pytest.mark.parametrize(("name", "extra"), [("mecab", "ja"), ("kiwi", "ko")])
def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, name: Name, extra: str) -> None:
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    for ask in (analysers.versions, analysers.load.__wrapped__):
        with pytest.raises(MissingExtra, match=rf"\[{extra}\]"):
            ask(name)


# -- tokenizers of morphemes -------------------------------------------------------------------------------------------------

SENTENCES = {
    "mecab": ["吾輩は猫である。", "名前はまだ無い。", "どこで生れたか見当がつかぬ。", "Ｔｏｋｙｏでｶﾀｶﾅを見た", "Cat's 1,000"],
    "kiwi": ["영화를 봤다.", "재미있었어요ㅋㅋㅋ", "하늘을 나는 새", "The cat's 1,000 mice.", "😀👍🏽 카페에서 만났다!"],
}


@pytest.fixture(scope="module", params=SENTENCES)
def made(request: pytest.FixtureRequest) -> Tokenization:
    return train(request.param)


def train(
    analyser: Any, *, texts: Sequence[str] = (), size: int = 700, lowercase: bool = False, **cleaning: Any
) -> Tokenization:
    pytest.importorskip(PACKAGES[analyser])
    config = TokenizerConfig(vocab_size=size, morphemes=analyser, lowercase=lowercase)
    some = [*(texts or [*SENTENCES[analyser] * 3, *make_texts(300)])] * 2
    return tokenization.train([some], config, cleaning=CleaningConfig(**cleaning) if cleaning else None)


def test_texts_become_morphemes(made: Tokenization) -> None:
    assert made.segmenter is not None
    text, expected = {
        "mecab": ("吾輩は　ｶﾀｶﾅ\nを見た", "吾輩 は カタカナ を 見 た"),
        "kiwi": ("영화를  봤다\nㅋㅋ", "영화 를 봤 다 ㅋㅋ"),
    }[made.segmenter.analyser]
    assert made.segmenter.segment([text, "", " "]) == [expected, "", ""]
    with pytest.raises(ConfigError, match="morphemes"):
        made.plain()


@settings(max_examples=60)
@given(texts_of_trouble)
def test_one_text_and_many_have_the_same_ids(made: Tokenization, text: str) -> None:
    """Whatever is in it; and no morpheme is left uncut or cut at a blank of another kind."""
    encoded = made.encode([text, "猫", text])
    first = encoded.ids[: encoded.lengths[0]].tolist()
    assert made.encode_one(text, special_tokens=False) == first
    if not any(name in text for name in ("[MASK]", "[SEP]")):
        assert made.encode_one(text)[1:-1] == first
    assert made.segmenter is not None
    (segmented,) = made.segmenter.segment([text])
    assert segmented.split() == segmented.split(" ") or not segmented


def test_a_mask_stays_a_mask_and_a_surrogate_is_a_replacement_character(made: Tokenization) -> None:
    mask, text = made.special.mask, SENTENCES[made.segmenter.analyser if made.segmenter else ""][0]
    ids = made.encode_one(f"{text}[MASK]{text} [MASK]")
    alone = made.encode_one(text, special_tokens=False)
    assert ids == [made.special.cls, *alone, mask, *alone, mask, made.special.sep]
    assert mask not in made.encode(["[MASK]"]).ids
    assert made.encode(["猫\ud800새"]).ids.tolist() == made.encode(["猫\ufffd새"]).ids.tolist()
    assert made.encode_one("猫\ud800새") == made.encode_one("猫\ufffd새")


def test_saved_loaded_and_pickled(made: Tokenization, tmp_path: Path) -> None:
    tokenization.save(made, tmp_path)
    if made.segmenter is not None and made.segmenter.analyser == "kiwi":  # better than Korean that is not cut, and nothing said
        with pytest.raises(ValueError, match="'kiwi'"):
            of_transformers(tmp_path)
    again = tokenization.load(tmp_path)
    assert again.segmenter == made.segmenter and again.fingerprint == made.fingerprint
    text = "".join(TROUBLE)
    for other in (again, pickle.loads(pickle.dumps(made)), tokenization.load(tmp_path / "tokenizer.json")):
        assert other.encode_one(text) == made.encode_one(text)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "manifest.json").unlink()
    bare = tokenization.load(tmp_path)
    assert bare.segmenter == made.segmenter and bare.encode_one(text) == made.encode_one(text)


@pytest.mark.parametrize("form", ["NFC", "NFKC", "NFD"])
@pytest.mark.parametrize("analyser", SENTENCES)
def test_a_text_has_the_ids_of_its_cleaned_form(analyser: Any, form: Any, tmp_path: Path) -> None:
    """Judged by the cleaning of corpora and, for what BertJapaneseTokenizer can do, by transformers; spans are the text's."""
    made = train(analyser, unicode_form=form, max_repeats=3)
    unclean = ["\x08".join(SENTENCES[analyser]), "ㅋㅋㅋㅋㅋㅋ 영화\u200b를", "か\u3099!!!!!! 猫\ufeffは\u3000見た", "ＡＢＣ"]
    texts = [*unclean, *(unicodedata.normalize(other, text) for text in unclean for other in ("NFD", "NFKC"))]
    cleaner = Cleaner(CleaningConfig(unicode_form=form, max_repeats=3))
    cleaned = [cleaner.clean(DocumentBatch(text, "\0"), Counter()).text for text in texts]
    tokenization.save(made, tmp_path)
    plain = Tokenization(made._tokenizer, made.special, Segmenter(analyser))
    for one in (made, tokenization.load(tmp_path), pickle.loads(pickle.dumps(made))):
        assert one.encode(texts).ids.tolist() == plain.encode(cleaned).ids.tolist()
        assert one.encode_with_offsets(texts).ids.tolist() == one.encode(texts).ids.tolist()
        assert one.encode_one(texts[0])[1:-1] == one.encode(texts[:1]).ids.tolist()
    assert [tuple(span) for span in one.encode_with_offsets(["봤다 ㅋㅋㅋㅋㅋㅋ ABC"]).spans.tolist()][-1][1] == 13
    if analyser == "mecab":
        theirs = of_transformers(tmp_path)
        for text in [*SENTENCES["mecab"], "か\u3099 猫は\u3000見た", "ＡＢＣ"]:
            assert made.encode_one(text) == theirs(text)["input_ids"], text


def test_the_fingerprint_knows_the_analyser(made: Tokenization) -> None:
    assert made.segmenter is not None
    another = Segmenter("kiwi" if made.segmenter.analyser == "mecab" else "mecab")
    others = [None, another, made.segmenter._replace(lowercase=True)]
    assert len({made.fingerprint, *(Tokenization(made._tokenizer, made.special, other).fingerprint for other in others)}) == 4


@pytest.mark.parametrize("lowercase", [False, True])
def test_transformers_gives_the_same_ids(tmp_path: Path, lowercase: bool) -> None:
    """AutoTokenizer on the folder; on made-up text and on what tokenizers disagree about."""
    rng = random.Random(0)
    texts = [*make_texts(300), *("".join(rng.choices(TROUBLE, k=6)) for _ in range(400)), "ΑΣ Σ İstanbul", "x" * 120]
    texts = [text for text in texts if "\0" not in text]  # at which transformers' MeCab ends a text
    made = train("mecab", lowercase=lowercase, texts=texts, size=1500)
    tokenization.save(made, tmp_path)
    theirs = of_transformers(tmp_path)
    assert type(theirs).__name__ == "BertJapaneseTokenizer"
    for text in [*texts, "吾輩は[MASK]である。"]:
        assert made.encode_one(text) == theirs(text)["input_ids"], text


def write_settings(folder: Path, **changes: Any) -> None:
    """As a BertJapaneseTokenizer with MeCab has them."""
    described = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described | changes))


def test_a_vocabulary_of_others_is_read_as_its_settings_say(tmp_path: Path) -> None:
    pytest.importorskip("fugashi")
    path = write_vocabulary(tmp_path, "吾輩", "は", "猫", "##輩")
    assert tokenization.load(tmp_path).segmenter is None, "read as a BERT's"
    write_settings(tmp_path, mecab_kwargs={"mecab_dic": "unidic_lite"})
    for made in (tokenization.load(tmp_path), tokenization.load(path, TokenizerConfig(morphemes="mecab"))):
        assert made.encode_one("吾輩は猫") == [2, 5, 6, 7, 3]


def test_added_tokens_are_not_cut(tmp_path: Path) -> None:
    pytest.importorskip("fugashi")
    write_vocabulary(tmp_path, "吾輩", "は", "猫", "の")
    added = {"9": {"content": "吾輩は", "normalized": False}, "10": {"content": "<猫>", "special": True}}
    write_settings(tmp_path, mecab_kwargs={"mecab_dic": "unidic_lite"}, added_tokens_decoder=added)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs, ours = of_transformers(tmp_path), tokenization.load(tmp_path)
    for text in ("吾輩は猫", "吾輩の<猫>は[MASK]", "猫は吾輩は", "<猫>は吾輩は吾輩"):
        expected = theirs(text)["input_ids"]
        assert ours.encode_one(text) == expected
        if "[MASK]" not in text:
            assert ours.reading_added.encode([text]).ids.tolist() == expected[1:-1]
            ids, _, spans = ours.reading_added.encode_with_offsets([text])
            assert ids.tolist() == expected[1:-1]
            assert "".join(text[begin:end] for begin, end in spans.tolist()) == text


def test_other_dictionaries_are_refused(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, "吾輩")
    for declared, message in (
        ({"mecab_kwargs": {"mecab_dic": "ipadic"}}, r"mecab \(\{'mecab_dic': 'ipadic'\}\) and wordpiece"),
        ({"mecab_kwargs": {"mecab_dic": None, "mecab_option": "-d /ipadic"}}, "-d /ipadic"),
        ({"mecab_kwargs": {"mecab_dic": "unidic_lite", "normalize_text": False}}, "'normalize_text': False"),
        # As the first Japanese BERTs are published, whose weights are of ipadic (transformers issue 32482).
        ({}, r'no mecab_dic .*"mecab_dic": "unidic_lite"$'),
        ({"subword_tokenizer_type": "character", "mecab_kwargs": {"mecab_dic": "unidic_lite"}}, "and character"),
        ({"subword_tokenizer_type": "sentencepiece", "word_tokenizer_type": "basic"}, "basic .* and sentencepiece"),
    ):
        write_settings(tmp_path, **declared)
        with pytest.raises(DataError, match=message):
            tokenization.load(tmp_path)


def test_what_does_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'wordpiece'"):
        TokenizerConfig(algorithm="bpe", morphemes="mecab")
    words = {"data": {"word_boundaries": "kiwi"}, "train": {"objective": {"whole_words": True}}}
    causal = {"data": {"rows": "causal"}, "model": {"architecture": "decoder", "norm_position": "pre"}}
    for others, message in ((words, r"data\.word_boundaries"), (causal, r"tokenizer\.morphemes")):
        with pytest.raises(ValueError, match=message):
            RunConfig.model_validate({"tokenizer": {"morphemes": "kiwi"}, **others})
    tokenization.save(tokenization.load(write_vocabulary(tmp_path, "a")), tmp_path)
    with pytest.raises(ConfigError, match="its own settings"):
        tokenization.load(tmp_path / "tokenizer.json", TokenizerConfig(morphemes="mecab"))
