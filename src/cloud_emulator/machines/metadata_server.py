"""Metadata servers, one an address, all in one thread: the protocol of metadata.google.internal."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cloud_emulator.admission import refuse_pages
from cloud_emulator.answers import ApiError
from cloud_emulator.machines.metadata import Metadata, as_json, etag

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

ROOT = "/computeMetadata/v1"
TEXT = "application/text"
GUEST_ATTRIBUTE = re.compile(r"instance/guest-attributes/[A-Za-z0-9_-]{1,128}/[A-Za-z0-9_-]{1,128}")


class MetadataServers:
    """Opened and closed from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        config = uvicorn.Config(answer, ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False)  # type: ignore[arg-type]
        config.load()
        self._config = config

    def open(self, listener: socket.socket, metadata: Metadata) -> Callable[[], None]:
        """Serve at `listener`; the result closes it."""
        loop = self._running()
        state = ServerState()

        def protocol() -> H11Protocol:
            return H11Protocol(config=self._config, server_state=state, app_state={"metadata": metadata})

        async def begin() -> asyncio.Server:
            return await loop.create_server(protocol, sock=listener)

        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()

        async def end() -> None:
            server.close()
            for connection in list(state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            for task in list(state.tasks):
                task.cancel()

        return lambda: asyncio.run_coroutine_threadsafe(end(), loop).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="emulator-metadata", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """After every server was closed."""
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._loop = self._thread = None


async def answer(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
    """An ASGI application; `scope["state"]["metadata"]` is whose it is.

    A page cannot send the header that is asked for, unless its site's name was made to lead here; it cannot be the name below,
    which no site has.
    """
    try:
        refuse_pages(scope["headers"], (scope["server"][0], "metadata.google.internal"))
    except ApiError as error:
        return await _send(send, error.status, f"{error}\n")
    metadata: Metadata = scope["state"]["metadata"]
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True))
    path: str = scope["path"]
    if path == "/":
        return await _send(send, 200, "computeMetadata/\n")
    if headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in headers:
        return await _send(send, 403, "Missing Metadata-Flavor:Google header.\n")
    if not (path == ROOT or path.startswith(ROOT + "/")):
        return await _send(send, 404, "Not Found\n")
    name = path[len(ROOT) :].strip("/")
    if (failure := metadata.failure(name)) is not None:
        return await _send(send, *failure)
    if scope["method"] == "PUT" and metadata.guest_attributes:
        if not GUEST_ATTRIBUTE.fullmatch(name):
            return await _send(send, 400, "Bad Request\n")
        metadata.set(name, (await _body(receive)).decode(errors="replace"))
        return await _send(send, 200, "")
    if scope["method"] != "GET":
        return await _send(send, 405, "Method Not Allowed\n")
    if query.get("wait_for_change", "").lower() == "true":
        known = query.get("last_etag", "") or etag(metadata.get(name))
        await metadata.wait(name, known, float(query["timeout_sec"]) if query.get("timeout_sec", "").isdecimal() else None)
    value = metadata.get(name)
    if value is None:
        return await _send(send, 404, "Not Found\n")
    tag = etag(value)
    if query.get("recursive", "").lower() == "true":
        return await _send(send, 200, json.dumps(as_json(value)), tag, "application/json")
    if isinstance(value, str):
        return await _send(send, 200, value, tag, "application/json" if name.endswith("/token") else TEXT)
    if not path.endswith("/"):
        return await _send(send, 301, "", location=f"{path}/")
    listing = "".join(f"{key}/\n" if isinstance(inner, dict) else f"{key}\n" for key, inner in sorted(value.items()))
    return await _send(send, 200, listing, tag)


async def _body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    pieces, more = b"", True
    while more:
        message = await receive()
        pieces, more = pieces + message.get("body", b""), message.get("more_body", False)
    return pieces


async def _send(send: Send, status: int, text: str, tag: str = "", kind: str = TEXT, location: str = "") -> None:
    body = text.encode()
    headers = {
        "metadata-flavor": "Google",
        "content-type": kind,
        "content-length": str(len(body)),
        "server": "Metadata Server for VM",
    }
    headers |= ({"etag": tag} if tag else {}) | ({"location": location} if location else {})
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
