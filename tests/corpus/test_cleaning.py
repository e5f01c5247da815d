from __future__ import annotations

import itertools
import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from tpulm.config import CleaningConfig
from tpulm.corpus import cleaning
from tpulm.corpus.cleaning import ODD_BLANKS, Cleaner, replaced
from tpulm.corpus.documents import DocumentBatch, Samples
from tpulm.errors import ConfigError, MissingExtra

# Blanks of all kinds, characters that compose, decompose, combine or repeat, and ordinary ones.
INTERESTING = "ab1  \t\r\n\u2028\u3000\xa0\x85\x1cㅋ가각ᄀ\u1161\u11a8é\u0301e\u0327ﬁ①Å\ufb01\u1e9b\u0323😀"
CONTROLS = "\x08\x9b\u200b\ufeffก"  # the last one keeps a space of no width
DOCUMENTS = st.lists(st.text(st.sampled_from(INTERESTING + CONTROLS), max_size=15), min_size=1, max_size=6)
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
    return clean_with(Cleaner(CleaningConfig(**settings)), documents, separator)


def clean_with(cleaner: Cleaner, documents: list[str], separator: str = "\0") -> tuple[list[str], Counter[str]]:
    skipped: Counter[str] = Counter()
    cleaned = cleaner.clean(DocumentBatch(separator.join(documents), separator), skipped)
    texts = [document.decode() for document in cleaned.documents]
    assert [len(text) for text in texts] == cleaned.characters.tolist()
    return texts, skipped


def reference(config: CleaningConfig, document: str) -> str:
    """The same, a document at a time and as plainly as it can be said."""
    document = re.sub("[\x08\x9b\ufeff]|(?<!ก)\u200b", "", document)
    if config.unicode_form != "none":
        document = unicodedata.normalize(config.unicode_form, document)
    if config.whitespace == "collapse":
        lines = document.replace("\r\n", "\n").split("\n")
        document = "\n".join(re.sub(r"\s+", " ", line).strip() for line in lines).strip()
    if repeats := config.max_repeats:
        document = re.sub(rf"(\D)\1{{{repeats},}}", lambda run: run[1] * repeats, document, flags=re.DOTALL)
    return document


@settings(max_examples=200)
@given(SETTINGS, st.tuples(DOCUMENTS, st.just("\0")) | st.tuples(LINES, st.just("\n")), st.sampled_from([4, 10_000]))
def test_a_batch_is_cleaned_as_its_documents_one_by_one(config: CleaningConfig, case: tuple[list[str], str], at_once: int):
    documents, separator = case
    expected, reasons = list[str](), Counter[str]()
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "_NORMALIZED_AT_ONCE", at_once)
        assert clean_with(Cleaner(config), documents, separator) == (expected, reasons)


def test_the_blanks_are_those_of_python():
    assert set(ODD_BLANKS) == set(filter(str.isspace, map(chr, range(0x110000)))) - {" ", "\n"}


def test_control_characters_are_those_of_bert():
    """Judged by the tokenizers library's BertNormalizer, and by Unicode's categories: no control character is left but blanks.

    What BERT removes beyond these has a meaning in some script (joiners, marks of direction), or none yet."""
    bert = pytest.importorskip("tokenizers").normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    characters = list(map(chr, (*range(1, 0xD800), *range(0xE000, 0x11000))))
    cleaned, _ = clean([f"a{one}b" for one in characters], unicode_form="none")
    for one, text in zip(characters, cleaned, strict=True):
        assert bert.normalize_str(one) == "" if text == "ab" else unicodedata.category(one) != "Cc" or one.isspace()
    khmer, kept = "ខ្ញុំ\u200bទៅ\u200b\u200b a\u200b👩\u200d🌾 می\u200cخواهم", "ខ្ញុំ\u200bទៅ\u200b a👩\u200d🌾 می\u200cخواهم"
    assert clean([khmer])[0] == [kept]


@pytest.mark.parametrize("text", ["\n" * 300_000 + "x", " \n" * 200_000 + "x", "x" + " " * 300_000 + "y", "ab" * 200_000])
def test_odd_texts_take_no_longer(text: str):
    assert len(clean([text, text], max_repeats=3)[0]) == 2


RUBY, NOTES = "《[^》]*》", "［＃[^］]*］"


@pytest.mark.parametrize("separator", ["\n", "\0"])
def test_matches_are_deleted_before_all_else_counted_and_shown(separator: str):
    cleaner = Cleaner(CleaningConfig(remove=(RUBY, NOTES, "｜"), min_characters=3))
    documents = ["吾輩《わがはい》は　［＃ここから］ 猫《ねこ》である", "《るび》", "｜no《match, 》 a《", "》b［＃c］"]
    assert clean_with(cleaner, documents, separator) == (["吾輩は 猫である", "no a《"], {"empty": 1, "too_short": 1})
    assert cleaner.counts["removed_matches"] == {RUBY: 4, NOTES: 2, "｜": 1}
    assert cleaner.counts["removed_characters"] == {RUBY: 6 + 4 + 4 + 9, NOTES: 7 + 4, "｜": 1}
    (first, *others) = cleaner.samples.removed()[f"/{RUBY}/"]
    assert first == "吾輩[《わがはい》]は ［＃ここから］ 猫《ねこ》である" and len(others) == 2


@pytest.mark.parametrize(("pattern", "said"), [("《[", "'《\\['.*unterminated"), ("x*", "'x\\*'.*empty")])
def test_patterns_that_cannot_serve_are_refused(pattern: str, said: str):
    with pytest.raises(ValidationError, match=said):
        CleaningConfig(remove=(pattern,))


def test_a_pattern_that_tries_every_way_is_an_error(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match=r"corpus\.cleaning\.remove: '\(a\+\)\+b'"):
        patch.setattr(cleaning, "_MATCHING_SECONDS", 0.2)
        clean(["a" * 40], remove=("(a+)+b",))
    assert clean(["a" * 40], remove=("(a++)++b",))[0] == ["a" * 40]


KINDS = ("email", "phone")
TELEPHONES = [
    *("010-1234-5678", "02-123-4567", "02 123 4567", "(02) 123-4567", "03-1234-5678", "0120.123.4567", "+82 10-1234-5678"),
    *("+81 (0)3 1234 5678", "+1 212 555 0123", "+12125550123", "(212) 555-0123", "212-555-0123", "212.555.0123"),
]
ADDRESSES = ["a@b.co", "first.last+tag@sub.example.co.kr", "x_1%y@example.museum", "A-B@EXAMPLE.COM", "1@2.de"]


def test_addresses_and_telephone_numbers():
    for kind, texts, around in (
        ("email", ADDRESSES, ["{}", "<{}>", "write to {}.", "메일은 {}입니다", "({}),", "連絡先：{}まで", "{}\n{}"]),
        ("phone", TELEPHONES, ["{}", "call {}.", "전화 {} 번", "({})", "{}, or"]),
    ):
        for text, frame in itertools.product(texts, around):
            counts: Counter[str] = Counter()
            assert replaced(frame.format(text, text), KINDS, counts, Samples()) == frame.format(f"<{kind}>", f"<{kind}>")
            assert counts == {kind: frame.count("{}")}


def test_what_is_neither():
    texts = [
        *("2019-04-30", "2019.04.30", "12:30:45", "192.168.0.1", "1,234,567", "3.14159265358979", "10-20-30", "1998-2003"),
        *("978-3-16-148410-0", "0123456789", "12 345 678", "v1.2.3-4", "@name", "a@b", "a@@b.co", "x = y @ z", "1/2-3/4"),
        *("2 000 000", "100-200 300", "5-4-3-2-1", "00:01:02", "A1-234-5678", "010-1234-56789", "$1 234.50"),
    ]
    counts: Counter[str] = Counter()
    assert [replaced(text, KINDS, counts, Samples()) for text in texts] == texts and not counts


@given(st.text(st.sampled_from("ab1 0-.@+()_\n\0가"), max_size=40))
def test_twice_is_once(text: str):
    once = replaced(text, KINDS, Counter(), Samples())
    assert replaced(once, KINDS, Counter(), Samples()) == once
    assert (once.count("\n"), once.count("\0")) == (text.count("\n"), text.count("\0"))


@pytest.mark.parametrize("unit", ["a.", "a@", "0-", "+1 ", "(0", "1 ", "a-", "@a.", "12-34", "%"])
def test_odd_text_takes_no_longer_than_it_must(unit: str):
    started = time.process_time()
    replaced(unit * 200_000, KINDS, Counter(), Samples())
    assert time.process_time() - started < 10, "a matter of milliseconds: this would be quadratic"


KOREAN = "이 영화는 정말 재미있었고 배우들의 연기도 훌륭했습니다."
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
ENGLISH = "The cat sat on the mat while the rain fell over the old green hills."
UNTOLD = ["12345", "!!!", "ㅋㅋ"]


def test_what_is_in_another_language_goes():
    documents, cleaner = [KOREAN, ENGLISH, JAPANESE, *UNTOLD, KOREAN * 40], Cleaner(CleaningConfig(languages=("ko",)))
    assert clean_with(cleaner, documents, "\n") == ([KOREAN, *UNTOLD, KOREAN * 40], {"other_language": 2})
    english, japanese = cleaner.samples.removed()["other_language"]
    assert cleaner.counts["languages"] == {"ko": 2, "en": 1, "ja": 1, "uncertain": len(UNTOLD)}
    assert english.startswith("en ") and english.endswith(ENGLISH) and japanese.startswith("ja ")
    assert clean(documents, languages=("ko", "en", "ja"))[0] == documents
    cleaner = Cleaner(CleaningConfig())
    assert clean_with(cleaner, documents)[0] == documents and not cleaner.counts["languages"]


def test_only_the_beginning_of_a_long_document_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cleaning, "_CHARACTERS", len(ENGLISH))
    assert clean([ENGLISH + KOREAN * 20], languages=("en",))[1] == {}
    assert clean([ENGLISH + KOREAN * 20], languages=("ko",))[1] == {"other_language": 1}


def test_an_unknown_language_is_said_before_anything_is_read(scattered: Callable, write: Callable, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"'kor'.*ISO 639"):
        scattered(write("a.txt", "a\nb\n"), cleaning={"languages": ["kor"]}, workdir=tmp_path / "w")
    assert not (tmp_path / "w" / "corpus" / "manifest.json").exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(MissingExtra, match=r"\[languages\]"):
        Cleaner(CleaningConfig(languages=("ko",)))


def test_aozoras_header_footer_ruby_and_notes_are_deleted_by_name():
    """The form of its files, as https://www.aozora.gr.jp/guide/aozora_bunko.html describes it."""
    rule = "-" * 55
    text = (
        f"吾輩は猫である\n夏目漱石\n\n{rule}\n【テキスト中に現れる記号について】\n\n《》：ルビ\n（例）吾輩《わがはい》は猫である\n{rule}\n\n"
        "［＃８字下げ］一［＃「一」は中見出し］\n　吾輩《わがはい》は猫である。一番｜獰悪《どうあく》な種族。\n\n\n\n"
        "底本：「夏目漱石全集1」ちくま文庫、筑摩書房\n入力：柴田卓治\n青空文庫作成ファイル：\nボランティアの皆さんです。\n"
    )
    (document,), _ = clean([text], remove=("aozora",))
    assert document.split() == ["吾輩は猫である", "夏目漱石", "一", "吾輩は猫である。一番獰悪な種族。"]
