"""How much of which file a comparison reads."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tpulm.config import SourceConfig
from tpulm.errors import ConfigError
from tpulm.tokenization import TextSample, comparison
from tpulm.tokenization.comparison import Reservoir


def read(sample: TextSample) -> list[str]:
    return [text for documents in sample for text in documents]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of 10-byte lines, the second three times as long."""
    for name, lines in (("a.txt", 100), ("b.txt", 300)):
        (tmp_path / name).write_text("".join(f"{name} {number:03d}\n" for number in range(lines)))
    return tmp_path


def test_all_of_it(folder: Path):
    sample = TextSample([SourceConfig(path=str(folder))], 10**6)
    texts = read(sample)
    assert len(texts) == 400 and texts[100] == "b.txt 000"
    assert sample.is_whole and sample.read_bytes == 400 * 9
    assert str(sample) == "all text of 2 files, 3,600 bytes"
    assert sample.expected_bytes == 4_000


def test_of_each_file_its_share(folder: Path):
    sample = TextSample([SourceConfig(path=str(folder))], 400)
    texts = read(sample)
    assert [sum(text.startswith(name) for text in texts) for name in ("a", "b")] == [12, 33]  # 9 bytes each of 100 and 300
    assert texts[0] == "a.txt 000" and texts[12] == "b.txt 000"
    assert not sample.is_whole and sample.read_bytes == 45 * 9
    assert str(sample) == "405 bytes of 2 files: the beginning of each, not a random sample"


def test_what_a_small_file_leaves_goes_to_the_next(tmp_path: Path):
    """A file may hold less text than its size tells: here it is blank lines."""
    (tmp_path / "a.txt").write_text(" \n" * 500)
    (tmp_path / "b.txt").write_text("bbb\n" * 250)
    sample = TextSample([SourceConfig(path=str(tmp_path / name)) for name in ("a.txt", "b.txt")], 600)
    assert set(read(sample)) == {"bbb"} and sample.read_bytes == 600


def test_compressed_text_is_longer_than_its_file(tmp_path: Path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"some words\n" * 10_000))
    sample = TextSample([SourceConfig(path=str(tmp_path))], 50_000)
    assert sample.expected_bytes == 50_000
    assert len(read(sample)) == 5_000


def test_slices_are_small_and_a_document_too_long_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "_SLICE_BYTES", 50)
    monkeypatch.setattr(comparison, "LONGEST_DOCUMENT", 5)
    sample = TextSample([SourceConfig(path=str(folder / "a.txt"))], 10**6)
    slices = list(sample)
    assert [len(documents) for documents in slices] == [10] * 10
    assert {text for documents in slices for text in documents} == {"a.txt"}
    assert sample.cut_documents == 100 and not sample.is_whole
    assert "of 100 documents only the first 5 characters" in str(sample)


def test_fields_and_formats(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"body": "one two"}\n{"body": "three"}\n')
    assert read(TextSample([SourceConfig(path=str(tmp_path), text_field="body")], 1_000)) == ["one two", "three"]


def test_a_missing_file_is_said_with_its_neighbour(folder: Path):
    with pytest.raises(ConfigError, match=r"no file or folder .*aa\.txt.*Did you mean 'a\.txt'"):
        TextSample([SourceConfig(path=str(folder / "aa.txt"))], 1_000)


def test_a_reservoir_keeps_a_fair_choice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "_SLICE_BYTES", 10)
    reservoir = Reservoir(100)
    for number in range(1_000):
        reservoir.add([str(number)])
    kept = [int(text) for text in reservoir.texts()]
    assert len(set(kept)) == 10 and 200 < sum(kept) / 10 < 800
    few = Reservoir(100)
    few.add(["a", "b"])
    assert few.texts() == ["a", "b"]
