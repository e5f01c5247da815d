"""Formats with named columns: JSON lines, csv and tsv, Parquet."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyarrow.parquet.encryption import create_encryption_properties

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus import documents, read_texts
from tpulm.corpus.readers import jsonl, lines, tables
from tpulm.corpus.readers.lines import ByteStream
from tpulm.errors import DataError, StorageError


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_come_back_as_they_are(read: Callable, monkeypatch: pytest.MonkeyPatch, texts: list[str], ascii_only: bool):
    monkeypatch.setattr(documents, "BATCH_BYTES", 64)
    content = "\r\n".join(json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only) for text in texts)
    assert read("a.jsonl", content).documents == texts


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("batch_bytes", [16, 1 << 20])
def test_an_array_is_read_as_its_items(read: Callable, monkeypatch: pytest.MonkeyPatch, indent: int | None, batch_bytes: int):
    monkeypatch.setattr(lines, "BATCH_BYTES", batch_bytes)
    texts = ["a ], {b", 'c "d" \\', "한국어\n둘", ""]
    items = [{"n": [number, {}], "data": {"text": text}} for number, text in enumerate(texts)]
    content = json.dumps(items, ensure_ascii=False, indent=indent)
    for encoding in ("utf-8", "cp949", "utf-16"):
        assert read("a.json", content.encode(encoding), text_field="data.text", encoding=encoding).documents == texts


def test_a_bad_item_is_an_error_with_its_number(faulty: Callable):
    for content, message, skipped, left in (
        ('[{"text": "a"}, {"txt": "b"}, {"text": "c"}]', "item 1: .*'text'.*'txt'", "no_field", ["a", "c"]),
        ('[{"text": "a"}, {"text": "b', r"item 1, line 1: .*'\{\"text", "broken_file", ["a"]),
        ('[{"text": "a"}\n{"text": "b"}]', "item 1, line 2: ", "broken_file", ["a"]),
        ('[{"text": "a"}, ["b"]]', r"item 1: .*\[\"b\"\]", "no_field", ["a"]),
    ):
        faulty("a.json", content, message, left, skipped)


def test_an_array_of_nothing_has_no_documents(read: Callable):
    """Such as the last page of an API's answers; RFC 8259, section 5."""
    for content in ("[]", " [\n]\n", "\ufeff[ ]"):
        assert read("a.json", content) == ([], {})


def test_a_compressed_array_that_ends_early_is_one_fault(read: Callable):
    whole = gzip.compress(json.dumps([{"text": hashlib.sha256(bytes([n])).hexdigest()} for n in range(200)]).encode())
    found = read("a.json.gz", whole[: len(whole) // 2], on_error="skip")
    assert 0 < len(found.documents) < 200 and found.skipped == {"broken_file": 1}


def test_an_object_around_the_rows_is_to_be_taken_off(read: Callable):
    for indent, name, path in ((2, "data", ".data[]"), (None, "data", ".data[]"), (0, "글", '.["글"][]')):
        content = json.dumps({name: [{"text": "one"}, {"text": "two"}]}, indent=indent, ensure_ascii=False)
        with pytest.raises(DataError, match=re.escape(f"jq -c '{path}' in.json")):
            read("a.json", content)


def test_a_bad_line_is_an_error_with_its_number_or_skipped(faulty: Callable):
    for line, reason, message in (
        ('{"txt": "x", "id": 3}', "no_field", r"no 'text'.*'txt'\?.* txt, id.* text_field = \"txt\""),
        ('{"id": "7", "data": {"by": "A", "본문": "가 나 다"}}', "no_field", r" id, data.* text_field = \"data\.본문\""),
        ('["text"]', "no_field", r"\[\"text\"\]"),
        ('{"version": "1", "rows": [{"text": "x"}]}', "no_field", r"If 'rows' has the rows: .*'\.rows\[\]'"),
        ('{"text": null}', "not_text", "'text' is null"),
        ('{"text": ["a", "b"]}', "not_text", r"\[\"a\", \"b\"\]"),
        ('{"text": "cut', "not_json", "Unterminated"),
        ("{", "not_json", r"several lines.*jq -c \."),
        *((f'{{"text": "a longer one", {more}"text": "b"}}', "not_json", "'text' .*twice") for more in ("", '"id": 1, ')),
        ("[" * 100_000, "not_json", "100 deep"),
        *(('{"text": ' + "[" * deep + "]" * deep + "}", "not_json", "100 deep") for deep in (950, 5_000)),
        (r'{"text": "half \ud83d of a pair"}', "not_unicode", r"\\ud83d"),
        (r'{"text": "a \u0000 b"}', "nul_character", "NUL"),
    ):
        content = f'{{"text": "good"}}\n{line}\n{{"text": "also good"}}\n'
        failure = faulty("a.jsonl", content, message, ["good", "also good"], reason)
        assert failure.location == "a.jsonl, line 2" and len(str(failure)) < 400


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"))


@given(st.lists(st.tuples(CELLS, CELLS)))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_texts_come_back_as_they_are(read: Callable, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, str]]):
    monkeypatch.setattr(lines, "BATCH_BYTES", 16)
    table = io.StringIO(newline="")
    csv.writer(table, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    assert read("a.csv", table.getvalue()).documents == [text for _, text in rows]


def test_quotes_are_plain_characters_in_tsv(read: Callable):
    content = 'id\ttext\tlabel\r\n1\t"said" he\t0\r\n2\t"open\t1\n'
    assert read("a.tsv", content).documents == ['"said" he', '"open']


def test_a_quote_that_never_closes_is_an_error_not_a_memory_hog(read: Callable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "MAX_DOCUMENT_BYTES", 500)
    with pytest.raises(DataError, match="line 3"):
        read("a.csv", 'id,text\n1,fine\n2,"open\n' + "3,more\n" * 1000)
    for content in ('id,text\n1,fine\n2,"open\n', 'id,text\n1,fine\n2,"open\n3,more\n'):
        with pytest.raises(DataError, match="line 3: a quote in this row is never closed"):
            read("a.csv", content, on_error="skip")


def test_a_row_that_is_none(faulty: Callable):
    """Of too many or too few fields, malformed, of bad bytes, or the header again, as between joined files."""
    for name, row, message, reason in (
        *(("a.csv", "1,two,three", "3 fields .* 2", "malformed_row"), ("a.csv", "1", "1 fields .* 2", "malformed_row")),
        *(("a.csv", '1,"closed" and more', "quoted", "malformed_row"), ("a.csv", b"1,b\xffd", "", "undecodable")),
        *(("a.tsv", "no\ttext", ".*header", "malformed_row"), ("a.csv", 'no,"text"\r', ".*header", "malformed_row")),
    ):
        rows = [b"no,text", b"0,first", row if isinstance(row, bytes) else row.encode(), b"2,last", b""]
        content = b"\n".join(line.replace(b",", b"\t") if name == "a.tsv" else line for line in rows)
        failure = faulty(name, content, f"line 3.*{message}", ["first", "last"], reason)
        assert failure.location.startswith(f"{name}, line 3")


def test_a_header_without_the_column_is_always_an_error(read: Callable):
    for name, content, message in (
        ("a.csv", "id,txt\n1,x\n", r"'text'.*'txt'\?"), ("a.csv", "text,text\n1,x\n", "2 .*'text'"),
        ("a.csv", "id;text\n1;x\n", "semicolons"), ("a.csv", "id\ttext\n1\tx\n", "'tsv'"), ("a.tsv", "id,text\n1,x\n", "'csv'"),
    ):  # fmt: skip
        for on_error in ("stop", "skip"):
            with pytest.raises(DataError, match=message):
                read(name, content, on_error=on_error)


def test_blank_lines_between_rows_are_counted_and_a_table_may_have_none(read: Callable):
    assert read("a.csv", "id,text\n\n1,x\n\n").skipped == read("a.jsonl", '\n{"text": "x"}\n  \n').skipped == {"empty": 2}
    assert read("a.tsv", "id\ttext\n\n1\tx\n\n").skipped == {"empty": 2}
    assert [read("a.csv", content).documents for content in ("", "\n\n", "text\n")] == [[], [], []]


def parquet(tmp_path: Path, **columns: object) -> bytes:
    return parquet_of(tmp_path, pa.table(columns))


def parquet_of(tmp_path: Path, table: pa.Table) -> bytes:
    path = tmp_path / "made"
    pq.write_table(table, path, row_group_size=700)
    return path.read_bytes()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_a_document_a_row_over_row_groups_of_any_kind_of_string(read: Callable, tmp_path: Path, kind: pa.DataType):
    texts = [f"document {number % 900}\nof two lines" for number in range(3000)]
    content = parquet(tmp_path, id=list(range(3000)), text=pa.array(texts).cast(kind))
    assert read("a.parquet", content).documents == texts


def test_dots_descend_unless_a_key_has_them(read: Callable, tmp_path: Path):
    content = '{"a": {"b": {"c": "deep"}}}\n{"a.b.c": "flat", "a": 1}\n'
    assert read("a.jsonl", content, text_field="a.b.c").documents == ["deep", "flat"]
    for columns, expected in (
        ({"a": [{"b": "one", "c": 1}, {"b": "two", "c": 2}]}, ["one", "two"]),
        ({"a.b": ["flat"]}, ["flat"]),
    ):
        assert read("a.parquet", parquet(tmp_path, **columns), text_field="a.b").documents == expected


def test_null_and_invalid_rows(faulty: Callable, tmp_path: Path):
    invalid = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["abcd", "ef"]).buffers()[:2], pa.py_buffer(b"ab\xffdef")])
    faulty("a.parquet", parquet(tmp_path, text=[None, "x"]), "row 0: 'text'", ["x"], "not_text")
    faulty("a.parquet", parquet(tmp_path, text=invalid), "row 0: .*UTF-8", ["ef"], "undecodable")


def test_a_missing_or_wrong_column(read: Callable, tmp_path: Path):
    content = parquet(tmp_path, txt=["x"], number=[1])
    with pytest.raises(DataError, match=r"'text'.*'txt'.*txt, number"):
        read("a.parquet", content, on_error="skip")
    with pytest.raises(DataError, match="int64"):
        read("a.parquet", content, text_field="number")
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"])
    with pytest.raises(DataError, match=r"2 .*'text'"):
        read("a.parquet", parquet_of(tmp_path, twice))


def test_a_broken_file(faulty: Callable, tmp_path: Path):
    content = parquet(tmp_path, text=[f"{number}" * 50 for number in range(1000)])
    named = content[:-2000] + content[-2000:].replace(b"text", b"t\xff\xfet")  # the footer is at the end
    for broken in (content[:-100], b"not parquet at all", content[:100] + bytes(5000) + content[5100:], named):
        faulty("a.parquet", broken, "Parquet file", [], "broken_file")


def test_a_bucket_that_does_not_answer_is_no_broken_file(gcs: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    storage.write_atomic("gs://runs/a.parquet", parquet(tmp_path, text=["one", "two"]))
    source = SourceConfig(path="gs://runs/a.parquet", on_error="skip")
    assert list(read_texts([source])) == [["one", "two"]]
    monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr(ByteStream, "exhaust", lambda stream: gcs.faults.set(error_rate=1.0, match="a.parquet"))
    with pytest.raises(StorageError, match=r"gs://runs/a\.parquet"):
        list(read_texts([source]))


@pytest.mark.parametrize("plain_footer", [True, False])
def test_an_encrypted_file(read: Callable, tmp_path: Path, plain_footer: bool):
    keys = create_encryption_properties(b"0123456789abcdef", plaintext_footer=plain_footer)
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a", encryption_properties=keys)
    with pytest.raises(DataError, match="encrypted"):
        read("a.parquet", (tmp_path / "a").read_bytes())


def test_commas_of_a_text_are_no_values(read: Callable, faulty: Callable, monkeypatch: pytest.MonkeyPatch):
    for module, limit in ((tables, "_MOST_FIELDS"), (jsonl, "_MOST_VALUES")):
        monkeypatch.setattr(module, limit, 50)
    commas, many = "a," * 60, ",".join("1" * 60)
    for text in (commas, f'he said "so", {commas}', f"one\n{commas}\n", f"\\{commas}"):
        quoted = text.replace('"', '""')
        assert read("a.csv", f'text,n\n"{quoted}",1\nlast,2\n').documents == [text, "last"]
        assert read("a.jsonl", json.dumps({"text": text}) + '\n{"text": "last"}\n').documents == [text, "last"]
    faulty("a.csv", f'text,n\n"a",{many}\nlast,2\n', "line 2: a row of more than 50 fields", ["last"], "malformed_row")
    faulty("a.jsonl", f'{{"text": "a", "n": [{many}]}}\n{{"text": "last"}}\n', "line 1: .*50 values", ["last"], "too_large")
