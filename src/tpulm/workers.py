"""A pool of worker processes for restartable tasks.

Workers are spawned, never forked: the parent may hold the threads of JAX. A worker leaves as soon as its parent is gone,
killed or not, so nothing goes on writing into a work folder behind the next attempt's back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from tpulm import interrupt
from tpulm.errors import TpulmError

Result = TypeVar("Result")


class Runner(Protocol):
    """Where restartable tasks are computed: by a pool here (`run_tasks`), or by a cluster (`tpulm.beam`)."""

    def __call__(self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Yield function(*task) for each task, in any order. The function must be importable, its results picklable."""
        ...


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    function: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    *,
    workers: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Result]:
    """Yield function(*task) for each task, in the order they finish, computed by `workers` processes (default: the cores).

    `function` must be importable and its results picklable. At most two tasks a worker are in flight, so `tasks` may be lazy.
    The first failure is raised here as it is; a requested stop raises `Stopped` and waits for the tasks that are running.
    """
    workers = workers or count_cores()
    pending: set[Future[Result]] = set()
    remaining = iter(tasks)
    with _pool(workers, dict(environment or {})) as pool:
        try:
            while True:
                while len(pending) < 2 * workers and (task := next(remaining, None)) is not None:
                    pending.add(pool.submit(function, *task))
                if not pending:
                    return
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                interrupt.check()
        except BrokenProcessPool as error:
            raise TpulmError(
                "a worker process died without a word, most likely killed for want of memory: run the same command again "
                "(finished parts are kept), with fewer workers if it recurs: there is one for each core the command may use, "
                "and 'taskset --cpu-list 0' in front of it leaves one. In a script of your own, the call must stand under "
                "if __name__ == '__main__':"
            ) from error


@contextlib.contextmanager
def _pool(workers: int, environment: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(environment,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
