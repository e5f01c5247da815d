"""Compiled programs kept for the next command, and for the machine that takes over."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from tpulm import storage
from tpulm.errors import StorageError

COMPILED = "compiled"  # below a work folder in a bucket
MOST_BYTES = 4 << 30  # of them; a program takes 1 to 200 MB
_LEAST_SECONDS = 0.5  # that a program took, to be kept
_ours = ""  # where this process keeps them, if not where JAX's environment says


class Compiling(NamedTuple):
    """What this process has compiled."""

    seconds: float = 0.0  # in XLA, or reading what it made before
    programs: int = 0  # that took long, and were compiled here
    found: int = 0  # that were in the cache


_compiling = Compiling()


def cache_folder(kind: str) -> Path:
    """$XDG_CACHE_HOME/tpulm/kind, by default in ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tpulm" / kind


def keep_compiled(workdir: PurePath | None = None) -> None:
    """In the cache folder, or below a work folder in a bucket, where a machine that takes over finds them.

    JAX names each by its program, compiler, flags and devices; the first of several hosts writes, each file as a whole, and
    what cannot be read is compiled (docs.jax.dev/en/latest/persistent_compilation_cache.html). Where JAX's environment names
    a place, that is taken.
    """
    global _ours
    _listen()
    if (place := jax.config.values["jax_compilation_cache_dir"]) and place != _ours:
        return
    folder: PurePath = cache_folder(COMPILED)
    if workdir is not None and storage.is_remote(workdir):
        folder = _of_this_processor(workdir / COMPILED)
        make_room(workdir / COMPILED)
        storage.orbax_folder(folder)  # JAX goes the same way
    if str(folder) == _ours:
        return
    _ours = str(folder)
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", _ours)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    if storage.is_remote(folder):  # XLA's own caches, for GPUs, know local files alone
        jax.config.update("jax_persistent_cache_enable_xla_caches", "")


def compiling() -> Compiling:
    """What was compiled so far."""
    return _compiling


@cache
def _listen() -> None:
    def add(event: str, **_: Any) -> None:
        global _compiling
        if event == "/jax/compilation_cache/cache_hits":
            _compiling = _compiling._replace(found=_compiling.found + 1)
        elif event == "/jax/compilation_cache/cache_misses":  # told when one is kept
            _compiling = _compiling._replace(programs=_compiling.programs + 1)

    def add_seconds(event: str, duration_secs: float, **_: Any) -> None:
        global _compiling
        if event == "/jax/core/compile/backend_compile_duration":
            _compiling = _compiling._replace(seconds=_compiling.seconds + duration_secs)

    jax.monitoring.register_event_listener(add)
    jax.monitoring.register_event_duration_secs_listener(add_seconds)


def _of_this_processor(folder: PurePath) -> PurePath:
    """XLA compiles for the very processor, which JAX does not look at: another one may not have its instructions."""
    if jax.default_backend() != "cpu":
        return folder
    described = platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        described += next((line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    return folder / f"cpu-{hashlib.sha256(described.encode()).hexdigest()[:8]}"


def make_room(folder: PurePath, most_bytes: int = MOST_BYTES) -> None:
    """Remove the oldest programs beyond so many bytes. Whoever needs one of them compiles it again."""
    try:
        files = sorted(storage.walk(folder).items(), key=lambda item: item[1].modified_ns, reverse=True)
        kept, old = 0, list[str]()
        for name, info in files:
            kept += info.size
            if kept > most_bytes:
                old.append(name)
        storage.remove_files(folder, old)
    except StorageError:  # what matters will fail later, and say why
        pass
