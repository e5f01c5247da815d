from __future__ import annotations

import csv
import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from tpulm.corpus.readers import tables
from tpulm.errors import ConfigError, DataError
from tpulm.labelled import Columns, read_texts
from tpulm.labelled.records import Row, find_record_files, read_file, writing_rows

ROWS_OF_KOREAN = [{"text": "비가 온다", "label": "1"}, {"text": "a\u3000b", "label": "눈"}]
ROWS = [{"id": "a", "text": "fine, «really»", "label": "1"}, {"id": "b", "text": "좋아요 ♥", "label": "0"}]


def read_records(path: Path, *, format: Any = "auto", on_error: Any = "stop", skipped: Counter[str] | None = None) -> list[Row]:
    counts = Counter[str]() if skipped is None else skipped
    return [row for file in find_record_files(path, format) for row in read_file(file, on_error=on_error, skipped=counts)]


def values_and_skipped(path: Path, **settings: Any) -> tuple[list[list[Any]], dict[str, int]]:
    skipped = Counter[str]()
    found = [list(record.values.values()) for record in read_records(path, on_error="skip", skipped=skipped, **settings)]
    return found, dict(skipped)


@pytest.mark.parametrize("compression", ["", ".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl"])
def test_all_columns_in_every_format_and_compression(write_rows: Callable, form: str, compression: str):
    path = write_rows(f"a.{form}{compression}", ROWS)
    first = 1 if form == "jsonl" else 2
    records = [(list(record.values.items()), record.place) for record in read_records(path)]
    assert records == [(list(row.items()), f"{path}, line {line}") for line, row in enumerate(ROWS, first)]


def test_parquet_keeps_types_and_counts_rows(write_rows: Callable):
    rows = [{"text": f"t{number}", "label": number or None, "more": {"a": [number]}, "none": None} for number in range(1500)]
    records = read_records(path := write_rows("a.parquet", rows))
    assert [record.values for record in records] == rows
    assert [records[0].place, records[-1].place] == [f"{path}, row 0", f"{path}, row 1499"]


@pytest.mark.parametrize(
    ("name", "content", "message", "reason"),
    [
        ("a.tsv", "text\tlabel\nx\t1\textra\ny\t0\n", r"line 2: 3 fields \(x \| 1 \| extra\)", "malformed_row"),
        ("a.csv", "text,label\ntext,label\ny,0\n", "line 2: .*header", "malformed_row"),
        ("a.jsonl", '{"text": "x"\n{"text": "y", "label": "0"}\n', "line 1: .*JSON", "not_json"),
        ("a.jsonl", '{"text": "x", "text": "z"}\n{"text": "y", "label": "0"}\n', "line 1: .*'text'", "not_json"),
        ("a.jsonl", '["x"]\n{"text": "y", "label": "0"}\n', r'line 1: .*\["x"\]', "no_field"),
        ("a.tsv", b"text\tlabel\nx\xff\t1\ny\t0\n", "line 2, byte 12: .*'ff'", "undecodable"),
        ("a.jsonl", b'{"text": "x\xff"}\n{"text": "y", "label": "0"}\n', "line 1, byte 11: .*utf-8", "undecodable"),
        ("a.csv", "text,label\nx\0,1\ny,0\n", "line 2: .*NUL", "nul_character"),
    ],
)
def test_what_is_no_row(write: Callable, name: str, content: bytes | str, message: str, reason: str):
    path = write(name, content)
    with pytest.raises(DataError, match=message) as failure:
        read_records(path)
    assert str(failure.value).startswith(f"{path}, line ") and "--on-error skip" in str(failure.value)
    assert values_and_skipped(path) == ([["y", "0"]], {reason: 1})


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_quote_that_is_never_closed_is_an_error_either_way(write: Callable, monkeypatch: pytest.MonkeyPatch, on_error: Any):
    """Else the rest of the file would be left out, and counted as one row."""
    path = write("a.csv", 'text,label\nx,1\n"two\nlines",0\n"open,1\n' + "y,0\n" * 400)
    for limit in (tables.MAX_DOCUMENT_BYTES, 500):  # it meets the file's end, or the longest field there may be
        monkeypatch.setattr(tables, "MAX_DOCUMENT_BYTES", limit)
        with pytest.raises(DataError, match=r"a\.csv, line 5: .*quote"):
            read_records(path, on_error=on_error)


def test_a_quote_left_open_by_a_torn_file_is_no_more_than_that(tmp_path: Path):
    whole = gzip.compress(b"text,label\n" + b"".join(b'"number\n%d",1\n' % number for number in range(10_000)))
    path = tmp_path / "a.csv.gz"
    for length in range(len(whole) - 2000, len(whole) - 1996):  # some end within quotes
        path.write_bytes(whole[:length])
        found, skipped = values_and_skipped(path)
        assert 100 < len(found) < 10_000 and skipped["broken_file"] == 1


def test_one_json_array_is_as_good_as_lines(write: Callable):
    content = "\ufeff [\n" + json.dumps({"text": "a"}) + ",\n" + json.dumps({"text": "b", "more": {"x": 1}}) + "]\n"
    found = read_records(write("a.json.gz", content))
    assert [record.values for record in found] == [{"text": "a"}, {"text": "b", "more": {"x": 1}}]
    assert [record.place.rpartition("/")[2] for record in found] == ["a.json.gz, item 0", "a.json.gz, item 1"]


def test_an_array_of_something_else(write: Callable):
    with pytest.raises(DataError, match=r"a\.json: .*SQuAD"):
        read_records(write("a.json", '{"data": [{"text": "x", "label": 1}]}'))


def test_rows_like_the_first_are_no_header_where_there_is_none(write: Callable):
    texts = list(read_texts(write("a.tsv", "good\t1\ngood\t1\n"), Columns("1", header=False), skipped=Counter()))
    assert [row.text for row in texts] == ["good", "good"]


def test_columns_without_a_name_of_one_name_and_of_bad_bytes(write: Callable):
    (record,) = read_records(write("a.csv", "label,text,,\nham,hi,,\n"))
    assert record.values == {"label": "ham", "text": "hi", "column 3": "", "column 4": ""}
    for content, said in ((b"text,text\nx,y\n", "2 .*'text'"), (b"t\xff,label\nx,1\n", ".*header")):
        with pytest.raises(DataError, match=f"line 1: {said}"):
            read_records(write("b.csv", content), on_error="skip")


def test_files_of_a_glob_follow_each_other(write: Callable, tmp_path: Path):
    write("a-1.csv", "text\none\n")
    write("a-2.tsv.gz", "text\ntwo\n")
    found = [record.values["text"] for record in read_records(tmp_path / "a-*")]
    assert found == ["one", "two"]


def test_the_format_can_be_given(write: Callable):
    path = write("ratings.txt", "text\tlabel\nx\t1\n")
    with pytest.raises(ConfigError, match=r"'\.txt'.*--format tsv"):
        read_records(path)
    assert values_and_skipped(path, format="tsv") == ([["x", "1"]], {})
    with pytest.raises(ConfigError, match=r"'tsb' .*'tsv'"):
        values_and_skipped(path, format="tsb")
    with pytest.raises(ConfigError, match="Parquet"):
        read_records(write("a.parquet.gz", b""))


@pytest.mark.parametrize("encoding", ["cp949", "utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("form", ["a.tsv", "a.csv.gz", "a.jsonl", "array.json", "squad.json"])
def test_a_file_in_a_named_encoding_has_the_rows_of_utf8(write_rows: Callable, write: Callable, form: str, encoding: str):
    """The files are written by Python's codecs, and by the json and csv modules."""
    answers = {"context": "비가 온다", "qas": [{"id": "q", "question": "무엇이 오나?"}]}
    whole = {"array.json": ROWS_OF_KOREAN, "squad.json": {"version": "1", "data": [{"paragraphs": [answers]}]}}
    name = "b." + form.split(".", 1)[1]
    path = write_rows(form, ROWS_OF_KOREAN) if form not in whole else write(form, json.dumps(whole[form], ensure_ascii=False))
    text = (gzip.decompress(path.read_bytes()) if form.endswith(".gz") else path.read_bytes()).decode()
    other = write(name, text.encode(encoding))
    for on_error in ("stop", "skip"):
        settings: Any = {"on_error": on_error, "skipped": Counter()}
        found = [
            [row.values for file in find_record_files(one) for row in read_file(file, encoding=how, **settings)]
            for one, how in ((path, "utf-8"), (other, encoding))
        ]
        assert found[0] == found[1] and "비" in str(found)


def test_columns_of_one_name_in_parquet(tmp_path: Path):
    pq.write_table(pa.table([["x"], ["y"]], names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: 2 .*'text'"):
        read_records(tmp_path / "a.parquet")
    inner = pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["t", "t"])
    pq.write_table(pa.table({"text": ["x"], "more": pa.array([[]], pa.list_(inner.type))}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet: 2 .*'t'"):
        read_records(tmp_path / "c.parquet")


def test_a_text_of_parquet_that_is_not_utf8_takes_its_row_along(tmp_path: Path):
    texts = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["abcd", "ef"]).buffers()[:2], pa.py_buffer(b"ab\xffdef")])
    pq.write_table(pa.table({"text": texts, "label": [0, 1]}), tmp_path / "a.parquet")
    assert values_and_skipped(tmp_path / "a.parquet") == ([["ef", 1]], {"undecodable": 1})


# -- rows with answers, whole or not at all -------------------------------------------------------------------------------


ANSWERS = [{"id": 1, "text": 'a "quoted", text', "predicted": "pos"}, {"id": None, "text": "다음", "predicted": "neg"}]


def write_answers(path: Path, rows: list[dict[str, object]]) -> None:
    with writing_rows(path) as writer:
        for number, row in enumerate(rows):
            writer.write(row, f"row {number}")


def test_a_csv_holds_quotes_and_any_line_end(tmp_path: Path) -> None:
    """As the csv module and pyarrow read it."""
    path, cells = tmp_path / "out.csv", ['a "quoted", text', "다음", "one\rtwo", "one\ntwo", "one\r\ntwo", "\r", "one"]
    write_answers(path, [{"id": None, "text": cell, "predicted": "pos"} for cell in cells])
    with path.open(encoding="utf-8", newline="") as stream:
        assert [(row["id"], row["text"]) for row in csv.DictReader(stream)] == [("", cell) for cell in cells]
    table = arrow_csv.read_csv(path, parse_options=arrow_csv.ParseOptions(newlines_in_values=True))
    assert table.column("text").to_pylist() == cells
    assert path.read_bytes().endswith(b"\n,one,pos\n")


def test_a_tsv_cannot_hold_everything(tmp_path: Path) -> None:
    write_answers(tmp_path / "out.tsv", ANSWERS)
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()[0] == "id\ttext\tpredicted"
    with pytest.raises(DataError, match=r"row 1: 'a\\tb'"):
        write_answers(tmp_path / "other.tsv", [ANSWERS[0], {**ANSWERS[0], "text": "a\tb"}])
    assert not (tmp_path / "other.tsv").exists()


def test_half_of_a_surrogate_pair_in_a_column_that_is_not_read(tmp_path: Path) -> None:
    row = {**ANSWERS[0], "user": "\ud83d", "name": "한"}
    write_answers(tmp_path / "out.jsonl", [row, ANSWERS[0]])
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, lines)) == [row, ANSWERS[0]]
    for form in ("csv", "tsv"):
        with pytest.raises(DataError, match=r"row 0: .*surrogate.*\.jsonl"):
            write_answers(tmp_path / f"out.{form}", [row])


def test_rows_of_other_keys_and_a_name_without_a_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: .*\.jsonl"):
        write_answers(tmp_path / "out.csv", [{"text": "a"}, {"other": "b"}])
    with pytest.raises(ConfigError, match=r"out\.txt: .*\.jsonl, \.csv, \.tsv"):
        write_answers(tmp_path / "out.txt", [])


def test_texts_come_with_their_rows(tmp_path: Path) -> None:
    path, columns, skipped = tmp_path / "in.tsv", Columns(text="document"), Counter[str]()
    path.write_text("id\tdocument\n1\tgood\n2\t \n3\tbad\n", encoding="utf-8")
    rows = list(read_texts(path, columns, on_error="skip", skipped=skipped))
    assert [(row.record.values["id"], row.text, row.pair) for row in rows] == [("1", "good", None), ("3", "bad", None)]
    assert skipped == {"empty": 1}
    with pytest.raises(DataError, match=r"in\.tsv, line 3: .*empty"):
        list(read_texts(path, columns, skipped=skipped))


@pytest.mark.parametrize(("encoding", "marked"), [("utf-8", False), ("utf-8-sig", True), ("utf-16", True), ("cp949", True)])
def test_what_is_written_has_the_mark_by_which_excel_knows_utf8(tmp_path: Path, encoding: str, marked: bool) -> None:
    """If what was read had one, or was not UTF-8; a jsonl has none (RFC 8259, section 8.1)."""
    (tmp_path / "in.csv").write_text("text\n가\n", encoding)
    for name in ("out.csv", "out.tsv", "out.jsonl"):
        with writing_rows(tmp_path / name, like=tmp_path / "in.csv", encoding=encoding) as writer:
            writer.write({"text": "가"}, "line 2")
        assert (tmp_path / name).read_bytes().startswith(b"\xef\xbb\xbf") == (marked and name != "out.jsonl")


@pytest.mark.needs_peer
def test_numbers_of_class_labels_are_names_as_datasets_has_them(tmp_path: Path):
    """By `datasets` itself (int2str); -1 stands for no label."""
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["O", "B-PER"])
    kinds = {"one": label, "list": datasets.List(label), "large": datasets.LargeList(label), "fixed": datasets.List(label, 2)}
    number, text = datasets.Value("int64"), datasets.Value("string")
    features = datasets.Features({**kinds, "within": {"label": label, "n": number}, "text": text})
    table = {"one": [1, -1], "within": [{"label": 0, "n": 1}, {"label": 1, "n": 0}], "text": ["x", "y"]}
    table |= {name: [[0, 1], [1, 1]] for name in ("list", "large", "fixed")}
    datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / "a.parquet")
    rows = [row.values for row in read_records(tmp_path / "a.parquet")]
    assert [row["one"] for row in rows] == ["B-PER", -1] and [row["text"] for row in rows] == ["x", "y"]
    assert [row["within"] for row in rows] == [{"label": "O", "n": 1}, {"label": "B-PER", "n": 0}]
    for name in ("list", "large", "fixed"):
        assert [row[name] for row in rows] == [label.int2str(numbers) for numbers in table[name]]


NAMES_OF_TAGS = {"num_classes": 2, "names": ["O", "B-PER"], "id": None, "_type": "ClassLabel"}


@pytest.mark.parametrize("feature", [{"feature": NAMES_OF_TAGS, "length": -1, "_type": "Sequence"}, [NAMES_OF_TAGS]])
def test_class_labels_of_older_versions_of_datasets(feature: Any, tmp_path: Path):
    """As versions 2 and 3 write a Sequence into the metadata of the Hub's Parquet files, and a list of one feature."""
    metadata = {"huggingface": json.dumps({"info": {"features": {"tags": feature}}})}
    pq.write_table(pa.table({"tags": [[1, 0]]}).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    (row,) = read_records(tmp_path / "a.parquet")
    assert row.values == {"tags": ["B-PER", "O"]}


def test_what_json_lacks_is_written_as_null(tmp_path: Path):
    """NaN, which data frames have for missing numbers; RFC 8259, section 6."""
    with writing_rows(tmp_path / "out.jsonl") as writer:
        writer.write({"text": "a", "score": math.nan, "more": [{"x": -math.inf}, 1.5]}, "line 1")
    assert (tmp_path / "out.jsonl").read_text() == '{"text": "a", "score": null, "more": [{"x": null}, 1.5]}\n'
