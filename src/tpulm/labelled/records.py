"""Files of rows as records, with all columns and their place; and rows written back with predictions.

Formats, compressions, refusals and reading are the corpus'; text is UTF-8 unless another encoding is named.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO, cast, get_args

from tpulm import storage
from tpulm.corpus.documents import UNDECODABLE, Faults, Wording, find_fault
from tpulm.corpus.paths import find_paths
from tpulm.corpus.readers.jsonl import parse_lines, read_values, show
from tpulm.corpus.readers.lines import ByteStream, Compression, Lines, decoded, find_codec, read_lines, suffixes
from tpulm.corpus.readers.parquet import not_utf8, read_batches, values_of
from tpulm.corpus.readers.tables import read_rows
from tpulm.corpus.sources import FORMATS, refuse_unread
from tpulm.errors import ConfigError, DataError, suggest
from tpulm.storage.paths import printable

if TYPE_CHECKING:
    import pyarrow as pa

OnError = Literal["stop", "skip"]
RowFormat = Literal["tsv", "csv", "jsonl", "parquet", "squad"]
WORDING: Final = Wording(
    skip='--on-error skip (on_error="skip" in Python)',
    format='--format {0} (format="{0}" in Python)',
    encoding='give --encoding {0} (Columns(encoding="{0}") in Python)',
    some_encoding='give --encoding (Columns(encoding="…") in Python) if that is what it is',
)
BENCH_WORDING: Final = WORDING._replace(  # of `tpulm bench`, which has neither --on-error nor --format
    skip="",
    format="end its name in .{}",
    encoding='give --encoding {0} (encoding="{0}" in Python)',
    some_encoding='give --encoding (encoding="…" in Python) if that is what it is',
)
_WRITTEN: Final = (".jsonl", ".csv", ".tsv")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # half of a pair, which a jsonl can name and UTF-8 cannot hold
_BOM: Final = rb"(\xef\xbb\xbf|\xff\xfe|\xfe\xff)"
_MARK: Final = _BOM + rb"?\s*"
_ROW_FORMATS: Final[tuple[RowFormat, ...]] = get_args(RowFormat)
# How the single object of SQuAD's files begins: articles under "data", perhaps after a version.
_SQUAD: Final = re.compile(_MARK + rb"""\{\s*("\w+"\s*:\s*("[^"]*"|[\w.+-]+|\{[^{}]*\})\s*,\s*)*"data"\s*:\s*\[""")


class Row(NamedTuple):
    """One row. tsv and csv hold strings, jsonl and Parquet any values."""

    values: dict[str, Any]  # by column, in the file's order
    place: str  # "reviews.tsv.gz, line 7"; rows of Parquet and items of a JSON array are counted from 0


class RecordFile(NamedTuple):
    """One file of rows, and how to read it."""

    path: str
    format: RowFormat
    compression: Compression | None


def find_record_files(path: str | os.PathLike[str], format: RowFormat | Literal["auto"] = "auto") -> list[RecordFile]:
    """A file, or the files of a folder or glob in the order of their names.

    Raises ConfigError if there is none, or if a name does not say its format.
    """
    if format != "auto" and format not in _ROW_FORMATS:
        raise ConfigError(
            f"format '{format}' is not known.{suggest(format, _ROW_FORMATS)} Known: auto, {', '.join(_ROW_FORMATS)}"
        )
    return [record_file(found, format) for found in find_paths(os.fspath(path))]


def record_file(path: str, format: RowFormat | Literal["auto"] = "auto", wording: Wording = WORDING) -> RecordFile:
    """How to read one file. Raises ConfigError if its name does not say its format."""
    suffix, compression = suffixes(path)
    form = FORMATS.get(suffix) if format == "auto" else format
    if format == "auto" and suffix == ".json" and _SQUAD.match(_beginning(path, compression)):
        form = "squad"
    if form not in _ROW_FORMATS:
        refuse_unread(printable(path))
        known = ", ".join(name for name, kind in FORMATS.items() if kind in _ROW_FORMATS)
        option = "" if wording is BENCH_WORDING else f", or name its format: {wording.format.format('tsv')}"
        raise ConfigError(
            f"{path}: labelled text is rows of tsv, csv, jsonl or Parquet, and the suffix '{suffix}' says none of them. Give "
            f"the file a name that ends in one of {known} (.gz, .bz2, .xz or .zst may follow){option}."
        )
    form = cast("RowFormat", form)
    if form == "parquet" and compression:
        raise ConfigError(f"{path}: Parquet compresses by itself and is not read through {compression}; decompress it first")
    return RecordFile(path, form, compression)


def _beginning(path: str, compression: Compression | None) -> bytes:
    """Without NUL, so that ASCII characters of UTF-16 are those of other encodings; nothing of a broken file."""
    return next(ByteStream(path, compression, new_faults("skip")).pieces(), b"").replace(b"\0", b"")


def read_file(
    file: RecordFile,
    *,
    on_error: OnError,
    skipped: Counter[str],
    header: bool = True,
    encoding: str = "utf-8",
    wording: Wording = WORDING,
) -> Iterator[Row]:
    """The rows of a file, local or gs://, one at a time; those of a tsv, csv or Parquet file have the same columns, without a
    header "1", "2", …

    An invalid row raises DataError with its place or, with on_error "skip", is skipped and counted in `skipped` by reason; but
    an unclosed quote in a csv, which would swallow all later rows, always raises. Blank lines are always counted as "empty".
    """
    if not header and file.format not in ("csv", "tsv"):
        raise ConfigError(f"{file.path} is {file.format}, which names its columns itself: --no-header is for tsv and csv")
    codec = find_codec(encoding)
    faults = new_faults(on_error, printable(file.path), wording)
    faults.skipped = skipped
    stream = ByteStream(file.path, file.compression, faults)
    match file.format:
        case "parquet":
            return _parquet_records(stream, faults)
        case "jsonl":
            return _json_records(stream, codec, faults)
        case "squad":
            return _squad_records(stream, codec, faults)
        case "csv" | "tsv":
            return _table_records(read_lines(stream, codec, faults), file.format, faults, header=header)


def new_faults(on_error: OnError, name: str = "", wording: Wording = WORDING) -> Faults:
    """Raises ConfigError for an unknown `on_error`."""
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error is 'stop' or 'skip', not '{on_error}'")
    return Faults(on_error, name, wording)


def _table_records(lines: Iterator[Lines], kind: Literal["csv", "tsv"], faults: Faults, *, header: bool) -> Iterator[Row]:
    rows = read_rows(lines, kind, faults, header=header)
    first = next(rows, None)
    if first is None:
        return
    location = f"{faults.name}, line {first[0]}"
    if header and (fault := find_fault("".join(first[1]))):
        raise DataError(f"the header cannot be read: {fault[1]}", location=location)
    if header:
        names = [name or f"column {number}" for number, name in enumerate(first[1], 1)]  # as in "text,label,,"
        option = "" if faults.wording is BENCH_WORDING else ", or give --no-header"
        _check_names(names, location, f". If this is a row of data, put a header in front of it{option}.")
    else:
        names = [str(number) for number in range(1, len(first[1]) + 1)]
        rows = chain([first], rows)
    for number, cells in rows:
        # With on_error "stop" the reading of lines has raised for these.
        if not faults.stops and (fault := find_fault("\t".join(cells))):
            faults.add(*fault, f"line {number}")
        else:
            yield Row(dict(zip(names, cells, strict=True)), f"{faults.name}, line {number}")


def _json_records(stream: ByteStream, codec: str, faults: Faults) -> Iterator[Row]:
    for lines in read_values(stream, codec, faults):
        for number, _, value in parse_lines(lines, faults):
            place = f"{lines.unit} {number}"
            if not isinstance(value, dict):
                faults.add("no_field", f'the record is {show(value)}, not an object such as {{"text": "…"}}.', place)
            elif lines.suspect and UNDECODABLE in json.dumps(value, ensure_ascii=False):
                faults.add("undecodable", "bytes that do not decode.", place)
            else:
                yield Row(value, f"{faults.name}, {place}")


def _squad_records(stream: ByteStream, codec: str, faults: Faults) -> Iterator[Row]:
    """A record for each question of one JSON object, as in SQuAD, JSQuAD, KorQuAD and KLUE-MRC (whose ids are "guid").

    In KorQuAD 2.0 paragraphs are articles, and have one "answer". A question that "is_impossible" has no answers.
    """
    try:
        text = "".join(decoded(stream, codec, new_faults("stop", faults.name, faults.wording)))
        articles = storage.parse_json(text, strict=False, once=True)["data"]
        paragraphs = [paragraph for article in articles for paragraph in article.get("paragraphs", [article])]
        questions = [(paragraph["context"], dict(one)) for paragraph in paragraphs for one in paragraph["qas"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        form = '{"data": [{"paragraphs": [{"context": "…", "qas": [{"question": "…"}]}]}]}'
        raise DataError(
            f"it is not as SQuAD's files are, {form}: {error!r}. Rows go without an object around them (jq -c '.data[]')",
            location=faults.name,
        ) from error
    for number, (context, one) in enumerate(questions, 1):
        name = one.get("id", one.get("guid"))
        values: dict[str, Any] = {"id": name, "question": one.get("question"), "context": context}
        answers = [] if one.get("is_impossible") else one.get("answers", one.get("answer"))
        if answers is not None:
            values["answers"] = answers
        yield Row(values, f"{faults.name}, question {number}" if name is None else f"{faults.name}, id {name}")


def _parquet_records(stream: ByteStream, faults: Faults) -> Iterator[Row]:
    names, classes = list[str](), dict[str, Any]()

    def choose(schema: pa.Schema) -> None:
        names.extend(schema.names)
        for level in _levels(list(schema)):
            _check_names(level, faults.name)
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features") or {}
        classes.update({name: feature for name, feature in features.items() if "ClassLabel" in json.dumps(feature)})

    for first, rows in read_batches(stream, choose, faults):
        columns = [
            [_named(value, classes.get(name)) for value in values_of(column)]
            for name, column in zip(names, rows.columns, strict=True)
        ]
        for number, cells in enumerate(zip(*columns, strict=True), first):
            values = dict(zip(names, cells, strict=True))
            bad = next((name for name, value in values.items() if isinstance(value, UnicodeDecodeError)), None)
            if bad is None:
                yield Row(values, f"{faults.name}, row {number}")
            else:
                faults.add("undecodable", not_utf8(bad, values[bad]), f"row {number}")


def _levels(fields: list[pa.Field[Any]]) -> Iterator[list[str]]:
    """The names of columns, and then of the fields of each."""
    yield [field.name for field in fields]
    for field in fields:
        yield from _levels([field.type.field(number) for number in range(field.type.num_fields)])


def _named(value: Any, feature: Any) -> Any:
    """A value with names in place of the numbers of a ClassLabel, as `datasets` describes a feature: {"_type": "ClassLabel",
    "names": […]}, within {"feature": …} or […] for a list. Other numbers stay, such as -1 for no label."""
    if isinstance(feature, list):
        feature = {"feature": feature[0]}
    if not isinstance(feature, dict):
        return value
    inner = feature.get("feature", feature)
    if isinstance(value, list):
        return [_named(one, inner) for one in value]
    if isinstance(value, dict):
        return {name: _named(one, inner.get(name)) for name, one in value.items()}
    names = feature.get("names") or []
    return names[value] if type(value) is int and 0 <= value < len(names) else value


def _check_names(names: list[str], location: str, advice: str = "") -> None:
    """Raise DataError if two columns have the same name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{names.count(twice)} columns are named '{twice}'; rename all but one{advice}", location=location)


def _with_null(value: Any) -> Any:
    """The value with None for NaN and infinities, which JSON lacks (RFC 8259, section 6)."""
    if isinstance(value, Mapping):
        return {key: _with_null(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_null(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RowWriter:
    """Writes rows of one set of columns as jsonl, csv or tsv."""

    def __init__(self, stream: TextIO, form: str, *, header: bool = True):
        self._stream, self._form, self._header = stream, form, header
        self._columns: list[str] | None = None

    def write(self, values: Mapping[str, Any], place: str) -> None:
        """Write a row. Raises DataError for a value that a csv or tsv cannot hold, and for other columns than before."""
        if self._form == ".jsonl":
            values = _with_null(values)
            line = json.dumps(values, ensure_ascii=False, default=str)
            self._stream.write((json.dumps(values, default=str) if _SURROGATE.search(line) else line) + "\n")
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
        bad = next(filter(_SURROGATE.search, cells), None)
        if bad is not None:
            message = f"{bad[:60]!r} holds half of a surrogate pair, which no {self._form[1:]} can; write to a .jsonl"
            raise DataError(message, location=place)
        if self._form == ".csv":
            line = io.StringIO()
            csv.writer(line).writerow(cells)  # quotes each character of its line end, "\r\n", and no other
            self._stream.write(line.getvalue().removesuffix("\r\n") + "\n")
            return
        bad = next((cell for cell in cells if "\t" in cell or "\n" in cell or "\r" in cell), None)
        if bad is not None:
            raise DataError(f"{bad[:60]!r} holds a tab or a line end, as no tsv can; write to a .csv or .jsonl", location=place)
        self._stream.write("\t".join(cells) + "\n")


def check_form(path: PurePath) -> str:
    """The format by the file's name. Raises ConfigError unless that is jsonl, csv or tsv (.gz may follow)."""
    name = path.name.removesuffix(".gz")
    form = next((suffix for suffix in _WRITTEN if name.endswith(suffix)), None)
    if form is None:
        raise ConfigError(f"{path}: results are written as {', '.join(_WRITTEN)} (.gz may follow); name the file so")
    return form


@contextmanager
def writing_rows(
    path: PurePath, *, header: bool = True, like: PurePath | None = None, encoding: str = "utf-8"
) -> Iterator[RowWriter]:
    """A writer for a file that takes its place when the block succeeds, and not after an error. A csv or tsv begins with a
    byte-order mark, from which Excel knows UTF-8, if the files of `like` do, or are in another `encoding`."""
    form = check_form(path)
    read = [] if like is None else find_paths(str(like))
    marked = find_codec(encoding) != "utf-8" or any(re.match(_BOM, _beginning(name, suffixes(name)[1])) for name in read)
    with storage.built_aside(path) as temporary, storage.explain("write", path):
        open_text = gzip.open if path.name.endswith(".gz") else open
        with open_text(temporary, "wt", encoding="utf-8-sig" if marked and form != ".jsonl" else "utf-8", newline="") as stream:
            yield RowWriter(cast("TextIO", stream), form, header=header)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
