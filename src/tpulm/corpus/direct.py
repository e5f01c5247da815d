"""Reading sources as they are, without a work folder: for looking at text, not for training on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tpulm.config import CleaningConfig, SourceConfig
from tpulm.corpus.cleaning import Cleaner
from tpulm.corpus.faults import Faults
from tpulm.corpus.readers import open_file, read_documents
from tpulm.corpus.sources import find_files


def read_texts(
    sources: Sequence[SourceConfig], cleaning: CleaningConfig | None = None, skipped: Counter[str] | None = None
) -> Iterator[list[str]]:
    """The documents of the sources in order, cleaned if so asked and never de-duplicated, in batches of about a megabyte.

    What is left out is counted in `skipped`. Raises as `scatter` does for what is not there or cannot be read.
    """
    cleaner = None if cleaning is None else Cleaner(cleaning)
    for file in find_files(sources):
        source = sources[file.source]
        faults = Faults(source.on_error)
        faults.name = file.name
        faults.skipped = faults.skipped if skipped is None else skipped
        for batch in read_documents(file, source, open_file(file, faults), faults):
            if cleaner is None:
                yield batch.documents()
            else:
                yield [document.decode() for document in cleaner.clean(batch, faults.skipped).documents]
