"""Which columns hold the text, the second text of a pair and the label; and what to say where one is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tpulm.corpus.readers.jsonl import find_value
from tpulm.corpus.readers.tables import separator_advice
from tpulm.errors import ConfigError, DataError, shorten, suggest
from tpulm.labelled.records import WORDING, Record, RecordFile

_LONG: Final = 40  # characters; few names of columns are longer


@dataclass(frozen=True)
class Columns:
    """Names of columns, or keys of JSON objects and Parquet structs, whose dots descend. ConfigError where two are the same.

    A tsv or csv without a header has columns "1", "2", "3".
    """

    text: str = "text"
    label: str = "label"
    pair: str | None = None  # the second text, where examples are pairs: a hypothesis, an answer
    header: bool = True  # whether the first row of a tsv or csv names the columns

    def __post_init__(self) -> None:
        named = [(role, name) for role, name in (("text", self.text), ("label", self.label), ("pair", self.pair)) if name]
        for role, name in named:
            for other, same in named:
                if role < other and name == same:
                    raise ConfigError(f"the columns of {role} and {other} are both '{name}'; each has one of its own")

    def needed(self, *, labelled: bool) -> dict[str, str]:
        """What is to be read: the names by role. Raises ConfigError for a name where there is no header."""
        names = {"text": self.text} | ({"pair": self.pair} if self.pair else {})
        names |= {"label": self.label} if labelled else {}
        wrong = [role for role, name in names.items() if not self.header and not (name.isdecimal() and int(name) > 0)]
        if wrong:
            given = ", ".join(f"--{role}-column is '{names[role]}'" for role in wrong)
            raise ConfigError(f"without a header columns are numbers from 1, such as --text-column 2, and {given}")
        return names


def cell(record: Record, name: str, role: str) -> Any:
    """What a record has in a column. Raises UnusableRecord for a record without it."""
    values = record.values
    return values[name] if name in values else find_value(values, name, _advice(role))


def check_columns(record: Record, file: RecordFile, names: dict[str, str], *, header: bool) -> None:
    """Raises DataError where the first record of a file whose rows are all alike lacks one of the columns."""
    if file.format == "jsonl":
        return
    for role, name in names.items():
        if not header and name not in record.values:
            cells = ", ".join(f"{number} {shorten(text, 20)}" for number, text in record.values.items())
            raise DataError(f"there is no column {name} for the {role}. The first row: {cells}.", location=file.path)
        if name not in record.values and name.split(".")[0] not in record.values:
            raise DataError(_missing(list(record.values), name, role, file), location=file.path)


def missing_column(columns: Sequence[str], name: str, role: str) -> str:
    """Says that there is no such column, which there are, and how to name one."""
    listed = shorten(", ".join(repr(column) for column in columns), 200, quoted=False)
    return f"there is no column '{name}'.{suggest(name, columns)} The columns: {listed}. {_advice(role)}"


def _missing(columns: list[str], name: str, role: str, file: RecordFile) -> str:
    message = missing_column(columns, name, role)
    if file.format not in ("csv", "tsv"):
        return message
    header = ""
    if any(map(_looks_like_data, columns)):
        header = (
            " The first row must be the header, and this one looks like data: put a line with the names in front, or give "
            "--no-header (Columns(header=False) in Python) and columns by number, from 1."
        )
    return f"{message}{separator_advice(columns, file.format, WORDING)}{header}"


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
