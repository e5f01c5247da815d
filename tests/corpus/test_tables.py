import csv
import io
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpulm.corpus.readers import lines, tables
from tpulm.errors import DataError

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


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


def test_a_long_field_is_no_problem(read: Callable):
    text = "word " * 100_000
    assert read("a.csv", f'text\n"{text}"\n').documents == [text]


def test_a_quote_that_never_closes_is_an_error_not_a_memory_hog(read: Callable, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "MAX_DOCUMENT_BYTES", 500)
    with pytest.raises(DataError, match="line 3: row larger than field limit"):
        read("a.csv", 'id,text\n1,fine\n2,"open\n' + "3,more\n" * 1000)
    found = read("a.csv", 'id,text\n1,fine\n2,"open\n', on_error="skip")
    assert (found.documents, found.skipped) == (["fine"], {"malformed_row": 1})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,two,three", "3 fields .* but the header has 2"),
        ("1", "1 fields .* but the header has 2"),
        ('1,"closed" and more', "quotes within a quoted field are doubled"),
    ],
)
def test_a_ragged_or_malformed_row(read: Callable, row: str, message: str):
    content = f"id,text\n0,first\n{row}\n2,last\n"
    with pytest.raises(DataError, match=message) as failure:
        read("a.csv", content)
    assert failure.value.location == "a.csv, line 3"
    found = read("a.csv", content, on_error="skip")
    assert (found.documents, found.skipped) == (["first", "last"], {"malformed_row": 1})


def test_a_bad_byte_takes_its_row_along(read: Callable):
    found = read("a.csv", b"id,text\n0,first\n1,b\xffd\n2,last\n", on_error="skip")
    assert (found.documents, found.skipped) == (["first", "last"], {"undecodable": 1})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,txt\n1,x\n", r"has no column 'text'. Did you mean 'txt'\? Its columns: 'id', 'txt'"),
        ("a.csv", "id;text\n1;x\n", "separated by semicolons"),
        ("a.csv", "id\ttext\n1\tx\n", "set format = 'tsv'"),
        ("a.tsv", "id,text\n1,x\n", "set format = 'csv'"),
        ("a.csv", "text,text\n1,x\n", "2 columns named 'text'"),
    ],
)
def test_a_header_without_the_column_is_always_an_error(read: Callable, name: str, content: str, message: str):
    for on_error in ("stop", "skip"):
        with pytest.raises(DataError, match=message):
            read(name, content, on_error=on_error)


@pytest.mark.parametrize("content", ["", "\n\n", "text\n"])
def test_a_table_without_rows(read: Callable, content: str):
    assert read("a.csv", content).documents == []


def test_blank_lines_between_rows_are_counted(read: Callable):
    assert read("a.csv", "id,text\n\n1,x\n\n").skipped == {"empty": 2}
    assert read("a.tsv", "id\ttext\n\n1\tx\n\n").skipped == {"empty": 2}
