"""Hosts that find each other, wait for each other, and notice when one is gone."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ports import free_port_pair
from tpulm.errors import ConfigError, DataError, PeerLost, Stopped, TpulmError
from tpulm.runtime import channel, interrupt
from tpulm.runtime.hosts import Hosts, Membership, join

Body = Callable[[Hosts], object]
SECONDS = 60.0  # until a test gives up


@pytest.fixture
def coordinator() -> str:
    return f"127.0.0.1:{free_port_pair()}"


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PeerLost | Stopped]]:
    """The losses for which this process would have been ended."""
    losses: list[PeerLost | Stopped] = []
    monkeypatch.setattr("tpulm.runtime.hosts._end", lambda error, record, ended: losses.append(error))
    monkeypatch.setattr("tpulm.runtime.hosts.JOIN_SECONDS", SECONDS)
    with interrupt.handled():
        yield losses


class Group:
    """Hosts of one run as threads."""

    def __init__(self, coordinator: str):
        self._coordinator = coordinator
        self._pool = ThreadPoolExecutor(8)

    def start(self, body: Body, index: int, count: int, run: str = "run") -> Future[Any]:
        def host() -> object:
            with join(Membership(self._coordinator, count, index), run=run) as hosts:
                return body(hosts)

        return self._pool.submit(host)

    def run(self, *bodies: Body) -> list[object]:
        """What each gave back or raised; the last is the first to start."""
        started = [self.start(body, index, len(bodies)) for index, body in reversed(list(enumerate(bodies)))]
        return [future.exception(SECONDS) or future.result() for future in reversed(started)]

    @contextmanager
    def joining(self) -> Iterator[None]:
        """A first host, which waits; the second one comes after the block, and they find each other."""
        first = self.start(meet, 0, 2)
        yield
        assert self.start(meet, 1, 2).result(SECONDS) == 1
        assert first.result(SECONDS) == 0


@pytest.fixture
def group(coordinator: str) -> Group:
    return Group(coordinator)


def stray(coordinator: str) -> socket.socket:
    """A connection of somebody else, as soon as the first host listens."""
    host, _, port = coordinator.partition(":")
    until = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection((host, int(port) + 1), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)


def meet(hosts: Hosts) -> int:
    hosts.barrier("meeting")
    return hosts.index


def test_a_barrier_waits_for_all(group: Group, ended: list[PeerLost | Stopped]):
    arrived: list[tuple[str, int]] = []

    def body(hosts: Hosts) -> list[int]:
        seen = []
        for visit in range(4):
            for name in ("a", "b c"):
                time.sleep(0.01 * ((hosts.index + visit) % 3))
                arrived.append((name, hosts.index))
                hosts.barrier(name)
                seen.append(len(arrived))
        time.sleep(0.1 * hosts.index)
        assert hosts.lost(wait_seconds=0.05) is None, "one that ends early is no loss"
        return seen

    for seen in group.run(body, body, body):
        assert isinstance(seen, list), seen
        assert all(3 * number <= count <= 3 * number + 2 for number, count in enumerate(seen, start=1))
    assert len(arrived) == 24 and ended == []


@pytest.mark.parametrize(
    ("index", "count", "run", "message"),
    [
        (1, 2, "other", "host 1 .*configuration"),
        (1, 3, "run", "host 1 .*--num-hosts 3, .* 2"),
        (7, 2, "run", "--host-index 7 .*0 to 1"),
    ],
)
def test_a_host_that_does_not_fit_is_refused(group: Group, index: int, count: int, run: str, message: str):
    with group.joining(), pytest.raises(ConfigError, match=message):
        group.start(meet, index, count, run).result(SECONDS)


def test_two_hosts_of_one_number(group: Group):
    first, second, again = group.start(meet, 0, 3), group.start(meet, 1, 3), group.start(meet, 1, 3)
    done, _ = wait([second, again], SECONDS, FIRST_COMPLETED)
    (refused,) = done
    with pytest.raises(ConfigError, match="--host-index 1"):
        refused.result()
    third = group.start(meet, 2, 3)
    assert sorted(future.result(SECONDS) for future in (first, second, again, third) if future is not refused) == [0, 1, 2]


@pytest.mark.parametrize("last", ["", "arrive meeting", "leave 75"])
def test_a_host_that_goes_before_all_are_here_may_come_again(group: Group, coordinator: str, last: str):
    first = group.start(meet, 0, 3)
    line = channel.LineConnection(stray(coordinator))
    channel.greet(line, 1, 3, hashlib.sha256(b"run").hexdigest())
    line.send(last)
    line.discard()
    others = [group.start(meet, index, 3) for index in (1, 2)]
    assert [host.result(SECONDS) for host in (first, *others)] == [0, 1, 2]


@pytest.mark.parametrize("gone", [0, 1])
def test_a_lost_connection_is_a_lost_host(group: Group, ended: list[PeerLost | Stopped], gone: int):
    def body(hosts: Hosts) -> object:
        hosts.barrier("begin")
        if hosts.index == gone:
            hosts.channel.close()  # type: ignore[union-attr]
            return None
        hosts.barrier("end")
        return None

    errors = group.run(body, body, body)
    for error in errors[:gone] + errors[gone + 1 :]:
        assert isinstance(error, PeerLost) and error.exit_code == 76 and "lost" in str(error)
        # A first host of this test closes one line after the other, and its threads tell of it.
        assert f"host {gone} " in str(error) or gone == 0
    assert str(errors[0 if gone else 1]) in map(str, ended)


@pytest.mark.parametrize(
    ("error", "kind", "code", "message"),
    [
        (DataError("no text"), PeerLost, 3, r"host 1 failed \(exit code 3\)"),
        (RuntimeError("x"), PeerLost, 1, r"host 1 failed \(exit code 1\)"),
        (Stopped("stopped by hand"), Stopped, 75, "host 1 was stopped, and this one with it"),
    ],
)
def test_the_others_end_as_the_host_that_ended(group: Group, error: Exception, kind: type[TpulmError], code: int, message: str):
    all_are_past = threading.Barrier(3)  # these hosts share a process and its request to stop, which barriers look at

    def fail(hosts: Hosts) -> None:
        hosts.barrier("begin")
        all_are_past.wait(SECONDS)
        raise error

    def body(hosts: Hosts) -> object:
        hosts.barrier("begin")
        all_are_past.wait(SECONDS)
        return hosts.lost(wait_seconds=SECONDS)

    found = group.run(body, fail, body)
    assert found[1] is error
    for other in (found[0], found[2]):
        assert isinstance(other, kind) and other.exit_code == code and re.search(message, str(other))
    assert interrupt.reason() == ("a stop of host 1" if code == 75 else "")


def test_a_stop_ends_the_wait_at_a_barrier(group: Group):
    def body(hosts: Hosts) -> None:
        if hosts.index:
            hosts.lost(wait_seconds=SECONDS)
        else:
            interrupt.request("SIGTERM")
            hosts.barrier("x")

    first, second = group.run(body, body)
    assert isinstance(first, Stopped) and second is None


RUBBISH = [b"", b"\x16\x03\x01\x02\x00\x01\x00\xff\xfe\n", b"hello 5\n", b'hello {"index": 1e999, "count": 2, "run": "run"}\n']
RUBBISH += [b"hello " + b"[" * 4000 + b"\n", b"hello " + b"x" * 10_000 + b"\n"]


def test_strays_are_ignored_and_delay_nobody(group: Group, coordinator: str, monkeypatch: pytest.MonkeyPatch):
    """One that sends a byte now and then would hold up whoever reads it to the end of a line."""
    monkeypatch.setattr("tpulm.runtime.hosts._GREETING_SECONDS", 10 * SECONDS)
    done = threading.Event()

    def trickle(slow: socket.socket) -> None:
        with suppress(OSError):  # once it is given up
            while not done.wait(0.05):
                slow.send(b"x")

    with ThreadPoolExecutor(1) as pool, ExitStack() as open_till_the_end:
        open_till_the_end.callback(done.set)
        with group.joining():
            for rubbish in RUBBISH:
                connection = open_till_the_end.enter_context(closing(stray(coordinator)))
                with suppress(OSError):  # it may be closed already
                    connection.sendall(rubbish)
                    connection.shutdown(socket.SHUT_WR)
            open_till_the_end.enter_context(closing(stray(coordinator)))
            pool.submit(trickle, open_till_the_end.enter_context(closing(stray(coordinator))))


def test_a_stray_that_says_little_is_given_up(group: Group, coordinator: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tpulm.runtime.hosts._GREETING_SECONDS", 0.2)
    with group.joining(), closing(stray(coordinator)) as connection, suppress(ConnectionResetError):
        connection.send(b"hello")
        assert connection.recv(1) == b""


@pytest.mark.parametrize(("index", "count", "message"), [(0, 3, r"host 1, 2 .*127\.0\.0\.1"), (1, 2, r"127\.0\.0\.1")])
def test_the_others_do_not_come(group: Group, monkeypatch: pytest.MonkeyPatch, index: int, count: int, message: str):
    monkeypatch.setattr("tpulm.runtime.hosts.JOIN_SECONDS", 0.1)
    with pytest.raises(TpulmError, match=message):
        group.start(meet, index, count).result(SECONDS)


@pytest.mark.parametrize(("error", "waited"), [(TimeoutError("timed out"), 300), (ConnectionRefusedError("refused"), 1800)])
def test_hosts_wait_as_long_as_an_install_may_take(monkeypatch: pytest.MonkeyPatch, error: OSError, waited: float):
    """A host that installs refuses connections; a firewall swallows them (marin issue 7232, jax issue 35905)."""
    clock = [0.0]

    def fail(address: object, timeout: float) -> NoReturn:
        clock[0] += timeout
        raise error

    monkeypatch.setattr("tpulm.runtime.hosts.JOIN_SECONDS", 1800.0)
    monkeypatch.setattr("tpulm.runtime.hosts.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("tpulm.runtime.hosts.time.sleep", lambda seconds: None)
    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(TpulmError, match=rf"within {waited} s .*TCP port"), join(
        Membership("10.0.0.2:8476", 2, 1), run="run"
    ):  # fmt: skip
        pass
    assert waited <= clock[0] <= waited + 20


def test_a_stop_ends_the_search(group: Group):
    waiting = [group.start(meet, 0, 3), group.start(meet, 2, 3)]
    time.sleep(0.1)
    interrupt.request("SIGTERM")
    with pytest.raises(Stopped, match="SIGTERM"):
        waiting[0].result(SECONDS)
    assert isinstance(waiting[1].exception(SECONDS), TpulmError)


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_an_address_that_is_taken_or_another_machine_s(address: str):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=rf"on {re.escape(address)}"), join(
        Membership(f"{address}:{taken.getsockname()[1] - 1}", 2, 0), run="run"
    ):  # fmt: skip
        pass


def test_a_pod_whose_own_name_is_known_later(group: Group, monkeypatch: pytest.MonkeyPatch):
    """JAX waits for it, too: jax/_src/clusters/cloud_tpu_cluster.py, wait_for_coordinator."""
    resolve, asked = socket.create_server, []

    def create_server(address: tuple[str, int], **settings: Any) -> socket.socket:
        asked.append(address)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(address, **settings)

    monkeypatch.setattr(socket, "create_server", create_server)
    assert [host.index for host in group.run(lambda hosts: hosts, lambda hosts: hosts)] == [0, 1]  # pyright: ignore
    assert len(asked) == 2


HOST = """
import sys, threading, time
from tpulm.runtime import interrupt
from tpulm.errors import Stopped
from tpulm.runtime import hosts as joining
from tpulm.runtime.hosts import Membership, join
coordinator, index, record, what = sys.argv[1:]
joining._GRACE_SECONDS, joining._STOP_GRACE_SECONDS, joining._RECORD_SECONDS = 0.3, 2.0, 0.5

def write(error):
    with open(record, "w") as stream:
        stream.write(f"{error.exit_code} {error}")
    if what == "hang":
        time.sleep(60)

with join(Membership(coordinator, 2, int(index)), run="run", record=write) as hosts:
    hosts.barrier("begin")
    print("begun", flush=True)
    if what == "stop":
        raise Stopped("stopped")
    if what == "save":
        while not interrupt.requested():
            time.sleep(0.01)
        time.sleep(0.3)
        raise Stopped("saved")
    time.sleep(60)
"""


def start(coordinator: str, index: int, record: Path, environment: dict[str, str], what: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOST, coordinator, str(index), str(record), what],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("survivor", "do", "code", "recorded", "said"),
    [
        (1, ("", ""), 76, "76 host 0 was lost: its process was killed", "error: host 0 was lost"),
        (0, ("hang", ""), 76, "76 host 1 was lost: its process was killed", "error: host 1 was lost"),
        (0, ("", "stop"), 75, "75 host 1 was stopped", "error: host 1 was stopped"),
        (0, ("save", "stop"), 1, "", "saved"),  # 1: the traceback of what the script raised
    ],
)
def test_a_process_ends_as_its_peer_and_leaves_a_record_unless_it_ends_by_itself(
    coordinator: str, tmp_path: Path, user_environment: dict[str, str],
    survivor: int, do: tuple[str, str], code: int, recorded: str, said: str,
):  # fmt: skip
    """The peer stops, or is killed."""
    records = [Path(os.devnull)] * 2
    records[survivor] = tmp_path / "record"
    processes = [start(coordinator, index, records[index], user_environment, do[index]) for index in (0, 1)]
    if not do[1 - survivor]:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
        processes[1 - survivor].send_signal(signal.SIGKILL)
    _, text = processes[survivor].communicate(timeout=SECONDS)
    processes[1 - survivor].communicate()
    assert (processes[survivor].returncode, records[survivor].exists()) == (code, bool(recorded)), text
    assert said in text and (not recorded or records[survivor].read_text().startswith(recorded))


class SlowLine:
    """A connection on which it takes a while to tell who is gone; who is there `answers` meanwhile."""

    def __init__(self, answers: str = ""):
        self.sent: list[str] = []
        self.closed, self._told, self._answers = threading.Event(), threading.Event(), answers

    def send(self, text: str) -> None:
        if text.startswith("gone") and not self.closed.is_set():
            self._told.set()
            time.sleep(0.1)
        self.sent.append(text)

    def receive(self) -> str | None:
        if self._answers:
            self._told.wait(SECONDS)
            answer, self._answers = self._answers, ""
            return answer
        self.closed.wait(SECONDS)
        return None

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("answer", ["", "leave 1"])
def test_who_was_gone_first_is_told_and_blamed_before_others_leave_because_of_it(monkeypatch: pytest.MonkeyPatch, answer: str):
    monkeypatch.setattr(channel, "_FAREWELL_SECONDS", 0.0)
    lines = {1: SlowLine(answer), 2: SlowLine()}
    star = channel.Star(0, 3, lines, lambda error: None)  # pyright: ignore[reportArgumentType]
    lines[2].close()
    with pytest.raises(PeerLost, match="host 2"):
        star.barrier("never")
    star.leave(1)
    star.close()
    assert lines[1].sent == ["gone 2 -", "leave 1"]
