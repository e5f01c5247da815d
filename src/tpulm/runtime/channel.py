"""The protocol between the hosts of a run: lines of text over TCP, in a star around the first host.

    hello {"index", "count", "run"}    from each host to the first; it answers "welcome", or "refused REASON" and hangs up
    arrive NAME                        a host waits at a barrier; "go NAME" comes back when all have arrived
    leave CODE                         a host ends, on purpose, with this exit code
    gone INDEX CODE                    from the first host to all others: one has left (CODE), or was lost ("-")

A killed process loses its connections at once, and a vanished machine after two unanswered keepalive probes of the kernel (15
s). JAX notices the same, but only after its own timeout, and ends the process from inside without a record.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from tpulm.errors import EXIT_STOPPED, ConfigError, PeerLost, Stopped
from tpulm.runtime import interrupt, watchdog

_POLL_SECONDS = 0.2
_LINE_BYTES = 4096
_FAREWELL_SECONDS = 10.0


class LineConnection:
    """A connection that sends and receives lines."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._stream = connection.makefile("rb")
        self._lock = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)

    def send(self, text: str) -> None:
        """Send a line. That a peer is gone is noticed only by reading."""
        with contextlib.suppress(OSError), self._lock:
            self._connection.sendall(f"{text}\n".encode())

    def receive(self) -> str | None:
        """The next line; None once the connection is gone."""
        line = b""
        with contextlib.suppress(OSError):
            line = self._stream.readline(_LINE_BYTES)
        if line.endswith(b"\n"):
            return line.decode(errors="replace").rstrip("\n")
        with contextlib.suppress(OSError):
            self._stream.close()
        return None

    def is_gone(self) -> bool:
        """Whether the peer has hung up, even if not all that it sent was read."""
        poll = select.poll()
        poll.register(self._connection, getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))

    def close(self) -> None:
        """Hang up; a thread waiting in `receive` gets None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def discard(self) -> None:
        """Hang up a connection that no thread reads."""
        self.close()
        self._stream.close()


class Star:
    """One host's end of the channel. `on_loss` is called, from a thread, when another host is lost before this one has left."""

    def __init__(self, index: int, count: int, lines: dict[int, LineConnection], on_loss: Callable[[PeerLost | Stopped], None]):
        self._index, self._count, self._lines, self._on_loss = index, count, lines, on_loss
        self._changed = threading.Condition()
        self._departing = threading.Lock()  # held while the departure of a host is announced and handled
        self._arrived: dict[str, int] = {}  # at the first host: how many wait at a barrier
        self._passed: dict[str, int] = {}  # how often a barrier was opened
        self._visits: dict[str, int] = {}
        self._departed: set[int] = set()
        self._lost: PeerLost | Stopped | None = None
        self._leaving = False
        for other, line in lines.items():
            threading.Thread(target=self._listen, args=(other, line), name=f"host-{other}", daemon=True).start()

    def barrier(self, name: str) -> None:
        visit = self._visits[name] = self._visits.get(name, 0) + 1
        if self._index == 0:
            self._arrive(name)
        else:
            self._lines[0].send(f"arrive {name}")
        with self._changed:
            while self._passed.get(name, 0) < visit:
                if self._lost is not None:
                    raise self._lost
                interrupt.check("finished work is kept")
                watchdog.report()  # if a host hangs, it is another one
                self._changed.wait(_POLL_SECONDS)

    def lost(self, wait_seconds: float) -> PeerLost | Stopped | None:
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, wait_seconds)
            return self._lost

    def leave(self, code: int) -> None:
        """Tell the others; later departures are no losses.

        The first host leaves last, if the others leave soon: JAX ends every process whose coordinator is gone.
        """
        with self._changed:
            self._leaving = True
        for line in self._lines.values():
            line.send(f"leave {code}")
        if self._index == 0:
            with self._changed:
                self._changed.wait_for(lambda: len(self._departed) == self._count - 1, _FAREWELL_SECONDS)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _listen(self, other: int, line: LineConnection) -> None:
        while (text := line.receive()) is not None:
            word, _, rest = text.partition(" ")
            if word == "arrive":
                self._arrive(rest)
            elif word == "go":
                self._open(rest)
            elif word == "leave":
                self._gone(other, int(rest))
            elif word == "gone":
                number, _, code = rest.partition(" ")
                self._gone(int(number), None if code == "-" else int(code))
        self._gone(other, None)

    def _arrive(self, name: str) -> None:
        with self._changed:
            self._arrived[name] = self._arrived.get(name, 0) + 1
            if self._arrived[name] < self._count:
                return
            self._arrived[name] = 0
        for line in self._lines.values():
            line.send(f"go {name}")
        self._open(name)

    def _open(self, name: str) -> None:
        with self._changed:
            self._passed[name] = self._passed.get(name, 0) + 1
            self._changed.notify_all()

    def _gone(self, other: int, code: int | None) -> None:
        with self._departing:  # else a host that leaves because of it could be taken for the first one gone
            if other in self._departed or other == self._index:
                return
            if self._index == 0:  # before this host acts on it, else the others could first hear of its own leaving
                for number, line in self._lines.items():
                    if number != other:
                        line.send(f"gone {other} {'-' if code is None else code}")
            with self._changed:
                self._departed.add(other)
                is_loss = code != 0 and self._lost is None and not self._leaving
                if is_loss:
                    self._lost = peer_lost(other, code)
                self._changed.notify_all()
        if is_loss and self._lost is not None:
            if code == EXIT_STOPPED:
                interrupt.request(f"a stop of host {other}")
            self._on_loss(self._lost)


def peer_lost(index: int, code: int | None) -> PeerLost | Stopped:
    """The error for a departed host: killed or vanished (None), or ended with an exit code."""
    if code is None:
        return PeerLost(
            f"host {index} was lost: its process was killed, or its machine is gone. Start all hosts again with the same "
            "command: they continue from the last checkpoint"
        )
    if code == EXIT_STOPPED:
        return Stopped(
            f"host {index} was stopped, and this one with it. Start all hosts again with the same command to continue."
        )
    return PeerLost(f"host {index} failed (exit code {code}); its own message says why", code=code)


def greet(line: LineConnection, index: int, count: int, run: str) -> None:
    """Introduce this host to the first one. Raises ConfigError if it refuses, PeerLost if it is gone."""
    line.send("hello " + json.dumps({"index": index, "count": count, "run": run}))
    answer = line.receive()
    if answer is None:
        raise peer_lost(0, None)
    if answer.startswith("refused "):
        raise ConfigError(answer.removeprefix("refused "))


def has_line(connection: socket.socket) -> bool:
    """Whether `receive` would not wait, as a line has come or nothing more can; of a stranger it would, for each byte."""
    connection.setblocking(False)
    try:
        begun = connection.recv(_LINE_BYTES, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return b"\n" in begun or len(begun) in (0, _LINE_BYTES)


def read_greeting(line: LineConnection, count: int, run: str, known: set[int], note: Callable[[str], None]) -> int | None:
    """The index of a host that introduces itself; None, with the line closed, for a peer that does not belong to this run.

    `note` receives which host is refused, and why.
    """
    text = line.receive() or ""
    word, _, rest = text.partition(" ")
    try:
        greeting: dict[str, Any] = json.loads(rest) if word == "hello" else {}
        index, their_count, their_run = int(greeting["index"]), int(greeting["count"]), str(greeting["run"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        line.discard()
        return None
    reason = ""
    if their_count != count:
        reason = f"host {index} was started with --num-hosts {their_count}, the first one with {count}"
    elif not 0 < index < count or index in known:
        reason = f"there is a host with --host-index {index} already; give each its own, from 0 to {count - 1}"
    elif their_run != run:
        reason = f"host {index} was started with another configuration or work folder than the first one; they must be the same"
    if reason:
        note(f"refused: {reason}")
        line.send(f"refused {reason}")
        line.discard()
        return None
    line.send("welcome")
    return index
