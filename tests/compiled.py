"""How tests compile, and their cache of programs, kept in $XDG_CACHE_HOME/tpulm/tests (default ~/.cache/tpulm/tests).

JAX's keys cover the program, the compiler, its flags and the devices, but not the processor, so each processor has a folder.
Parallel sessions share it: JAX never rewrites an entry, and compiles what it cannot read.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import zstandard

needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'jax[tpu]'")
LIMIT_BYTES = 2_000_000_000  # a whole session writes about a tenth of this


def flags(devices: int = 1) -> str:
    """XLA_FLAGS with little optimization: programs here compile for longer than they run."""
    chosen = [
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_max_isa=AVX512",  # the same numbers on every machine: in float32, also where a processor multiplies bfloat16
    ]
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA ends the process at a flag it does not know
        chosen += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
    return " ".join(chosen)


def root() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "tpulm" / "tests"


def folder(flags: str) -> Path:
    """Where programs compiled with these XLA flags are kept; a temporary folder where a home cannot be written."""
    processor = platform.machine()
    with contextlib.suppress(OSError):  # Linux only
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line for line in lines if line.startswith(("flags", "Features")))
    identity = "\n".join([importlib.metadata.version("jaxlib"), flags, processor])
    kept = root() / hashlib.sha256(identity.encode()).hexdigest()[:16]
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
    return kept if os.access(kept, os.W_OK) else Path(tempfile.mkdtemp(prefix="compiled-"))


def tidy(kept: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove entries of which only part was written since the last call, and those longest unused beyond the limit."""
    checked = kept / ".checked"
    since = checked.stat().st_mtime if checked.exists() else 0.0
    checked.touch()
    entries: list[tuple[float, int, Path]] = []
    for path in kept.parent.glob("*/*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another session removed it
            status = path.stat()
            if path.parent == kept and status.st_mtime >= since and not _is_whole(path):
                path.unlink()
            else:
                entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    surplus = sum(size for _, size, _ in entries) - limit_bytes
    for _, size, path in sorted(entries):
        if surplus <= 0:
            break
        path.unlink(missing_ok=True)
        surplus -= size


def _is_whole(path: Path) -> bool:
    try:
        zstandard.ZstdDecompressor().decompress(path.read_bytes())
    except zstandard.ZstdError:
        return False
    return True
