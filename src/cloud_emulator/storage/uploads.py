"""Resumable uploads: sessions that collect an object's bytes over several requests and broken connections."""

from __future__ import annotations

import dataclasses
import re
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cloud_emulator.errors import ApiError, invalid, storage_error
from cloud_emulator.storage.objects import Preconditions, StoredObject
from cloud_emulator.storage.store import Store

QUANTUM_BYTES = 256 * 1024  # what is kept of an unfinished upload is a multiple of this
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class ByteRange(NamedTuple):
    """What a request carries. `start` is None in a question about the state; `total` is None while it is unknown."""

    start: int | None
    total: int | None

    @classmethod
    def parse(cls, content_range: str | None, size: int) -> ByteRange:
        if content_range is None:  # the whole object in one go
            return cls(0, size)
        found = CONTENT_RANGE.fullmatch(content_range.strip())
        if found is None:
            raise invalid(f"Failed to parse Content-Range header: '{content_range}'")
        first, _, total = found.groups()
        return cls(None if first is None else int(first), None if total == "*" else int(total))


@dataclass
class Session:
    bucket: str
    name: str
    fields: dict[str, Any]
    conditions: Preconditions
    promised: dict[str, str]
    content: bytearray = field(default_factory=bytearray, repr=False)
    done: StoredObject | None = None
    cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def append(self, chunk: bytes, given: ByteRange, *, complete: bool) -> None:
        kept, start = len(self.content), given.start
        if start is None:
            return
        if start > kept:
            message = (
                f"Invalid request.  According to the Content-Range header, the upload offset is {start} byte(s), "
                f"which exceeds already uploaded size of {kept} byte(s)."
            )
            raise storage_error(503, message, "backendError")
        end = start + len(chunk)
        if given.total is not None and end > given.total:
            raise invalid(f"The Content-Range header announces {given.total} bytes, and {end} were sent.")
        if not complete or end != given.total:
            end -= end % QUANTUM_BYTES
        if end > kept:
            self.content += memoryview(chunk)[kept - start : end - start]


class Sessions:
    """All that were begun, by their keys; after a restart the emulator answers 404 and clients begin anew."""

    def __init__(self, store: Store):
        self._store = store
        self._sessions: dict[str, Session] = {}

    def begin(self, session: Session) -> str:
        self._store.check(session.bucket, session.name, session.conditions)
        key = uuid.uuid4().hex
        self._sessions[key] = session
        return key

    def get(self, key: str) -> Session:
        session = self._sessions.get(key)
        if session is None:
            raise storage_error(404, "No such upload session.", "notFound")
        if session.cancelled:
            raise storage_error(499, "The upload was cancelled.", "cancelled")
        return session

    def cancel(self, key: str) -> None:
        session = self.get(key)
        with session.lock:
            session.cancelled = True
            session.content = bytearray()

    def receive(self, key: str, chunk: bytes, given: ByteRange, promised: dict[str, str], *, complete: bool) -> Session:
        """Append what is new of a chunk, and make the object once all is there: then `done` is set."""
        session = self.get(key)
        with session.lock:
            if session.done is not None:
                return session
            session.append(chunk, given, complete=complete)
            if complete and given.total is not None and len(session.content) == given.total:
                content, session.content = bytes(session.content), bytearray()
                try:
                    made = self._store.put(
                        session.bucket, session.name, content, session.fields, session.conditions, session.promised | promised
                    )
                except ApiError:
                    del self._sessions[key]
                    raise
                session.done = dataclasses.replace(made, content=b"")  # only what is said of it is needed again
            return session
