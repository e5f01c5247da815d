"""Damaged files of every format are read, or refused in a sentence that names the file: no traceback, no hang, no full memory.

A failure names format, number and changes. The number alone repeats it:

    .venv/bin/pytest -n0 tests/fuzz -k parquet --fuzz-seed 1234

`make test` tries 50 cases of each format and `make test-fuzz` 5,000; equal numbers are equal cases. Were a library to kill the
process, the format is in pytest's own report, and the case the last one in the file that --fuzz-report names.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import pytest
from formats import FORMATS, Seed
from mutations import mutate

from tpulm.errors import TpulmError

SECONDS = 10  # of computing, for one case; it takes a hundredth
MEMORY_BYTES = 1 << 30  # more than the process had before
LONGEST_MESSAGE = 3_000
_MOST_FAILURES = 10  # of a format, that are told of in full


class Outcome(NamedTuple):
    number: int
    origin: str
    changes: list[str]
    result: str  # "accepted", a class of error, or "FAILED"
    message: str
    seconds: float


class TookTooLong(BaseException):
    """No Exception: what is being read must not catch it."""


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_files_are_read_and_damaged_ones_read_or_refused(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    seeds = list(FORMATS[name](tmp_path))
    for seed in seeds:
        assert seed.wrapped(seed.content)
        seed.read()
    try_all(name, seeds, range(50), request.config)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files_are_read_or_refused(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    try_all(name, list(FORMATS[name](tmp_path)), range(5_000), request.config)


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def try_all(name: str, seeds: list[Seed], numbers: range, config: pytest.Config) -> None:
    only, report = config.getoption("--fuzz-seed", None), config.getoption("--fuzz-report", None)
    outcomes, began = list[Outcome](), time.perf_counter()
    with Path(report).open("a") if report else contextlib.nullcontext() as stream, bounded_memory():
        for number in numbers if only is None else [only]:
            outcome = try_one(name, number, seeds, stream)
            outcomes.append(outcome)
            if stream:
                print(json.dumps({"format": name, **outcome._asdict()}), file=stream, flush=True)
    counts = Counter(outcome.result for outcome in outcomes)
    print(f"{name}: {dict(counts.most_common())}, {time.perf_counter() - began:.1f} s")
    failed = [outcome for outcome in outcomes if outcome.result == "FAILED"]
    told = "\n".join(
        f"{name} --fuzz-seed {outcome.number}: {outcome.origin}, {', '.join(outcome.changes)}\n{outcome.message}"
        for outcome in failed[:_MOST_FAILURES]
    )
    assert not failed, f"{len(failed)} of {len(outcomes)} cases failed, here the first:\n{told}"


def try_one(name: str, number: int, seeds: list[Seed], stream: Any) -> Outcome:
    random = Random(f"{name} {number}")
    seed, other = random.choice(seeds), random.choice(seeds)
    changes, content = mutate(random, seed.content, other.content, seed.kind)
    if stream:
        print(json.dumps({"format": name, "number": number, "origin": seed.origin}), file=stream, flush=True)
    original = seed.file.read_bytes()
    seed.file.write_bytes(seed.wrapped(content))
    began = time.perf_counter()
    try:
        result, message = outcome_of(seed, (1, 2, 3) if name == "work-folder" else (2, 3))
    finally:
        seed.file.write_bytes(original)
    return Outcome(number, seed.origin, changes, result, message, round(time.perf_counter() - began, 3))


def outcome_of(seed: Seed, exit_codes: tuple[int, ...]) -> tuple[str, str]:
    try:
        with bounded_time():
            seed.read()
    except TpulmError as error:
        message = str(error)
        if wrong := wrong_with(message, seed.file, error.exit_code, exit_codes):
            return "FAILED", f"{wrong}: {type(error).__name__}: {message[:LONGEST_MESSAGE]}"
        return type(error).__name__, message
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "FAILED", "".join(traceback.format_exception(error))
    return "accepted", ""


def wrong_with(message: str, file: Path, exit_code: int, exit_codes: tuple[int, ...]) -> str:
    if exit_code not in exit_codes:
        return f"the exit code is {exit_code}"
    if str(file.parent) not in message and file.name not in message:
        return "the message does not name the file"
    if len(message) > LONGEST_MESSAGE:
        return f"the message has {len(message):,} characters"
    if not message.replace("\n", "").isprintable():
        return "the message would control the terminal"
    return ""


@contextlib.contextmanager
def bounded_time() -> Iterator[None]:
    """What hangs in Python raises; what hangs in a library ends the process, with a traceback."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    faulthandler.dump_traceback_later(30 * SECONDS, exit=True, file=2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """A request for much more memory fails, as MemoryError where Python makes it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text()
    used = int(status.partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
