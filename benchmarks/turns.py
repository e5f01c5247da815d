"""The allocator contenders run under: tcmalloc where it is there (Debian: libtcmalloc-minimal4), as PyTorch's guide advises.

glibc returns blocks to the system after every step, which costs torch a tenth of its speed on a CPU; told to keep them, its
heap under torch grew by 20 MB a step in long trainings until the machine was full. Ours is as fast under either.
"""

from __future__ import annotations

from pathlib import Path


def tcmalloc() -> dict[str, str]:
    """The variables of a process that has it; none where it is missing."""
    found = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    return {"LD_PRELOAD": str(found[0])} if found else {}
