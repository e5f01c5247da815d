from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePath
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.errors import InUse, StorageError
from tpulm.runtime import interrupt
from tpulm.storage import lease
from waiting import until

FOLDER = "gs://runs/w"
PATH = f"{FOLDER}/{lease.LEASE}"
HOLDER = """
import sys, time
from tpulm import storage
with storage.held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def holding(folder: str | Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_RENEW_SECONDS", 0.05)


def somebody(seconds: float, **changes: Any) -> dict[str, Any]:
    """The lease of a process on another machine, which ends so many seconds after it is written."""
    return {"id": "1", "host": "elsewhere (0)", "process": 17, "started_at": "1", "seconds": seconds} | changes


def version() -> str:
    found = storage.read_versioned(PATH)
    assert found is not None
    return found[1]


def test_a_folder_here_is_locked_until_its_process_ends(tmp_path: Path, user_environment: dict[str, str]):
    for _ in range(2):
        with holding(tmp_path, user_environment) as process, \
                pytest.raises(StorageError, match=f"process {process.pid}"), \
                storage.held(tmp_path):  # fmt: skip
            pass
        with storage.held(tmp_path):  # the lock went with its killed owner
            assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_killed_process_of_this_machine_is_replaced_at_once(gcs: Emulator, user_environment: dict[str, str]):
    """Though nobody has reaped it: a container may have nobody who does. Before, a second process is told about it."""
    with holding(FOLDER, os.environ | user_environment) as process:
        with pytest.raises(StorageError, match=rf"{FOLDER} .*process {process.pid} on"), storage.held(FOLDER):
            pass
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with storage.held(FOLDER):
            assert storage.read_json(PATH)["process"] == os.getpid()


def test_it_is_given_back_at_the_end(gcs: Emulator):
    for _ in range(3):
        with storage.held(FOLDER):
            assert storage.read_json(PATH)["seconds"] > 50
        assert storage.read_json(PATH)["seconds"] == 0
    with pytest.raises(RuntimeError), storage.held(FOLDER):
        raise RuntimeError
    assert storage.read_json(PATH)["seconds"] == 0


def test_one_that_did_not_is_waited_out(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "_WATCH_SECONDS", 0.05)
    notes: list[str] = []
    storage.write_json(PATH, somebody(0.6))
    with storage.held(FOLDER, note=notes.append):
        assert storage.read_json(PATH)["process"] == os.getpid()
    storage.write_json(PATH, somebody(0.001))
    with storage.held(FOLDER, note=notes.append):
        assert storage.read_json(PATH)["process"] == os.getpid()
    assert [note.partition(";")[0] for note in notes] == [f"{FOLDER} was in use by process 17 on elsewhere (0)"]


def test_whoever_loses_it_is_asked_to_stop(gcs: Emulator, hurried: None):
    with interrupt.handled():
        with storage.held(FOLDER):
            storage.write_json(PATH, somebody(60))
            until(interrupt.requested)
            assert interrupt.reason() == "the loss of the work folder to another process"
        assert storage.read_json(PATH)["host"] == "elsewhere (0)", "what is another's is not given back"


def test_what_passes_is_no_loss(gcs: Emulator, hurried: None, monkeypatch: pytest.MonkeyPatch):
    """An outage, then a lost answer; after each the lease is renewed."""
    monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.0)
    faults = {"error": ({"error_rate": 1}, 3), "error_after": ({"error_after_rate": 1, "count": 1}, 1)}
    with interrupt.handled(), storage.held(FOLDER):
        for kind, (fault, times) in faults.items():
            gcs.faults.set(**fault)
            until(lambda kind=kind, times=times: gcs.faults.injected.get(kind, 0) >= times)
            gcs.faults.clear()
            seen = version()
            until(lambda seen=seen: version() != seen)
            assert not interrupt.requested()


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, False),
        ({"seconds": 1.0}, True),
        ({"host": "here"}, True),  # there is no such process
        ({"host": "here", "process": os.getpid()}, True),  # the number is another process's by now
        ({"host": "here", "process": os.getpid(), "started_at": lease._started_at(os.getpid())}, False),
    ],
)
def test_who_may_take_a_lease(changes: dict[str, Any], free: bool):
    other = somebody(3.0, process=2**22 + 1)
    assert lease.is_free({**other, **changes}, age_seconds=2.0, host="here") is free


def test_a_container_with_the_host_s_name_is_another_host(monkeypatch: pytest.MonkeyPatch):
    """As under `docker run --network=host`: its process ids say nothing here."""
    other = somebody(3.0, process=2**22 + 1, host=lease._host())
    assert lease.is_free(other, age_seconds=2.0, host=lease._host())
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]")
    assert not lease.is_free(other, age_seconds=2.0, host=lease._host())


def test_a_lease_that_is_none_is_named(gcs: Emulator):
    for content in ('{"id": 1', "[]", '{"id": 1}', ""):
        storage.write_atomic(PATH, content)
        with pytest.raises(StorageError, match=r"lease\.json"), storage.held(FOLDER):
            pass
        with pytest.raises(StorageError, match=r"lease\.json"):
            storage.holder(FOLDER)


def test_the_holder_of_a_folder(place: PurePath):
    storage.make_folder(place)
    assert storage.holder(place) is None
    with storage.held(place):
        assert (storage.holder(place) or "").startswith("process ")
        assert storage.holder(place), "asking takes nothing"
        with pytest.raises(StorageError, match=f"process {os.getpid()}"), storage.held(place):
            pass
    assert storage.holder(place) is None


@pytest.mark.parametrize("hours", [0, 24, -24])
def test_one_that_is_renewed_meanwhile_is_refused_whatever_our_clock(
    gcs: Emulator, monkeypatch: pytest.MonkeyPatch, hours: int
):
    monkeypatch.setattr(lease, "_WATCH_SECONDS", 0.05)
    storage.write_json(PATH, somebody(60.0))
    ours = {"time": lambda: time.time() + 3600 * hours, "time_ns": lambda: time.time_ns() + 3600 * hours * 10**9}
    monkeypatch.setattr(lease, "time", SimpleNamespace(**{**vars(time), **ours}))
    with pytest.raises(StorageError, match="process 17"), \
            storage.held(FOLDER, note=lambda text: storage.write_json(PATH, somebody(60.0))):  # fmt: skip
        pass
    assert storage.read_json(PATH)["process"] == 17
    assert storage.holder(FOLDER, by_bucket=True), "deleting a folder asks the bucket's clock, too"


WRITER = """
import sys, time
from tpulm import storage
from tpulm.runtime import interrupt
from tpulm.storage import lease
lease._LEASE_SECONDS, lease._RENEW_SECONDS = 0.6, 0.15
folder, name = storage.as_path(sys.argv[1]), sys.argv[2]
with storage.held(folder):
    print("held", flush=True)
    for count in range(10**6):
        storage.write_atomic(folder / "results" / f"{name}-{count}.json", "{}")
"""


@contextlib.contextmanager
def taken_over() -> Iterator[None]:
    """Hold the folder, at the latest when a renewal that the other process had sent before it was stopped has expired."""
    with contextlib.ExitStack() as held:
        for attempt in range(10):
            try:
                held.enter_context(storage.held(FOLDER))
                break
            except InUse:
                assert attempt < 9
                time.sleep(0.2)
        yield


def written() -> set[str]:
    return storage.walk(FOLDER).keys() - {lease.LEASE}


@pytest.mark.parametrize("rounds", [2, pytest.param(200, marks=pytest.mark.soak)])
def test_a_process_that_was_stopped_for_longer_than_its_lease_writes_nothing_more(
    gcs: Emulator, user_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, rounds: int
):
    monkeypatch.setattr(lease, "_WATCH_SECONDS", 0.05)
    random = Random(1)
    for count in range(rounds):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, FOLDER, str(count)],
            env=os.environ | user_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            time.sleep(random.uniform(0.0, 0.3))
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.7)
            with taken_over():
                before = written()
                under_way = f"results/{count}-{sum(name.startswith(f'results/{count}-') for name in before)}.json"
                process.send_signal(signal.SIGCONT)
                _, error = process.communicate(timeout=20)
                # The one request that the kernel may have been sending when the process was stopped.
                assert written() - before <= {under_way}
                assert f"InUse: {FOLDER} " in error and f"process {os.getpid()}" in error
        finally:
            process.kill()
            process.communicate()
