import codecs
from collections.abc import Callable

import pytest

from tpulm.corpus.readers.lines import find_codec
from tpulm.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("name", "message"),
    [("utf-9", "Did you mean 'utf-8'"), ("euckrr", "Did you mean 'euckr'"), ("xyzzy", "Common ones"), ("", "Common ones")],
)
def test_an_unknown_encoding_is_refused_with_a_suggestion(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        find_codec(name)


@pytest.mark.parametrize("name", ["base64", "rot13", "zlib", "idna", "unicode_escape"])
def test_what_encodes_no_text_is_refused(name: str):
    with pytest.raises(ConfigError, match="not a character encoding"):
        find_codec(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cp932", "日本語、①\n髙橋\n"), ("euc_kr", "한국어\n영화\n"), ("cp949", "뷁\n똠방각하\n"), ("gb18030", "汉字\n㐀\n"),
        ("utf-16", "한\n글\n"), ("utf-16-be", "ഊ\nਊ\n"), ("utf-32", "😀\nx\n"), ("iso2022_jp", "日本\n語\n"),
        ("utf-7", "é+\n한\n"),
        ("cp037", "plain\ntext\n"), ("latin-1", "caf\xe9\nna\xefve\n"), ("utf-8-sig", "first\nsecond\n"),
    ],
)  # fmt: skip
def test_text_in_many_encodings_is_read(read: Callable, name: str, text: str):
    assert read("a.txt", text.encode(name), encoding=name).documents == text.split("\n")[:-1]


def test_a_byte_order_mark_at_the_start_is_dropped_and_kept_elsewhere(read: Callable):
    assert read("a.txt", "\ufeffone\n\ufefftwo".encode()).documents == ["one", "\ufefftwo"]
    assert read("a.txt", codecs.BOM_UTF16_LE + "one\ntwo".encode("utf-16-le"), encoding="utf-16-le").documents == ["one", "two"]


def test_undecodable_bytes_are_an_error_with_file_line_and_byte(read: Callable):
    with pytest.raises(DataError, match=r"a\.txt, line 2, byte 8: the bytes 'ff' are not utf-8") as failure:
        read("a.txt", b"first\nab\xffd\nlast\n")
    assert failure.value.exit_code == 3


def test_undecodable_bytes_take_one_line_along_when_skipped(read: Callable):
    found = read("a.txt", b"first\nab\xff\xfed\nlast\n", on_error="skip")
    assert found.documents == ["first", "last"]
    assert found.skipped == {"undecodable": 1}


@pytest.mark.parametrize(
    ("content", "encoding", "advice"),
    [
        ("한국 영화는 재미있다".encode("cp949"), "utf-8", "would decode as cp949"),
        ("똠방각하 펲시".encode("cp949"), "euc-kr", "set encoding = 'cp949'"),
        ("①".encode("cp932"), "shift_jis", "set encoding = 'cp932'"),
        (codecs.BOM_UTF16_LE + b"a\0", "utf-8", "encoding = 'utf-16'"),
        (b"\x1f\x8b\x08\x00rest", "utf-8", "name that ends in .gz"),
        (b"PK\x03\x04\xff\xff", "utf-8", "unpack it"),
    ],
)
def test_the_error_says_what_the_bytes_could_be(read: Callable, content: bytes, encoding: str, advice: str):
    with pytest.raises(DataError, match=advice):
        read("a.txt", content, encoding=encoding)


def test_undecodable_utf16_names_its_byte(read: Callable):
    content = "ab\ncd\n".encode("utf-16-le") + b"\x00\xdc" + "e\n".encode("utf-16-le")
    with pytest.raises(DataError, match="line 3, byte 12: the bytes '00 dc'"):
        read("a.txt", content, encoding="utf-16-le")
    found = read("a.txt", content, encoding="utf-16-le", on_error="skip")
    assert (found.documents, found.skipped) == (["ab", "cd"], {"undecodable": 1})


def test_utf16_without_its_mark_needs_a_byte_order(read: Callable):
    with pytest.raises(DataError, match="name the byte order"):
        read("a.txt", "ab\n".encode("utf-16-le"), encoding="utf-16", on_error="skip")


def test_a_character_cut_off_at_the_end(read: Callable):
    with pytest.raises(DataError, match="line 2, byte 2"):
        read("a.txt", b"a\n\xed\x95")
    assert read("a.txt", b"a\n\xed\x95", on_error="skip").skipped == {"undecodable": 1}
    assert read("a.txt", "a\n한".encode("utf-16-le")[:-1], encoding="utf-16-le", on_error="skip").documents == ["a"]
