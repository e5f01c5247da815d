"""A pool of worker processes for restartable tasks.

Workers are never forked from this process, which may hold the threads of JAX, but from a server that imports what they need,
does nothing, and leaves with this process: so it is imported once, and kept in memory once. A worker leaves as soon as its
parent is gone, killed or not, so nothing goes on writing into a work folder behind the next attempt's back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol, TypeVar

from tpulm import interrupt
from tpulm.errors import TpulmError
from tpulm.progress import Progress

Result = TypeVar("Result")


_AMOUNT: Final = struct.Struct("d")
_reports: Connection | None = None  # of this process, if it is a worker: to its pool
_unreported = 0.0
_shown: TaskProgress | None = None


def report(amount: float) -> None:
    """To be called by a task now and then: `amount` more of it is done. Whoever waits for it shows that (`TaskProgress`)."""
    global _unreported
    if _reports is None:
        if _shown is not None:
            _shown.add(within=amount)
        return
    _unreported += amount
    with contextlib.suppress(OSError):  # the pipe is full, and the next report says it; or nobody is left to listen
        os.write(_reports.fileno(), _AMOUNT.pack(_unreported))  # so few bytes that they stay together
        _unreported = 0.0


class TaskProgress:
    """The progress of tasks: what they `report` from within, or the sum of those that are over, whichever is more.

    To be used as a context around a runner's tasks.
    """

    def __init__(self, progress: Progress):
        self._progress = progress
        self._within = self._over = self._done = 0.0

    def __enter__(self) -> TaskProgress:
        global _shown
        _shown = self
        return self

    def __exit__(self, *exception: object) -> None:
        global _shown
        _shown = None

    def add(self, *, within: float = 0.0, over: float = 0.0) -> None:
        """`over` is the whole of a task that has ended."""
        self._within += within
        self._over += over
        done = max(self._within, self._over)
        self._progress.advance(done - self._done)
        self._done = done


class Runner(Protocol):
    """Where restartable tasks are computed: by a pool here (`WorkerPool`), or by a cluster (`tpulm.beam`)."""

    def __call__(self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Yield function(*task) for each task, in any order. The function must be importable, its results picklable."""
        ...


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """A runner of so many processes (default: the cores), which stay from one call to the next.

    They are started by the first call, or by `warm_up`, so that they are there by then; with `modules` imported, which their
    tasks will need. To be used as a context.
    """

    def __init__(self, workers: int | None = None, *, modules: Sequence[str] = ()):
        self.workers = workers or count_cores()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(modules))
        environment = dict(os.environ)  # the server's is that of the first pool
        self._reports, told = context.Pipe(duplex=False)
        for end in (self._reports, told):
            os.set_blocking(end.fileno(), False)
        self._executor = ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_begin_worker, initargs=(environment, told)
        )

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def warm_up(self, function: Callable[..., object] = os.getpid, *task: Any) -> None:
        """Start the processes now, beside whatever else is done; each calls function(*task), most likely, whose failure is not
        told: what fails will fail again where it is needed."""
        threading.Thread(target=self._start, args=(function, *task), daemon=True).start()  # which waits for the server

    def _start(self, function: Callable[..., object], *task: Any) -> None:
        with contextlib.suppress(RuntimeError):  # shut down already
            for _ in range(self.workers):
                self._submit(function, *task)

    def _submit(self, function: Callable[..., Result], *task: Any) -> Future[Result]:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # by the server as well, if this starts it
        try:
            return self._executor.submit(function, *task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _reported(self) -> float:
        """What the workers have reported since the last call."""
        try:
            return sum(amount for (amount,) in _AMOUNT.iter_unpack(os.read(self._reports.fileno(), 1 << 16)))
        except BlockingIOError:
            return 0.0

    def __call__(self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Yield function(*task) for each task, in the order they finish.

        `function` must be importable and its results picklable. At most two tasks a worker are in flight, so `tasks` may be
        lazy. The first failure is raised here as it is; a requested stop raises `Stopped`. Either waits for the tasks that are
        running.
        """
        pending: set[Future[Result]] = set()
        remaining = iter(tasks)
        try:
            while True:
                while len(pending) < 2 * self.workers and (task := next(remaining, None)) is not None:
                    pending.add(self._submit(function, *task))
                if not pending:
                    return
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                report(self._reported())
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
        finally:
            wait([future for future in pending if not future.cancel()])


def run_tasks(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], *, workers: int | None = None
) -> Iterator[Result]:
    """The same by processes that are started for these tasks."""
    with WorkerPool(workers) as pool:
        yield from pool(function, tasks)


def _begin_worker(environment: Mapping[str, str], reports: Connection) -> None:
    global _reports
    _reports = reports
    os.environ.clear()
    os.environ.update(environment)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is to use one core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
