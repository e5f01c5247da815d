from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import itertools
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings, strategies as st

from tpulm.corpus.documents import Faults
from tpulm.corpus.readers import lines
from tpulm.corpus.readers.lines import ByteStream, Compression, Lines, find_codec, read_lines
from tpulm.errors import ConfigError, DataError, StorageError

COMPRESS: dict[Compression, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
COMPRESS["zstd"] = zstandard.compress
TEXT = b"".join(b"line %d of some text that repeats\n" % number for number in range(20_000))


@pytest.fixture(params=list(COMPRESS))
def compression(request: pytest.FixtureRequest) -> Compression:
    return request.param


def undone(path: Path, compression: Compression | None, faults: Faults) -> tuple[bytes, ByteStream]:
    stream = ByteStream(path, compression, faults)
    return b"".join(stream.pieces()), stream


def test_each_compression_is_undone_also_of_several_streams_and_the_raw_file_hashed(compression: Compression, write: Callable):
    data = COMPRESS[compression](TEXT)
    found, stream = undone(write("a", data), compression, Faults("stop", "a"))
    assert found == TEXT and not stream.torn
    assert (stream.read_bytes, stream.sha256()) == (len(data), hashlib.sha256(data).hexdigest())
    several = COMPRESS[compression](b"one\n") + COMPRESS[compression](b"") + data
    assert undone(write("b", several), compression, Faults("stop"))[0] == b"one\n" + TEXT
    assert undone(write("c", data + bytes(100)), compression, Faults("stop"))[0] == TEXT, "zeros after the end are padding"


def test_a_file_that_ends_early_is_an_error_with_the_place_or_its_beginning_is_used(compression: Compression, write: Callable):
    text = random.Random(0).randbytes(1_000_000)  # bzip2 gives nothing before a block of 900 kB is complete
    data = COMPRESS[compression](text)[:-20]
    path, faults = write("a", data), Faults("skip", "a")
    with pytest.raises(DataError, match=rf"a, after byte \d+ .*{compression} data"):
        undone(path, compression, Faults("stop", "a"))
    found, stream = undone(path, compression, faults)
    assert found and text.startswith(found)
    assert stream.torn and faults.skipped == {"broken_file": 1}
    assert (stream.read_bytes, stream.sha256()) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("content", [b"this is plain text", b"this is plain text" * 10_000, b""])
def test_what_is_not_compressed_is_an_error(compression: Compression, write: Callable, content: bytes):
    with pytest.raises(DataError, match="suffix" if content else "0 bytes"):
        undone(write("a", content), compression, Faults("stop", "a"))


def test_garbage_after_the_end_is_an_error(compression: Compression, write: Callable):
    path = write("a", COMPRESS[compression](b"some text\n") + b"garbage")
    with pytest.raises(DataError, match=f"{compression} data"):
        undone(path, compression, Faults("stop"))
    assert undone(path, compression, Faults("skip"))[0] == b"some text\n"


def test_the_line_that_was_cut_off_is_not_a_document(read: Callable):
    data = gzip.compress(b"one\ntwo\nthree, which is lo", 0)[:-9]
    assert read("a.txt.gz", data, on_error="skip").documents == ["one", "two"]
    assert read("b.txt.gz", data, on_error="skip", documents="file").documents == []


def test_a_file_that_went_away(tmp_path: Path):
    with pytest.raises(StorageError, match="no such file"):
        undone(tmp_path / "none", None, Faults("skip"))


NO_ENCODINGS = dict.fromkeys(("base64", "idna"), "not a character encoding")
NO_ENCODINGS |= {"ANSI": "cp949", "unicode": "utf-16", "euckrr": "'euckr'", "": "utf-8"}


@pytest.mark.parametrize(("name", "message"), NO_ENCODINGS.items())
def test_an_unknown_encoding_is_refused_with_a_suggestion(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        find_codec(name)


def test_text_in_many_encodings_is_read(read: Callable):
    for name, text in (
        ("cp932", "日本語、①\n髙橋\n"), ("euc_kr", "한국어\n영화\n"), ("cp949", "뷁\n똠방각하\n"), ("gb18030", "汉字\n㐀\n"),
        ("utf-16", "한\n글\n"), ("utf-16-be", "ഊ\nਊ\n"), ("utf-32", "😀\nx\n"), ("iso2022_jp", "日本\n語\n"),
        ("utf-7", "é+\n한\n"), ("windows-949", "뷁\n똠방각하\n"), ("Windows-31J", "①\n髙橋\n"),
        ("cp037", "plain\ntext\n"), ("latin-1", "caf\xe9\nna\xefve\n"), ("utf-8-sig", "first\nsecond\n"),
    ):  # fmt: skip
        assert read("a.txt", text.encode(find_codec(name)), encoding=name).documents == text.split("\n")[:-1]


def test_iso_names_are_those_of_windows_encodings(read: Callable):
    """WHATWG, https://encoding.spec.whatwg.org/#names-and-labels: their labels are of windows-1252, -1254 and -874."""
    labels = ("latin-1", "cp1252", "“café” – 5 €"), ("iso-8859-9", "cp1254", "“şiğ” €"), ("tis-620", "cp874", "“ไทย” €")
    for label, codec, text in labels:
        assert read("a.txt", text.encode(codec), encoding=label).documents == [text]


def test_a_byte_order_mark_at_the_start_of_a_line_is_dropped_and_kept_elsewhere(read: Callable):
    assert read("a.txt", "\ufeffone\r\n\ufefftwo\n\ufeff\ufeffth\ufeffree".encode()).documents == ["one", "two", "th\ufeffree"]
    assert read("a.jsonl", '\ufeff{"text": "one"}\n\ufeff{"text": "two"}\n').documents == ["one", "two"]
    assert read("a.csv", "\ufefftext\none\n\ufefftwo\n").documents == ["one", "two"]
    joined = codecs.BOM_UTF16_LE + "one\n".encode("utf-16-le")
    assert read("a.txt", joined + joined, encoding="utf-16").documents == ["one", "one"]
    assert read("a.txt", codecs.BOM_UTF16_LE + "one\ntwo".encode("utf-16-le"), encoding="utf-16-le").documents == ["one", "two"]


def test_undecodable_bytes_are_an_error_with_file_line_and_byte_or_take_their_line_along(faulty: Callable):
    message, rest = r"a\.txt, line 2, byte 8: .*'ff'", (["first", "last"], "undecodable")
    assert faulty("a.txt", b"first\nab\xffd\nlast\n", message, *rest).exit_code == 3
    faulty("a.txt", b"first\nab\xff\xfed\nlast\n", message, *rest)


def test_the_error_says_what_the_bytes_could_be(read: Callable):
    for content, encoding, advice in (
        ("Все счастливые семьи похожи друг на друга".encode("koi8-r"), "utf-8", "koi8_r"),
        ("한국 영화는 재미있다\n".encode("utf-16-le"), "utf-8", "utf_16_le"),
        ("똠방각하 펲시".encode("cp949"), "euc-kr", "'cp949'"),
        # Python's own codecs write them; that these bytes are Windows-1252: WHATWG, https://encoding.spec.whatwg.org/#names-and-labels
        ("“It’s late” – déjà vu, 5 €".encode("cp1252"), "utf-8", "cp1252"),
        ("영화를 봤다. 좋았다.\n".encode() * 9 + b"\xff", "utf-8", "are not utf-8[.] With"),  # damaged, and nothing else
        ("①".encode("cp932"), "shift_jis", "'cp932'"),
        (codecs.BOM_UTF16_LE + b"a\0", "utf-8", "encoding = 'utf-16'"),
        (b"\x1f\x8b\x08\x00rest", "utf-8", r"\.gz"),
        (b"PK\x03\x04\xff\xff", "utf-8", r"\.xlsx"),
    ):
        with pytest.raises(DataError, match=advice):
            read("a.txt", content, encoding=encoding)


def test_undecodable_utf16_names_its_byte_and_needs_its_mark_or_a_byte_order(faulty: Callable, read: Callable):
    content = "ab\ncd\n".encode("utf-16-le") + b"\x00\xdc" + "e\n".encode("utf-16-le")
    faulty("a.txt", content, "line 3, byte 12: .*'00 dc'", ["ab", "cd"], "undecodable", encoding="utf-16-le")
    with pytest.raises(DataError, match="'utf-16-le' or"):
        read("a.txt", "ab\n".encode("utf-16-le"), encoding="utf-16", on_error="skip")


def line_groups(path: Path, faults: Faults) -> list[Lines]:
    return list(read_lines(ByteStream(path, None, faults), find_codec("utf-8"), faults))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)), st.integers(1, 50))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_groups_of_lines_are_the_file_and_know_their_lines(write: Callable, texts: list[str], batch: int):
    content = "\n".join(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BATCH_BYTES", batch)
        patch.setattr(lines, "_RAW_BYTES", 7)
        found = line_groups(write("a.txt", content), Faults("stop"))
    assert "".join(item.text for item in found) == content.removeprefix("\ufeff")
    ends = itertools.accumulate((item.text.count("\n") for item in found), initial=1)
    assert [item.first for item in found] == list(ends)[: len(found)]
    assert all(item.text.endswith("\n") for item in found[:-1])


@pytest.mark.parametrize("character", ["\r", "\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\x1c", "\x1e"])
def test_only_a_line_feed_ends_a_line(read: Callable, character: str):
    assert read("a.txt", f"one{character}two\r\nthree\n").documents == [f"one{character}two", "three"]


def test_nul_is_an_error_with_its_line(faulty: Callable):
    content, message = b"one\ntwo\nth\0ree\nfour", r"a\.txt, line 3: .*NUL.*utf-16"
    faulty("a.txt", content, message, ["one", "two", "four"], "nul_character")


@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_a_line_that_is_too_long_is_an_error_or_left_out(write: Callable, monkeypatch: pytest.MonkeyPatch, batch: int):
    for name, value in (("MAX_DOCUMENT_BYTES", 1000), ("BATCH_BYTES", batch), ("_RAW_BYTES", 32)):
        monkeypatch.setattr(lines, name, value)
    path, faults = write("a.txt", b"one\ntwo\n" + b"x" * 5000 + b"\nthree\nfo\xffur\n"), Faults("skip", "a.txt")
    with pytest.raises(DataError, match="line 3"):
        line_groups(path, Faults("stop", "a.txt"))
    found = line_groups(path, faults)
    assert "".join(item.text for item in found) == "one\ntwo\nthree\nfo\udc80ur\n"
    assert faults.skipped == {"too_large": 1}
    assert found[-1].first + found[-1].text.count("\n") == 6
    assert "".join(one.text for one in line_groups(write("a.txt", b"one\n" + b"x" * 5000), Faults("skip"))) == "one\n"


def test_empty_lines_are_documents_for_cleaning_to_count(read: Callable):
    assert read("a.txt", "\n\none\r\n\r\ntwo").documents == ["", "", "one", "", "two"]
    assert read("b.txt", b"").documents == read("c.txt", b"\xef\xbb\xbf").documents == []


def test_a_file_cut_within_a_character_was_truncated(faulty: Callable):
    korean = "끝까지 본다"
    cuts = ("cp949", korean, "b4"), ("cp932", "猫である", "82"), ("utf-8", korean, "eb 8b"), ("utf-16-le", "ab", "62")
    for encoding, text, left in cuts:
        content = f"{text}\n{text}".encode(encoding)[:-1]
        faulty("a.txt", content, f"line 2, byte .*'{left}'.*truncated", [text], "undecodable", encoding=encoding)
    latin = "un café".encode("cp1252")  # which ends as a cut UTF-8 file would, and has no other byte of it
    faulty("b.txt", latin, "cp1252", [], "undecodable")
