import re
import unicodedata
from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tpulm.config import CleaningConfig
from tpulm.corpus import cleaning
from tpulm.corpus.cleaning import _ODD_BLANKS, Cleaner
from tpulm.corpus.documents import Batch
from tpulm.errors import ConfigError

# Blanks of all kinds, characters that compose, decompose, combine or repeat, and ordinary ones.
INTERESTING = "ab1  \t\r\n\u2028\u3000\xa0\x85\x1cㅋ가각ᄀ\u1161\u11a8é\u0301e\u0327ﬁ①Å\ufb01\u1e9b\u0323😀"
DOCUMENTS = st.lists(st.text(st.sampled_from(INTERESTING), max_size=15), min_size=1, max_size=6)
LINES = DOCUMENTS.map(lambda documents: [re.sub("[\n]", "", document) for document in documents])
SETTINGS = st.builds(
    CleaningConfig,
    unicode_form=st.sampled_from(["none", "NFC", "NFD", "NFKC", "NFKD"]),
    whitespace=st.sampled_from(["keep", "collapse"]),
    min_characters=st.integers(0, 4),
    max_characters=st.none() | st.integers(4, 12),
    max_repeats=st.none() | st.integers(2, 3),
)


def clean(documents: list[str], separator: str = "\0", **settings: Any) -> tuple[list[str], Counter[str]]:
    return clean_with(CleaningConfig(**settings), documents, separator)


def clean_with(config: CleaningConfig, documents: list[str], separator: str) -> tuple[list[str], Counter[str]]:
    skipped: Counter[str] = Counter()
    cleaned = Cleaner(config).clean(Batch(separator.join(documents), separator), skipped)
    texts = [document.decode() for document in cleaned.documents]
    assert [len(text) for text in texts] == cleaned.characters.tolist()
    return texts, skipped


def reference(config: CleaningConfig, document: str) -> str:
    """The same, a document at a time and as plainly as it can be said."""
    if config.unicode_form != "none":
        document = unicodedata.normalize(config.unicode_form, document)
    if config.whitespace == "collapse":
        lines = document.replace("\r\n", "\n").split("\n")
        document = "\n".join(re.sub(r"\s+", " ", line).strip() for line in lines).strip()
    if repeats := config.max_repeats:
        document = re.sub(rf"(\D)\1{{{repeats},}}", lambda run: run[1] * repeats, document, flags=re.DOTALL)
    return document


@given(SETTINGS, st.one_of(st.tuples(DOCUMENTS, st.just("\0")), st.tuples(LINES, st.just("\n"))))
def test_a_batch_is_cleaned_as_its_documents_one_by_one(config: CleaningConfig, case: tuple[list[str], str]):
    documents, separator = case
    expected: list[str] = []
    reasons: Counter[str] = Counter()
    for document in documents:
        text = reference(config, document)
        if not text or text.isspace():
            reasons["empty"] += 1
        elif len(text) < config.min_characters:
            reasons["too_short"] += 1
        elif config.max_characters is not None and len(text) > config.max_characters:
            reasons["too_long"] += 1
        else:
            expected.append(text)
    assert clean_with(config, documents, separator) == (expected, reasons)


@pytest.mark.parametrize("separator", ["\n", "\0"])
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(st.lists(st.text(st.sampled_from(INTERESTING.replace("\n", "")), max_size=5), min_size=1, max_size=20))
def test_a_long_batch_is_normalized_as_its_documents(
    separator: str, form: Literal["NFC", "NFD", "NFKC", "NFKD"], documents: list[str]
):
    expected = [unicodedata.normalize(form, document) for document in documents]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "_NORMALIZED_AT_ONCE", 4)
        texts, _ = clean(documents, separator, unicode_form=form, whitespace="keep")
    assert texts == [text for text in expected if text and not text.isspace()]


@given(SETTINGS, DOCUMENTS)
def test_cleaning_twice_changes_nothing(config: CleaningConfig, documents: list[str]):
    once, _ = clean_with(config, documents, "\0")
    if once:
        assert clean_with(config, once, "\0") == (once, {})


def test_the_blanks_are_those_of_python():
    assert set(_ODD_BLANKS) == set(filter(str.isspace, map(chr, range(0x110000)))) - {" ", "\n"}


def test_defaults():
    documents = ["  a\t b\u3000\u2028c \r\n  d\re \n", "\n \n", "", "e\u0301"]
    assert clean(documents) == (["a b c\nd e", "é"], {"empty": 2})


def test_keep_leaves_white_space_alone():
    assert clean([" a\r\n b ", " \n"], whitespace="keep") == ([" a\r\n b "], {"empty": 1})


def test_repeats_are_cut_but_numbers_are_not():
    assert clean(["ㅋㅋㅋㅋㅋ 좋다!!!!! 1000000원 aaab\n\n\n\n\nc"], max_repeats=3)[0] == [
        "ㅋㅋㅋ 좋다!!! 1000000원 aaab\n\n\nc"
    ]


def test_lengths_are_in_characters_after_cleaning():
    texts, skipped = clean(["  가나  ", "가나다", "가나다라마"], min_characters=3, max_characters=4)
    assert (texts, skipped) == (["가나다"], {"too_short": 1, "too_long": 1})


@pytest.mark.parametrize("text", ["\n" * 300_000 + "x", " \n" * 200_000 + "x", "x" + " " * 300_000 + "y", "ab" * 200_000])
def test_odd_texts_take_no_longer(text: str):
    cleaned, _ = clean([text, text], max_repeats=3)
    assert len(cleaned) == 2


RUBY, NOTES = "《[^》]*》", "［＃[^］]*］"


@pytest.mark.parametrize("separator", ["\n", "\0"])
def test_matches_are_deleted_before_all_else_counted_and_shown(separator: str):
    cleaner = Cleaner(CleaningConfig(remove=(RUBY, NOTES, "｜"), min_characters=3))
    documents = ["吾輩《わがはい》は　［＃ここから］ 猫《ねこ》である", "《るび》", "｜no《match, 》 a《", "》b［＃c］"]
    skipped: Counter[str] = Counter()
    cleaned = cleaner.clean(Batch(separator.join(documents), separator), skipped)
    assert [document.decode() for document in cleaned.documents] == ["吾輩は 猫である", "no a《"]
    assert skipped == {"empty": 1, "too_short": 1}
    assert cleaner.removed_matches == {RUBY: 4, NOTES: 2, "｜": 1}
    assert cleaner.removed_characters == {RUBY: 6 + 4 + 4 + 9, NOTES: 7 + 4, "｜": 1}
    samples = cleaner.samples.removed()
    assert samples[f"/{RUBY}/"][0] == "吾輩[《わがはい》]は ［＃ここから］ 猫《ねこ》である"
    assert len(samples[f"/{RUBY}/"]) == 3


@pytest.mark.parametrize(
    ("pattern", "said"), [("《[", "'《\\[' is not a regular expression.*unterminated"), ("x*", "'x\\*' matches the empty")]
)
def test_patterns_that_cannot_serve_are_refused(pattern: str, said: str):
    with pytest.raises(ValidationError, match=said):
        CleaningConfig(remove=(pattern,))


def test_a_pattern_that_tries_every_way_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cleaning, "_MATCHING_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"corpus\.cleaning\.remove: '\(a\+\)\+b' needs more than .* seconds"):
        clean(["a" * 40], remove=("(a+)+b",))
    assert clean(["a" * 40], remove=("(a++)++b",))[0] == ["a" * 40]
