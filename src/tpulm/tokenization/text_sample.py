"""As much of a corpus as a comparison reads: the beginning of every file, each in proportion to its size."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tpulm import corpus
from tpulm.config import SourceConfig
from tpulm.readable import size
from tpulm.tokenization.pipelines import without_surrogates

LONGEST_DOCUMENT = 1 << 20  # characters; what is over that is left out, so that memory is bounded
_SLICE_BYTES = 1 << 17  # of text that is handed on at a time


class TextSample:
    """Iterate over it once: lists of documents that have a word; what was read is known afterwards.

    Raises as `corpus.find_files` does for what is not there, and as `corpus.read_texts` for what cannot be read.
    """

    def __init__(self, sources: Sequence[SourceConfig], max_bytes: int):
        self._max_bytes = max_bytes
        found = corpus.find_files(sources)
        sizes: dict[str, int] = {}
        for file in found:  # of a large dump there are several stretches
            sizes[file.path] = sizes.get(file.path, 0) + file.bytes
        source_of = {file.path: sources[file.source] for file in found}
        self._files = [(source_of[path].model_copy(update={"path": path}), total) for path, total in sizes.items()]
        compressed = any(file.compression is not None for file in found)
        # Compressed files hold more text than bytes, so that only the limit is known.
        self.expected_bytes = max_bytes if compressed else min(max_bytes, sum(sizes.values()))
        self.read_bytes = self.cut_documents = 0
        self.is_whole = True  # nothing was left out

    def __iter__(self) -> Iterator[list[str]]:
        left = sum(file_bytes for _, file_bytes in self._files)
        for source, file_bytes in self._files:
            share = file_bytes / left if left else 1.0
            left -= file_bytes
            yield from self._file(source, round((self._max_bytes - self.read_bytes) * share))

    def _file(self, source: SourceConfig, allowed: int) -> Iterator[list[str]]:
        """Whole documents, up to the first that passes the allowance."""
        documents: list[str] = []
        here = gathered = 0
        batches = corpus.read_texts([source])
        for document in (document for batch in batches for document in batch if document.strip()):
            if here >= allowed:
                self.is_whole = False
                break
            if len(document) > LONGEST_DOCUMENT:
                document = document[:LONGEST_DOCUMENT]
                self.cut_documents, self.is_whole = self.cut_documents + 1, False
            document = without_surrogates(document)
            documents.append(document)
            length = len(document.encode())
            here, gathered, self.read_bytes = here + length, gathered + length, self.read_bytes + length
            if gathered >= _SLICE_BYTES:
                yield documents
                documents, gathered = [], 0
        if documents:
            yield documents

    def __str__(self) -> str:
        files = f"{len(self._files):,} files" if len(self._files) > 1 else "one file"
        if self.is_whole:
            return f"all text of {files}, {size(self.read_bytes)}"
        beginning = "the beginning of each" if len(self._files) > 1 else "its beginning"
        cut = (
            f"; of {self.cut_documents:,} documents only the first {LONGEST_DOCUMENT:,} characters"
            if self.cut_documents
            else ""
        )
        return f"{size(self.read_bytes)} of {files}: {beginning}, not a random sample{cut}"


class Reservoir:
    """A fair choice among the slices of a stream, of about `max_bytes` in all, however many there are."""

    def __init__(self, max_bytes: int):
        self._most = max(1, max_bytes // _SLICE_BYTES)
        self._random = random.Random(0)
        self._seen = 0
        self._kept: list[list[str]] = []

    def add(self, documents: list[str]) -> None:
        self._seen += 1
        if len(self._kept) < self._most:
            self._kept.append(documents)
        elif (place := self._random.randrange(self._seen)) < self._most:
            self._kept[place] = documents

    def texts(self) -> list[str]:
        return [text for documents in self._kept for text in documents]
