"""What a run writes about itself while it trains: one JSON object a line and attempt, and the same for TensorBoard.

A killed attempt leaves steps that the next one computes again, with equal values; `read_metrics` is the union.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tensorboardX import SummaryWriter

from tpulm import storage
from tpulm.errors import StorageError

# Fields that say when or how fast, not what: they differ between attempts.
VOLATILE = ("time", "tokens_per_second", "mfu", "seconds")


class Record(NamedTuple):
    """One line: `kind` is "train" or "evaluation"; `values` are scalars by name."""

    kind: str
    step: int
    values: dict[str, float]


class MetricsLog:
    """The log of one attempt. `first_step` is where it starts: TensorBoard drops what an earlier attempt drew beyond it."""

    def __init__(self, workdir: Path, *, first_step: int):
        folder = storage.make_folder(workdir / "metrics")
        self._path, self._stream = _open_attempt(folder)
        self.attempt = int(self._path.stem)
        board = storage.make_folder(workdir / "tensorboard")
        with storage.explain("write to", board):
            self._board = SummaryWriter(str(board), purge_step=first_step, filename_suffix=f".attempt-{self.attempt}")

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        with storage.explain("write", self._path):
            self._stream.write(json.dumps(record).encode() + b"\n")
            self._stream.flush()
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def sync(self) -> None:
        """Make all that was written durable: called before a checkpoint, so that no step is ever past its metrics."""
        with storage.explain("write", self._path):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._board.flush()

    def close(self) -> None:
        with storage.explain("write", self._path):
            self._stream.close()
            self._board.close()


def _open_attempt(folder: Path) -> tuple[Path, BinaryIO]:
    number = 1 + max((int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit()), default=0)
    path = folder / f"{number:04d}.jsonl"
    with storage.explain("write", path):
        return path, path.open("xb")


def read_metrics(workdir: str | Path) -> list[Record]:
    """All records of all attempts, each (kind, step) once, the latest attempt's, by kind and step.

    The last line of a killed attempt may be torn and is left out; a torn line elsewhere raises StorageError.
    """
    found: dict[tuple[str, int], Record] = {}
    for path in sorted((storage.as_path(workdir) / "metrics").glob("*.jsonl")):
        lines = storage.read_bytes(path).split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                values: dict[str, Any] = json.loads(line)
            except ValueError as error:
                if number == len(lines):
                    continue
                raise StorageError(f"{path}, line {number}: not valid JSON ({error})") from error
            kind, step = values.pop("kind"), values.pop("step")
            found[kind, step] = Record(kind, step, values)
    return [found[key] for key in sorted(found)]
