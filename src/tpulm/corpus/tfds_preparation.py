"""Preparing a dataset of TensorFlow Datasets as ArrayRecord, as far as that goes without TensorFlow."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import socket
import sys
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies

from tpulm.config import SourceConfig
from tpulm.corpus.tfds import command, data_dir_of, deprecations_ignored, library_, parse
from tpulm.errors import ConfigError
from tpulm.storage import is_remote


def prepare(source: SourceConfig) -> None:
    """Download the dataset and write its shards into its data_dir. Raises ConfigError with what to do instead."""
    library = library_()
    name, folder = parse(source.path), data_dir_of(source)
    library.disable_progress_bar()
    try:
        with _silence():
            builder = library.builder(str(name), data_dir=str(folder), file_format="array_record")
            _check_generator(type(builder).__module__)
            _check_network(builder.url_infos or ())
            builder.download_and_prepare()
    except Exception as error:  # downloads, generators of 200 datasets and what they import raise all kinds
        raise ConfigError(
            f"{source.path} is not prepared in {folder}, and cannot be here: {_cause(error)}\n"
            "Prepare it on a machine with a network and TensorFlow, in a folder or bucket that this one reads, and name that "
            f"with data_dir:\n  {command(source, folder=folder if is_remote(folder) else None)}"
        ) from error


def _check_generator(module: str) -> None:
    """Raise ModuleNotFoundError for one that uses TensorFlow, before anything is downloaded, where that is not installed."""
    if hasattr(sys.modules[module], "tf") and importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError("its generator imports it", name="tensorflow")


def _check_network(urls: Iterable[str]) -> None:
    """Raise ConnectionError where nothing that is to be downloaded can be: the library itself tries for minutes."""
    if getproxies():  # which may know addresses that this machine does not
        return
    hosts = {host for url in urls if (host := urlsplit(url).hostname)}
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            continue
        return
    if hosts:
        raise ConnectionError(f"no address is known of {', '.join(sorted(hosts)[:3])}")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without the library's own account, and that of requests it repeats."""
    retries = logging.getLogger("urllib3.connectionpool")
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), deprecations_ignored():
            yield
    finally:
        retries.setLevel(level)


def _cause(error: BaseException) -> str:
    """In a line; the library wraps what happened in other errors, and lists its 200 datasets after an unknown name."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError):
        if error.name == "tensorflow":
            return "this dataset's generator needs TensorFlow."
        return f"preparing needs the package {error.name}; try 'pip install {error.name}'."
    kind = type(error).__name__
    if kind == "DatasetNotFoundError":
        return "TensorFlow Datasets has no generator of that name that works without TensorFlow."
    if "Connection" in kind or "Timeout" in kind:
        return f"its source does not answer ({kind}); is there a network?"
    lines = str(error).strip().splitlines() or [""]
    return f"{kind}: {lines[0][:300]}"
