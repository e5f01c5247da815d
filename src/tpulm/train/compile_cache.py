"""Compiled programs kept for the next command."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def keep_compiled() -> None:
    """In $XDG_CACHE_HOME/tpulm/compiled, by default ~/.cache/tpulm/compiled, unless JAX's environment names another place."""
    if not jax.config.values["jax_compilation_cache_dir"]:
        root = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(root) if root else Path.home() / ".cache") / "tpulm" / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
