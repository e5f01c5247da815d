"""A run's status, cost and logs: from the bucket, and from the API where it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from statistics import median

from tpulm import storage
from tpulm.cloud.control import Control, Heartbeat
from tpulm.cloud.job import Attempt, Job
from tpulm.cloud.prices import Price, saved, table
from tpulm.cloud.provider import NodeStatus, Provider
from tpulm.cloud.settings import region_of
from tpulm.errors import StorageError, TpulmError

_PASS_SECONDS = 900.0  # between two passes of `tpulm cloud supervise`, at most


@dataclass(frozen=True)
class RunStatus:
    job: Job
    supervisor: str | None  # the process that holds the lease, if any
    last_pass: float | None  # when the last supervisor ended, in seconds since 1970; None: never
    node: NodeStatus | None  # as the API sees it; None: the job has none, nobody asked, or no answer came (`unseen`)
    unseen: str
    heartbeats: tuple[Heartbeat, ...]  # of the newest attempt
    newest_step: int  # of a committed checkpoint
    steps: int | None  # in total; None: not known
    budget: float | None  # dollars
    prices: dict[str, Price] | None  # of the launch, by zone; None: not recorded
    speed: Speed | None

    @property
    def needs_supervisor(self) -> bool:
        recent = self.last_pass is not None and time.time() - self.last_pass < _PASS_SECONDS
        return self.supervisor is None and not recent and not self.job.is_over

    @property
    def step(self) -> int:
        """The newest step recorded by the running attempt, else that of the checkpoint from which training continues."""
        node, speed = self.job.node, self.speed
        if node is None or speed is None or speed.at <= node.intended_at:
            return self.newest_step
        return max(self.newest_step, speed.step)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until training ends; None: not known."""
        if self.speed is None or self.steps is None:
            return None
        return max(0, self.steps - self.step) * self.speed.seconds_per_step


_RECENT = 50  # training records from which the speed is computed


@dataclass(frozen=True)
class Speed:
    step: int  # of the newest record of training
    at: float  # its time, seconds since 1970
    seconds_per_step: float
    tokens_per_second: float | None


def speed_of(records: Iterable[tuple[int, Mapping[str, float]]]) -> Speed | None:
    """From the newest training records, (step, values): medians, which ignore pauses. None: too few."""
    recent = [(step, values) for step, values in records if "time" in values][-_RECENT:]
    times = [
        (after["time"] - before["time"]) / (last - first)
        for (first, before), (last, after) in pairwise(recent)
        if last > first and after["time"] > before["time"]
    ]
    if not times:
        return None
    tokens = [values["tokens_per_second"] for _, values in recent if "tokens_per_second" in values]
    step, newest = recent[-1]
    return Speed(step, newest["time"], median(times), median(tokens) if tokens else None)


def total_steps(workdir: PurePath) -> int | None:
    """The number of steps in the run file; None if unreadable."""
    try:
        return int(storage.parse_json(storage.read_bytes(Control(workdir).run_file))["train"]["steps"])
    except (TpulmError, ValueError, KeyError, TypeError, OverflowError):
        return None


def last_pass(control: Control) -> float | None:
    """When the last supervisor ended, in seconds since 1970; None: never."""
    info = storage.info(control.memory_file)
    return None if info is None else info.modified_ns / 1e9


def read_status(workdir: PurePath, provider: Provider | None, speed: Speed | None) -> RunStatus:
    """Raises ConfigError if the work folder has no job. `unseen` says why the cloud does not answer."""
    control = Control(workdir)
    job = control.job()
    node, unseen = None, ""
    if job.node is not None and provider is not None:
        try:
            node = provider.node_status(job.node.name, job.node.zone)
        except TpulmError as error:
            unseen = str(error)
    return RunStatus(
        job=job,
        supervisor=storage.holder(control.folder),
        last_pass=last_pass(control),
        node=node,
        unseen=unseen,
        heartbeats=tuple(control.heartbeats(job.node.attempt)) if job.node else (),
        newest_step=max(control.newest_step(), job.newest_step),
        steps=total_steps(workdir),
        prices=saved(control.folder),
        budget=budget if isinstance(budget := control.launched_with().get("budget"), int | float) else None,
        speed=speed,
    )


@dataclass(frozen=True)
class Spent:
    """The cost of one attempt, until it ended or until now."""

    attempt: int
    node: str
    zone: str
    ending: str  # "" while it runs
    hours: float  # billed
    steps: int
    dollars: float | None  # None: no price is known in that zone


@dataclass(frozen=True)
class Stored:
    """The storage cost of a work folder."""

    objects: int
    bytes: int
    region: str
    dollars_per_month: float | None  # None: no price is known in that region
    prices_as_of: str
    prices_source: str


@dataclass(frozen=True)
class Cost:
    dollars: float  # so far, of TPUs
    at_least: bool  # some price is not known
    hours: float  # billed so far
    dollars_per_hour: float | None  # while a node runs; None: not known
    prices: tuple[Price, ...]  # of the launch, in the zones that it was in
    runs: bool  # whether a TPU bills now
    attempts: tuple[Spent, ...]
    stored: Stored
    hours_left: float | None  # of TPU, to the last step; None: not known
    dollars_at_end: float | None


def spent(job: Job, *, now: float, newest_step: int, prices: Mapping[str, Price] | None = None) -> tuple[Spent, ...]:
    """The cost of each attempt that has begun, in the order of `Job.begun`."""
    unknown = _unknown(job, prices)
    done = []
    for item in job.begun:
        if isinstance(item, Attempt):
            number, node, ending, steps = item.number, item.node, item.ending, item.last_step - item.first_step
            hours, dollars = _hours(item.ready_at, item.ended_at), item.dollars
        else:
            number, node, ending, hours = item.attempt, item.name, "", _hours(item.ready_at, now)
            steps = max(0, newest_step - job.newest_step) if item is job.node else 0
            dollars = hours * job.price(item.zone)
        done.append(Spent(number, node, item.zone, ending, hours, steps, None if hours and item.zone in unknown else dollars))
    return tuple(done)


def _hours(ready_at: float | None, end: float) -> float:
    return 0.0 if ready_at is None else max(0.0, end - ready_at) / 3600


def cost_of(status: RunStatus, workdir: PurePath, *, now: float) -> Cost:
    job, prices = status.job, status.prices
    attempts = spent(job, now=now, newest_step=status.newest_step, prices=prices)
    so_far = sum(item.dollars for item in attempts if item.dollars is not None)
    at_least = any(item.dollars is None for item in attempts)
    seconds_left = 0.0 if job.status == "done" else status.seconds_left
    hours_left = None if seconds_left is None else seconds_left / 3600
    zone = job.zones[0] if job.node is None else job.node.zone
    per_hour = None if zone in _unknown(job, prices) else job.price(zone)
    remaining = None if hours_left is None else 0.0 if not hours_left else None if per_hour is None else hours_left * per_hour
    zones = dict.fromkeys(item.zone for item in attempts)
    return Cost(
        dollars=so_far,
        at_least=at_least,
        hours=sum(item.hours for item in attempts),
        dollars_per_hour=per_hour,
        prices=tuple(prices[zone] for zone in zones if zone in prices) if prices else (),
        runs=any(node.ready_at is not None for node in job.nodes),
        attempts=attempts,
        stored=stored(workdir, region_of(job.zones[0])),
        hours_left=hours_left,
        dollars_at_end=None if remaining is None or at_least else so_far + remaining,
    )


def _unknown(job: Job, prices: Mapping[str, Price] | None) -> set[str]:
    """The launch's zones without a price."""
    return set() if prices is None else set(job.zones) - set(prices)


def stored(workdir: PurePath, region: str) -> Stored:
    """The size and cost of a work folder in a bucket of this region."""
    files = storage.walk(workdir)
    size = sum(file.size for file in files.values())
    prices = table()["storage"]
    per_gib = prices["dollars_per_gib_month"].get(region)
    return Stored(
        len(files), size, region, None if per_gib is None else size / 2**30 * per_gib, prices["as_of"], prices["source"]
    )


# -- logs: agents upload the last few megabytes again and again ---------------------------------------------------------

_ANCHOR_BYTES = 64
_TRIES = 1000
_SILENT_SECONDS = 60.0  # without a line, until that is reported
_UNREADABLE = b"\xef\xbf\xbd"  # half a character at the end of an upload; the next one has all of it


def log_path(control: Control, attempt: int, worker: int) -> PurePath:
    return control.attempt(attempt) / f"log-{worker}.txt"


def following(before: bytes, now: bytes) -> bytes | None:
    """What `now`, a later reading of the same log, adds to `before`; None if the two do not overlap."""
    if now.startswith(before):
        return now[len(before) :]
    begin = now.find(b"\n") + 1  # the first line may be cut
    anchor = now[begin : begin + _ANCHOR_BYTES]
    at = before.find(anchor)
    for _ in range(_TRIES):
        if at < 0:
            return None
        rest = before[at:]
        if now.startswith(rest, begin):
            return now[begin + len(rest) :]
        at = before.find(anchor, at + 1)
    return None


@dataclass
class Tail:
    """A log as it grows."""

    path: PurePath
    _content: bytes = b""
    _version: tuple[int, int] | None = None

    def more(self) -> tuple[bytes, bool]:
        """What is new, and whether something before it is missing."""
        info = storage.info(self.path)
        if info is None or (info.size, info.modified_ns) == self._version:
            return b"", False
        content = storage.read_bytes(self.path).removesuffix(_UNREADABLE)
        new = following(self._content, content)
        self._version, self._content = (info.size, info.modified_ns), content
        return (content, True) if new is None else (new, False)


def attempt_of(job: Job, number: int | None) -> int:
    """The attempt of this number, by default the current one. Raises StorageError if it does not exist."""
    if job.attempt == 0:
        raise StorageError("no attempt has begun yet: there is no log" + (f" ({job.message})" if job.message else ""))
    if number is not None and not 1 <= number <= job.attempt:
        raise StorageError(f"there is no attempt {number}; there are 1 to {job.attempt}")
    return job.current if number is None else number


def follow(
    control: Control,
    worker: int,
    *,
    attempt: int | None = None,
    write: Callable[[bytes], None],
    log: Callable[[str], None],
    pause_seconds: float = 5.0,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Print a log until the run, or the given attempt, is over; returns how often a part of it was lost."""
    job = control.job()
    number, gaps = max(job.current, 1) if attempt is None else attempt_of(job, attempt), 0
    tail: Tail | None = None
    silent_since: float | None = time.monotonic()
    alone: bool | None = None
    while True:
        job = control.job()
        if job.attempt >= number and tail is None:
            tail = Tail(log_path(control, number, worker))
            zones = {item.number: item.zone for item in job.attempts} | ({job.node.attempt: job.node.zone} if job.node else {})
            log(f"attempt {number} in {zones[number]}" if number in zones else f"attempt {number}")
        if tail is not None:
            if silent_since is not None and time.monotonic() - silent_since > _SILENT_SECONDS:
                log(f"nothing was heard of worker {worker} yet; workers count from 0")
                silent_since = None
            new, lost = tail.more()
            silent_since = None if new else silent_since
            if lost:
                gaps += 1
                log("some of the log is lost here: it grew by more than is kept between two readings")
            write(new)
        ended = any(item.number == number for item in job.attempts)
        if ended and attempt is None and job.attempt > number:
            number, tail = number + 1, None
            continue
        if job.is_over or (ended and attempt is not None):
            return gaps
        is_alone = storage.holder(control.folder) is None and time.time() - (last_pass(control) or 0.0) > _PASS_SECONDS
        if alone is not (alone := is_alone) and alone:
            log("nobody supervises this run; 'tpulm cloud supervise' does")
        wait(pause_seconds)
