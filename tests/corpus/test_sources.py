import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpulm.config import SourceConfig
from tpulm.corpus.paths import find_paths
from tpulm.corpus.sources import find_files, read_texts, refuse_unused_settings
from tpulm.errors import ConfigError, DataError


def names(folder: Path, *sources: str) -> list[str]:
    return [Path(file.path).relative_to(folder).as_posix() for file in find_files([given(folder / path) for path in sources])]


def given(path: Path | str, **settings: Any) -> SourceConfig:
    return SourceConfig(path=str(path), **settings)


@pytest.fixture
def folder(write: Callable, tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt.gz", "sub/c.jsonl", "sub/deep/d.txt", ".hidden.txt", "sub/.git/e.txt", "sub-x/f.txt"):
        write(name, "text")
    return tmp_path


def test_sources_come_in_the_order_they_are_written_and_a_folder_is_everything_below_it(folder: Path):
    assert names(folder, "sub-x", "b.txt") == ["sub-x/f.txt", "b.txt"]
    assert names(folder, "") == ["a.txt.gz", "b.txt", "sub/c.jsonl", "sub/deep/d.txt", "sub-x/f.txt"]


def test_an_empty_folder_and_an_empty_list(folder: Path):
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match="/empty "):
        names(folder, "empty")
    with pytest.raises(ConfigError, match=r"corpus\.sources"):
        find_files([])


def test_a_key_is_refused_where_no_file_of_the_source_uses_it(folder: Path):
    for path, key in (("*.txt", {"text_field": "body"}), ("sub/*.jsonl", {"documents": "paragraph"})):
        with pytest.raises(ConfigError, match=next(iter(key))):
            refuse_unused_settings([given(folder / path, **key)], find_files([given(folder / path, **key)]))
    sources = [given(folder / "sub", text_field="body")]
    refuse_unused_settings(sources, find_files(sources))  # one of the two files uses it


def test_a_file_reached_twice_is_refused(folder: Path):
    with pytest.raises(ConfigError, match=r"b\.txt .*sources\[0\] .*sources\[1\]"):
        names(folder, "*.txt", "b.txt")
    (folder / "link.txt").symlink_to(folder / "b.txt")
    with pytest.raises(ConfigError, match=r"link\.txt"):
        names(folder, "*.txt")


def test_links(folder: Path):
    (folder / "linked").mkdir()
    (folder / "linked" / "sub").symlink_to(folder / "sub")
    assert names(folder, "linked") == ["linked/sub/c.jsonl", "linked/sub/deep/d.txt"]
    (folder / "sub" / "circle").symlink_to(folder / "linked")
    with pytest.raises(ConfigError, match="twice, through a link"):
        names(folder, "linked")
    (folder / "broken").mkdir()
    (folder / "broken" / "x.txt").symlink_to("/nowhere")
    with pytest.raises(ConfigError, match=r"x\.txt"):
        names(folder, "broken")


def test_format_by_name(write: Callable):
    for name, expected in (
        ("a.txt", ("text", None)), ("wiki_00", ("text", None)), ("part.0001", ("text", None)), ("README.MD", ("text", None)),
        ("a.json.GZ", ("jsonl", "gzip")), ("a.jsonl.bz2", ("jsonl", "bzip2")), ("a.csv.xz", ("csv", "xz")),
        ("a.tsv.zst", ("tsv", "zstd")), ("a.parquet", ("parquet", None)), ("a.gz", ("text", "gzip")),
        ("kowiki-pages-articles.xml.bz2", ("wikipedia", "bzip2")), ("enwiki1.xml-p10p30302.bz2", ("wikipedia", "bzip2")),
    ):  # fmt: skip
        (file,) = find_files([given(write(name, "x"))])
        assert (file.format, file.compression) == expected


def test_names_that_tell_no_format(write: Callable, tmp_path: Path):
    for name, message in (
        ("photo.png", "'.png'"), ("a.pdf.bz2", "extract"), ("a.xlsx", "spreadsheet"), ("a.txt.lz4", "decompress"),
        ("a.pptx", "presentation"),
        ("a b.zip", "7z x '.*a b.zip'"), ("a.tar.gz", "tar -xf .*/a.tar.gz"), ("a.parquet.gz", "gzip"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            find_files([given(write(name, "x"))])
    write("texts/notes.docx", "x")
    write("texts/a.txt", "x")
    with pytest.raises(ConfigError, match=r"notes\.docx .*/\*\.txt"):  # all but this one
        find_files([given(tmp_path / "texts")])


def test_a_format_that_is_given_counts(write: Callable):
    (file,) = find_files([given(write("a.xml.gz", "x"), format="text", encoding="LATIN1")])
    assert (file.format, file.compression, file.encoding) == ("text", "gzip", "cp1252")


def test_what_cannot_be_a_source(tmp_path: Path):
    os.mkfifo(pipe := tmp_path / "pipe")
    python = SourceConfig(path="x", format="python")
    for source, message in ((python, "path 'x'"), (given("s3://bucket/x.txt"), "s3://bucket/x"), (given(pipe), "pipe")):
        with pytest.raises(ConfigError, match=message):
            find_files([source])
    with pytest.raises(ConfigError, match=r"^'a\\x00b\.txt'"):
        find_paths("a\0b.txt")


def test_what_is_about_the_data_is_left_out_and_told(write: Callable, tmp_path: Path):
    """Names as in the library `datasets`, data_files.py: FILES_TO_IGNORE; one that is named, or is all there is, is read."""
    for name in ("README.md", "LICENSE", "sub/dataset_infos.json", "a.txt", "sub/readme_first.txt"):
        write(name, "text")
    notes: list[str] = []
    for path in (tmp_path, tmp_path / "**"):
        found = find_files([given(path)], note=notes.append)
        assert [file.within for file in found] == ["a.txt", "sub/readme_first.txt"]
    assert len(notes) == 2 and "LICENSE, README.md, sub/dataset_infos.json" in notes[0]
    assert names(tmp_path, "README.md", "LICEN*") == ["README.md", "LICENSE"]


def test_shards_that_are_missing_are_told(write: Callable, tmp_path: Path):
    cases = (
        *((["a-00000-of-00003.txt", "a-00002-of-00003.txt"], pattern, "a-00001-of-00003.txt") for pattern in ("", "a-*")),
        *((["a-00000-of-00003.txt", "a-00002-of-00003.txt"], part, None) for part in ("a-*[02]-of-*", "a-00002-of-00003.txt")),
        (["sub/a.0-of-3.txt", "sub/a.1-of-3.txt", "sub/b.0-of-1.txt"], "s*b", "sub/a.2-of-3.txt"),
        (["log-2024-01-of-12.txt", "1-of-3-chapter.txt", "3-of-3-end.txt"], "", None),  # other numbers
        (["a-00001-of-00002.txt", "a-00002-of-00002.txt", "10-of-them.txt"], "", None),  # counted from 1
        (["a.txt-9-of-11", *(f"a.txt-{n}-of-11" for n in (0, 1, 2, 3, 4, 5, 6, 7, 10))], "*", "a.txt-8-of-11"),
        (["a-00000-of-00002-0123456789abcdef.txt", "a-00001-of-00002-fedcba9876543210.txt"], "", None),
        (["a-00000-of-00002.txt", "a-00000-of-00002.csv", "a-00001-of-00002.csv"], "*.txt", "a-00001-of-00002.txt"),
        (["a-00000-of-00002.txt", "a-00000-of-00002.csv", "a-00001-of-00002.csv"], "*.csv", None),
    )
    for number, (files, pattern, missing) in enumerate(cases):
        folder = tmp_path / str(number)
        for name in files:
            write(f"{number}/{name}", "text")
        notes: list[str] = []
        find_files([given(folder / pattern, format="text")], note=notes.append)
        assert len(notes) == (missing is not None), pattern
        assert missing is None or notes[0].endswith(f"lacks shards, and is read without them: {folder / missing}")


def test_names_that_are_not_utf8_are_read_and_shown(scattered: Callable, tmp_path: Path):
    name, folder = os.fsdecode("영화.txt".encode("cp949")), tmp_path / "unpacked"
    shown = r"\xbf\xb5ȭ.txt"  # the last two bytes happen to be UTF-8
    folder.mkdir()
    (folder / name).write_text("one\ntwo\nthree\n", encoding="utf-8")
    for path in (folder, folder / name, folder / "*.txt"):
        corpus = scattered(path)
        assert [record.within for record in corpus.manifest.inputs] == [shown]
        assert corpus.documents() == ["one", "three", "two"]
        for file in (corpus.workdir / "corpus").rglob("*.json"):
            file.read_text(encoding="utf-8")
        assert scattered(path, workdir=corpus.workdir).manifest == corpus.manifest
    (folder / name).write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=re.escape(f"unpacked/{shown}, line 1, byte 0: ")):
        scattered(folder)
    with pytest.raises(ConfigError, match=re.escape(shown)):
        scattered(folder / name.replace("txt", "tsv"))


def test_a_command_with_options_advises_options(write: Callable):
    for name, content, advice in (
        ("a.txt", "이 문서는 좋다".encode("cp949"), "give --encoding if"), ("a.txt", b"\xff\xfeA\0", "give --encoding utf-16"),
        ("a.txt", b'{"text": "x"}', "give --format jsonl"), ("a.jsonl", b'{"body": "x"}', "Give --text-field body"),
        ("a.tsv", b"body\tname\nx\ty\n", "give --text-field"), ("a.xyz", b"x", "give --format text"),
    ):  # fmt: skip
        with pytest.raises((ConfigError, DataError), match=advice) as failure:
            list(read_texts([given(write(name, content))]))
        assert "on_error" not in str(failure.value)
