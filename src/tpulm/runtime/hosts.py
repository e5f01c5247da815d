"""Several machines that work on one run: which of them this is, where they wait for each other, and what if one is gone.

`join` finds the others and watches them; what they share out is decided by `Hosts.index` and `count` alone. There is no JAX in
here: corpus and dataset are prepared by several hosts, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar

from tpulm.errors import ConfigError, PeerLost, Stopped, TpulmError
from tpulm.progress import SILENT, Progress
from tpulm.runtime import interrupt
from tpulm.runtime.channel import Line, Star, greet, read_greeting
from tpulm.runtime.membership import Membership, membership

__all__ = ["ALONE", "Hosts", "Membership", "end_now", "join", "membership"]

Item = TypeVar("Item")

JOIN_SECONDS = 300.0  # hosts of a slice start minutes apart
_TELL_SECONDS = 20.0
_NAME_SECONDS = 60.0  # until a pod's own name is known
_GREETING_SECONDS = 2.0  # a host says who it is at once; others that connect may say nothing
_ANSWER_SECONDS = 30.0  # the first host may have several of those before it comes to us
_GRACE_SECONDS = 5.0  # for this host's own work to end by itself when another is lost
_STOP_GRACE_SECONDS = 20.0  # … when another was stopped, and this one may still be saving
_RECORD_SECONDS = 12.0


class Channel(Protocol):
    """What connects the hosts: `tpulm.runtime.channel.Star`."""

    def barrier(self, name: str) -> None: ...

    def lost(self, wait_seconds: float) -> PeerLost | Stopped | None: ...


@dataclass(frozen=True)
class Hosts:
    """`index` of `count`. What only one may do is the first one's; every list of tasks is shared out by number."""

    index: int = 0
    count: int = 1
    coordinator: str = ""  # address:port, where there are several
    channel: Channel | None = None
    record: Callable[[PeerLost | Stopped], None] = lambda error: None  # leaves word of a loss, where this process cannot go on

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def are_several(self) -> bool:
        return self.count > 1

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This host's share of a list that all hosts have in the same order."""
        return items[self.index :: self.count]

    def barrier(self, name: str) -> None:
        """Wait until all hosts have come here. Raises PeerLost when one is gone, Stopped when a stop was requested.

        The rule for files that hosts share: look, barrier, write. Nobody then looks at what another one is writing.
        """
        if self.channel is not None:
            self.channel.barrier(name)

    def lost(self, *, wait_seconds: float = 0.0) -> PeerLost | Stopped | None:
        """The error that says who is gone, if one is; what fails here just then fails because of it."""
        return None if self.channel is None else self.channel.lost(wait_seconds)


ALONE = Hosts()


@contextlib.contextmanager
def join(
    member: Membership | None,
    *,
    run: str,
    record: Callable[[PeerLost | Stopped], None] = lambda error: None,
    progress: Progress = SILENT,
) -> Iterator[Hosts]:
    """Inside the block all hosts of the run are there. `run` names what they work on and must be the same on all.

    When one is lost, this process leaves a record by `record` and ends, with 1 or that host's exit code, some seconds later at
    most: what it computes with the others would never finish. Raises ConfigError for hosts that do not fit together.
    """
    if member is None:
        yield ALONE
        return
    run = hashlib.sha256(run.encode()).hexdigest()  # a line has an end
    host, _, port = member.coordinator.rpartition(":")
    others = "the other host" if member.count == 2 else f"{member.count - 1} other hosts"
    progress.start(f"Waiting for {others}" if member.index == 0 else "Looking for the first host")
    address = (host, int(port) + 1)  # the port itself is JAX's
    lines = _gather(address, member, run, progress) if member.index == 0 else {0: _connect(address, member, run)}
    ended = threading.Event()
    star = Star(member.index, member.count, lines, lambda error: _end(error, record, ended))
    code = 1
    try:
        yield Hosts(member.index, member.count, member.coordinator, star, record)
        code = 0
    except TpulmError as error:
        code = error.exit_code
        raise
    finally:
        ended.set()
        star.leave(code)
        star.close()


def _gather(address: tuple[str, int], member: Membership, run: str, progress: Progress) -> dict[int, Line]:
    lines: dict[int, Line] = {}
    with _server(address) as server, contextlib.ExitStack() as on_error:
        on_error.callback(lambda: [line.discard() for line in lines.values()])
        server.settimeout(0.5)
        until = time.monotonic() + JOIN_SECONDS
        told_at = time.monotonic()
        while len(lines) < member.count - 1:
            interrupt.check("nothing was begun")
            missing = ", ".join(str(index) for index in range(1, member.count) if index not in lines)
            if time.monotonic() > told_at + _TELL_SECONDS:
                told_at = time.monotonic()
                progress.note(f"still waiting at {address[0]}:{address[1]} for host {missing}")
            if time.monotonic() > until:
                raise TpulmError(
                    f"host {missing} did not come within {JOIN_SECONDS:.0f} s; start all {member.count} hosts with the same "
                    f"command, and see that they reach {member.coordinator} and the port after it"
                )
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            connection.settimeout(_GREETING_SECONDS)
            line = Line(connection)
            index = read_greeting(line, member.count, run, set(lines), progress.note)
            if index is not None:
                lines[index] = line
        on_error.pop_all()
    return lines


def _server(address: tuple[str, int]) -> socket.socket:
    """A pod of Kubernetes may begin before its own name is known (JAX waits for it, too)."""
    until = time.monotonic() + _NAME_SECONDS
    while True:
        interrupt.check("nothing was begun")
        try:
            return socket.create_server(address, reuse_port=False)
        except OSError as error:
            if not isinstance(error, socket.gaierror) or time.monotonic() > until:
                raise ConfigError(
                    f"cannot listen on {address[0]}:{address[1]} for the other hosts ({error.strerror}); --coordinator must be "
                    "an address of this, the first host, with a port whose next one is free, too"
                ) from error
        time.sleep(0.5)


def _connect(address: tuple[str, int], member: Membership, run: str) -> Line:
    until = time.monotonic() + JOIN_SECONDS
    while True:
        interrupt.check("nothing was begun")
        try:
            connection = socket.create_connection(address, timeout=10.0)
        except OSError as error:
            if time.monotonic() > until:
                raise TpulmError(
                    f"the first host, {address[0]}:{address[1]}, did not answer within {JOIN_SECONDS:.0f} s ({error}); start "
                    "it, with --host-index 0, and see that no firewall is between the hosts"
                ) from error
            time.sleep(0.5)
            continue
        connection.settimeout(_ANSWER_SECONDS)
        line = Line(connection)
        try:
            greet(line, member.index, member.count, run)
        except TpulmError:
            line.discard()
            raise
        return line


def _end(error: PeerLost | Stopped, record: Callable[[PeerLost | Stopped], None], ended: threading.Event) -> None:
    """End this process, unless it ends by itself within the grace. Runs in the thread that saw the loss."""
    if not ended.wait(_STOP_GRACE_SECONDS if isinstance(error, Stopped) else _GRACE_SECONDS):
        end_now(error, record)


def end_now(error: PeerLost | Stopped, record: Callable[[PeerLost | Stopped], None]) -> NoReturn:
    """Leave the record, say why, and end the process, whatever its other threads do."""
    writer = threading.Thread(target=record, args=(error,), daemon=True)  # which may hang where the loss came from
    writer.start()
    writer.join(_RECORD_SECONDS)
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_code)
