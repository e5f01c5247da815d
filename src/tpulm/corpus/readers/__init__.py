"""One module for each corpus format; `READERS` has their readers by name, and `FORMATS` the formats by the suffix of a file.

A reader takes an `Input`, a file that `lines` has opened, decompressed and decoded, and yields batches of documents; what it
cannot use goes to the file's faults. Datasets have a function that finds their files, too: `hub`, `tfds`, `python_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tpulm.config import CORPUS_FORMATS, SourceConfig
from tpulm.corpus.documents import Batcher as Batcher, DocumentBatch as DocumentBatch, Faults
from tpulm.corpus.readers import hub, python_text, tfds
from tpulm.corpus.readers.jsonl import read_jsonl
from tpulm.corpus.readers.lines import ByteStream, Input as Input, InputFile, Lines as Lines
from tpulm.corpus.readers.parquet import read_parquet
from tpulm.corpus.readers.tables import read_table
from tpulm.corpus.readers.text import OpenDocument as OpenDocument, read_text
from tpulm.corpus.readers.wikipedia import read_wikipedia


class Reader(NamedTuple):
    """How the files of one format are found and read."""

    read: Callable[[Input], Iterator[DocumentBatch]]
    settings: frozenset[str] = frozenset({"text_field"})  # source settings that affect the documents
    find: Callable[[SourceConfig, int, bool], list[InputFile]] | None = None  # a dataset's files; None: the files at the path
    suffixes: tuple[str, ...] = ()  # of the names of its files, for format = "auto"


READERS: Final[dict[str, Reader]] = {
    "text": Reader(read_text, frozenset({"documents"}), suffixes=(".txt", ".text", ".md", ".rst", ".raw", ".tokens")),
    "jsonl": Reader(read_jsonl, suffixes=(".jsonl", ".ndjson", ".jl", ".json")),
    "csv": Reader(read_table, suffixes=(".csv",)),
    "tsv": Reader(read_table, suffixes=(".tsv", ".tab")),
    "parquet": Reader(read_parquet, suffixes=(".parquet", ".pq")),
    "wikipedia": Reader(read_wikipedia, frozenset({"templates"})),  # .xml and .xml-p1p1000: `sources` says
    "python": Reader(python_text.read_python_text, frozenset(), python_text.find_text),
    "tfds": Reader(tfds.read_tfds, frozenset({"text_field", "split"}), tfds.find_shards),
    "hub": Reader(hub.read_hub, frozenset({"text_field", "split", "config", "streaming"}), hub.find_data_files),
}
FORMATS: Final[dict[str, str]] = {suffix: name for name, reader in READERS.items() for suffix in reader.suffixes}  # by suffix


def register(
    name: str,
    read: Callable[[Input], Iterator[DocumentBatch]],
    *,
    suffixes: Iterable[str] = (),
    settings: Iterable[str] = ("text_field",),
) -> None:
    """Make `format = name` read files with `read`, and `format = "auto"` too for file names that end in one of `suffixes`.

    `settings` names the source settings that affect the documents; other values make another corpus. `read` must be
    importable: worker processes import it.
    """
    CORPUS_FORMATS.add(name)
    READERS[name] = Reader(read, frozenset(settings), suffixes=tuple(suffixes))
    FORMATS.update(dict.fromkeys(READERS[name].suffixes, name))


def read_documents(
    file: InputFile,
    source: SourceConfig,
    stream: ByteStream,
    faults: Faults,
    advance: Callable[[float], None] = lambda amount: None,
) -> Iterator[DocumentBatch]:
    """The documents of a file in order, in batches of about a megabyte. Unusable records are reported to `faults`."""
    return READERS[file.format].read(Input(file, source, stream, faults, advance))
