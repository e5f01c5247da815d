"""Tasks in worker processes: results, failures, stops, and no worker that outlives its parent; units that hosts share."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tpulm.errors import DataError, Stopped, StorageError, TpulmError
from tpulm.progress import Silent
from tpulm.runtime import interrupt, stage, workers
from tpulm.runtime.hosts import Hosts
from waiting import is_alive, until


def square(x: int) -> int:
    return x * x


def fail(location: str) -> None:
    raise DataError("broken", location=location)


def report_and_wait(folder: str) -> str:
    workers.report(2.5)
    workers.report(4.0)
    while not (Path(folder) / "heard").exists():
        time.sleep(0.01)
    return "done"


def sleep_and_mark(folder: str, number: int) -> int:
    time.sleep(0.1)
    (Path(folder) / str(number)).touch()
    return number


@pytest.fixture(scope="module")
def pool() -> Iterator[workers.WorkerPool]:
    """One process for all tests that need no pool of their own; what they do to it, it must survive."""
    with workers.WorkerPool(1, modules=("tpulm.no_such_module",)) as made:
        made.warm_up()
        yield made


def test_every_task_is_done_once():
    assert sorted(workers.run_tasks(square, ((x,) for x in range(20)), workers=2)) == [x * x for x in range(20)]


def test_tasks_are_taken_as_they_are_needed(pool: workers.WorkerPool):
    taken = iter(range(100))
    running = pool(square, ((x,) for x in taken))
    next(running)
    assert next(taken) <= 4
    running.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_pool_keeps_its_processes_from_call_to_call(pool: workers.WorkerPool):
    first, second = list(pool(os.getpid, [()])), list(pool(os.getpid, [(), ()]))
    assert len({*first, *second}) == 1 and first[0] != os.getpid()


def test_a_pool_that_warms_up_calls_what_it_is_told_and_keeps_failures_to_itself(pool: workers.WorkerPool, tmp_path: Path):
    pool.warm_up(fail, "nobody hears of it")
    pool.warm_up(os.mkdir, str(tmp_path / "made"))
    until((tmp_path / "made").exists)
    assert list(pool(square, [(3,)])) == [9]


def test_what_a_task_reports_is_heard_while_it_runs(tmp_path: Path):
    done = 0.0

    class Heard(Silent):
        def advance(self, amount: float) -> None:
            nonlocal done
            done += amount
            if done == 6.5:
                (tmp_path / "heard").touch()

    with workers.TaskProgress(Heard()) as tasks:
        assert list(workers.run_tasks(report_and_wait, [(str(tmp_path),)], workers=1)) == ["done"]
        tasks.add(over=8.0)
    assert done == 8.0
    workers.report(1.0)  # nobody asked
    assert done == 8.0


@pytest.mark.usefixtures("pool")  # so that the server of all workers was started elsewhere
def test_workers_have_the_environment_the_folder_and_the_modules_of_their_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "found_here.py").write_text("def f(): return 'here'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPULM_X", "1")
    with workers.WorkerPool(1) as own:
        assert list(own(os.getenv, [("TPULM_X",)])) == ["1"]
        assert list(own(importlib.import_module("found_here").f, [()])) == ["here"]
        assert list(own(os.getcwd, [()])) == [str(tmp_path)]
    monkeypatch.setenv("TPULM_X", "2")
    assert list(workers.run_tasks(os.getenv, [("TPULM_X",)], workers=1)) == ["2"]


def test_a_pool_that_is_closed_at_once_says_nothing(capfd: pytest.CaptureFixture[str]):
    with workers.WorkerPool(1) as pool:
        pool.warm_up()
    assert capfd.readouterr().err == ""


def test_a_stop_waits_for_running_tasks_and_starts_no_more(tmp_path: Path):
    done = []
    with interrupt.handled(), pytest.raises(Stopped):
        for number in workers.run_tasks(sleep_and_mark, ((str(tmp_path), x) for x in range(1000)), workers=1):
            done.append(number)
            signal.raise_signal(signal.SIGTERM)
    marks = {int(path.name) for path in tmp_path.iterdir()}
    assert set(done) <= marks and len(marks) < 10


SCRIPT = """
from tpulm.runtime import workers
print(sorted(workers.run_tasks(abs, [(-1,), (2,)], workers=2)))
"""


@pytest.mark.parametrize("how", ["script.py", "-"])
def test_a_program_needs_no_guard_around_its_calls(how: str, tmp_path: Path, user_environment: dict[str, str]):
    (tmp_path / "script.py").write_text(SCRIPT)
    given, settings = SCRIPT if how == "-" else "", {"cwd": tmp_path, "env": user_environment}
    done = subprocess.run([sys.executable, how], input=given, capture_output=True, text=True, timeout=60, **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


def unpicklable() -> object:
    return lambda: 0


class Unpicklable(Exception):
    def __init__(self, message: str, more: int):
        super().__init__(message)
        self.more = more


def fail_unpicklably() -> None:
    raise Unpicklable("lost on the way", 1)


def test_a_failure_comes_back_as_it_is_and_what_cannot_be_sent_back_as_one(pool: workers.WorkerPool):
    with pytest.raises(DataError, match="file, line 7: broken") as raised:
        list(pool(fail, [("file, line 7",)] * 3))
    assert raised.value.location == "file, line 7"
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        list(pool(unpicklable, [()]))
    with pytest.raises(RuntimeError, match="lost on the way"):
        list(pool(fail_unpicklably, [()]))
    assert list(pool(square, [(3,)])) == [9]


def test_a_pool_replaces_a_worker_that_died(pool: workers.WorkerPool):
    with pytest.raises(TpulmError, match="memory"):
        list(pool(signal.raise_signal, [(signal.SIGKILL,)]))
    assert list(pool(square, [(3,)])) == [9]


def test_what_reaches_the_whole_group_is_for_the_parent_alone(pool: workers.WorkerPool):
    [worker] = pool(os.getpid, [()])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(worker, number)
    assert list(pool(os.getpid, [()])) == [worker]


MODULE = """
import os, time

def wait(folder, number):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(60)
"""

PARENT = """
import sys
from module import wait
from tpulm.runtime import workers

list(workers.run_tasks(wait, ((sys.argv[1], x) for x in range(4)), workers=2))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_leave_with_a_killed_parent_and_nothing_stays(tmp_path: Path, user_environment: dict[str, str]):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    (tmp_path / "module.py").write_text(MODULE)
    folder, temporary = tmp_path / "pids", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    environment = {**user_environment, "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(list(folder.iterdir())) == 2)
        # Nothing that could stay when all of them are killed: no folder, no named semaphore.
        assert list(temporary.iterdir()) == []
        for pid in (str(parent.pid), *(path.name for path in folder.iterdir())):
            assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
    finally:
        parent.kill()
        parent.wait()
    pids = [int(path.name) for path in folder.iterdir()]
    until(lambda: not any(map(is_alive, pids)), lambda: "a worker outlived its parent")


class Square(NamedTuple):
    number: int
    folder: Path
    amount: float = 1.0

    @property
    def files(self) -> list[Path]:
        return [self.folder / f"{self.number}.txt"]

    def finished(self) -> str | None:
        return self.files[0].read_text() if self.files[0].exists() else None

    def build(self) -> str:
        with self.files[0].open("x") as file:  # fails for a unit that is finished
            file.write(str(self.number**2))
        return str(self.number**2)


def test_hosts_share_units_and_nothing_is_done_twice(tmp_path: Path):
    units = [Square(number, tmp_path) for number in range(5)]
    first, second = Hosts(0, 2), Hosts(1, 2)
    stage.sweep(units)
    own = stage.run(units, "squares", "square", runner=workers.run_here, hosts=second)
    assert own == {1: "1", 3: "9"}
    with pytest.raises(StorageError, match=r"0\.txt"):
        stage.gather(units, own)
    assert stage.run(units, "squares", "square", runner=workers.run_here, hosts=first) == {0: "0", 2: "4", 4: "16"}
    (tmp_path / "leftover").touch()
    stage.sweep(units)
    again = stage.run(units, "squares", "square", runner=workers.run_here)
    assert stage.gather(units, again) == stage.gather(units, own) == ["0", "1", "4", "9", "16"]
    assert {path.name for path in tmp_path.iterdir()} == {f"{number}.txt" for number in range(5)}
