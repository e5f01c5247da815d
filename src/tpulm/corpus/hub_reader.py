"""Data files of datasets on the Hub, read by the library `datasets`: a document a row, in the string column `text_field`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tpulm.config import SourceConfig
from tpulm.corpus.bytestream import ByteStream
from tpulm.corpus.faults import Faults
from tpulm.corpus.hub import names_of, open_builder, split_of
from tpulm.corpus.hub_faults import explained, interrupted, is_network
from tpulm.corpus.parquet import add_texts, check_column
from tpulm.corpus.records import Batch, Batcher

if TYPE_CHECKING:
    import pyarrow as pa

    from tpulm.corpus.sources import InputFile

_ROWS: Final = 1000  # at once


def read_hub(
    file: InputFile, source: SourceConfig, stream: ByteStream, faults: Faults, advance: Callable[[float], None]
) -> Iterator[Batch]:
    """Raises DataError for a file without the column, and Unavailable where the Hub does not answer any more."""
    builder = open_builder(source, file.sha256)
    if not file.sha256:
        stream.exhaust()
    meter = _Meter(file.bytes if file.sha256 else 0, advance)
    batcher = Batcher(faults, place=lambda row: f"row {row}")
    path: list[str] = []
    row = 0
    for table in _tables(builder, file, source, faults):
        path = path or check_column(table.schema, source.text_field, faults)
        yield from add_texts(table.column(path[0]), path[1:], row, source.text_field, batcher, faults)
        row += table.num_rows
        meter.count(table.nbytes)
    meter.finish()
    yield from batcher.flush()


def _tables(builder: Any, file: InputFile, source: SourceConfig, faults: Faults) -> Iterator[pa.Table]:
    number = 0
    try:
        dataset = _part(builder, file, source)
        for table in () if dataset is None else dataset.with_format("arrow").iter(batch_size=_ROWS):
            number += table.num_rows
            yield table
    except Exception as error:  # of parsers, of Arrow and of the network
        if file.sha256 and is_network(error):
            raise interrupted(source, file.within, error) from error
        if file.sha256:
            raise explained(source, error) from error
        cause = error.__cause__ or error
        faults.add("broken_file", f"it cannot be read ({type(cause).__name__}: {cause}).", f"after row {number}")


def _part(builder: Any, file: InputFile, source: SourceConfig) -> Any:
    """What of the split belongs to the file: all parts in order are the split; None where nothing does."""
    split, names = split_of(builder, source), names_of(builder, source)
    index, count = names.index(file.within), len(names)
    if not source.streaming:
        builder.download_and_prepare()  # done before, by whoever found the files
        return builder.as_dataset(split).shard(count, index, contiguous=True)
    dataset = builder.as_streaming_dataset(split)
    parts = min(count, dataset.num_shards)  # a file each, unless the library sees it otherwise
    return dataset.shard(parts, index, contiguous=True) if index < parts else None


class _Meter:
    """Tells progress in the bytes of the file by the text that comes out of it, and never more than there are."""

    def __init__(self, size: int, advance: Callable[[float], None]):
        self._left = float(size)
        self._advance = advance

    def count(self, size: int) -> None:
        step = min(float(size), self._left)
        self._left -= step
        self._advance(step)

    def finish(self) -> None:
        self.count(round(self._left) + 1)
