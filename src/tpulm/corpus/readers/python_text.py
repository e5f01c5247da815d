"""Text that ships with Python: the docstrings of its standard library and the topics of `help()`.

It needs no download, so the quickstart and a first try use it. It differs between versions of Python.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus.documents import Batcher, DocumentBatch
from tpulm.corpus.readers.lines import Input, InputFile
from tpulm.errors import ConfigError, DataError

# Not the library's own documentation: installed packages, tests, programs, generated tables.
_LEFT_OUT: Final = frozenset({
    "site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo",
    "ensurepip", "encodings", "pydoc_data", "__phello__",
})  # fmt: skip


class PythonFile(NamedTuple):
    name: str  # relative to the standard library, "/" between folders
    path: Path


def list_python_files() -> list[PythonFile]:
    """The files of the standard library, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files: list[PythonFile] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(("config-", "."))]
        paths = [Path(folder, name) for name in names if name.endswith(".py")]
        files.extend(PythonFile(path.relative_to(root).as_posix(), path) for path in paths)
    topics = importlib.util.find_spec("pydoc_data.topics")
    if topics and topics.origin:
        files.append(PythonFile("pydoc_data/topics.py", Path(topics.origin)))
    if not files:
        raise DataError(f"this Python keeps no source files in {root}; choose another corpus")
    return sorted(files)


def find_text(source: SourceConfig, index: int, first_time: bool) -> list[InputFile]:
    """All of Python's text as one file, identified by its hash."""
    if source.path:
        raise ConfigError(f"corpus.sources[{index}]: format 'python' reads Python's own text; leave out path '{source.path}'")
    files = list_python_files()
    size = sum(file.path.stat().st_size for file in files)
    return [InputFile("", "", index, "python", None, "utf-8", size, 0, hash_python_files(files))]


def hash_python_files(files: list[PythonFile]) -> str:
    """SHA-256 of names and contents, in hexadecimal; it changes with the version of Python."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0".encode())
        digest.update(storage.read_bytes(file.path))
    return digest.hexdigest()


def read_python_text(opened: Input) -> Iterator[DocumentBatch]:
    """One document for each docstring, in the order of files and lines, and for each topic."""
    batcher = Batcher(opened.faults)
    for file in list_python_files():
        source = storage.read_bytes(file.path)
        opened.advance(len(source))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old files are not our concern
            tree = ast.parse(source, filename=str(file.path))
        documents = _topics(tree) if file.name.startswith("pydoc_data/") else _docstrings(tree)
        for line, text in documents:
            batcher.add(text, line)
        yield from batcher.full()
    yield from batcher.flush()


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text
        # Definitions are statements, which occur only in bodies: expressions need no visit.
        bodies = [
            statement for name in ("body", "handlers", "orelse", "finalbody", "cases") for statement in getattr(node, name, ())
        ]
        waiting.extend(reversed(bodies))


def _topics(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            for name, text in ast.literal_eval(node.value).items():
                yield node.lineno, f"{name}\n\n{text}"
