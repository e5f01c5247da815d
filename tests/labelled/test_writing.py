"""Rows with answers: jsonl, csv and tsv, whole or not at all."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from tpulm.errors import ConfigError, DataError
from tpulm.labelled import Columns, read_texts
from tpulm.labelled.records import writing_rows

ROWS = [{"id": 1, "text": 'a "quoted", text', "predicted": "pos"}, {"id": None, "text": "다음", "predicted": "neg"}]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with writing_rows(path) as writer:
        for number, row in enumerate(rows):
            writer.write(row, f"row {number}")


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, ROWS)
    data = (tmp_path / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    assert [json.loads(line) for line in text.splitlines()] == ROWS


def test_csv_quotes(tmp_path: Path) -> None:
    write(tmp_path / "out.csv", [*ROWS, {"id": 3, "text": "two\nlines", "predicted": "pos"}])
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["text"] for row in rows] == ['a "quoted", text', "다음", "two\nlines"]
    assert [row["id"] for row in rows] == ["1", "", "3"]


def test_a_tsv_cannot_hold_everything(tmp_path: Path) -> None:
    write(tmp_path / "out.tsv", ROWS)
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()[0] == "id\ttext\tpredicted"
    with pytest.raises(DataError, match=r"row 1: 'a\\tb' holds a tab"):
        write(tmp_path / "other.tsv", [ROWS[0], {**ROWS[0], "text": "a\tb"}])
    assert not (tmp_path / "other.tsv").exists()


def test_rows_of_other_keys(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: its keys are other, .*\.jsonl"):
        write(tmp_path / "out.csv", [{"text": "a"}, {"other": "b"}])


def test_a_name_without_a_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out\.txt: results are written as \.jsonl, \.csv, \.tsv"):
        write(tmp_path / "out.txt", [])


def test_texts_come_with_their_rows(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("id\tdocument\n1\tgood\n2\t \n3\tbad\n", encoding="utf-8")
    skipped: Counter[str] = Counter()
    rows = list(read_texts(tmp_path / "in.tsv", Columns(text="document"), on_error="skip", skipped=skipped))
    assert [(row.record.values["id"], row.text, row.pair) for row in rows] == [("1", "good", None), ("3", "bad", None)]
    assert skipped == {"empty": 1}
    with pytest.raises(DataError, match=r"in\.tsv, line 3: the text is empty"):
        list(read_texts(tmp_path / "in.tsv", Columns(text="document"), skipped=skipped))
