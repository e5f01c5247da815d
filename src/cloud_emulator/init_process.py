"""The init process of an emulated machine: runs the startup script, adopts orphans, and ends all when the emulator is gone.

A standalone program that uses only the standard library: init_process.py SCRIPT FOLDER. Its standard input is a pipe whose
other end the emulator holds; when that closes, every process of the machine is killed and FOLDER removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = 2.0  # between looks for a parent that is gone while a fork of it still holds the pipe


def descendants(root: int) -> list[int]:
    """All living processes below `root`."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 (pathlib costs time at start)
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b") ")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(entry))
    processes, new = [], [root]
    while new:
        new = [child for process in new for child in children.get(process, [])]
        processes += new
    return processes


def end_all() -> None:
    give_up_at = time.monotonic() + 20
    while (remaining := descendants(os.getpid())) and time.monotonic() < give_up_at:
        for process in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        reap()
        time.sleep(0.005)


def reap() -> list[tuple[int, int]]:
    """Reap ended processes; returns their ids and exit codes."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if process == 0:
            return ended
        ended.append((process, os.waitstatus_to_exitcode(status)))


def start(script: str) -> int:
    process = os.fork()
    if process == 0:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.execv("/bin/bash", ["/bin/bash", "-c", 'exec "$0"', script])
        finally:
            os._exit(127)
    return process


def main() -> None:
    script, folder = sys.argv[1:]
    emulator = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("this kernel gives orphans no new parent")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    first = start(script) if script else 0
    while True:
        ready, _, _ = select.select([0, read_end], [], [], LOOK_SECONDS)
        if read_end in ready:
            os.read(read_end, 4096)
        for process, code in reap():
            if process == first:
                print(f"startup-script exit status {code}", flush=True)
        if (0 in ready and not os.read(0, 1)) or os.getppid() != emulator:
            end_all()
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # the node's and the emulator's folders, once empty
                os.rmdir(os.path.dirname(folder))  # noqa: PTH106, PTH120
                os.rmdir(os.path.dirname(os.path.dirname(folder)))  # noqa: PTH106, PTH120
            return


if __name__ == "__main__":
    main()
