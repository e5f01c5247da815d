"""Parquet: one document per row, in the string column `text_field`; dots descend into structs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tpulm import storage
from tpulm.corpus.documents import MAX_DOCUMENT_BYTES, Batcher, DocumentBatch, Faults
from tpulm.corpus.readers.lines import ByteStream, Input
from tpulm.errors import DataError, suggest

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 16  # decoded at a time; Arrow decodes whole pages besides


def read_parquet(opened: Input) -> Iterator[DocumentBatch]:
    """Read a file. Raises DataError if the column is missing or does not hold strings, whatever `on_error` is."""
    text_field, faults = opened.source.text_field, opened.faults
    path: list[str] = []

    def choose(schema: pa.Schema) -> list[str]:
        path.extend(check_column(schema, text_field, faults))
        return [text_field]

    batcher = Batcher(faults, place=lambda row: f"row {row}")
    for first, rows in read_batches(opened.stream, choose, faults):
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


def read_batches(
    stream: ByteStream, choose: Callable[[pa.Schema], list[str] | None], faults: Faults
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Up to 16 rows at a time, with the number of the first one, from 0. `choose` names the columns to read; None: all."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    row = 0
    stream.exhaust()
    # A local copy, so that a bucket that does not respond is not mistaken for a broken file.
    with storage.local_copy(stream.path) as file_here, storage.open_read(file_here) as source:
        try:
            file = parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
            for rows in file.iter_batches(_ROWS, columns=choose(file.schema_arrow), use_threads=False):
                yield row, rows
                row += rows.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            why = f"not a whole Parquet file ({str(error).strip()}). Copy it again."
            if "crypt" in str(error):
                why = "it is encrypted, and no keys are known here; write it without encryption."
            faults.add("broken_file", why, f"after row {row}")


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
                f"there is no column '{text_field}'.{suggest(name, names)} The columns: {', '.join(names)}. "
                f"If another has the text, {faults.wording.text_field.format('…')}.",
                location=faults.name,
            )
        if names.count(name) > 1:
            raise DataError(f"{names.count(name)} columns are named '{name}'; rename all but one.", location=faults.name)
        kind = fields.field(name).type
        fields = kind if pa.types.is_struct(kind) else pa.schema([])
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
        raise DataError(
            f"column '{text_field}' holds {kind}, not strings; {faults.wording.text_field.format('…')}.", location=faults.name
        )
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
