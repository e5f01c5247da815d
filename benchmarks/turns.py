"""Processes that take turns, so that each is measured under the same conditions, and what they say.

torch may run under tcmalloc (Debian: libtcmalloc-minimal4), as PyTorch's guide advises. glibc returns blocks to the system
after every step, which costs torch a tenth of its speed on a CPU; told to keep them, its heap under torch grew by 20 MB a step
in long trainings until the machine was full.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_MARK = "ANSWER"


class ContenderError(Exception):
    """A contender ended too soon."""


class Contender:
    """A process that measures a round for each line of its stdin, under tcmalloc if asked for and installed; `variables` are
    added to its environment.

    It says something once it is ready (`wait`), after each round and, if rounds are of seconds, at its end.
    """

    def __init__(self, name: str, command: Sequence[str], *, tcmalloc: bool = True, **variables: str):
        self.name, self.answers = name, list[dict[str, Any]]()
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=environment(tcmalloc=tcmalloc) | variables, **pipes)
        self.ready = dict[str, Any]()

    def wait(self) -> Contender:
        """Wait until it is ready. Raises ContenderError if it ends before."""
        self.ready = self._answer()
        return self

    def round(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        self.answers.append(self._answer())
        return self.answers[-1]

    def end(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        answer = self._answer() if self.answers and "seconds" in self.answers[0] else {}
        self._process.wait()
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return read_answer(self._process.stdout, self.name)


def environment(*, tcmalloc: bool) -> dict[str, str]:
    """This process's, with tcmalloc if asked for and installed."""
    found = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")) if tcmalloc else []
    return {**os.environ, **({"LD_PRELOAD": str(found[0])} if found else {})}


def say(answer: dict[str, Any]) -> None:
    """What `read_answer` reads, whatever else libraries print."""
    print(_MARK + json.dumps(answer), flush=True)


def read_answer(lines: Iterable[str], name: str) -> dict[str, Any]:
    for line in lines:
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    raise ContenderError(f"{name} ended without an answer, see above")


def processor() -> str:
    """Its name, which a virtual machine may hide, with its family and model."""
    fields = dict[str, str]()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in fields.get("flags", "").split()]
    place = f"family {fields.get('cpu family', '?')}, model {fields.get('model', '?')}; {', '.join(known)}"
    return f"{fields.get('model name', platform.processor())} ({place})"
