"""CSV and TSV: a header, then one document per row, in the column `text_field`.

CSV follows RFC 4180: a field in double quotes may contain commas, line ends and doubled quotes. TSV follows its IANA
registration: a line is a row, a tab ends a field, and quotes are ordinary characters, as in GLUE or NSMC files.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Literal

from tpulm.corpus.documents import MAX_DOCUMENT_BYTES, Batcher, DocumentBatch, Faults, Wording
from tpulm.corpus.readers.lines import Input, Lines
from tpulm.errors import DataError, shorten, suggest

_MOST_CELLS: Final = 100_000  # per row of a tsv
_MOST_FIELDS: Final = 500_000  # per line of a csv
_QUOTED: Final = re.compile(r'"[^"]*("|\Z)')
LINE_ENDS: Final = r"end lines with \n (tr '\r' '\n' writes it)."  # for files with carriage returns alone
_NEVER_CLOSED: Final = (
    "a quote in this row is never closed, so that all rows after it would be lost. Close it; a quote that is part of a text is "
    'doubled, in a field in quotes: "he said ""no""".'
)
_REPEATED: Final = "it repeats the header, as in files that were joined; remove this line."


def read_table(opened: Input) -> Iterator[DocumentBatch]:
    """Read a file. Raises DataError if the header lacks the column, whatever `on_error` is."""
    kind: Literal["csv", "tsv"] = "csv" if opened.file.format == "csv" else "tsv"
    rows = read_rows(opened.lines(), kind, opened.faults)
    _, header = next(rows, (0, None))
    if header is None:
        return
    column = _column(header, opened.source.text_field, kind, opened.faults)
    batcher = Batcher(opened.faults)
    for number, cells in rows:
        batcher.add(cells[column], number)
        yield from batcher.full()
    yield from batcher.flush()


def read_rows(
    chunks: Iterable[Lines],
    kind: Literal["csv", "tsv"],
    faults: Faults,
    *,
    header: bool = True,
) -> Iterator[tuple[int, list[str]]]:
    """The header, then each row with as many cells, each with the number of its first line; other rows are faults, and so are
    rows that repeat the header, unless the first row is no `header`.

    An unclosed quote in a CSV file swallows all rows after it, so it raises DataError, whatever `on_error` is, unless the file
    itself is truncated.
    """
    rows = _csv_rows(chunks, faults) if kind == "csv" else _tsv_rows(chunks)
    first = next((row for row in rows if row[1]), None)
    if first is None:
        return
    yield first
    width = len(first[1])
    for row in rows:
        cells = row[1]
        if header and cells == first[1]:
            faults.add("malformed_row", _REPEATED, f"line {row[0]}")
        elif len(cells) == width:
            yield row
        elif not cells:
            faults.skipped["empty"] += 1
        else:
            shown = shorten(" | ".join(cells), quoted=False)
            faults.add("malformed_row", f"{len(cells)} fields ({shown}), but the header has {width}.", f"line {row[0]}")


def _csv_rows(chunks: Iterable[Lines], faults: Faults) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    torn_before = faults.skipped["broken_file"]
    lines = _RowLines(chunks)
    reader = csv.reader(lines, strict=True)
    while True:
        number, lines.characters, lines.in_quotes = reader.line_num + 1, 0, False
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            torn = faults.skipped["broken_file"] > torn_before
            if not torn and _is_open_quote(error, lines=reader.line_num + 1 - number):
                raise DataError(_NEVER_CLOSED, location=f"{faults.name}, line {number}") from error
            advice = 'quotes within a quoted field are doubled: "he said ""no""".'
            if "new-line character" in str(error):
                error, advice = csv.Error("a carriage return alone"), LINE_ENDS
            faults.add("malformed_row", f"{error}; {advice}", f"line {number}")
        else:
            yield number, cells


def _is_open_quote(error: csv.Error, *, lines: int) -> bool:
    """Whether a quote is unclosed: the row took the rest of the file, or several `lines` until it was too large."""
    return "unexpected end of data" in str(error) or ("field limit" in str(error) and lines > 1)


class _RowLines:
    """Iterates over lines with their ends; raises csv.Error for rows larger than a document may be, or of too many fields."""

    def __init__(self, chunks: Iterable[Lines]):
        self._lines = chain.from_iterable(io.StringIO(lines.text, newline="\n") for lines in chunks)
        self.characters, self.in_quotes = 0, False  # of the current row

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.characters += len(line)
        if self.characters > MAX_DOCUMENT_BYTES:
            raise csv.Error(f"row larger than field limit ({MAX_DOCUMENT_BYTES})")
        if len(line) > _MOST_FIELDS and _QUOTED.sub("", '"' * self.in_quotes + line).count(",") >= _MOST_FIELDS:
            raise csv.Error(f"a row of more than {_MOST_FIELDS:,} fields")
        self.in_quotes ^= line.count('"') % 2 == 1
        return line


def _tsv_rows(chunks: Iterable[Lines]) -> Iterator[tuple[int, list[str]]]:
    for lines in chunks:
        for number, line in enumerate(lines.split(), lines.first):
            yield number, line.split("\t", _MOST_CELLS) if line else []


def _column(header: list[str], text_field: str, kind: Literal["csv", "tsv"], faults: Faults) -> int:
    if header.count(text_field) == 1:
        return header.index(text_field)
    location = f"{faults.name}, line 1"
    if text_field in header:
        raise DataError(
            f"the header has {header.count(text_field)} columns named '{text_field}'; rename all but one.", location=location
        )
    columns = ", ".join(repr(name) for name in header)
    raise DataError(
        f"the header has no column '{text_field}'.{suggest(text_field, header)} "
        f"Its columns: {shorten(columns, 200, quoted=False)}.{separator_advice(header, kind, faults.wording)} "
        f"The first row must be the header. If another column has the text, {faults.wording.text_field.format('…')}.",
        location=location,
    )


def separator_advice(header: list[str], kind: Literal["csv", "tsv"], wording: Wording) -> str:
    """Advice, with a leading space, on a header of one name that contains another separator; else ""."""
    marks = {"\t": "tabs", ";": "semicolons", "|": "bars"} | ({",": "commas"} if kind == "tsv" else {})
    separator = next((mark for mark in marks if mark in header[0]), None) if len(header) == 1 else None
    if separator is None:
        return ""
    other = {"\t": "tsv", ",": "csv"}.get(separator)
    separated = f" Its fields seem to be separated by {marks[separator]}"
    return (
        f"{separated}: {wording.format.format(other)}." if other else f"{separated}; only commas (csv) and tabs (tsv) are read."
    )
