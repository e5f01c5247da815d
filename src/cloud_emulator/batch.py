"""Multipart bodies: metadata and content of an upload (multipart/related), and batches of calls (multipart/mixed)."""

from __future__ import annotations

import email.message
import email.parser
import http
import uuid
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Scope

from cloud_emulator.errors import ApiError, invalid
from cloud_emulator.http import Call, refused

LIMIT = 100  # calls in a batch


class Part(NamedTuple):
    headers: dict[str, str]  # names in lower case
    content: bytes


def _boundary(call: Call) -> bytes:
    message = email.message.Message()
    message["Content-Type"] = call.headers.get("content-type", "")
    boundary = message.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise invalid("Missing boundary in the Content-Type of a multipart body.")
    return b"--" + boundary.encode()


def related_parts(call: Call) -> tuple[Part, Part]:
    """The metadata and the content, which runs to the last boundary and so may contain anything."""
    body, boundary = call.data, _boundary(call)
    first, end = body.find(boundary), body.rfind(boundary + b"--")
    begin = first + len(boundary)
    ending = b"\r\n" if body[begin : begin + 2] == b"\r\n" else b"\n"  # clients write either, and contents end with a "\r", too
    second = body.find(ending + boundary + ending, begin)
    if first < 0 or second < 0 or end <= second:
        raise invalid("Multipart body must have exactly two parts.")
    metadata = _part(body, begin + len(ending), second, ending)
    content = _part(body, second + 2 * len(ending) + len(boundary), end - len(ending), ending)
    return metadata, content


def _part(body: bytes, start: int, stop: int, ending: bytes) -> Part:
    if body.startswith(ending, start):  # no headers at all
        return Part({}, body[start + len(ending) : stop])
    blank = body.find(ending + ending, start, stop)
    if blank < 0:
        raise invalid("A part of a multipart body has no blank line after its headers.")
    return Part(_headers(body[start:blank]), body[blank + 2 * len(ending) : stop])


def _headers(text: bytes) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in email.parser.BytesHeaderParser().parsebytes(text).items()}


class Batch(Route):
    """Several calls in one request: each is answered as if it came alone, but has no connection to drop."""

    def __init__(self, path: str):
        super().__init__(path, self._respond, methods=["POST"], name="POST batch")

    async def _respond(self, request: Request) -> Response:
        call = Call(request.scope, request.receive)
        await call.read()
        request.app.state.requests[self.name] += 1
        try:
            parts = _mixed_parts(call)
            answers = [await _answered(call, part) for part in parts]
        except ApiError as error:
            return refused(error)
        boundary = f"batch_{uuid.uuid4().hex}"
        body = b"".join(f"--{boundary}\r\n".encode() + answer for answer in answers) + f"--{boundary}--\r\n".encode()
        return Response(body, headers={"Content-Type": f"multipart/mixed; boundary={boundary}"})


def _mixed_parts(call: Call) -> list[Part]:
    _boundary(call)
    head = f"Content-Type: {call.headers['content-type']}\r\n\r\n".encode()
    parts: Any = email.parser.BytesParser().parsebytes(head + call.data).get_payload()
    if not isinstance(parts, list) or len(parts) > LIMIT:
        raise invalid(f"The batch has {len(parts)} calls; the limit is {LIMIT}.")
    return [Part({name.lower(): str(value) for name, value in part.items()}, part.get_payload(decode=True)) for part in parts]


async def _answered(outer: Call, part: Part) -> bytes:
    """The application's answer to one call, as written in the batch's answer."""
    head, _, body = part.content.replace(b"\r\n", b"\n").partition(b"\n\n")
    line, _, headers = head.partition(b"\n")
    parts = line.decode("ascii", errors="replace").split(" ")
    if len(parts) != 3:
        raise invalid(f"A part of the batch does not begin with a request line but with '{parts[0][:80]}'.")
    target, root = urlsplit(parts[1]), outer.scope["root_path"]
    path = root + target.path.removeprefix(root)
    request_headers = {**_headers(headers), "host": outer.headers["host"]}
    scope: Scope = {
        **{key: outer.scope[key] for key in ("type", "asgi", "http_version", "scheme", "server", "client")},
        "method": parts[0],
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": target.query.encode(),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request_headers.items()],
        "state": {},
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body.strip()}

    async def send(message: Message) -> None:
        sent.append(message)

    await outer.app(scope, receive, send)
    answer = b"".join(message.get("body", b"") for message in sent[1:])
    status, content_id = sent[0]["status"], part.headers.get("content-id", "").strip("<>")
    named = f"Content-ID: <response-{content_id}>\r\n" if content_id else ""
    top = f"Content-Type: application/http\r\n{named}\r\nHTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
    lines = b"".join(b"%b: %b\r\n" % header for header in sent[0]["headers"])
    return top.encode() + lines + b"\r\n" + answer + b"\r\n"
