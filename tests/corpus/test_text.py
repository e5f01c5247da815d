import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tpulm.corpus.readers import lines, text
from tpulm.errors import DataError


def test_a_document_a_file(read: Callable):
    assert read("a.txt", "\ufeffone\n\ntwo\n", documents="file").documents == ["one\n\ntwo\n"]
    assert read("b.txt", "", documents="file").documents == []


def test_another_format_is_read_only_if_told_to(read: Callable):
    for content, advice in (
        ("id\tdocument\tlabel\n1\tgood\t1\n\n2\tbad\t0\n", "'tsv'"),
        *(('\n{"text": "a"}\n{"text": "b"}\n', "'jsonl'"), ('[\n  {\n  "text": "a"}\n]\n', "'jsonl'")),
        # the forms of WikiExtractor's README, the MediaWiki export schema, the HTML standard, SubRip and WebVTT
        ('<doc id="2" url="https://ko.wikipedia.org/wiki?curid=2" title="A">\nA\n\ntext\n</doc>\n', "WikiExtractor"),
        ('<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">\n', "format = 'wikipedia'"),
        ("<!DOCTYPE html>\n<html>\n", "HTML"),
        ("1\r\n00:02:16,612 --> 00:02:19,376\r\nHello.\r\n", "subtitles"),
        ("WEBVTT\n\n00:11.000 --> 00:13.000\nHello.\n", "subtitles"),
    ):
        for documents in ("line", "file"):
            with pytest.raises(DataError, match=advice):
                read("a.txt", content, documents=documents, on_error="skip")
            assert read("a.txt", content, documents=documents, format="text").documents


def test_text_that_begins_like_another_format(read: Callable):
    texts = "\tone\n\ttwo\n", "a\tb\nc\nd\n", "{x}\n", "[1] {a}\n", "<docs>\n", '<DOC id="A_1" >\n', "1\nx --> y\n", "{x}  \n"
    for content in texts:
        assert read("a.txt", content).documents == content.split("\n")[:-1]


@given(st.text("ab \t\n\r\u2028\u3000", max_size=60), st.integers(1, 9))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_paragraphs_do_not_depend_on_where_stretches_end(read: Callable, content: str, batch: int):
    expected = [item.split() for item in re.split(r"\n(?:[^\S\n]*\n)+", f"\n\n{content}\n\n") if item.split()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BATCH_BYTES", batch)
        found = [item.split() for item in read("a.txt", content, documents="paragraph").documents]
    assert [item for item in found if item] == expected


@pytest.mark.parametrize("documents", ["paragraph", "file"])
def test_a_document_that_is_too_long_is_an_error_or_left_out(faulty: Callable, monkeypatch: pytest.MonkeyPatch, documents: str):
    monkeypatch.setattr(text, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr(lines, "BATCH_BYTES", 16)
    content, left = "word word\n" * 30 + "\nlast\n", ["last\n"] if documents == "paragraph" else []
    faulty("a.txt", content, "line 1: .*longer", left, "too_large", documents=documents)


@pytest.mark.parametrize("documents", ["paragraph", "file"])
def test_a_bad_byte_takes_its_document_along(read: Callable, documents: str):
    found = read("a.txt", b"one\n\ntw\xffo\nmore\n\nthree", documents=documents, on_error="skip")
    assert [item.strip() for item in found.documents] == (["one", "three"] if documents == "paragraph" else [])
    assert found.skipped == {"undecodable": 1}
