"""Resumable uploads: sessions that collect an object's bytes over several requests and broken connections."""

from __future__ import annotations

import dataclasses
import re
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cloud_emulator.answers import ApiError, invalid
from cloud_emulator.bodies import ForgottenBody
from cloud_emulator.objects import StoredObject
from cloud_emulator.preconditions import Preconditions
from cloud_emulator.store import Store

QUANTUM_BYTES = 256 * 1024  # what is kept of an unfinished upload is a multiple of this

CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class ByteRange(NamedTuple):
    """What a request carries. `start` is None in a question about the state; `total` is None while it is unknown."""

    start: int | None
    total: int | None


def byte_range_of(content_range: str | None, size: int) -> ByteRange:
    if content_range is None:  # the whole object in one go
        return ByteRange(0, size)
    found = CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise invalid(f"Failed to parse Content-Range header: '{content_range}'")
    first, _, total = found.groups()
    return ByteRange(None if first is None else int(first), None if total == "*" else int(total))


@dataclass
class Session:
    key: str
    bucket: str
    name: str
    fields: dict[str, Any]
    conditions: Preconditions
    promised: dict[str, str]
    content: bytearray = field(default_factory=bytearray, repr=False)
    done: StoredObject | None = None
    cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


class Sessions:
    """All that were begun; they live in memory, so a restarted emulator answers 404 and the client begins anew."""

    def __init__(self, store: Store):
        self._store = store
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def begin(
        self, bucket: str, name: str, fields: dict[str, Any], conditions: Preconditions, promised: dict[str, str]
    ) -> Session:
        if not name:
            raise ApiError(400, "Required", "required")
        self._store.check(bucket, name, conditions)
        session = Session(uuid.uuid4().hex, bucket, name, fields, conditions, promised)
        with self._lock:
            self._sessions[session.key] = session
        return session

    def get(self, key: str) -> Session:
        with self._lock:
            session = self._sessions.get(key)
        if session is None:
            raise ApiError(404, "No such upload session.", "notFound")
        if session.cancelled:
            raise ApiError(499, "The upload was cancelled.", "cancelled")
        return session

    def name_of(self, key: str) -> str:
        """The object that a session is for, or "" if there is no such session."""
        with self._lock:
            return self._sessions[key].name if key in self._sessions else ""

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
            if given.start is not None:
                _append(session, chunk, given, complete=complete)
            if complete and given.total is not None and len(session.content) == given.total:
                content, session.content = bytes(session.content), bytearray()
                try:
                    made = self._store.put(
                        session.bucket, session.name, content, session.fields, session.conditions, session.promised | promised
                    )
                    session.done = dataclasses.replace(made, body=ForgottenBody(made.size))
                except ApiError:
                    with self._lock:
                        del self._sessions[session.key]
                    raise
            return session


def _append(session: Session, chunk: bytes, given: ByteRange, *, complete: bool) -> None:
    kept = len(session.content)
    assert given.start is not None
    if given.start > kept:
        message = (
            f"Invalid request.  According to the Content-Range header, the upload offset is {given.start} byte(s), "
            f"which exceeds already uploaded size of {kept} byte(s)."
        )
        raise ApiError(503, message, "backendError")
    end = given.start + len(chunk)
    if given.total is not None and end > given.total:
        raise invalid(f"The Content-Range header announces {given.total} bytes, and {end} were sent.")
    if not complete or end != given.total:
        end -= end % QUANTUM_BYTES
    if end > kept:
        session.content += memoryview(chunk)[kept - given.start : end - given.start]
