from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tpulm import storage
from tpulm.config import CorpusConfig
from tpulm.corpus import load_manifest, verify
from tpulm.errors import ConfigError, StorageError, WorkFolderMismatch


def test_another_format_version_is_refused(scattered: Callable, write: Callable):
    corpus = scattered(write("a.txt", "one\ntwo"))
    path = corpus.workdir / "corpus" / "manifest.json"
    storage.write_json(path, storage.read_json(path) | {"format_version": 99}, sealed=True)
    with pytest.raises(StorageError, match="version 99"):
        load_manifest(corpus.workdir)


@pytest.fixture
def folder(write: Callable) -> Path:
    write("in/a.txt", "one\ntwo\n")
    return write("in/b.txt", "three\nfour\n").parent


def refuses(scattered: Callable, work: Path, message: str, sources: Any, **settings: Any) -> None:
    with pytest.raises(WorkFolderMismatch, match=message):
        scattered(sources, workdir=work, **settings)


def test_other_times_names_and_places_are_no_change(scattered: Callable, folder: Path):
    corpus = scattered(folder)
    os.utime(folder / "a.txt", (1, 1))
    scattered(folder, workdir=corpus.workdir)
    scattered([str(folder / "a.txt"), str(folder / "b.txt")], workdir=corpus.workdir)
    moved = folder.rename(folder.with_name("moved"))
    assert scattered(moved, workdir=corpus.workdir).manifest == corpus.manifest


def test_other_settings_are_named(scattered: Callable, folder: Path):
    work = scattered(folder).workdir
    for of_source, settings, message in (
        ({}, {"cleaning": {"min_characters": 3}}, r"corpus\.cleaning\.min_characters: 1 -> 3"),
        ({}, {"max_documents": 3}, r"corpus\.max_documents: .none. -> 3"),
        ({}, {"part_bytes": 10_000}, r"data\.part_bytes: 16000000 -> 10000"),
        ({"documents": "file"}, {}, r"a\.txt, documents: line -> file"),
        ({"weight": 2.0}, {}, r"weight: 1.0 -> 2.0"),
    ):
        refuses(scattered, work, message, [{"path": str(folder), **of_source}], **settings)


def test_changed_files_are_named(scattered: Callable, folder: Path):
    work = scattered(folder).workdir
    (folder / "c.txt").write_text("new")
    refuses(scattered, work, r"files: 2 -> 3\n  new: .*c\.txt", folder)
    (folder / "c.txt").unlink()
    (folder / "b.txt").write_text("three\nfive\n")
    refuses(scattered, work, r"b\.txt: .*content", folder)
    (folder / "b.txt").unlink()
    refuses(scattered, work, r"gone: .*b\.txt", folder)


def test_a_corpus_that_is_not_here_at_all_is_no_mismatch(scattered: Callable, folder: Path):
    corpus = scattered(folder)
    (folder / "a.txt").unlink()
    gone = CorpusConfig.model_validate({"sources": [str(folder / "a.txt"), str(folder / "b.txt")]})
    compare = partial(verify, corpus.manifest, gone, corpus.workdir)
    with pytest.raises(ConfigError, match=r"a\.txt"):
        compare(part_bytes=16_000_000)
    shutil.rmtree(folder)
    compare(part_bytes=16_000_000)
    with pytest.raises(WorkFolderMismatch, match="part_bytes"):
        compare(part_bytes=10_000)


def test_sources_that_are_here_are_compared_without_those_that_are_not(scattered: Callable, folder: Path):
    """As on a VM, which has what is in the bucket, and not what was on the laptop."""
    paths = [str(folder / "a.txt"), str(folder / "b.txt")]
    work = scattered(paths).workdir
    (folder / "a.txt").unlink()
    scattered(paths, workdir=work)
    (folder / "b.txt").write_text("three\nfive\n")
    refuses(scattered, work, r"b\.txt: .*content", paths)


def test_behind_a_limit_files_may_change(scattered: Callable, folder: Path):
    (folder / "a.txt").write_bytes(b"a line of text\n" * 200_000)
    work = scattered(folder, max_documents=10).workdir
    (folder / "b.txt").write_text("changed")
    (folder / "c.txt").write_text("new")
    with (folder / "a.txt").open("ab") as stream:
        stream.write(b"more")
    scattered(folder, workdir=work, max_documents=10)
    (folder / "a.txt").write_bytes(b"another line\n" * 200_000)
    refuses(scattered, work, r"a\.txt: .*content", folder, max_documents=10)
