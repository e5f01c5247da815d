"""The metrics that a run logs while it trains: one JSON Lines file per attempt, and the same for TensorBoard.

A killed attempt leaves steps that the next one recomputes with equal values; `read_metrics` is the union.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from tpulm import storage
from tpulm.errors import Damaged
from tpulm.progress import Progress
from tpulm.train.trackers import Trackers, Tracking


@contextlib.contextmanager
def _absent(module: str) -> Generator[None]:
    """Have imports of a module fail, unless it is loaded already."""
    is_loaded = module in sys.modules
    if not is_loaded:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        if not is_loaded:
            del sys.modules[module]


with _absent("torch"):  # which tensorboardX imports for the sake of an annotation: two seconds of every start
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboardX.summary import hparams, scalar


class Board:
    """One TensorBoard event file in a folder, complete when `flush` returns. TensorBoard drops events of earlier files from
    `purge_step` on.

    tensorboardX's SummaryWriter hands events to a thread that its `flush` does not wait for: the last events before a
    checkpoint could be missing for two minutes. So its event file is used without the SummaryWriter.
    """

    def __init__(self, folder: str | os.PathLike[str], *, purge_step: int, suffix: str):
        self._file = EventsWriter(os.path.join(folder, "events"), suffix)  # noqa: PTH118
        self._write(Event(step=purge_step, file_version="brain.Event:2"))
        self._write(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, name: str, value: float, step: int) -> None:
        self._write(Event(step=step, summary=scalar(name, value)))

    def add_settings(self, settings: Mapping[str, Any]) -> None:
        """Add them to TensorBoard's HParams table."""
        shown = {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in settings.items()}
        for part in hparams(shown, {"evaluation/loss": 0.0}):
            self._write(Event(step=0, summary=part))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)


START = ".start.json"  # suffix of a file next to an attempt's log: time of its first step, compilation, device


class MetricsRecord(NamedTuple):
    """One line: `kind` is "train" or "evaluation"; `values` are scalars by name."""

    kind: str
    step: int
    values: dict[str, Any]  # scalars, and texts in results


class MetricsLog:
    """The log of one attempt. It starts at `first_step`: TensorBoard drops an earlier attempt's later steps.

    In Cloud Storage, whose objects cannot be appended to, both files are uploaded again every half minute and by `sync`.
    """

    def __init__(self, workdir: PurePath, *, first_step: int, tracking: Tracking | None = None):
        storage.make_folder(workdir / "metrics")
        self._trackers = None
        if tracking is not None and tracking.config.to:
            before = sorted((one for one in read_metrics(workdir) if one.step <= first_step), key=lambda one: one.step)
            self._trackers = Trackers(tracking, workdir, ((one.step, _sent(one.kind, one.values)) for one in before))
        self.attempt, self._first_step = _claim_attempt(workdir / "metrics"), first_step
        self._started = False
        self._mirror = storage.Mirror(workdir)
        self._path = self._mirror.folder / "metrics" / f"{self.attempt:04d}.jsonl"
        board = self._mirror.folder / "tensorboard"
        with storage.explain("write to", self._mirror.folder):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            board.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("ab")
            # TensorBoard drops the purge step too, and `first_step` itself is valid in the previous attempt's file.
            self._board = Board(board, purge_step=first_step + 1, suffix=f".attempt-{self.attempt}")
            if tracking is not None and first_step == 0:
                self._board.add_settings(tracking.settings)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: Any) -> None:
        with storage.explain("write", self._path):
            self._stream.close()
            self._board.close()
        if self._trackers is not None:
            self._trackers.close()
        self._mirror.__exit__(*error)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        record, sent = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}, _sent(kind, values)
        with storage.explain("write", self._path):
            self._stream.write(json.dumps(record).encode() + b"\n")
            self._stream.flush()
            for name, value in sent.items():
                self._board.add(name, value, step)
        if self._trackers is not None:
            self._trackers.log(step, sent)

    def started(self, values: Callable[[], Mapping[str, Any]]) -> None:
        """Record the time of the first step, and what `values` returns, in a separate file; later calls do nothing."""
        if self._started:
            return
        self._started = True
        start = {"time": round(time.time(), 3), "first_step": self._first_step, **values()}
        storage.write_json(self._path.with_suffix(START), start, sealed=True)

    def sync(self) -> None:
        """Make all written metrics durable: called before a checkpoint, so that no checkpoint is ahead of its metrics."""
        with storage.explain("write", self._path):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._board.flush()
        self._mirror.sync()


def _sent(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The values under the names that trackers show, such as "train/loss"."""
    return {f"{kind}/{name}": value for name, value in values.items() if name != "time"}


class NoMetrics:
    """Stands in for `MetricsLog` on hosts other than the first, and where nothing is saved."""

    attempt = 0

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        pass

    def started(self, values: Callable[[], Mapping[str, Any]]) -> None:
        pass

    def sync(self) -> None:
        pass


def _claim_attempt(folder: PurePath) -> int:
    """The next attempt number, claimed atomically."""
    while True:
        numbers = [int(path.stem) for path in storage.list_folder(folder) if path.suffix == ".jsonl" and path.stem.isdigit()]
        number = 1 + max(numbers, default=0)
        if storage.create_if_absent(folder / f"{number:04d}.jsonl", b""):
            return number


class Attempt(NamedTuple):
    """The log of one process; in a run of several phases, of one phase."""

    number: int
    start: dict[str, Any]  # recorded at the first step; empty if there was none
    records: tuple[MetricsRecord, ...]


Damage = Callable[[PurePath, bytes], None]


def _warn(path: PurePath, content: bytes) -> None:
    warnings.warn(f"{path} is damaged; what cannot be read of it is left out", stacklevel=4)


def read_attempts(workdir: str | PurePath, *, damaged: Damage = _warn) -> list[Attempt]:
    """All attempts, in the order they began. What cannot be read, such as the last line of a killed attempt, is left out;
    `damaged` is called with a file, and what can be read of it, but not for a torn last line."""
    files = {path.name: path for path in storage.list_folder(storage.as_path(workdir) / "metrics")}
    attempts: list[Attempt] = []
    for name in sorted(name for name in files if PurePath(name).suffix == ".jsonl" and PurePath(name).stem.isdigit()):
        started, start = files.get(f"{PurePath(name).stem}{START}"), dict[str, Any]()
        if started is not None:
            try:
                start = storage.read_json(started)
            except Damaged:
                damaged(started, b"{}")
        attempts.append(Attempt(int(PurePath(name).stem), start, tuple(_records(files[name], damaged))))
    return attempts


def read_metrics(workdir: str | PurePath) -> list[MetricsRecord]:
    """All attempts' records, sorted by (kind, step); where attempts overlap, the latest attempt's."""
    return union(read_attempts(workdir))


def union(attempts: Iterable[Attempt]) -> list[MetricsRecord]:
    """The records of these attempts as one log, sorted by (kind, step); where attempts overlap, the last one's."""
    records = {(record.kind, record.step): record for attempt in attempts for record in attempt.records}
    return [records[key] for key in sorted(records)]


def repair(workdir: PurePath, progress: Progress) -> list[Attempt]:
    """`read_attempts` that sets damaged files aside, in W/damaged, keeps what can be read, and says so. The caller holds W."""

    def set_aside(path: PurePath, content: bytes) -> None:
        target = workdir / "damaged" / f"{path.name}-{time.time_ns()}"
        storage.write_atomic(target, storage.read_bytes(path))
        storage.write_atomic(path, content)
        progress.note(f"{path} is damaged: what cannot be read of it is left out, and the whole of it is kept as {target}")

    return read_attempts(workdir, damaged=set_aside)


def _records(path: PurePath, damaged: Damage) -> Iterator[MetricsRecord]:
    lines, intact, lost = storage.read_bytes(path).split(b"\n"), list[bytes](), False
    for number, line in enumerate(lines, start=1):
        try:
            values: dict[str, Any] = storage.parse_json(line, strict=False)
            record = MetricsRecord(str(values.pop("kind")), int(values.pop("step")), values)
        except (ValueError, KeyError, TypeError, AttributeError):
            lost |= bool(line) and number < len(lines)
            continue
        intact.append(line)
        yield record
    if lost:
        damaged(path, b"".join(line + b"\n" for line in intact))
