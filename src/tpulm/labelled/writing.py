"""Rows written back with what was found about them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Final, TextIO, cast

from tpulm import storage
from tpulm.errors import ConfigError, DataError

_FORMATS: Final = (".jsonl", ".csv", ".tsv")


class RowWriter:
    """Writes rows of one set of columns as jsonl, csv or tsv."""

    def __init__(self, stream: TextIO, form: str, *, header: bool = True):
        self._stream, self._form, self._header = stream, form, header
        self._columns: list[str] | None = None

    def write(self, values: Mapping[str, Any], place: str) -> None:
        """Raises DataError for a value that a tsv cannot hold, and for other columns than the first row's."""
        if self._form == ".jsonl":
            self._stream.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")
            return
        if self._columns is None:
            self._columns = list(values)
            if self._header:
                self._row(self._columns, place)
        if list(values) != self._columns:
            raise DataError(
                f"its keys are {', '.join(values)}, and those of the first row {', '.join(self._columns)}; write to a .jsonl, "
                "whose rows may differ",
                location=place,
            )
        self._row([_text(value) for value in values.values()], place)

    def _row(self, cells: list[str], place: str) -> None:
        if self._form == ".csv":
            line = io.StringIO()
            csv.writer(line, lineterminator="\n").writerow(cells)
            self._stream.write(line.getvalue())
            return
        bad = next((cell for cell in cells if "\t" in cell or "\n" in cell or "\r" in cell), None)
        if bad is not None:
            raise DataError(
                f"{bad[:60]!r} holds a tab or a line end, which no tsv can; write to a .csv or .jsonl", location=place
            )
        self._stream.write("\t".join(cells) + "\n")


def check_form(path: PurePath) -> str:
    """The format that a name says. Raises ConfigError for another than jsonl, csv or tsv (.gz may follow)."""
    name = path.name.removesuffix(".gz")
    form = next((suffix for suffix in _FORMATS if name.endswith(suffix)), None)
    if form is None:
        raise ConfigError(
            f"{path}: results are written as {', '.join(_FORMATS)}, and .gz may follow; give the file such a name"
        )
    return form


@contextmanager
def writing_rows(path: PurePath, *, header: bool = True) -> Iterator[RowWriter]:
    """The file takes its place when the block ends well; until then, and after an error, there is none."""
    form = check_form(path)
    with storage.built_aside(path) as temporary, storage.explain("write", path):
        open_text = gzip.open if path.name.endswith(".gz") else open
        with open_text(temporary, "wt", encoding="utf-8", newline="") as stream:
            yield RowWriter(cast("TextIO", stream), form, header=header)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
