"""What a run writes about itself while it trains: one JSON object a line and attempt, and the same for TensorBoard.

A killed attempt leaves steps that the next one computes again, with equal values; `read_metrics` is the union.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
import json
import os
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.summary import scalar

from tpulm import storage
from tpulm.errors import StorageError


class Board:
    """One TensorBoard event file in a folder, complete when `flush` returns. TensorBoard drops what earlier files have from
    `purge_step` on.

    tensorboardX's SummaryWriter hands events to a thread which its `flush` does not wait for: the last events before a
    checkpoint could be missing from the file for two minutes. So its event file is used without its writer.
    """

    def __init__(self, folder: str | os.PathLike[str], *, purge_step: int, suffix: str):
        self._file = EventsWriter(os.path.join(folder, "events"), suffix)  # noqa: PTH118
        self._write(Event(step=purge_step, file_version="brain.Event:2"))
        self._write(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, name: str, value: float, step: int) -> None:
        self._write(Event(step=step, summary=scalar(name, value)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)


# Fields that say when or how fast, not what: they differ between attempts.
VOLATILE = ("time", "tokens_per_second", "texts_per_second", "mfu", "seconds")


START = ".start.json"  # beside an attempt's log: {"time", "compile_seconds", "compiled", "found"} of its first step


class Record(NamedTuple):
    """One line: `kind` is "train" or "evaluation"; `values` are scalars by name."""

    kind: str
    step: int
    values: dict[str, float]


class MetricsLog:
    """The log of one attempt. `first_step` is where it starts: TensorBoard drops what an earlier attempt drew beyond it.

    In Cloud Storage, where nothing can be appended to, both files are sent anew every half a minute and by `sync`.
    """

    def __init__(self, workdir: PurePath, *, first_step: int):
        storage.make_folder(workdir / "metrics")
        self.attempt = _claim_attempt(workdir / "metrics")
        self._started = False
        self._mirror = storage.Mirror(workdir)
        self._path = self._mirror.folder / "metrics" / f"{self.attempt:04d}.jsonl"
        board = self._mirror.folder / "tensorboard"
        with storage.explain("write to", self._mirror.folder):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            board.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("ab")
            # TensorBoard drops the purged step itself, too, which the attempt before has drawn for good.
            self._board = Board(board, purge_step=first_step + 1, suffix=f".attempt-{self.attempt}")

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: Any) -> None:
        with storage.explain("write", self._path):
            self._stream.close()
            self._board.close()
        self._mirror.__exit__(*error)

    def close(self) -> None:
        self.__exit__(None, None, None)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        with storage.explain("write", self._path):
            self._stream.write(json.dumps(record).encode() + b"\n")
            self._stream.flush()
            for name, value in values.items():
                self._board.add(f"{kind}/{name}", value, step)

    def started(self, values: Mapping[str, float]) -> None:
        """After the first step: when it was, and what it took until then. In a file of its own; later calls do nothing."""
        if self._started:
            return
        self._started = True
        path = self._path.with_suffix(START)
        with storage.explain("write", path):
            path.write_text(json.dumps({"time": round(time.time(), 3), **values}))

    def sync(self) -> None:
        """Make all that was written durable: called before a checkpoint, so that no step is ever past its metrics."""
        with storage.explain("write", self._path):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._board.flush()
        self._mirror.sync()


class NoMetrics:
    """What hosts other than the first have in its place."""

    attempt = 0

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        pass

    def started(self, values: Mapping[str, float]) -> None:
        pass

    def sync(self) -> None:
        pass


def _claim_attempt(folder: PurePath) -> int:
    """The next number, which no other attempt gets."""
    while True:
        numbers = [int(path.stem) for path in storage.list_folder(folder) if path.suffix == ".jsonl" and path.stem.isdigit()]
        number = 1 + max(numbers, default=0)
        if storage.create_if_absent(folder / f"{number:04d}.jsonl", b""):
            return number


def read_starts(workdir: str | PurePath) -> list[dict[str, float]]:
    """What was noted at the first step of each attempt that came so far, in order of time."""
    paths = [path for path in storage.list_folder(storage.as_path(workdir) / "metrics") if path.name.endswith(START)]
    return sorted((storage.read_json(path) for path in paths), key=lambda start: start["time"])


def read_metrics(workdir: str | PurePath) -> list[Record]:
    """All records of all attempts, each (kind, step) once, the latest attempt's, by kind and step.

    The last line of a killed attempt may be torn and is left out; a torn line elsewhere raises StorageError.
    """
    found: dict[tuple[str, int], Record] = {}
    for path in storage.list_folder(storage.as_path(workdir) / "metrics"):
        if path.suffix != ".jsonl":
            continue
        lines = storage.read_bytes(path).split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                values: dict[str, Any] = storage.parse_json(line, strict=False)
            except ValueError as error:
                if number == len(lines):
                    continue
                raise StorageError(f"{path}, line {number}: not valid JSON ({error})") from error
            kind, step = values.pop("kind"), values.pop("step")
            found[kind, step] = Record(kind, step, values)
    return [found[key] for key in sorted(found)]
