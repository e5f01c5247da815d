"""The reader of each format, behind one door."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpulm.config import SourceConfig
from tpulm.corpus.bytestream import ByteStream
from tpulm.corpus.codec import find_codec
from tpulm.corpus.faults import Faults
from tpulm.corpus.hub_reader import read_hub
from tpulm.corpus.jsonl import read_jsonl
from tpulm.corpus.lines import read_lines
from tpulm.corpus.parquet import read_parquet
from tpulm.corpus.python_text import list_python_files, read_python_text
from tpulm.corpus.records import Batch
from tpulm.corpus.sources import InputFile
from tpulm.corpus.tables import read_table
from tpulm.corpus.text import read_text
from tpulm.corpus.tfds_reader import read_tfds
from tpulm.corpus.wikipedia import read_wikipedia


def _nothing(amount: float) -> None:
    pass


def open_file(file: InputFile, faults: Faults, advance: Callable[[float], None] = _nothing) -> ByteStream:
    return ByteStream(file.path, file.compression, faults, advance, offset=file.offset, length=file.length)


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
    lines = read_lines(stream, find_codec(file.encoding), faults)
    match file.format:
        case "text":
            return read_text(lines, source.documents, stream, faults)
        case "jsonl":
            return read_jsonl(lines, source.text_field, faults)
        case "csv" | "tsv":
            return read_table(lines, file.format, source.text_field, faults)
