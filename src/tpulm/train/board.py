"""Scalars for TensorBoard, in the file when `flush` returns.

tensorboardX's SummaryWriter hands events to a thread, and its `flush` does not wait for that: the last events before a
checkpoint could stay out of the file for two minutes. So its file is used, and not its writer.
"""

from __future__ import annotations

import os
import time

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.summary import scalar


class Board:
    """One event file in a folder. TensorBoard forgets what earlier files have from `purge_step` on."""

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

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)
