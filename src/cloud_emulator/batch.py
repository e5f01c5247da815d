"""Several calls in one request: each is answered as if it had come alone."""

from __future__ import annotations

import http
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from cloud_emulator.answers import Answer, ApiError, invalid
from cloud_emulator.calls import Call, split_target
from cloud_emulator.multipart import Part, headers_of, mixed_parts
from cloud_emulator.router import Route

LIMIT = 100  # calls in a batch


class BatchRoutes:
    def __init__(self, dispatch: Callable[[Call], Answer]):
        self._dispatch = dispatch

    def routes(self) -> list[Route]:
        return [Route("POST batch", "POST", "batch/storage/v1", "", self.batch)]

    def batch(self, call: Call) -> Answer:
        parts = mixed_parts(call.body, call.headers.get("content-type", ""))
        if len(parts) > LIMIT:
            raise invalid(f"The batch has {len(parts)} calls; the limit is {LIMIT}.")
        boundary = f"batch_{uuid.uuid4().hex}"
        pieces = []
        for part in parts:
            try:
                answer = self._dispatch(_inner(part, call))
            except ApiError as error:
                answer = error.answer()
            pieces.append(f"--{boundary}\r\n".encode() + _written(answer, part.headers.get("content-id", "")))
        pieces.append(f"--{boundary}--\r\n".encode())
        return Answer(200, {"Content-Type": f"multipart/mixed; boundary={boundary}"}, b"".join(pieces))


def _inner(part: Part, outer: Call) -> Call:
    content = part.content.replace(b"\r\n", b"\n")
    head, _, body = content.partition(b"\n\n")
    line, _, headers = head.partition(b"\n")
    words = line.decode("ascii", errors="replace").split(" ")
    if len(words) != 3:
        raise invalid(
            f"A part of the batch does not begin with a request line but with '{line[:80].decode(errors='replace')}'."
        )
    target = urlsplit(words[1])
    segments, arguments = split_target(target.path.removeprefix(urlsplit(outer.base_url).path), target.query)
    return Call(words[0], segments, arguments, headers_of(headers), outer.base_url, body.strip())


def _written(answer: Answer, content_id: str) -> bytes:
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
    status = f"{answer.status} {http.HTTPStatus(answer.status).phrase}"
    named = f"Content-ID: <response-{content_id.strip('<>')}>\r\n" if content_id else ""
    headers = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    head = f"Content-Type: application/http\r\n{named}\r\nHTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n"
