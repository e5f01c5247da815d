"""Addresses and numbers of people: what is taken for one, and what is not."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulm.config import CleaningConfig, CorpusConfig, SourceConfig
from tpulm.corpus import scatter
from tpulm.corpus.cleaning import replaced
from tpulm.corpus.documents import Samples

KINDS = ("email", "phone")


@pytest.mark.parametrize(
    "text",
    ["a@b.co", "first.last+tag@sub.example.co.kr", "x_1%y@example.museum", "A-B@EXAMPLE.COM", "1@2.de"],
)
@pytest.mark.parametrize("around", ["{}", "<{}>", "write to {}.", "메일은 {}입니다", "({}),", "連絡先：{}まで", "{}\n{}"])
def test_addresses(text: str, around: str):
    counts: Counter[str] = Counter()
    assert replaced(around.format(text, text), KINDS, counts, Samples()) == around.format("<email>", "<email>")
    assert counts == {"email": around.count("{}")}


@pytest.mark.parametrize(
    "text",
    [
        *("010-1234-5678", "02-123-4567", "02 123 4567", "(02) 123-4567", "03-1234-5678", "0120.123.4567", "+82 10-1234-5678"),
        *("+81 (0)3 1234 5678", "+1 212 555 0123", "+12125550123", "(212) 555-0123", "212-555-0123", "212.555.0123"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "call {}.", "전화 {} 번", "({})", "{}, or"])
def test_telephone_numbers(text: str, around: str):
    counts: Counter[str] = Counter()
    assert replaced(around.format(text), KINDS, counts, Samples()) == around.format("<phone>")
    assert counts == {"phone": 1}


@pytest.mark.parametrize(
    "text",
    [
        *("2019-04-30", "2019.04.30", "12:30:45", "192.168.0.1", "1,234,567", "3.14159265358979", "10-20-30", "1998-2003"),
        *("978-3-16-148410-0", "0123456789", "12 345 678", "v1.2.3-4", "@name", "a@b", "a@@b.co", "x = y @ z", "1/2-3/4"),
        *("2 000 000", "100-200 300", "5-4-3-2-1", "00:01:02", "A1-234-5678", "010-1234-56789", "$1 234.50"),
    ],
)
def test_what_is_neither(text: str):
    counts: Counter[str] = Counter()
    assert replaced(text, KINDS, counts, Samples()) == text and not counts


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


def test_they_are_counted_in_the_manifest(tmp_path: Path):
    (tmp_path / "a.txt").write_text("mail a@b.co or c@d.org\ncall 010-1234-5678\nnothing here\n")
    sources = (SourceConfig(path=str(tmp_path / "a.txt")),)
    config = CorpusConfig(sources=sources, cleaning=CleaningConfig(replace=("email", "phone")))
    assert scatter(config, tmp_path / "w", part_bytes=1 << 20).counts.replaced == {"email": 2, "phone": 1}
    assert scatter(CorpusConfig(sources=sources), tmp_path / "v", part_bytes=1 << 20).counts.replaced == {}
