"""The layer between starlette and the emulated services: admission, parsing of requests, fault injection and errors.

A service only adds a table of `Endpoint`. What starlette could not do by itself: docs/design/emulator-http.md.

The emulator runs scripts as its user, and any web page may send requests to 127.0.0.1. A page cannot read a terminal, so the
address that the emulator prints begins with a random token, `http://127.0.0.1:9023/TOKEN`, and nothing is answered without it.
The path is the one thing that all clients send unmodified: google-cloud-storage and gcsfs send no credentials to an emulator,
nor does google-cloud-tpu over plain HTTP. Two more kinds of requests are refused: those with a Host that is not a loopback
name, which means DNS rebinding, and those with an Origin, which web pages send and clients do not.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cloud_emulator.errors import ApiError, EmulatorError, as_rpc_error, invalid, storage_error
from cloud_emulator.faults import Faults, unavailable

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_BINDINGS = {"bindings": [{"members": [""]}]}
# Fields of requests that are read as objects, lists of objects, or lists of strings; all others may hold anything.
_SHAPE: dict[str, Any] = _BINDINGS | {
    "destination": {},
    "role": {},
    "serviceAccount": {},
    "permissions": [""],
    "serviceIds": [""],
    "policy": _BINDINGS,
    "sourceObjects": [{"objectPreconditions": {}}],
}


class Json(JSONResponse):
    media_type = "application/json; charset=UTF-8"


class Call(Request):
    """A request with its body in `data`; `complete` is False if the client disconnected before its end."""

    data = b""
    complete = True

    async def read(self) -> None:
        pieces: list[bytes] = []
        try:
            async for piece in self.stream():
                pieces.append(piece)
        except ClientDisconnect:
            self.complete = False
        self.data = b"".join(pieces)

    @property
    def root(self) -> str:
        """The base URL with which addresses in answers begin."""
        return str(self.base_url).rstrip("/")

    def integer(self, name: str) -> int | None:
        return integer(name, self.query_params.get(name))

    def flag(self, name: str) -> bool:
        return self.query_params.get(name, "").lower() == "true"

    def content(self) -> dict[str, Any]:
        content = json_object(self.data)
        _check_shape(content, _SHAPE)
        return content

    def page(self, items: list[Any], size: int) -> tuple[list[Any], str]:
        """One page of a listing, and the token of the next one, if any: where it begins."""
        token = self.query_params.get("pageToken", "")
        if size < 0 or not re.fullmatch(r"[0-9]{0,18}", token):
            raise invalid("Request contains an invalid argument: the page size or page token is invalid.")
        end = int(token or 0) + size
        return items[int(token or 0) : end], str(end) if end < len(items) else ""


def integer(name: str, value: object) -> int | None:
    try:
        return None if value is None else int(str(value))
    except ValueError:
        raise invalid(f"Invalid value for {name}: '{value}' is not a whole number.") from None


def json_object(body: bytes) -> dict[str, Any]:
    """An empty body stands for an empty object."""
    try:
        content = json.loads(body) if body.strip() else {}
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()  # so that it can be sent again
    except (ValueError, RecursionError):  # no JSON, no number, half of a surrogate pair, too deep
        raise invalid("Parse Error") from None
    if not isinstance(content, dict):
        raise invalid("Parse Error: the body must be a JSON object.")
    return content


def _check_shape(content: dict[str, Any], shape: dict[str, Any]) -> None:
    """Raise ApiError unless those fields of `shape` that are there have the types of its values."""
    for name in shape.keys() & content.keys():
        value_or_list, expected = content[name], shape[name]
        values, each = (value_or_list, expected[0]) if isinstance(expected, list) else ([value_or_list], expected)
        if not isinstance(values, list) or not all(isinstance(value, type(each)) for value in values):
            raise invalid(f"Invalid JSON payload received: '{name}' cannot be {json.dumps(value_or_list)[:80]}.")
        for value in values if isinstance(each, dict) else ():
            _check_shape(value, each)


class Endpoint(Route):
    """A route whose `answer(call, **parameters)` runs in a thread and returns a response, or the content of a JSON response.

    Requests are counted under `name`, unless that is ""; one that ends with "media" is a download, whose refusals are plain
    text. `permission` is what the caller needs, and tells reads from writes. `argument` is a required query argument:
    "upload_id", or "alt=media". `api` selects the faults: "storage", "tpu" (whose errors are converted to the newer format),
    else none.
    """

    def __init__(
        self,
        name: str,
        method: str,
        path: str,
        permission: str,
        answer: Callable[..., Any],
        argument: str = "",
        *,
        api: str = "",
    ):
        super().__init__(path, self._respond, methods=[method], name=name)
        self.methods = {method}  # GET does not imply HEAD
        self._permission, self._is_media = permission, name.endswith("media")
        self._answer, self._argument, self._api = answer, argument.partition("="), api

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        name, _, value = self._argument
        if match is Match.NONE or not name:
            return match, child
        actual = Request(scope).query_params.get(name)
        return (match, child) if actual is not None and value in ("", actual) else (Match.NONE, {})

    async def _respond(self, request: Request) -> Response:
        call = Call(request.scope, request.receive)
        await call.read()
        if not call.complete and self._argument[0] != "upload_id":
            return Response(status_code=400)  # half a request, and nobody waits for an answer
        state = request.app.state
        if self.name:
            state.requests[self.name] += 1
        faults: Faults | None = state.faults.get(self._api)
        if faults is None:
            return await run_in_threadpool(self._do, call)
        fault = faults.choose(call, self._permission, self._is_media)
        await asyncio.sleep(fault.latency_seconds)
        if fault.kind == "drop":
            return Dropped()
        if fault.refusal and fault.kind != "error_after":
            return self._refused(fault.refusal, call)
        response = await run_in_threadpool(self._do, call)
        if fault.kind == "drop_after":
            return Dropped()
        if fault.refusal:
            return self._refused(fault.refusal, call)
        return Truncated(response) if fault.kind == "truncate" else response

    def _do(self, call: Call) -> Response:
        try:
            parameters = {name: unquote(value, errors="strict") for name, value in call.path_params.items()}
            answer = self._answer(call, **parameters)
        except UnicodeDecodeError:
            return self._refused(invalid("The name must be valid UTF-8."), call)
        except EmulatorError as error:  # an invalid order to the emulator itself
            return self._refused(invalid(str(error)), call)
        except ApiError as error:
            return self._refused(error, call)
        return answer if isinstance(answer, Response) else Json(answer)

    def _refused(self, error: ApiError, call: Call) -> Response:
        if self._api == "tpu":
            error = as_rpc_error(error, self._permission, re.split("/v2(?:alpha1)?/", call.url.path, maxsplit=1)[-1])
        return refused(error, as_text=self._is_media)


def refused(error: ApiError, *, as_text: bool = False) -> Response:
    """`as_text`: in the format of refused downloads."""
    if error.status == 304:
        return Response(status_code=304, headers=error.headers)
    if as_text:
        return Response(str(error), error.status, error.headers, "text/html; charset=UTF-8")
    return Json({"error": error.error}, error.status, error.headers)


async def not_routed(request: Request, error: Exception) -> Response:
    """The exception handler for paths and methods without a route."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return refused(storage_error(405, "Method Not Allowed", "methodNotAllowed"))
    path = request.scope["path"].removeprefix(request.scope.get("app_root_path", request.scope["root_path"]))
    return refused(storage_error(404, f"Not Found: the emulator has no {request.method} {path}", "notFound"))


async def failed(request: Request, error: Exception) -> Response:
    """The exception handler for bugs in the emulator."""
    traceback.print_exception(error, file=sys.stderr)
    return Json({"error": {"code": 500, "message": f"the emulator failed: {error!r}"}}, 500)


class Dropped(Response):
    """Closes the connection without an answer; a call in a batch has no connection of its own, and gets 503."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "transport" not in scope["state"]:
            return await refused(unavailable(503))(scope, receive, send)
        scope["state"]["transport"].abort()
        while (await receive())["type"] != "http.disconnect":
            pass
        return None


class Truncated(Response):
    """Announces a whole body and sends half of it; then the server closes the connection."""

    def __init__(self, whole: Response):
        super().__init__(b"", whole.status_code)
        self.raw_headers = whole.raw_headers
        self._body = bytes(whole.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._body[: len(self._body) // 2], "more_body": True})


class Lazy:
    """An application whose routes are created at the first request."""

    def __init__(self, routes: Callable[[], list[BaseRoute]]):
        self._routes = routes
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            self._router = Router(await run_in_threadpool(self._routes), redirect_slashes=False)
        await self._router(scope, receive, send)


class Admission:
    """Middleware that refuses web pages and requests without the token, and keeps paths encoded: a name may hold a slash."""

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("ascii")
        _, token, rest = f"{path}/".split("/", 2)
        try:
            refuse_pages(scope["headers"])
            if not hmac.compare_digest(token, self._token):
                message = "The address lacks the emulator's token. Use the addresses that the emulator printed when it began."
                raise storage_error(403, message, "forbidden")
        except ApiError as error:
            return await refused(error)(scope, receive, send)
        rest = re.sub(r"^(_[a-z]+)//", r"\1/", rest[:-1].lstrip("/"))  # addresses of APIs may end with a slash
        inside = {**scope, "root_path": f"/{token}", "path": f"/{token}/{rest}"}
        return await self._app(inside, receive, send)


def refuse_pages(headers: Collection[tuple[bytes, bytes]], hosts: Collection[str] = LOOPBACK) -> None:
    """Raise ApiError unless the Host is one of `hosts`, with or without a port, and there is no Origin."""
    named = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if len(named) != 1 or re.sub(r":\d*$", "", named[0]).lower() not in hosts:
        message = f"The emulator is not called '{', '.join(named)}' but {' or '.join(hosts)}."
        raise storage_error(421, message, "misdirected")
    if any(name == b"origin" for name, _ in headers):
        raise storage_error(403, "The emulator answers no web pages: the request has an Origin.", "forbidden")
