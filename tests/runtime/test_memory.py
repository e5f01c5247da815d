from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from tpulm.runtime.memory import keep_between_steps
KEEP
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        bytearray(64 << 20)[:: 4096] = b"x" * (16 << 10)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back this eagerly")
def test_large_blocks_are_not_given_back_to_the_system() -> None:
    def page_faults(keep: str) -> int:
        command = [sys.executable, "-c", PROGRAM.replace("KEEP", keep)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert page_faults("assert keep_between_steps()") < page_faults("") / 10
