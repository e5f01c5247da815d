"""Examples from files, and from what a Python program has in its hands."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from tpulm.corpus.documents import Faults
from tpulm.corpus.readers.jsonl import UnusableRecord, show
from tpulm.errors import ConfigError, DataError
from tpulm.labelled.columns import Columns, cell, check_columns, missing_column
from tpulm.labelled.examples import Examples, Gathering, new_faults, text_fault
from tpulm.labelled.records import OnError, Record, RowFormat, find_record_files, read_file

_DEFAULT: Final = Columns()


def read_examples(
    path: str | os.PathLike[str],
    columns: Columns = _DEFAULT,
    *,
    labelled: bool = True,
    on_error: OnError = "stop",
    format: RowFormat | Literal["auto"] = "auto",
) -> Examples:
    """The examples of a file, a folder or a glob, in order.

    Raises DataError, with its place, for a row that cannot be used; with on_error "skip" such rows are counted in `skipped`
    instead: "empty" without text, "no_label", "not_text", and the corpus' own reasons. A column that a tsv, csv or Parquet
    file does not have is an error either way, and so is a file of which nothing is left.
    """
    gathering = Gathering(paired=columns.pair is not None, labelled=labelled, on_error=on_error)
    for record, found in _read_cells(path, columns, format, gathering.faults, labelled=labelled):
        gathering.add(found["text"], found.get("pair"), found.get("label"), record.place)
    return gathering.finish(os.fspath(path))


class TextRow(NamedTuple):
    """A row to be classified: whole, and the text (or two) in it."""

    record: Record
    text: str
    pair: str | None


def read_texts(
    path: str | os.PathLike[str],
    columns: Columns = _DEFAULT,
    *,
    on_error: OnError = "stop",
    format: RowFormat | Literal["auto"] = "auto",
    skipped: Counter[str],
) -> Iterator[TextRow]:
    """The rows of a file one at a time, in their order. Raises, or counts in `skipped`, as `read_examples`."""
    faults = new_faults(on_error)
    faults.skipped = skipped
    for record, found in _read_cells(path, columns, format, faults, labelled=False):
        fault = next((fault for role in found if (fault := text_fault(found[role], role)) is not None), None)
        if fault is None:
            yield TextRow(record, found["text"], found.get("pair"))
        else:
            faults.add(*fault, record.place)


def _read_cells(
    path: str | os.PathLike[str], columns: Columns, format: RowFormat | Literal["auto"], faults: Faults, *, labelled: bool
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Each record with what it has in the named columns, by role."""
    names = columns.needed(labelled=labelled)
    for file in find_record_files(path, format):
        checked = False
        for record in read_file(file, on_error=faults.on_error, skipped=faults.skipped, header=columns.header):
            if not checked:
                check_columns(record, file, names, header=columns.header)
                checked = True
            try:
                found = {role: cell(record, name, role) for role, name in names.items()}
            except UnusableRecord as fault:
                faults.add(fault.reason, fault.message, record.place)
            else:
                yield record, found


def examples_of(data: Any, *, labelled: bool = True, columns: Columns | None = None, on_error: OnError = "stop") -> Examples:
    """Examples of whatever `data` is: examples already, or

    a path, as `read_examples`; a list of (text, label) or (text, pair, label) or, without labels, of strings or (text, pair);
    or columns by name, {"text": […], "label": […]}, with a "pair" if there is one, unless `columns` says otherwise. Places
    are "example 3", counted from 0. Raises as `read_examples`; DataError too for lists that are not of one shape.
    """
    if isinstance(data, Examples):
        return data
    if isinstance(data, (str, os.PathLike)):
        return read_examples(data, columns or _DEFAULT, labelled=labelled, on_error=on_error)
    if isinstance(data, Mapping) or (hasattr(data, "keys") and hasattr(data, "columns")):  # a pandas DataFrame is no Mapping
        return _of_columns(data, columns, labelled=labelled, on_error=on_error)
    if columns is not None:
        raise ConfigError("columns are named for files and mappings; a list has its parts in order: (text, label)")
    if not isinstance(data, Iterable):
        raise DataError(f"{_FORMS}, not {type(data).__name__}.")
    return _of_tuples(list(data), labelled=labelled, on_error=on_error)


_FORMS: Final = "examples are a path, a list of (text, label) or of texts, or a mapping {'text': […], 'label': […]}"


def _of_columns(data: Any, columns: Columns | None, *, labelled: bool, on_error: OnError) -> Examples:
    known = list(data.keys())
    columns = columns or Columns(pair="pair" if "pair" in known else None)
    lists: dict[str, list[Any]] = {}
    for role, name in columns.needed(labelled=labelled).items():
        if name not in known:
            raise DataError(missing_column([str(key) for key in known], name, role))
        if isinstance(data[name], str):
            raise DataError(f"column '{name}' is one string, {show(data[name])}; a list of them is expected.")
        lists[role] = list(data[name])
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{role} {len(values)}" for role, values in lists.items())
        raise DataError(f"the columns are not of one length: {lengths}.")
    gathering = Gathering(paired=columns.pair is not None, labelled=labelled, on_error=on_error)
    nothing = [None] * len(lists["text"])
    rows = zip(lists["text"], lists.get("pair", nothing), lists.get("label", nothing), strict=True)
    for index, (text, pair, label) in enumerate(rows):
        gathering.add(text, pair, label, f"example {index}")
    return gathering.finish("the examples")


def _of_tuples(data: Sequence[Any], *, labelled: bool, on_error: OnError) -> Examples:
    rows: list[tuple[Any, ...]] = [
        (row,) if isinstance(row, str) or not isinstance(row, Sequence) else tuple(row) for row in data
    ]
    plain = 2 if labelled else 1  # parts of an example that is no pair
    width = len(rows[0]) if rows else plain
    wanted = "(text, label) or (text, pair, label)" if labelled else "a text or (text, pair)"
    for index, row in enumerate(rows):
        if len(row) not in (plain, plain + 1):
            raise DataError(f"it is {show(data[index])}; expected is {wanted}.", location=f"example {index}")
        if len(row) != width:
            raise DataError(
                f"it has {len(row)} parts and example 0 has {width}; all are pairs or none.", location=f"example {index}"
            )
    paired = width > plain
    gathering = Gathering(paired=paired, labelled=labelled, on_error=on_error)
    for index, row in enumerate(rows):
        gathering.add(row[0], row[1] if paired else None, row[-1] if labelled else None, f"example {index}")
    return gathering.finish("the examples")
