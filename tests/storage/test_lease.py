from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.errors import StorageError
from tpulm.runtime import interrupt
from tpulm.storage import lease

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
def holder(gcs: Emulator, user_environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with holding(FOLDER, os.environ | user_environment) as process:
        yield process


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_RENEW_SECONDS", 0.05)


def somebody(seconds: float, **changes: Any) -> dict[str, Any]:
    """The lease of a process on another machine, with so many seconds left."""
    owner = {"id": "1", "host": "elsewhere (0)", "process": 17, "started_at": "1", "expires_at": time.time() + seconds}
    return owner | changes


def wait_for(condition: Any, seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_second_process_is_told_about_the_first(holder: subprocess.Popen[str]):
    with pytest.raises(
        StorageError,
        match=rf"gs://runs/w is in use by another tpulm process \(process {holder.pid} on .*\); wait for it or stop it",
    ), storage.held(FOLDER):  # fmt: skip
        pass


def test_a_folder_here_is_locked_until_its_process_ends(tmp_path: Path, user_environment: dict[str, str]):
    for _ in range(2):
        with holding(tmp_path, user_environment) as process, \
                pytest.raises(StorageError, match=rf"in use by another tpulm process \(process {process.pid}\)"), \
                storage.held(tmp_path):  # fmt: skip
            pass
        with storage.held(tmp_path):  # the lock went with its killed owner
            assert (tmp_path / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_process_of_this_machine_is_replaced_at_once(holder: subprocess.Popen[str], reaped: bool):
    holder.send_signal(signal.SIGKILL)
    if reaped:
        holder.wait()
    else:  # a container may have nobody who does
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    with storage.held(FOLDER):
        assert storage.read_json(PATH)["process"] == os.getpid()


def test_it_is_given_back_at_the_end(gcs: Emulator):
    for _ in range(3):
        with storage.held(FOLDER):
            assert storage.read_json(PATH)["expires_at"] > time.time() + 50
        assert storage.read_json(PATH)["expires_at"] <= time.time()
    with pytest.raises(RuntimeError), storage.held(FOLDER):
        raise RuntimeError
    assert storage.read_json(PATH)["expires_at"] <= time.time()


def test_a_lease_of_another_machine_that_ran_out_is_taken_over(gcs: Emulator):
    storage.write_json(PATH, somebody(-1))
    with storage.held(FOLDER):
        assert storage.read_json(PATH)["process"] == os.getpid()


def test_one_that_did_not_is_waited_out(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "_WATCH_SECONDS", 0.05)
    notes: list[str] = []
    storage.write_json(PATH, somebody(0.6))
    with storage.held(FOLDER, note=notes.append):
        assert storage.read_json(PATH)["process"] == os.getpid()
    assert [note.partition(";")[0] for note in notes] == [f"{FOLDER} was in use by process 17 on elsewhere (0)"]


def test_one_that_is_renewed_meanwhile_is_refused(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "_WATCH_SECONDS", 0.05)
    storage.write_json(PATH, somebody(42.4))

    def renew(note: str) -> None:
        storage.write_json(PATH, somebody(60.0))

    with pytest.raises(StorageError, match=r"process 17 on elsewhere \(0\)"), storage.held(FOLDER, note=renew):
        pass
    assert storage.read_json(PATH)["process"] == 17


def test_it_is_renewed(gcs: Emulator, hurried: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "_LEASE_SECONDS", 0.5)
    with storage.held(FOLDER):
        first = storage.read_json(PATH)["expires_at"]
        wait_for(lambda: storage.read_json(PATH)["expires_at"] > first + 0.2)
        assert not interrupt.requested()


def test_whoever_loses_it_is_asked_to_stop(gcs: Emulator, hurried: None):
    with interrupt.handled():
        with storage.held(FOLDER):
            storage.write_json(PATH, somebody(60))
            wait_for(interrupt.requested)
            assert interrupt.reason() == "the loss of the work folder to another process"
        assert storage.read_json(PATH)["host"] == "elsewhere (0)", "what is another's is not given back"


def test_an_outage_alone_is_no_loss(gcs: Emulator, hurried: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.1)
    with interrupt.handled(), storage.held(FOLDER):
        gcs.faults.set(error_rate=1)
        wait_for(lambda: gcs.faults.injected.get("error", 0) >= 3)
        gcs.faults.clear()
        first = storage.read_json(PATH)["expires_at"]
        wait_for(lambda: storage.read_json(PATH)["expires_at"] > first)
        assert not interrupt.requested()


def test_a_lost_answer_is_no_loss(gcs: Emulator, hurried: None):
    with interrupt.handled(), storage.held(FOLDER):
        gcs.faults.set(error_after_rate=1, count=1)
        wait_for(lambda: "error_after" in gcs.faults.injected)
        seen = storage.read_json(PATH)["expires_at"]
        wait_for(lambda: storage.read_json(PATH)["expires_at"] > seen)
        assert not interrupt.requested()


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, False),
        ({"expires_at": 99.0}, True),
        ({"host": "here"}, True),  # there is no such process
        ({"host": "here", "process": os.getpid()}, True),  # the number is another process's by now
        ({"host": "here", "process": os.getpid(), "started_at": lease._started_at(os.getpid())}, False),
    ],
)
def test_who_may_take_a_lease(changes: dict[str, Any], free: bool):
    other = somebody(0, expires_at=101.0, process=2**22 + 1)
    assert lease.is_free({**other, **changes}, now=100.0, host="here") is free


def test_a_lease_that_is_none_is_named(gcs: Emulator):
    for content in ('{"id": 1', "[]", '{"id": 1}', ""):
        storage.write_atomic(PATH, content)
        with pytest.raises(StorageError, match=r"lease\.json"), \
                storage.held(FOLDER):  # fmt: skip
            pass


def test_the_holder_of_a_folder(place: PurePath):
    storage.make_folder(place)
    assert storage.holder(place) is None
    with storage.held(place):
        assert (storage.holder(place) or "").startswith("process ")
        assert storage.holder(place), "asking takes nothing"
    assert storage.holder(place) is None
    if storage.is_remote(place):
        storage.write_atomic(place / lease.LEASE, b"{}")
        with pytest.raises(StorageError, match="is not the lease of a process"):
            storage.holder(place)


def test_this_process_itself_excludes_a_second_block(gcs: Emulator):
    with storage.held(FOLDER), pytest.raises(StorageError, match=f"process {os.getpid()} on"), storage.held(FOLDER):
        pass
