"""The reader of each format, behind one door."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpulm.config import SourceConfig
from tpulm.corpus.documents import Batch, Faults
from tpulm.corpus.readers.hub import read_hub
from tpulm.corpus.readers.jsonl import read_jsonl
from tpulm.corpus.readers.lines import ByteStream, InputFile, read_lines
from tpulm.corpus.readers.parquet import read_parquet
from tpulm.corpus.readers.python_text import list_python_files, read_python_text
from tpulm.corpus.readers.tables import read_table
from tpulm.corpus.readers.text import read_text
from tpulm.corpus.readers.tfds import read_tfds
from tpulm.corpus.readers.wikipedia import read_wikipedia


def _nothing(amount: float) -> None:
    pass


def read_documents(
    file: InputFile, source: SourceConfig, stream: ByteStream, faults: Faults, advance: Callable[[float], None] = _nothing
) -> Iterator[Batch]:
    """The documents of a file in order, in batches of about a megabyte. Unusable records go to `faults`."""
    if file.format == "python":
        return read_python_text(list_python_files(), faults, advance)
    if file.format == "parquet":
        return read_parquet(stream, source.text_field, faults)
    if file.format == "wikipedia":
        return read_wikipedia(stream, faults)
    if file.format == "tfds":
        return read_tfds(stream, source, faults)
    if file.format == "hub":
        return read_hub(file, source, stream, faults, advance)
    lines = read_lines(stream, file.encoding, faults)
    match file.format:
        case "text":
            return read_text(lines, source.documents, stream, faults)
        case "jsonl":
            return read_jsonl(lines, source.text_field, faults)
        case "csv" | "tsv":
            return read_table(lines, file.format, source.text_field, faults)
