"""Files that grow, in Cloud Storage: written here and sent there as a whole, now and then and when asked."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path, PurePath
from types import TracebackType

from tpulm.errors import StorageError
from tpulm.storage import cloud
from tpulm.storage.scratch import scratch_folder

_INTERVAL_SECONDS = 30.0


class Mirror:
    """`folder` is where to write: the work folder itself if it is on this machine, else a copy of what this process adds to it.

    `sync` returns when all that was written (and flushed) is there; the same happens by itself every half a minute and at the
    end of the block. What this process did not write is left alone.
    """

    def __init__(self, target: PurePath):
        self._target = target
        self._sent: dict[str, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if isinstance(target, Path):
            self.folder = target
            return
        self._scratch = contextlib.ExitStack()
        self.folder = self._scratch.enter_context(scratch_folder())
        self._thread = threading.Thread(target=self._now_and_then, name="mirror", daemon=True)
        self._thread.start()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is None:
            return
        self._ended.set()
        try:
            self.sync()
        except StorageError:
            if error is None:  # an error on its way says more than this one
                raise
        finally:
            self._scratch.close()

    def sync(self) -> None:
        if self._thread is None:
            return
        with self._lock:
            for path in sorted(self.folder.rglob("*")):
                if not path.is_file():
                    continue
                name, size = path.relative_to(self.folder).as_posix(), path.stat().st_size
                if self._sent.get(name) != size:
                    cloud.upload_file(path, self._target / name)
                    self._sent[name] = size

    def _now_and_then(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            with contextlib.suppress(StorageError):  # the next time, or `sync`, which says so
                self.sync()
