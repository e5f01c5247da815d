"""Keep memory between steps, and name its shortage.

XLA allocates the buffers of each step again, tens of megabytes on a CPU. glibc maps such blocks from the system and returns
them at once, so every step pays for thousands of page faults and zeroed pages: 40% of the quickstart's CPU time
(benchmarks/RESULTS.md). With these settings the process keeps the blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Generator

from tpulm.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # malloc.h


def keep_between_steps() -> None:
    """Tell glibc to keep freed memory in this process. Does nothing with another C library.

    Blocks come from one heap that grows and never shrinks: for training, not for serving. Call this before any thread
    has allocated, as the command line and the first use of `tpulm.run` and its like do: threads get arenas of their own, which
    JAX's threads take over from threads that have ended, and in which glibc unmaps what is free regardless of its settings.
    """
    if sys.platform.startswith("linux") and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
            mallopt(name, value)


@contextlib.contextmanager
def naming_shortage(
    advice: str = "Give shorter texts, take a smaller model, or end other programs that use this memory",
) -> Generator[None]:
    """Raise ConfigError with `advice` where the memory of a device, or of this machine, does not suffice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("RESOURCE_EXHAUSTED|Out of memory", str(error)):
            raise
        raise ConfigError(f"memory does not suffice ({str(error).strip().partition(chr(10))[0]}). {advice}") from error
