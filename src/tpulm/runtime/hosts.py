"""Several machines working on one run: which one this is, barriers, and what happens when one is lost.

`membership` says which host this is, from options or from what a TPU slice tells its machines: the metadata of a TPU VM
(agent-worker-number, worker-network-endpoints) or the environment of a GKE pod (TPU_WORKER_ID, TPU_WORKER_HOSTNAMES), both as
in JAX itself (jax/_src/clusters/cloud_tpu_cluster.py). `join` connects the hosts and watches them; how work is divided depends
only on `Hosts.index` and `count`. Nothing here imports JAX: several hosts also prepare corpus and dataset.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from tpulm.errors import ConfigError, PeerLost, Stopped, TpulmError
from tpulm.progress import SILENT, Progress
from tpulm.runtime import interrupt
from tpulm.runtime.channel import LineConnection, Star, greet, has_line, read_greeting

Item = TypeVar("Item")

# Hosts of a slice start minutes apart, and longer where each installs tpulm by itself.
JOIN_SECONDS = float(os.environ.get("TPULM_JOIN_SECONDS", "300"))
_MUTE_SECONDS = 300.0  # for which a first host may not even refuse a connection, as behind a firewall
_REPORT_SECONDS = 20.0
_NAME_SECONDS = 60.0  # until a pod's own name resolves
_GREETING_SECONDS = 2.0  # a host introduces itself immediately; other clients may stay silent
_ACCEPT_SECONDS = 0.1
_ANSWER_SECONDS = 30.0
_GRACE_SECONDS = 5.0  # for this host to end by itself when another is lost
_STOP_GRACE_SECONDS = 20.0  # … when another was stopped, and this one may still be saving
_RECORD_SECONDS = 12.0


@dataclass(frozen=True)
class Hosts:
    """Host `index` of `count`. The first host does what only one may do; lists of tasks are divided by index."""

    index: int = 0
    count: int = 1
    coordinator: str = ""  # address:port, where there are several
    channel: Star | None = None
    record: Callable[[PeerLost | Stopped], None] = lambda error: None  # records a loss that ends this process

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
        """Wait until all hosts have called this. Raises PeerLost if one is gone, Stopped if a stop was requested.

        The rule for files that hosts share: read, barrier, write. Then no host reads what another one is writing.
        """
        if self.channel is not None:
            self.channel.barrier(name)

    def lost(self, *, wait_seconds: float = 0.0) -> PeerLost | Stopped | None:
        """The error naming the host that is gone, if one is; whatever fails here at that time fails because of it."""
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
    """Connect all hosts of the run during the block. `run` identifies their work and must be the same on all.

    When one is lost, this process leaves a record by `record` and ends, with 1 or that host's exit code, at most some seconds
    later: its computations with the others would never finish. Raises ConfigError for hosts that do not match.
    """
    if member is None:
        yield ALONE
        return
    run = hashlib.sha256(run.encode()).hexdigest()  # so that it fits a line
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


def _gather(address: tuple[str, int], member: Membership, run: str, progress: Progress) -> dict[int, LineConnection]:
    lines: dict[int, LineConnection] = {}
    with _server(address) as server, contextlib.ExitStack() as leaving, contextlib.ExitStack() as on_error:
        on_error.callback(lambda: [line.discard() for line in lines.values()])
        server.settimeout(_ACCEPT_SECONDS)
        silent: dict[socket.socket, float] = {}  # no whole line has come from them; and when they are given up
        leaving.callback(lambda: [connection.close() for connection in silent])
        until = time.monotonic() + JOIN_SECONDS
        reported_at = time.monotonic()
        while len(lines) < member.count - 1:
            interrupt.check("nothing was begun")
            missing = ", ".join(str(index) for index in range(1, member.count) if index not in lines)
            if time.monotonic() > reported_at + _REPORT_SECONDS:
                reported_at = time.monotonic()
                progress.note(f"still waiting at {address[0]}:{address[1]} for host {missing}")
            if time.monotonic() > until:
                raise TpulmError(
                    f"host {missing} did not come within {JOIN_SECONDS:.0f} s; start all {member.count} hosts with the same "
                    f"command, and see that they reach {member.coordinator} and the port after it"
                )
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                silent[connection] = time.monotonic() + _GREETING_SECONDS
            for index in [index for index, line in lines.items() if line.is_gone()]:
                progress.note(f"host {index} has gone before all were here; waiting until it is started again")
                lines.pop(index).discard()
            for connection, deadline in [*silent.items()]:
                if has_line(connection):
                    del silent[connection]
                    connection.settimeout(_GREETING_SECONDS)
                    line = LineConnection(connection)
                    index = read_greeting(line, member.count, run, set(lines), progress.note)
                    if index is not None:
                        connection.settimeout(None)
                        lines[index] = line
                elif time.monotonic() > deadline:
                    del silent[connection]
                    connection.close()
        on_error.pop_all()
    return lines


def _server(address: tuple[str, int]) -> socket.socket:
    """A Kubernetes pod may start before its own name resolves (JAX waits for that, too)."""
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


def _connect(address: tuple[str, int], member: Membership, run: str) -> LineConnection:
    begun, is_mute = time.monotonic(), True
    while True:
        interrupt.check("nothing was begun")
        try:
            connection = socket.create_connection(address, timeout=10.0)
        except OSError as error:
            is_mute &= isinstance(error, TimeoutError)
            patience = min(_MUTE_SECONDS, JOIN_SECONDS) if is_mute else JOIN_SECONDS
            if time.monotonic() > begun + patience:
                raise TpulmError(
                    f"the first host, {address[0]}:{address[1]}, did not answer within {patience:.0f} s ({error}); start it, "
                    "with --host-index 0, and see that no firewall is between the hosts, on this TCP port and the one before"
                ) from error
            time.sleep(0.5)
            continue
        connection.settimeout(_ANSWER_SECONDS)
        line = LineConnection(connection)
        try:
            greet(line, member.index, member.count, run)
        except TpulmError:
            line.discard()
            raise
        connection.settimeout(None)
        return line


def _end(error: PeerLost | Stopped, record: Callable[[PeerLost | Stopped], None], ended: threading.Event) -> None:
    """End this process, unless it ends by itself within the grace period. Runs in the thread that noticed the loss."""
    if not ended.wait(_STOP_GRACE_SECONDS if isinstance(error, Stopped) else _GRACE_SECONDS):
        end_now(error, record)


def end_now(error: PeerLost | Stopped, record: Callable[[PeerLost | Stopped], None]) -> NoReturn:
    """Write the record, print why, and end the process, whatever its other threads do."""
    writer = threading.Thread(target=record, args=(error,), daemon=True)  # may hang for the reason of the loss
    writer.start()
    writer.join(_RECORD_SECONDS)
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_code)


DEFAULT_PORT = 8476
_METADATA = "http://{host}/computeMetadata/v1/instance/attributes/{key}"
_ATTEMPTS, _PAUSE_SECONDS = 6, 0.5  # as JAX does (its PR 26919): the server fails now and then


@dataclass(frozen=True)
class Membership:
    coordinator: str  # address:port of the first host
    count: int
    index: int


def membership(
    coordinator: str | None = None, num_hosts: int | None = None, host_index: int | None = None
) -> Membership | None:
    """The membership by the options, else by the TPU's environment; None if this machine works alone.

    Raises ConfigError for inconsistent options, TpulmError for a metadata server that fails.
    """
    options = {"--coordinator": coordinator, "--num-hosts": num_hosts, "--host-index": host_index}
    missing = [name for name, value in options.items() if value is None]
    if len(missing) == 3:
        return _from_environment() or _from_metadata()
    if coordinator is None or num_hosts is None or host_index is None:
        raise ConfigError(
            f"{' and '.join(missing)} missing: several hosts need all three of {', '.join(options)}, the first and second the "
            "same on each"
        )
    if num_hosts < 1 or not 0 <= host_index < num_hosts:
        raise ConfigError(f"--host-index {host_index} is not one of {num_hosts} hosts: count from 0 to --num-hosts minus one")
    if num_hosts == 1:
        return None
    host, colon, port = coordinator.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_535:
        raise ConfigError(
            f"--coordinator {coordinator}: give address:port of the first host, such as 10.0.0.2:{DEFAULT_PORT}; the port "
            "after it is used, too"
        )
    return Membership(coordinator, num_hosts, host_index)


def _from_environment() -> Membership | None:
    names = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(names) < 2:
        return None
    index = os.environ.get("TPU_WORKER_ID", "")
    if not index.isdecimal() or int(index) >= len(names):
        raise ConfigError(f"TPU_WORKER_ID is '{index}', and TPU_WORKER_HOSTNAMES names {len(names)} hosts; set both or neither")
    return Membership(f"{names[0]}:{DEFAULT_PORT}", len(names), int(index))


def _from_metadata() -> Membership | None:
    # A metadata server named by hand counts, too, for rehearsals.
    is_tpu_vm = "GCE_METADATA_HOST" in os.environ or Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists()
    if not is_tpu_vm or os.environ.get("TPU_SKIP_MDS_QUERY"):
        return None
    number, endpoints = _attribute("agent-worker-number"), _attribute("worker-network-endpoints")
    if number is None or endpoints is None:
        return None
    # Each is an address or, in an older form, name:id:address.
    addresses = [endpoint.split(":")[-1] for endpoint in endpoints.split(",") if endpoint]
    if len(addresses) < 2:
        return None
    if not number.isdecimal() or int(number) >= len(addresses):
        raise ConfigError(
            f"the metadata of this TPU VM says agent-worker-number '{number}', and names {len(addresses)} hosts; say which one "
            "this is by --coordinator, --num-hosts and --host-index"
        )
    return Membership(f"{addresses[0]}:{DEFAULT_PORT}", len(addresses), int(number))


def _attribute(key: str) -> str | None:
    """None if there is no such attribute, or no metadata server of that name. Raises TpulmError if it does not respond: a host
    of a slice that believed itself alone would train a separate run in the same work folder.
    """
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(_METADATA.format(host=host, key=key), headers={"Metadata-Flavor": "Google"})
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            reason = f"HTTP {error.code}"
        except OSError as error:
            if isinstance(error, urllib.error.URLError) and isinstance(error.reason, socket.gaierror):
                return None
            reason = str(error)
    raise TpulmError(
        f"the metadata server {host} did not say {key}, asked {_ATTEMPTS} times ({reason}), so this host does not know whether "
        "it is one of several; run it again, or say it by --coordinator, --num-hosts and --host-index, or, on a machine that "
        "works alone, by TPU_SKIP_MDS_QUERY=1"
    )
