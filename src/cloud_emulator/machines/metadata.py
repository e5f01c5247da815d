"""The tree of values that a machine can ask its metadata server for."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from typing import Any

from cloud_emulator import recorded

Tree = dict[str, Any]  # str leaves


class Metadata:
    """Readable and changeable from any thread; changes wake those who wait for them."""

    def __init__(self, tree: Tree, guest_attributes: bool = True):
        self.guest_attributes = guest_attributes  # whether the machine may write them
        self._tree = tree
        self._failures: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def set(self, path: str, value: str | Tree) -> None:
        """`path` as in "instance/preempted"."""
        *folders, name = path.split("/")
        with self._lock:
            place = self._tree
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = value
            waiting = list(self._waiting)
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    def fail(self, count: int, path: str) -> None:
        """The next `count` requests for what is below `path` fail."""
        with self._lock:
            self._failures += [(path, count)]

    def failure(self, path: str) -> tuple[int, str] | None:
        """Status and text, if a request for `path` is to fail; counted."""
        with self._lock:
            for at, (begin, count) in enumerate(self._failures):
                if path.startswith(begin):
                    self._failures[at : at + 1] = [(begin, count - 1)] if count > 1 else []
                    found = recorded.metadata()["failures"]["token" if path.endswith("/token") else "read"]
                    return found["status"], found["body"]
        return None

    def get(self, path: str) -> str | Tree | None:
        """A value, a folder, or None for what is not there; folders may be changed by nobody."""
        with self._lock:
            found: Any = self._tree
            for name in filter(None, path.split("/")):
                found = found.get(name) if isinstance(found, dict) else None
            return json.loads(json.dumps(found)) if isinstance(found, dict) else found

    async def wait(self, path: str, known: str, seconds: float | None) -> None:
        """Until the etag of `path` is not `known`, or for so many seconds."""
        loop = asyncio.get_running_loop()
        give_up_at = None if seconds is None else loop.time() + seconds
        entry = (loop, asyncio.Event())
        with self._lock:
            self._waiting.add(entry)
        try:
            while etag(self.get(path)) == known:
                left = None if give_up_at is None else give_up_at - loop.time()
                if left is not None and left <= 0:
                    return
                try:
                    await asyncio.wait_for(entry[1].wait(), left)
                except TimeoutError:
                    return
                entry[1].clear()
        finally:
            with self._lock:
                self._waiting.discard(entry)


def etag(value: str | Tree | None) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def as_json(value: str | Tree) -> Any:
    """As `?recursive=true` answers: names in camel case, but for what the user chose; lists; no tokens."""
    if isinstance(value, str):
        return value
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if name in ("scopes", "aliases"):
            found[name] = inner.split()
        elif name == "network-interfaces":
            found["networkInterfaces"] = [as_json(interface) for interface in inner.values()]
        elif name != "token":
            found[_camel(name)] = inner if name in ("attributes", "guest-attributes") else as_json(inner)
    return found


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return name if "@" in name else first + "".join(word.capitalize() for word in rest)
