"""Small corpora on disk: written, read by one reader, or scattered whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tpulm.config import CorpusConfig, SourceConfig
from tpulm.corpus import CorpusManifest, Part, read_part, sample_texts, scatter
from tpulm.corpus.documents import Faults
from tpulm.corpus.readers import read_documents
from tpulm.corpus.readers.lines import ByteStream
from tpulm.corpus.sources import find_files
from tpulm.errors import DataError
from tpulm.progress import Silent
from tpulm.runtime.workers import Runner, run_here


class Read(NamedTuple):
    documents: list[str]  # in order, before cleaning
    skipped: Counter[str]


class Scattered(NamedTuple):
    workdir: Path
    manifest: CorpusManifest

    def parts(self) -> list[Part]:
        return [read_part(self.workdir, self.manifest, part) for part in range(self.manifest.num_parts)]

    def train(self) -> list[str]:
        return [document for part in self.parts() for document in part.train]

    def holdout(self) -> list[str]:
        return [document for part in self.parts() for document in part.holdout]

    def documents(self) -> list[str]:
        return sorted(self.train() + self.holdout())

    def sample(self, max_bytes: int) -> list[str]:
        return [text for texts in sample_texts(self.workdir, self.manifest, max_bytes) for text in texts]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], Path]:
    """write("a/b.txt", content) -> the path, under the test's folder."""

    def write(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def read(write: Callable[[str, bytes | str], Path]) -> Callable[..., Read]:
    """read("a.jsonl", content, text_field="x") -> what the reader of that name finds."""

    def read(name: str, content: bytes | str, **settings: Any) -> Read:
        source = SourceConfig(path=str(write(name, content)), **settings)
        (file,) = find_files([source])
        faults = Faults(source.on_error, name)
        stream = ByteStream(file.path, file.compression, faults)
        batches = list(read_documents(file, source, stream, faults, lambda amount: None))
        return Read([document for batch in batches for document in batch.documents()], faults.skipped)

    return read


@pytest.fixture
def faulty(read: Callable[..., Read]) -> Callable[..., DataError]:
    """faulty("a.txt", content, message, left, reason) -> the error; skipped, it is counted, and other documents are left."""

    def faulty(name: str, content: bytes | str, message: str, left: list[str], reason: str, **settings: Any) -> DataError:
        with pytest.raises(DataError, match=message) as failure:
            read(name, content, **settings)
        assert read(name, content, on_error="skip", **settings) == (left, {reason: 1})
        return failure.value

    return faulty


@pytest.fixture
def scattered(tmp_path: Path) -> Callable[..., Scattered]:
    """scattered(sources, max_documents=3, …) -> a finished corpus in a fresh work folder."""
    made = 0

    def scattered(
        sources: Any, *, part_bytes: int = 16_000_000, workdir: Path | None = None, runner: Runner = run_here, **given: Any
    ) -> Scattered:
        nonlocal made
        made += 1
        folder, progress = workdir or tmp_path / f"work{made}", given.pop("progress", Silent())
        config = CorpusConfig.model_validate({"sources": str(sources) if isinstance(sources, Path) else sources, **given})
        return Scattered(folder, scatter(config, folder, part_bytes=part_bytes, runner=runner, progress=progress))

    return scattered
