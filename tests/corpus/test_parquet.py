from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus import read_texts
from tpulm.corpus.readers.lines import ByteStream
from tpulm.emulator import Emulator
from tpulm.errors import DataError, StorageError


def parquet(tmp_path: Path, **columns: object) -> bytes:
    path = tmp_path / "made"
    pq.write_table(pa.table(columns), path, row_group_size=700)
    return path.read_bytes()


def test_a_document_a_row_over_row_groups(read: Callable, tmp_path: Path):
    texts = [f"document {number}\nof two lines" for number in range(3000)]
    assert read("a.parquet", parquet(tmp_path, id=list(range(3000)), text=texts)).documents == texts


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_other_kinds_of_string(read: Callable, tmp_path: Path, kind: pa.DataType):
    assert read("a.parquet", parquet(tmp_path, text=pa.array(["x", "y", "x"]).cast(kind))).documents == ["x", "y", "x"]


def test_dots_descend_into_structs(read: Callable, tmp_path: Path):
    content = parquet(tmp_path, a=[{"b": "one", "c": 1}, {"b": "two", "c": 2}])
    assert read("a.parquet", content, text_field="a.b").documents == ["one", "two"]
    content = parquet(tmp_path, **{"a.b": ["flat"]})
    assert read("b.parquet", content, text_field="a.b").documents == ["flat"]


def test_null_and_invalid_rows(read: Callable, tmp_path: Path):
    invalid = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["abcd", "ef"]).buffers()[:2], pa.py_buffer(b"ab\xffdef")])
    for texts, reason, message in (
        ([None, "x"], "not_text", "row 0: 'text' is null"),
        (invalid, "undecodable", "row 0: .* not UTF-8"),
    ):
        content = parquet(tmp_path, text=texts)
        with pytest.raises(DataError, match=message):
            read("a.parquet", content)
        found = read("a.parquet", content, on_error="skip")
        assert len(found.documents) == 1 and found.skipped == {reason: 1}


def test_a_missing_or_wrong_column(read: Callable, tmp_path: Path):
    content = parquet(tmp_path, txt=["x"], number=[1])
    with pytest.raises(DataError, match=r"no column 'text'. Did you mean 'txt'\? The columns: txt, number"):
        read("a.parquet", content, on_error="skip")
    with pytest.raises(DataError, match="holds int64, not strings"):
        read("a.parquet", content, text_field="number")


def test_a_broken_file(read: Callable, tmp_path: Path):
    content = parquet(tmp_path, text=[f"{number}" * 50 for number in range(1000)])
    named = content[:-2000] + content[-2000:].replace(b"text", b"t\xff\xfet")  # the footer is at the end
    for broken in (content[:-100], b"not parquet at all", content[:100] + bytes(5000) + content[5100:], named):
        with pytest.raises(DataError, match="not a whole Parquet file"):
            read("a.parquet", broken)
        assert read("a.parquet", broken, on_error="skip").skipped == {"broken_file": 1}


def test_a_bucket_that_does_not_answer_is_no_broken_file(gcs: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    storage.write_atomic("gs://runs/a.parquet", parquet(tmp_path, text=["one", "two"]))
    source = SourceConfig(path="gs://runs/a.parquet", on_error="skip")
    assert list(read_texts([source])) == [["one", "two"]]
    monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr(ByteStream, "exhaust", lambda stream: gcs.faults.set(error_rate=1.0, match="a.parquet"))
    with pytest.raises(StorageError, match=r"cannot read gs://runs/a\.parquet: Cloud Storage did not answer"):
        list(read_texts([source]))
