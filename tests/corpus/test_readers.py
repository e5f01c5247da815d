"""A corpus format from outside of the package: a function under a name, and nothing else."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tpulm.config import CORPUS_FORMATS, SourceConfig
from tpulm.corpus import readers
from tpulm.corpus.readers import Batcher, DocumentBatch, Input, OpenDocument
from tpulm.errors import DataError, WorkFolderMismatch
from tpulm.runtime.workers import run_tasks


def read_fasta(opened: Input) -> Iterator[DocumentBatch]:
    """Documents begin with a line ">name"; what stands before the first one is a fault."""
    batcher, document, begun = Batcher(opened.faults), OpenDocument(opened.faults), False
    for lines in opened.lines():
        for number, line in enumerate(lines.split(), lines.first):
            if line.startswith(">"):
                document.close(batcher)
                document.extend(line[1:], number)
                begun = True
            elif begun:
                document.extend(opened.source.text_field + line, number)
            elif line:
                opened.faults.add("malformed_row", "text before the first '>'.", f"line {number}")
        yield from batcher.full()
    if not opened.stream.torn:
        document.close(batcher)
    yield from batcher.flush()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    readers.register("fasta", read_fasta, suffixes=[".fasta"])
    yield
    CORPUS_FORMATS.discard("fasta")
    del readers.READERS["fasta"], readers.FORMATS[".fasta"]


def test_a_format_of_ones_own_is_read_by_every_worker(
    scattered: Callable, write: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tpulm.corpus.scatter"], "_WORTH_A_POOL_BYTES", 0)
    monkeypatch.setattr(sys.modules["tpulm.corpus.scatter"], "_PIECE_BYTES", 1)
    for number in range(3):
        write(f"in/{number}.fasta", f">a{number}\nACGT\nTTA\n>b{number}\nCC\n")
    sources = [{"path": str(tmp_path / "in"), "text_field": " "}]
    corpus = scattered(sources, runner=partial(run_tasks, workers=2))
    assert corpus.documents() == ["a0 ACGT TTA", "a1 ACGT TTA", "a2 ACGT TTA", "b0 CC", "b1 CC", "b2 CC"]
    with pytest.raises(WorkFolderMismatch, match=r"text_field:   -> \+"):
        scattered([{**sources[0], "text_field": "+"}], workdir=corpus.workdir)


def test_it_is_named_in_a_source_and_has_faults(read: Callable) -> None:
    content = "stray\n>a\nAC\n"
    assert read("a.txt", ">a\nAC\n", format="fasta", text_field="\n").documents == ["a\nAC"]
    with pytest.raises(DataError, match="line 1"):
        read("a.fasta", content)
    with pytest.raises(DataError, match="line 3"):  # where the document begins, not where it ends
        read("b.fasta", ">a\nAC\n>b\0\nGT\n>c\n")
    assert read("a.fasta", content, on_error="skip").skipped == {"malformed_row": 1}


def test_a_format_that_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"'fast' .*, fasta\. .*'fasta'"):
        SourceConfig(path="a", format="fast")
