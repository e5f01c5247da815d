"""Parquet: one document per row, in the string column `text_field`; dots descend into structs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from tpulm import storage
from tpulm.corpus.documents import MAX_DOCUMENT_BYTES, Batcher, DocumentBatch, Faults
from tpulm.corpus.readers.lines import ByteStream, Input
from tpulm.errors import DataError, suggest

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 1024  # decoded at once, at most
_DECODED_BYTES: Final = 8 << 20  # decoded at once, about, if rows are long
_LARGEST_PAGE: Final = 64 << 20  # decompressed
_LARGE_PAGE: Final = 16 << 20  # with larger ones, one row at a time
_HEADER_BYTES: Final = 64 << 10
_DICTIONARY, _DELTA_BYTE_ARRAY = 2, 7  # a page type and an encoding whose values may each be used many times


def read_parquet(given: Input) -> Iterator[DocumentBatch]:
    """Read a file. Raises DataError if the column is missing or does not hold strings, whatever `on_error` is."""
    text_field, faults = given.source.text_field, given.faults
    path: list[str] = []

    def choose(schema: pa.Schema) -> list[str]:
        path.extend(check_column(schema, text_field, faults))
        return [text_field]

    batcher = Batcher(faults, place=lambda row: f"row {row}")
    for first, rows in read_stretches(given.stream, choose, faults):
        yield from add_texts(rows.column(0), path[1:], first, text_field, batcher, faults)
    yield from batcher.flush()


def add_texts(
    column: Any, within: Sequence[str], first: int, text_field: str, batcher: Batcher, faults: Faults
) -> Iterator[DocumentBatch]:
    """Full batches of the strings of an Arrow column whose first row has number `first`; `within`: the path in its structs."""
    import pyarrow as pa
    import pyarrow.compute as compute  # half a second to import, and few corpora need it

    if within:
        column = compute.call_function("struct_field", [column], compute.StructFieldOptions(list(within)))
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = column.cast(pa.large_string())
    if column.nbytes > MAX_DOCUMENT_BYTES:
        if len(column) == 1:
            faults.add("too_large", f"'{text_field}' is longer than {MAX_DOCUMENT_BYTES >> 20} MiB.", f"row {first}")
            return
        for number in range(len(column)):
            yield from add_texts(column.slice(number, 1), (), first + number, text_field, batcher, faults)
        return
    for number, value in enumerate(values_of(column), first):
        if isinstance(value, str):
            batcher.add(value, number)
        elif value is None:
            faults.add("not_text", f"'{text_field}' is null; leave such rows out of the file.", f"row {number}")
        else:
            faults.add("undecodable", not_utf8(text_field, value), f"row {number}")
    yield from batcher.full()


def read_stretches(
    stream: ByteStream, choose: Callable[[pa.Schema], list[str] | None], faults: Faults
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Up to 1,024 rows at a time, with the number of the first one, from 0. `choose` names the columns to read; None: all.

    Long rows are read fewer at a time, judging by the sizes of the file's pages, since Arrow decodes whole pages.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    row = 0
    stream.exhaust()
    # A local copy, so that a bucket that does not respond is not mistaken for a broken file.
    with storage.local_copy(stream.path) as file_here, storage.open_read(file_here) as source:
        try:
            file = parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
            columns = choose(file.schema_arrow)
            rows_at_once = _rows_at_once(source, file.metadata, columns)
            for rows in file.iter_batches(rows_at_once, columns=columns, use_threads=False):
                yield row, rows
                row += rows.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            faults.add("broken_file", f"not a whole Parquet file ({str(error).strip()}). Copy it again.", f"after row {row}")


class _Page(NamedTuple):
    """The header of a page."""

    kind: int
    bytes: int  # decompressed
    compressed_bytes: int
    values: int
    encoding: int
    header_bytes: int


def _rows_at_once(source: BinaryIO, metadata: Any, columns: list[str] | None) -> int:
    """How many rows take about `_DECODED_BYTES` at worst. Raises ValueError for a page that is too large."""
    row_bytes = once_bytes = largest = 0.0
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            path = chunk.path_in_schema
            if columns is not None and not any(path == name or path.startswith(f"{name}.") for name in columns):
                continue
            for page in _pages(source, chunk):
                largest = max(largest, page.bytes)
                if page.kind == _DICTIONARY or page.encoding == _DELTA_BYTE_ARRAY:
                    once_bytes = max(once_bytes, page.bytes)
                else:
                    row_bytes = max(row_bytes, page.bytes / max(1, page.values))
    if largest > _LARGE_PAGE:
        return 1
    fitting = min(_DECODED_BYTES / max(row_bytes, 1), 8 * _DECODED_BYTES / max(once_bytes, 1), _ROWS)
    return max(1, int(fitting))


def _pages(source: BinaryIO, chunk: Any) -> Iterator[_Page]:
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    end = start + chunk.total_compressed_size
    while start < end:
        source.seek(start)
        page = _page(source.read(_HEADER_BYTES))
        if page.bytes > _LARGEST_PAGE:
            raise ValueError(
                f"column '{chunk.path_in_schema}' has a page of {page.bytes >> 20:,} MiB, and {_LARGEST_PAGE >> 20} are read; "
                "write it with smaller ones, as pyarrow.parquet.write_table(…, write_batch_size=16) does"
            )
        yield page
        start += page.header_bytes + page.compressed_bytes


def _page(data: bytes) -> _Page:
    """Parse the header at the start of `data` (parquet-format, PageHeader, in Thrift's compact protocol)."""
    try:
        fields, size = _struct(data, 0)
        details = next(fields[name] for name in (5, 7, 8) if name in fields)  # of a data page, dictionary page, data page v2
        encoding = details[4 if 8 in fields else 2]
        return _Page(fields[1], fields[2], fields[3], details[1], encoding, size)
    except (IndexError, KeyError, StopIteration, TypeError) as error:
        raise ValueError("the header of a page is broken") from error


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The integer and struct fields, by field number, and where the struct ends; other fields are skipped."""
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        step, kind = divmod(data[at], 16)
        at += 1
        if step:
            number += step
        else:
            number, at = _varint(data, at)
            number = number >> 1 ^ -(number & 1)
        if kind in (4, 5, 6):  # integers
            value, at = _varint(data, at)
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind == 8:  # bytes
            size, at = _varint(data, at)
            at += size
        elif kind == 12:
            fields[number], at = _struct(data, at)
        elif kind == 3:
            at += 1
        elif kind not in (1, 2):  # true, false
            raise ValueError("the header of a page is broken")
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value, at + 1
        at, shift = at + 1, shift + 7


def check_column(schema: pa.Schema, text_field: str, faults: Faults) -> list[str]:
    """The path from a top-level column to the strings. Raises DataError."""
    import pyarrow as pa

    path = [text_field] if text_field in schema.names else text_field.split(".")
    fields: Any = schema
    kind: Any = None
    for name in path:
        names = list(fields.names)
        if name not in names:
            raise DataError(
                f"there is no column '{text_field}'.{suggest(name, names)} The columns: {', '.join(names)}. Set text_field.",
                location=faults.name,
            )
        if names.count(name) > 1:
            raise DataError(f"{names.count(name)} columns are named '{name}'; rename all but one.", location=faults.name)
        kind = fields.field(name).type
        fields = kind if pa.types.is_struct(kind) else pa.schema([])
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
        raise DataError(f"column '{text_field}' holds {kind}, not strings; set text_field.", location=faults.name)
    return path


def values_of(column: Any) -> Iterator[Any]:
    """Each value of an Arrow array; a UnicodeDecodeError in place of one that is not UTF-8, which Arrow does not check."""
    try:
        yield from column.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for value in column:
        try:
            yield value.as_py()
        except UnicodeDecodeError as error:
            yield error


def not_utf8(column: str, error: UnicodeDecodeError) -> str:
    return f"'{column}' is not UTF-8 (byte {error.start} of the text)."
