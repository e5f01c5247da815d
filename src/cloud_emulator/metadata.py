"""The metadata server of a machine: a tree of values, and the protocol of metadata.google.internal to read it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloud_emulator import recorded
from cloud_emulator.errors import ApiError
from cloud_emulator.http import refuse_pages

Tree = dict[str, Any]  # str leaves
LOOK_SECONDS = 0.05  # between looks while somebody waits for a change

ROOT = "/computeMetadata/v1"
GUEST_ATTRIBUTE = re.compile(r"instance/guest-attributes/[A-Za-z0-9_-]{1,128}/[A-Za-z0-9_-]{1,128}")


def instance_tree(email: str, tags: list[str], values: dict[str, object], **instance: dict[str, str]) -> Tree:
    """The metadata of any Compute Engine VM; `values` fill recorded/metadata.json, `instance` has further parts."""
    known = recorded.load("metadata")
    tree, account = recorded.filled(known["tree"], **values), recorded.filled(known["account"], email=email)
    accounts = {"default": account, email: account}
    tree["instance"] |= {"tags": json.dumps(tags), "service-accounts": accounts, **instance}
    return tree


def put(tree: Tree, path: str, value: str | Tree) -> None:
    """`path` is such as "instance/preempted"."""
    *folders, name = path.split("/")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[name] = value


class Metadata:
    """A machine's metadata server, an ASGI application. Thread-safe."""

    def __init__(self, tree: Tree, address: str):
        self._tree = tree
        self._hosts = (address, "metadata.google.internal")
        self._failures: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def set(self, path: str, value: str | Tree) -> None:
        with self._lock:
            put(self._tree, path, value)

    def get(self, path: str) -> str | Tree | None:
        """A value, a copy of a folder, or None if neither exists."""
        with self._lock:
            value: Any = self._tree
            for name in filter(None, path.split("/")):
                value = value.get(name) if isinstance(value, dict) else None
            return json.loads(json.dumps(value)) if isinstance(value, dict) else value

    def fail(self, count: int, path: str) -> None:
        """The next `count` requests for what is below `path` fail."""
        with self._lock:
            self._failures += [(path, count)]

    def _failure(self, path: str) -> Response | None:
        """Use up an ordered failure of a request for `path`; returns its answer, or None."""
        with self._lock:
            for at, (begin, count) in enumerate(self._failures):
                if path.startswith(begin):
                    self._failures[at : at + 1] = [(begin, count - 1)] if count > 1 else []
                    failure = recorded.load("metadata")["failures"]["token" if path.endswith("/token") else "read"]
                    return _response(failure["body"], failure["status"])
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """A web page cannot send the required header, except by DNS rebinding, which its Host gives away."""
        try:
            refuse_pages(request.scope["headers"], self._hosts)
        except ApiError as error:
            return _response(f"{error}\n", error.status)
        path = request.scope["path"]
        name = path.removeprefix(ROOT).strip("/")
        if path == "/":
            return _response("computeMetadata/\n")
        if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
            return _response("Missing Metadata-Flavor:Google header.\n", 403)
        if not f"{path}/".startswith(f"{ROOT}/"):
            return _response("Not Found\n", 404)
        if (failure := self._failure(name)) is not None:
            return failure
        if request.method == "PUT":
            if not GUEST_ATTRIBUTE.fullmatch(name):
                return _response("Bad Request\n", 400)
            self.set(name, (await request.body()).decode(errors="replace"))
            return _response("")
        if request.method != "GET":
            return _response("Method Not Allowed\n", 405)
        timeout = request.query_params.get("timeout_sec", "3600")
        if not timeout.isdecimal():
            return _response("Bad Request\n", 400)
        value, give_up_at = self.get(name), time.monotonic() + int(timeout)
        if request.query_params.get("wait_for_change", "").lower() == "true":
            before = value
            while (value := self.get(name)) == before and time.monotonic() < give_up_at and not await request.is_disconnected():
                await asyncio.sleep(LOOK_SECONDS)
        if value is None:
            return _response("Not Found\n", 404)
        if request.query_params.get("recursive", "").lower() == "true":
            return _response(json.dumps(as_json(value)), kind="application/json")
        if isinstance(value, str):
            kind = "application/json" if name.endswith("/token") else "application/text"
            return _response(value, kind=kind)
        if not path.endswith("/"):
            return _response("", 301, {"Location": f"{path}/"})
        names = (f"{key}/\n" if isinstance(inner, dict) else f"{key}\n" for key, inner in sorted(value.items()))
        return _response("".join(names))


def _response(text: str, status: int = 200, headers: dict[str, str] | None = None, kind: str = "application/text") -> Response:
    every = {"Metadata-Flavor": "Google", "Content-Type": kind, "Server": "Metadata Server for VM"}
    return Response(text, status, {**every, **(headers or {})})


def as_json(value: str | Tree) -> Any:
    """The JSON of `?recursive=true`: names in camel case, except those that the user chose; lists; no tokens."""
    if isinstance(value, str):
        return value
    result: dict[str, Any] = {}
    for name, inner in value.items():
        if name in ("scopes", "aliases"):
            result[name] = inner.split()
        elif name == "network-interfaces":
            result["networkInterfaces"] = [as_json(interface) for interface in inner.values()]
        elif name != "token":
            result[_camel(name)] = inner if name in ("attributes", "guest-attributes") else as_json(inner)
    return result


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return name if "@" in name else first + "".join(word.capitalize() for word in rest)
