from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpulm.corpus.documents import Faults
from tpulm.corpus.readers import lines
from tpulm.corpus.readers.lines import ByteStream, Lines, find_codec, read_lines
from tpulm.errors import DataError


def stretches(path: Path, faults: Faults) -> list[Lines]:
    return list(read_lines(ByteStream(path, None, faults), find_codec("utf-8"), faults))


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)),
    batch=st.integers(1, 50),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stretches_are_the_file_and_know_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], batch: int
):
    monkeypatch.setattr(lines, "BATCH_BYTES", batch)
    monkeypatch.setattr("tpulm.corpus.readers.lines._RAW_BYTES", 7)
    content = "\n".join(texts)
    path = tmp_path / "a.txt"
    path.write_bytes(content.encode())
    found = stretches(path, Faults("stop"))
    assert "".join(item.text for item in found) == content.removeprefix("\ufeff")
    line = 1
    for item in found:
        assert item.first == line
        line += item.text.count("\n")
    assert all(item.text.endswith("\n") for item in found[:-1])


@pytest.mark.parametrize("character", ["\r", "\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\x1c", "\x1e"])
def test_only_a_line_feed_ends_a_line(read: Callable, character: str):
    assert read("a.txt", f"one{character}two\r\nthree\n").documents == [f"one{character}two", "three"]


def test_empty_lines_are_documents_for_cleaning_to_count(read: Callable):
    assert read("a.txt", "\n\none\r\n\r\ntwo").documents == ["", "", "one", "", "two"]


def test_an_empty_file_has_no_documents(read: Callable):
    assert read("a.txt", b"").documents == []
    assert read("b.txt", b"\xef\xbb\xbf").documents == []


def test_nul_is_an_error_with_its_line(read: Callable):
    with pytest.raises(DataError, match=r"a\.txt, line 3: a NUL character.*utf-16"):
        read("a.txt", b"one\ntwo\nth\0ree\n")
    found = read("a.txt", b"one\ntwo\nth\0ree\nfour", on_error="skip")
    assert (found.documents, found.skipped) == (["one", "two", "four"], {"nul_character": 1})


@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_a_line_that_is_too_long_is_an_error_or_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int):
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(lines, "BATCH_BYTES", batch)
    monkeypatch.setattr("tpulm.corpus.readers.lines._RAW_BYTES", 32)
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n" + b"x" * 5000 + b"\nthree\nfo\xffur\n")
    with pytest.raises(DataError, match="line 3: a line longer than"):
        stretches(path, Faults("stop", "a.txt"))
    faults = Faults("skip", "a.txt")
    found = stretches(path, faults)
    assert "".join(item.text for item in found) == "one\ntwo\nthree\nfo\udc80ur\n"
    assert faults.skipped == {"too_large": 1}
    assert found[-1].first + found[-1].text.count("\n") == 6
    path.write_bytes(b"one\n" + b"x" * 5000)
    assert "".join(item.text for item in stretches(path, Faults("skip"))) == "one\n"
