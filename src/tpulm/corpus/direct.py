"""Reading sources as they are, without a work folder: for looking at text, not for training on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpulm.config import SourceConfig
from tpulm.corpus.faults import Faults
from tpulm.corpus.readers import open_file, read_documents
from tpulm.corpus.sources import find_files


def read_texts(sources: Sequence[SourceConfig]) -> Iterator[list[str]]:
    """The documents of the sources in order, neither cleaned nor de-duplicated, in batches of about a megabyte.

    Raises as `scatter` does for what is not there or cannot be read.
    """
    for file in find_files(sources):
        source = sources[file.source]
        faults = Faults(source.on_error)
        faults.name = file.name
        for batch in read_documents(file, source, open_file(file, faults), faults):
            yield batch.documents()
