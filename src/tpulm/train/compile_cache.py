"""Compiled programs kept for the next command."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def cache_folder(kind: str) -> Path:
    """$XDG_CACHE_HOME/tpulm/kind, by default in ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tpulm" / kind


def keep_compiled() -> None:
    """In the cache folder, unless JAX's environment names another place."""
    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder("compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
