from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tpulm.errors import ConfigError, DataError
from tpulm.labelled import Columns, Examples, examples, examples_of, label_name, read_examples, read_texts

ROWS = [{"text": "good", "pair": "yes", "label": 1}, {"text": "bad", "pair": "no", "label": 0}]


def parts(found: Examples) -> tuple[Any, ...]:
    names = None if found.labels is None else [label_name(label) for label in found.labels]
    return found.texts, found.pairs, names


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_examples(write_rows: Callable, form: str):
    path = write_rows(f"a.{form}", ROWS)
    found, both = read_examples(path, Columns(pair="pair")), ["good", "bad"]
    assert parts(found) == (both, ["yes", "no"], ["1", "0"]) and len(found) == 2 and not found.skipped
    assert [type(label) for label in found.labels or []] == [str if form in ("tsv", "csv") else int] * 2
    assert parts(read_examples(path)) == (both, None, ["1", "0"])
    for columns in (Columns(), Columns(label="nowhere"), Columns(label="text")):
        assert parts(read_examples(path, columns, labelled=False)) == (both, None, None)
    for columns in (Columns(label="text"), Columns("label"), Columns(pair="text")):
        with pytest.raises(ConfigError, match=r"(label and text|pair and text) are both '(text|label)'"):
            read_examples(path, columns)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_dots_descend(write_rows: Callable, form: str):
    path = write_rows(f"a.{form}", [{"review": {"body": "x", "stars": 4}}, {"review": {"body": "y", "stars": 2}}])
    assert parts(read_examples(path, Columns("review.body", "review.stars"))) == (["x", "y"], None, ["4", "2"])


@pytest.mark.parametrize("form", ["tsv", "csv", "parquet"])
def test_a_missing_column_is_an_error_whatever_on_error_says(write_rows: Callable, form: str):
    path = write_rows(f"a.{form}", [{"id": "1", "document": "x", "labels": "1"}])
    with pytest.raises(DataError) as failure:
        read_examples(path, Columns("document"), on_error="skip")
    assert all(word in str(failure.value) for word in (str(path), "'label'", "'labels'?", "'document'", "--label-column"))


def test_a_missing_key_is_a_fault_of_its_record(write: Callable):
    path = write("a.jsonl", '{"text": "x", "label": 1}\n{"txt": "y", "label": 1}\n')
    with pytest.raises(DataError, match=r"line 2: .*'text'.*'txt'\?"):
        read_examples(path)
    assert read_examples(path, on_error="skip").skipped == {"no_field": 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "gj04\t1\tOur friends won't buy this.\nx\t1\ty\n", "--no-header"),
        *(("a.tsv", "text,label\nx,1\n", "--format csv"), ("a.csv", "text\tlabel\nx\t1\n", "--format tsv")),
        *(("a.tsv", "", "a.tsv"), ("a.csv.gz", "text,label\n", "a.csv.gz"), ("a.jsonl", "", "a.jsonl")),
    ],
)
def test_a_header_that_is_none_and_files_without_examples(write: Callable, name: str, content: str, message: str):
    with pytest.raises(DataError, match=message):
        read_examples(write(name, content))
    with pytest.raises(DataError, match="empty 2"):
        read_examples(write("b.jsonl", '{"text": "", "label": 1}\n' * 2), on_error="skip")


@pytest.mark.parametrize(
    ("row", "message", "reason"),
    [
        *(({"text": nothing, "label": 1}, "text .*empty", "empty") for nothing in ("", " \n", None, float("nan"))),
        ({"text": "x", "label": 1, "pair": ""}, "second text .*empty", "empty"),
        ({"text": 7, "label": 1}, "text is 7", "not_text"),
        ({"text": "a\0b", "label": 1}, "NUL", "nul_character"),
        ({"text": "a\ud800", "label": 1}, "surrogate", "not_unicode"),
        ({"text": "x" * 101, "label": 1}, "longer", "too_large"),
        *(({"text": "x", "label": nothing}, "label is missing", "no_label") for nothing in (None, " ", "\u200b\ufeff")),
        ({"text": "x", "label": float("nan")}, "label is NaN", "no_label"),
        ({"text": "x", "label": ["a", "b"]}, r'label is \["a", "b"\]', "no_label"),
    ],
)
def test_what_is_no_example(write: Callable, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], message: str, reason: str):
    monkeypatch.setattr(examples, "MAX_DOCUMENT_BYTES", 100)
    rows, columns = [{"text": "fine", "pair": "p", "label": "a"}, {"pair": "p"} | row], Columns(pair="pair")
    path = write("a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(DataError, match=message) as failure:
        read_examples(path, columns)
    assert failure.value.location == f"{path}, line 2"
    found = read_examples(path, columns, on_error="skip")
    assert parts(found) == (["fine"], ["p"], ["a"]) and found.skipped == {reason: 1}


@pytest.mark.parametrize(
    ("data", "labelled", "expected"),
    [
        *(([("a", 1), ("b", 0)], True, (["a", "b"], None, ["1", "0"])), (["a", "b"], False, (["a", "b"], None, None))),
        ([("a", "c", 1), ["b", "d", 0]], True, (["a", "b"], ["c", "d"], ["1", "0"])),
        ([("a", "c"), ("b", "d")], False, (["a", "b"], ["c", "d"], None)),
        ({"text": ["a", "b"], "label": np.array([1, 0])}, True, (["a", "b"], None, ["1", "0"])),
        ({"text": ["a", "b"], "pair": ["c", "d"], "label": [True, False]}, True, (["a", "b"], ["c", "d"], ["true", "false"])),
        *(({"text": ["a", "b"]}, False, (["a", "b"], None, None)), ((t for t in "ab"), False, (["a", "b"], None, None))),
    ],
)
def test_examples_of_python_values(data: Any, labelled: bool, expected: tuple[Any, ...]):
    found = examples_of(data, labelled=labelled)
    assert parts(found) == expected
    assert found.places == ["example 0", "example 1"]
    assert not any(isinstance(label, np.generic) for label in found.labels or [])


def test_examples_of_files_and_named_columns(write_rows: Callable):
    path = write_rows("a.tsv", [{"document": "x", "score": " 1 "}])
    columns = Columns("document", "score")
    found = examples_of(path, columns=columns)
    assert found == read_examples(path, columns) and found.labels == ["1"]
    assert parts(examples_of({"document": ["x"], "score": [1]}, columns=columns)) == (["x"], None, ["1"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *(({"txt": ["a"], "label": [1]}, r"'text'.*'txt'\?"), ({"text": ["a"], "label": [1, 2]}, "text 1, label 2")),
        *(({"text": "a", "label": [1]}, "'text' .*string"), (["a", "b"], 'example 0: it is "a"'), ([], "no examples")),
        *(([("a", 1), ("b", "c", 1)], "example 1: it has 3 parts"), (5, "not int")),
        *(([("a", 1), (text, 1)], "example 1: .*empty") for text in ("", None)),
    ],
)
def test_python_values_that_are_no_examples(data: Any, message: str):
    with pytest.raises(DataError, match=message):
        examples_of(data)


def test_settings_that_do_not_fit():
    wrong: dict[str, dict[str, Any]] = {"'skpi'": {"on_error": "skpi"}, "columns": {"columns": Columns()}}
    for message, given in wrong.items():
        with pytest.raises(ConfigError, match=message):
            examples_of([("a", 1)], **given)


def test_a_column_of_a_frame_is_a_list_and_a_frame_is_columns():
    frame = pytest.importorskip("pandas").DataFrame({"text": ["x", "y"], "label": [1, 0]})
    assert examples_of(frame["text"], labelled=False).texts == ["x", "y"]
    found = examples_of(frame)
    assert (found.texts, found.labels) == (["x", "y"], [1, 0])


class TestWithoutAHeader:
    def test_columns_are_numbers(self, write: Callable):
        for path in (write("a.tsv", "1\tgood\tyes\n0\tbad\tno\n"), write("a.csv", "1,good,yes\n0,bad,no\n")):
            found = read_examples(path, Columns("2", "1", "3", header=False))
            assert parts(found) == (["good", "bad"], ["yes", "no"], ["1", "0"])
            assert [place.split(", ")[1] for place in found.places] == ["line 1", "line 2"]
        assert parts(read_examples(write("a.tsv", "x\tx\n"), Columns("1", "2", header=False))) == (["x"], None, ["x"])

    @pytest.mark.parametrize(
        ("name", "columns", "error", "said"),
        [
            ("a.tsv", Columns(header=False), ConfigError, "--text-column is 'text'"),
            ("a.tsv", Columns("2", "0", header=False), ConfigError, "--label-column is '0'"),
            ("a.tsv", Columns("2", "3", header=False), DataError, "column 3"),
            ("a.jsonl", Columns("2", "1", header=False), ConfigError, "a.jsonl"),
        ],
    )
    def test_what_does_not_fit_is_said(self, write: Callable, name: str, columns: Columns, error: type[Exception], said: str):
        with pytest.raises(error, match=said):
            read_examples(write(name, "1\tgood\n0\tbad\n"), columns)


class TestRowNumbers:
    """As pandas' to_csv and R's write.table add them, unasked."""

    @pytest.mark.parametrize(("form", "first"), [("tsv", 0), ("csv", 1), ("jsonl", 50_000), ("parquet", 0)])
    def test_they_are_no_texts(self, write_rows: Callable, form: str, first: int):
        rows = [{"text": str(first + 3 * n // 2), "review": word, "label": n % 2} for n, word in enumerate("abcd")]
        path = write_rows(f"a.{form}", rows)
        with pytest.raises(DataError, match=r"'text' .*'review' \"d\".*--text-column"):
            read_examples(path)
        with pytest.raises(DataError, match="'text' of the text"):
            list(read_texts(path, skipped=Counter()))
        assert read_examples(path, Columns("review")).texts == ["a", "b", "c", "d"]
        pair = Columns("review", pair="pair")
        with pytest.raises(DataError, match="'pair' of the pair"):
            read_examples(write_rows(f"b.{form}", [{**row, "pair": row["text"]} for row in rows]), pair)

    def test_a_column_that_is_named_is_taken(self, write_rows: Callable):
        path = write_rows("a.csv", [{"": n, "id": n, "text": "x", "label": n % 2} for n in range(30)])
        assert read_examples(path, Columns("id")).texts == read_examples(path, Columns("column 1")).texts

    def test_a_file_without_a_header_begins_with_them(self, write: Callable):
        path = write("a.csv", "".join(f"{n},word,{n % 2}\n" for n in range(4)))
        with pytest.raises(DataError, match="'1' of the text"):
            read_examples(path, Columns("1", "3", header=False))
        assert len(read_examples(path, Columns("2", "3", header=False))) == 4

    def test_they_may_be_shuffled(self, write_rows: Callable):
        rows = [{"text": number * 7 % 31, "label": number % 2} for number in range(31)]
        for form in ("csv", "tsv"):
            with pytest.raises(DataError, match="'text' of the text"):
                read_examples(write_rows(f"a.{form}", rows))

    def test_a_stream_is_stopped_before_its_rows_are_used(self, write: Callable):
        rows = read_texts(write("a.csv", "text\n" + "".join(f"{n}\n" for n in range(5_000))), skipped=Counter())
        with pytest.raises(DataError, match=r"line 21: .*'text'"):
            list(islice(rows, 20))

    @pytest.mark.parametrize("first", [0, 1])
    def test_they_are_no_labels_but_numbers_may_be(self, write_rows: Callable, first: int):
        years, of_half, up_to = range(1990, 2020), [n / 2 for n in range(30)], [*range(29), 5]
        for form in ("csv", "jsonl"):
            for labels in (years, of_half, [n % 2 for n in range(30)], [0, 1, 2, 3, 4], up_to):
                path = write_rows(f"a.{form}", [{"text": "x", "label": label} for label in labels])
                assert len(read_examples(path)) == len(labels)
            with pytest.raises(DataError, match=r"'label' of the label .*--label-column"):
                read_examples(write_rows(f"b.{form}", [{"text": "x", "label": first + n} for n in range(30)]))

    def test_numbers_among_the_texts_are_texts(self, write_rows: Callable):
        for texts in (["1", "2", "x"], ["3", "2", "1"], ["7", "7", "7"], ["1", "2"], [*map(str, range(29, 10, -1)), "x"]):
            path = write_rows("a.csv", [{"text": text, "label": 1} for text in texts])
            assert read_examples(path).texts == texts
