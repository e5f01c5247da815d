"""A typed record of each failure, kept in the work folder for people, scripts and supervisors.

A process that ended without a record was ended by the infrastructure (a kill, a lost machine), not by the run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import PurePath

from tpulm import storage
from tpulm.errors import StorageError, TpulmError


def record_failure(workdir: PurePath, error: BaseException, *, stage: str | None, host: int | None = None) -> None:
    """Write W/failures/TIME.json: kind, message, exit code, stage, host (its name, and its index among several),
    process, time (seconds since 1970).

    If the folder cannot be written to there is no record: the error itself, which the caller raises, says why.
    """
    known = isinstance(error, TpulmError)
    now = time.time()
    record = {
        "kind": error.kind if known else type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code if known else 1,
        "stage": stage,
        "host": socket.gethostname(),
        "host_index": host,
        "process": os.getpid(),
        "time": round(now, 3),
    }
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    with contextlib.suppress(StorageError):
        storage.write_json(workdir / "failures" / f"{stamp}-{os.getpid()}{'' if host is None else f'-host{host}'}.json", record)
