"""Labelled examples: texts, optionally in pairs, and their labels, read from files or taken from Python objects."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from tpulm.corpus.documents import MAX_DOCUMENT_BYTES, Fault, Faults, Wording, find_fault
from tpulm.corpus.readers.jsonl import UnusableRecord, find_value, show
from tpulm.corpus.readers.tables import separator_advice
from tpulm.errors import ConfigError, DataError, shorten, suggest
from tpulm.labelled.records import WORDING, OnError, RecordFile, Row, RowFormat, find_record_files, new_faults, read_file

_LONG: Final = 40  # characters; few column names are longer
_UNCHOSEN: Final = ("text", "label", "pair", "question")  # the columns' names if the user gives none
# From few rows on, texts by numbers that grow are row numbers; from many on in any order (shuffled), and labels that count.
_FEW_ROWS, _MANY_ROWS = 3, 20
_AROUND: Final = re.compile(r"^[\s\u200b-\u200f\u2060\ufeff]+|[\s\u200b-\u200f\u2060\ufeff]+\Z")  # blanks, visible or not
_FORMS: Final = "examples are a path, a list of (text, label) or of texts, or a mapping {'text': […], 'label': […]}"


@dataclass(frozen=True)
class Examples:
    """Lists of equal length. Nothing in them is missing, and no text is blank."""

    texts: list[str]
    pairs: list[Any] | None  # the second text of each, or what the task takes; None: examples are single texts
    labels: list[Any] | None  # stripped strings, int, float or bool, or what the task takes; None: read without labels
    places: list[str]  # "reviews.tsv.gz, line 7", for messages
    skipped: Counter[str] = field(default_factory=Counter)  # rows left out, by reason
    columns: dict[str, str] = field(default_factory=dict)  # the file's names of "text" and "pair", where it has a header

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Iterable[int]) -> Examples:
        """The examples at these indices, in that order, without counts of what was skipped."""
        chosen = [int(index) for index in indices]
        pairs = None if self.pairs is None else [self.pairs[index] for index in chosen]
        labels = None if self.labels is None else [self.labels[index] for index in chosen]
        texts, places = ([of[index] for index in chosen] for of in (self.texts, self.places))
        return Examples(texts, pairs, labels, places, columns=self.columns)


class _Usual(str):
    """The name of a column that nobody named; a task's files may have another."""


@dataclass(frozen=True)
class Columns:
    """Names of columns, or keys of JSON objects and Parquet structs; dots descend.

    A tsv or csv without a header has columns "1", "2", "3".
    """

    text: str = _Usual("text")
    label: str = _Usual("label")
    pair: str | None = None  # the second text, if examples are pairs: a hypothesis, an answer
    header: bool = True  # whether the first row of a tsv or csv names the columns
    negative: str | None = None  # a third text, which does not belong to the first one as the second does
    label_separator: str | None = None  # what separates a text's labels, if one string holds several
    encoding: str = "utf-8"  # of the file's text; Parquet names its own

    def __post_init__(self) -> None:
        if self.label_separator == "":
            raise ConfigError("the labels' separator is empty; name what stands between them: --label-separator ';'")

    def over(self, usual: Columns) -> Columns:
        """These, but for what nobody named, which is as in `usual`."""
        unnamed = [name for name, value in vars(self).items() if value is None or isinstance(value, _Usual)]
        return replace(self, **{name: getattr(usual, name) for name in unnamed})

    def needed(self, *, labelled: bool) -> dict[str, str]:
        """The names to read, by role. Raises ConfigError if two are the same, and for a name if there is no header."""
        names = {role: name for role in ("text", "pair", "negative") if (name := getattr(self, role))}
        names |= {"label": self.label} if labelled else {}
        role_of: dict[str, str] = {}
        for role, name in reversed(names.items()):
            if (other := role_of.setdefault(name, role)) != role:
                raise ConfigError(f"the columns of {other} and {role} are both '{name}'; each needs its own")
        wrong = [role for role, name in names.items() if not self.header and not (name.isdecimal() and int(name) > 0)]
        if wrong:
            options = ", ".join(f"--{role}-column is '{names[role]}'" for role in wrong)
            raise ConfigError(f"without a header columns are numbers from 1, such as --text-column 2, and {options}")
        return names


def label_text(label: str) -> str:
    """A label, or a type of entity, as it is compared: in NFC (UAX #15), without blanks and zero-width characters around it."""
    return unicodedata.normalize("NFC", _AROUND.sub("", label))


def label_fault(label: Any) -> Fault:
    """Why a value is not the label of a text: one string or number."""
    if isinstance(label, float) and label != label:
        return "no_label", "the label is NaN: missing, or not a number."
    if _is_missing(label_text(label) if isinstance(label, str) else label):
        return "no_label", "the label is missing."
    if not isinstance(label, (str, int, float)):
        one = "an example has one label, a string or a number (lists: --task multilabel)"
        return "no_label", f"the label is {show(label)}; {one}."
    return find_fault(label) if isinstance(label, str) else None


def example_fault(values: Mapping[str, Any], label_fault: Callable[[Any], Fault] = label_fault) -> Fault:
    """Why an example cannot be used: `values` are its "text" and, if present, "pair" and "label"."""
    fault = text_fault(values["text"], "text")
    if fault is None and "pair" in values:
        fault = text_fault(values["pair"], "second text")
    return label_fault(values["label"]) if fault is None and "label" in values else fault


def label_set_fault(label: Any) -> Fault:
    """Why a value is not a list of a text's labels, perhaps empty."""
    if not isinstance(label, list | tuple):
        return "no_label", (
            f'the label is {show(label)}; a list is expected, such as ["a", "b"] or []. Where it is one string say what '
            "separates the labels: --label-separator ';' (Columns(label_separator=';') in Python)."
        )
    fault = next((fault for one in label if (fault := label_fault(one)) is not None), None)
    return None if fault is None else (fault[0], f"of its labels {show(label)}: {fault[1]}")


Check = Callable[[Mapping[str, Any]], Fault]
Adapt = Callable[[dict[str, Any]], dict[str, Any]]  # a file's row, with the columns to read; raises UnusableRecord


def _as_it_is(values: dict[str, Any]) -> dict[str, Any]:
    return values


def _separated(columns: Columns, adapt: Adapt) -> Adapt:
    """`adapt`, and a label that is a string of several becomes their list."""

    def separated(values: dict[str, Any]) -> dict[str, Any]:
        values = adapt(values)
        try:
            label = find_value(values, columns.label)
        except UnusableRecord:  # reported when the columns are read
            return values
        if not isinstance(label, str | None):
            return values
        labels = [label_text(one) for one in (label or "").split(columns.label_separator)]
        return {**values, columns.label: labels if label and label.strip() else []}

    return separated


def text_fault(text: Any, role: str) -> Fault:
    if _is_missing(text):
        return "empty", f"the {role} is empty."
    if not isinstance(text, str):
        return "not_text", f"the {role} is {show(text)}, not a string; correct it, or name another column (--text-column …)."
    if len(text) * 4 > MAX_DOCUMENT_BYTES and len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        return "too_large", f"the {role} is longer than {MAX_DOCUMENT_BYTES >> 20} MiB; is the file read in the right format?"
    return find_fault(text)


def _is_missing(value: Any) -> bool:
    """Whether it is None, NaN or a blank string."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, float) and value != value)


def read_examples(
    path: str | os.PathLike[str],
    columns: Columns = Columns(),
    *,
    labelled: bool = True,
    on_error: OnError = "stop",
    format: RowFormat | Literal["auto"] = "auto",
    fault: Check | None = None,
    adapt: Adapt = _as_it_is,
    wording: Wording = WORDING,
) -> Examples:
    """The examples of a file, a folder or a glob, in order.

    Raises DataError, with its place, for an unusable row; with on_error "skip" such rows are counted in `skipped` instead:
    "empty" without text, "no_label", "not_text", and the corpus' own reasons. A column missing from a tsv, csv or Parquet file
    is an error either way, and so is a file without usable rows.
    """
    faults = new_faults(on_error, wording=wording)
    if columns.label_separator is not None:
        adapt = _separated(columns, adapt)
        fault = fault or partial(example_fault, label_fault=label_set_fault)
    fault = fault or example_fault
    cells = _read_cells(path, columns, format, faults, adapt, labelled=labelled)
    names = {"text": columns.text} | ({"pair": columns.pair} if columns.pair else {})
    return replace(_gather(cells, faults, fault, os.fspath(path)), columns=names if columns.header else {})


class TextRow(NamedTuple):
    """A row to classify: the whole row, and the text (or two) in it."""

    record: Row
    text: str
    pair: Any  # None: a single text


def read_texts(
    path: str | os.PathLike[str],
    columns: Columns = Columns(),
    *,
    on_error: OnError = "stop",
    format: RowFormat | Literal["auto"] = "auto",
    skipped: Counter[str],
    fault: Check = example_fault,
    adapt: Adapt = _as_it_is,
) -> Iterator[TextRow]:
    """The rows of a file in order, one at a time. Raises, or counts in `skipped`, like `read_examples`."""
    faults, empty = new_faults(on_error), True
    faults.skipped = skipped
    for record, cells in _read_cells(path, columns, format, faults, adapt, labelled=False):
        if (wrong := fault(cells)) is None:
            empty = False
            yield TextRow(record, cells["text"], cells.get("pair"))
        else:
            faults.add(*wrong, record.place)
    if empty:
        raise _no_examples(faults, os.fspath(path))


def examples_of(
    data: Any,
    *,
    labelled: bool = True,
    columns: Columns | None = None,
    on_error: OnError = "stop",
    fault: Check = example_fault,
    negatives: bool = False,
) -> Examples:
    """Examples from existing ones; from a path, like `read_examples`; from a list of (text, label) or (text, pair, label) or,
    without labels, of strings or (text, pair) or, with `negatives`, (text, pair, negative); or from columns by name,
    {"text": […], "label": […]}, with a "pair" if there is one, unless `columns` says otherwise. Places are "example 3", counted
    from 0. Raises like `read_examples`, and DataError for lists of different shapes.
    """
    if isinstance(data, Examples):
        return _checked(data, fault)
    if isinstance(data, (str, os.PathLike)):
        return read_examples(data, columns or Columns(), labelled=labelled, on_error=on_error, fault=fault)
    if is_table_of_columns(data):
        rows = _rows_of_columns(data, columns, labelled=labelled)
    elif columns is not None:
        raise ConfigError("columns are named for files and mappings; a list has its parts in order: (text, label)")
    elif not isinstance(data, Iterable):
        raise DataError(f"{_FORMS}, not {type(data).__name__}.")
    else:
        rows = _rows_of_tuples(list(data), ("label",) if labelled else (), ("negative",) if negatives else ())
    records = ((Row(row, f"example {index}"), row) for index, row in enumerate(rows))
    return _gather(records, new_faults(on_error), fault, "the examples")


def is_table_of_columns(data: Any) -> bool:
    """Whether it is columns by name: a mapping or a pandas DataFrame, which is none."""
    return isinstance(data, Mapping) or (hasattr(data, "keys") and hasattr(data, "columns"))


def _checked(examples: Examples, check: Check) -> Examples:
    """The examples, if each is of use to the task whose `check` it is. Raises DataError."""
    parts = {"text": examples.texts, "pair": examples.pairs, "label": examples.labels}
    roles = {role: values for role, values in parts.items() if values is not None}
    for place, *values in zip(examples.places, *roles.values(), strict=True):
        if (fault := check(dict(zip(roles, values, strict=True)))) is not None:
            raise DataError(fault[1], location=place)
    return examples


def _gather(rows: Iterable[tuple[Row, dict[str, Any]]], faults: Faults, check: Check, name: str) -> Examples:
    """Examples from values by role, all with the same roles. Raises DataError, naming `name`, if none is left."""
    columns: dict[str, list[Any]] = {"text": []}
    places: list[str] = []
    for record, row in rows:
        values = {role: _plain(value) for role, value in row.items()}
        fault = check(values)
        if isinstance(values.get("label"), str):
            values["label"] = label_text(values["label"])
        if fault is not None:
            faults.add(*fault, record.place)
            continue
        places.append(record.place)
        for role, value in values.items():
            columns.setdefault(role, []).append(value)
    if not places:
        raise _no_examples(faults, name)
    return Examples(columns["text"], columns.get("pair"), columns.get("label", columns.get("negative")), places, faults.skipped)


def _plain(value: Any) -> Any:
    """A value as JSON has it: of NumPy's, as data frames have them, and of decimals."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return float(value) if isinstance(value, Decimal) else value


def _no_examples(faults: Faults, name: str) -> DataError:
    reasons = ", ".join(f"{reason} {count}" for reason, count in faults.skipped.most_common())
    message = "it has no examples: the file is empty, or a header without rows."
    if reasons:
        message = (
            f"no example is left; left out were: {reasons}. Read it with --on-error stop "
            '(on_error="stop" in Python) to see the first.'
        )
    return DataError(message, location=name)


def _rows_of_columns(data: Any, columns: Columns | None, *, labelled: bool) -> Iterable[dict[str, Any]]:
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
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _rows_of_tuples(data: Sequence[Any], label: tuple[str, ...], more: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    rows = [(row,) if isinstance(row, str) or not isinstance(row, Sequence) else tuple(row) for row in data]
    roles = {len(names): names for names in (("text", *label), ("text", "pair", *label), ("text", "pair", *label, *more))}
    form = " or ".join(f"({', '.join(names)})" if len(names) > 1 else "a text" for names in roles.values())
    for index, row in enumerate(rows):
        if len(row) not in roles:
            raise DataError(f"it is {show(data[index])}; expected is {form}.", location=f"example {index}")
        if len(row) != len(rows[0]):
            raise DataError(
                f"it has {len(row)} parts and example 0 has {len(rows[0])}; all are pairs or none.", location=f"example {index}"
            )
    return [dict(zip(roles[len(row)], row, strict=True)) for row in rows]


# -- columns of files -----------------------------------------------------------------------------------------------------


def _read_cells(
    path: str | os.PathLike[str],
    columns: Columns,
    format: RowFormat | Literal["auto"],
    faults: Faults,
    adapt: Adapt,
    *,
    labelled: bool,
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each record with the values of the named columns, by role."""
    names = columns.needed(labelled=labelled)
    for file in find_record_files(path, format):
        checked = file.format in ("jsonl", "squad")  # whose records may differ
        record, rows = None, 0
        numbered = {role: list[int]() for role, name in names.items() if name in _UNCHOSEN or not columns.header}
        how = {"header": columns.header, "encoding": columns.encoding, "wording": faults.wording}
        for record in read_file(file, on_error=faults.on_error, skipped=faults.skipped, **how):
            try:
                values = adapt(record.values)
                if not checked:
                    _check_columns(record._replace(values=values), file, names, header=columns.header)
                    checked = True
                cells = {
                    role: values[name] if name in values else find_value(values, name, _advice(role))
                    for role, name in names.items()
                }
            except UnusableRecord as fault:
                faults.add(fault.reason, fault.message, record.place)
            else:
                rows += 1
                for role in [role for role, numbers in numbered.items() if not _numbers_row(role, cells[role], numbers)]:
                    del numbered[role]
                if rows == _MANY_ROWS:  # before later rows are used
                    _check_numbered([role for role in numbered if role != "label"], names, record)
                yield record, cells
        if record is not None:
            in_order = [role for role, of in numbered.items() if of == sorted(of) and len(of) >= _FEW_ROWS]
            _check_numbered([role for role in in_order if role != "label" or rows >= _MANY_ROWS], names, record)


def _numbers_row(role: str, value: Any, before: list[int]) -> bool:
    """Whether the value may number a row after those of `before`, which it joins: texts by different numbers, labels by all
    of them from 0 or 1."""
    digits = str(value) if type(value) is int else value.strip() if isinstance(value, str) else ""
    number = int(digits) if digits.isdecimal() and len(digits) < 19 else -1
    follows = number not in before if role != "label" else number in ((before[-1] + 1,) if before else (0, 1))
    before.append(number)
    return number >= 0 and follows


def _check_numbered(roles: list[str], names: dict[str, str], record: Row) -> None:
    """Raise DataError for a column of row numbers; `record` is the last of the rows that were read."""
    if not roles:
        return
    role = roles[0]
    cells = shorten(", ".join(f"'{name}' {show(value)}" for name, value in record.values.items()), 200, quoted=False)
    raise DataError(
        f"the column '{names[role]}' of the {role} numbers the rows. The columns, and this row: {cells}. {_advice(role)} "
        f"If the {role} is such numbers, rename the column, and name it so.",
        location=record.place,
    )


def _check_columns(record: Row, file: RecordFile, names: dict[str, str], *, header: bool) -> None:
    """Raise DataError if the first record of a file whose records are all alike lacks one of the columns."""
    known = list(record.values)
    for role, name in names.items():
        if name in known or (header and name.split(".")[0] in known):
            continue
        if not header:
            cells = ", ".join(f"{number} {shorten(text, 20)}" for number, text in record.values.items())
            raise DataError(f"there is no column {name} for the {role}. The first row: {cells}.", location=file.path)
        message = missing_column(known, name, role)
        if file.format in ("csv", "tsv"):
            message += separator_advice(known, file.format, WORDING)
            if any(map(_looks_like_data, known)):
                message += (
                    " The first row must be the header, and this one looks like data: put a line with the names in front, or "
                    "give --no-header (Columns(header=False) in Python) and columns by number, from 1."
                )
        raise DataError(message, location=file.path)


def missing_column(columns: Sequence[str], name: str, role: str) -> str:
    listed = shorten(", ".join(repr(column) for column in columns), 200, quoted=False)
    return f"there is no column '{name}'.{suggest(name, columns)} The columns: {listed}. {_advice(role)}"


def _advice(role: str) -> str:
    return (
        f"Name the column of the {role} with --{role}-column (Columns({role}=…) in Python), that of dev or test alone with "
        f"--dev-column {role}=… or --test-column."
    )


def _looks_like_data(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return len(name) > _LONG
