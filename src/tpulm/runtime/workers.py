"""A pool of worker processes for restartable tasks.

Workers are never forked from this process, which may hold JAX's threads, but from a server process that imports what they need,
does nothing else, and ends with this process: modules are imported once and in memory once. A worker ends as soon as its parent
is gone, killed or not, so nothing keeps writing into a work folder while the next attempt works there.

Not multiprocessing's server and pool: those import the caller's main module into every worker, so that a script needs `if
__name__ == "__main__"`, and leave named semaphores and a folder behind when everything is killed. Here a task is a pickle on a
socket pair, which vanishes with its processes, and its function is found by import.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from tpulm import storage
from tpulm.errors import TpulmError
from tpulm.progress import DocumentRate, Progress
from tpulm.runtime import interrupt

Result = TypeVar("Result")


_parent: Connection | None = None  # of this process, if it is a worker
_shown: ContextVar[TaskProgress | None] = ContextVar("shown", default=None)  # of this thread


def report(amount: float, documents: int = 0) -> None:
    """Called by a task now and then: `amount` more of it is done. The process that waits for it shows that (`TaskProgress`)."""
    if _parent is not None:
        _parent.send_bytes(pickle.dumps((None, (amount, documents))))
    elif (shown := _shown.get()) is not None:
        shown.add(within=amount, documents=documents)


class TaskProgress:
    """The progress of tasks: what they `report`, or the sum of those that have ended, whichever is more.

    Used as a context around a runner's tasks.
    """

    def __init__(self, progress: Progress):
        self._progress, self._rate = progress, DocumentRate(progress)
        self._within = self._over = self._done = 0.0

    def __enter__(self) -> TaskProgress:
        _shown.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _shown.set(None)

    def add(self, *, within: float = 0.0, over: float = 0.0, documents: int = 0) -> None:
        """`over` is the full amount of a task that has ended."""
        self._within += within
        self._over += over
        done = max(self._within, self._over)
        self._progress.advance(done - self._done)
        self._done = done
        self._rate.add(documents)


class Runner(Protocol):
    """Where restartable tasks run: in a local pool (`WorkerPool`), or on a cluster (`tpulm.runtime.beam`)."""

    def __call__(self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Yield function(*task) for each task, in any order. The function must be importable, its results picklable."""
        ...


def count_cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """A runner of `workers` processes (default: one per core), which persist between calls.

    They are started by the first call, or ahead of it by `warm_up`, and have imported `modules`, which their tasks will need.
    Used as a context.
    """

    def __init__(self, workers: int | None = None, *, modules: Sequence[str] = ()):
        self.workers = workers or count_cores()
        self._modules = modules
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="worker")  # one per process
        self._mine = threading.local()
        self._connections: list[Connection] = []
        self._reported: SimpleQueue[tuple[float, int]] = SimpleQueue()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for connection in self._connections:
            connection.close()

    def warm_up(self, function: Callable[..., object] = os.getpid, *task: Any) -> None:
        """Start the processes in the background; each, most likely, calls function(*task), whose failure is ignored: what fails
        will fail again where it is needed."""
        for _ in range(self.workers):
            self._submit(function, *task)

    def _submit(self, function: Callable[..., Result], *task: Any) -> Future[Result]:
        return self._threads.submit(self._ask, pickle.dumps((function, task)))

    def _ask(self, task: bytes) -> Any:
        """The result from this thread's worker."""
        try:
            if (connection := getattr(self._mine, "connection", None)) is None:
                connection = self._mine.connection = _start_worker(self._modules)
                self._connections.append(connection)
            connection.send_bytes(task)
            while (answer := pickle.loads(connection.recv_bytes()))[0] is None:  # a report
                self._reported.put(answer[1])
        except (EOFError, ConnectionError) as error:
            self._mine.connection = None
            raise TpulmError(
                "a worker process died, most likely because memory ran out: run the same command again (finished parts are "
                "kept), with fewer workers if it recurs: there is one for each core the command may use, and "
                "'taskset --cpu-list 0' in front of it leaves one"
            ) from error
        succeeded, result = answer
        if succeeded:
            return result
        raise result

    def __call__(self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Yield function(*task) for each task, in the order they finish.

        `function` must be importable and its results picklable. At most two tasks per worker are in flight, so `tasks` may be
        lazy. The first failure is raised here unchanged; a requested stop raises `Stopped`. Both wait for running tasks.
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
                while not self._reported.empty():
                    report(*self._reported.get())
                report(0.0)  # shows that this process is alive
                for future in done:
                    yield future.result()
                interrupt.check()
        finally:
            wait([future for future in pending if not future.cancel()])


def run_tasks(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], *, workers: int | None = None
) -> Iterator[Result]:
    """Like `WorkerPool`, with processes that are started for these tasks."""
    with WorkerPool(workers) as pool:
        yield from pool(function, tasks)


def run_here(function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
    """A runner in this process, for work shorter than a pool's start."""
    for task in tasks:
        yield function(*task)
        interrupt.check()


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket  # takes the workers' ends of their connections


_server: _Server | None = None
_server_lock = threading.Lock()


def _start_worker(modules: Sequence[str]) -> Connection:
    """A connection to a new worker, forked from this process's server, which is started if need be."""
    global _server
    parent, child = Pipe()
    with _server_lock, child:
        if _server is None or _server.process.poll() is not None:
            _server = _start_server(modules)
        socket.send_fds(_server.control, [b"."], [child.fileno()])
    parent.send((dict(os.environ), sys.path, str(Path.cwd())))
    return parent


def _start_server(modules: Sequence[str]) -> _Server:
    storage.remove_leftovers()
    parent, child = socket.socketpair()
    program = (
        f"import sys; sys.path[:] = {sys.path}; from tpulm.runtime import workers; workers.serve({child.fileno()}, {modules})"
    )
    # These reach the whole process group (Ctrl-C, a closed terminal, `timeout`), but it is the parent that handles them.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, interrupt.SIGNALS)
    try:
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, pass_fds=[child.fileno()])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        child.close()
    atexit.register(lambda: (process.kill(), process.wait(), parent.close()))
    return _Server(process, parent)


def serve(control: int, modules: Sequence[str]) -> None:
    """The server's main loop: fork a worker for each connection received through the socket, until its other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers that ended
    for module in modules:
        with contextlib.suppress(ImportError):  # the tasks will raise it
            importlib.import_module(module)
    parent = socket.socket(fileno=control)
    while connections := socket.recv_fds(parent, 1, 1)[1]:
        if os.fork() == 0:
            try:
                parent.close()
                _work(Connection(connections[0]))
            finally:
                os._exit(1)
        os.close(connections[0])


def _work(parent: Connection) -> None:
    """A worker's main loop: answer each task, until `_receive` ends the process."""
    global _parent
    _parent = parent
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    environment, sys.path[:], folder = parent.recv()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}  # a worker uses one core
    tasks: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(parent, tasks), daemon=True).start()
    while True:
        parent.send_bytes(_answer(tasks.get()))


def _receive(parent: Connection, tasks: SimpleQueue[bytes]) -> None:
    """In a thread of its own, so that a busy worker notices that its parent is gone."""
    try:
        while True:
            tasks.put(parent.recv_bytes())
    finally:
        os._exit(0)


def _answer(task: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(task)
        return pickle.dumps((True, function(*arguments)))
    except BaseException as error:
        formatted = "".join(traceback.format_exception(error))
        try:
            error.add_note(f"In a worker process:\n{formatted}")
            failure = pickle.dumps((False, error))
            pickle.loads(failure)
        except Exception:  # an error that cannot be sent
            return pickle.dumps((False, RuntimeError(formatted)))
        return failure
