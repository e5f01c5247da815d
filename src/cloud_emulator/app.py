"""Between the server and the service: strangers are refused, bodies read, faults befall connections, answers are streamed."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cloud_emulator.admission import refuse_pages, without_token
from cloud_emulator.answers import Answer, ApiError, json_answer
from cloud_emulator.calls import Call, split_target
from cloud_emulator.router import Match
from cloud_emulator.service import Service

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

THREADS = 64
NO_BODY = (204, 304)


class Application:
    """An ASGI application; `scope["state"]["transport"]` is the connection, for dropping it."""

    def __init__(self, service: Service, token: str):
        self._service = service
        self._token = token
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="emulator")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            refuse_pages(scope["headers"])
            path = without_token(scope["raw_path"], self._token)
            body, complete = await _read_body(receive)
            call = _call_of(scope, path, self._token, body, complete)
            match = self._service.match(call)
        except ApiError as error:
            return await _send(send, error.answer())
        if not complete and match.route.kind != "PUT chunk":
            return None  # nobody waits for an answer, and half a request is none
        verdict, delay_seconds = self._service.verdict(call, match)
        if delay_seconds:
            await asyncio.sleep(delay_seconds)
        if verdict.drop:
            return await _drop(scope, receive)
        if verdict.refusal is not None:
            return await _send(send, verdict.refusal.answer(match.route.in_text))
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, _answer, match, call)
        if verdict.drop_after:
            return await _drop(scope, receive)
        if verdict.refusal_after is not None:
            answer = verdict.refusal_after.answer(match.route.in_text)
        return await _send(send, answer, cut=verdict.truncate)


def _answer(match: Match, call: Call) -> Answer:
    try:
        return match.answer(call)
    except Exception as error:  # a defect of the emulator: tell both sides
        traceback.print_exc(file=sys.stderr)
        return json_answer({"error": {"code": 500, "message": f"the emulator failed: {error!r}"}}, 500)


async def _read_body(receive: Receive) -> tuple[bytes, bool]:
    """The body, and whether it came to its end before the client went away."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(pieces), False
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces) if len(pieces) > 1 else pieces[0], True


def _call_of(scope: Message, path: bytes, token: str, body: bytes, complete: bool) -> Call:
    segments, arguments = split_target(path.decode("ascii"), scope["query_string"].decode("ascii"))
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return Call(scope["method"], segments, arguments, headers, f"http://{headers['host']}/{token}", body, complete)


async def _drop(scope: Message, receive: Receive) -> None:
    """Close the connection without a word, and wait until the server has noticed."""
    scope["state"]["transport"].abort()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, answer: Answer, *, cut: bool = False) -> None:
    """`cut` ends the body after half of it; returning then makes the server close the connection."""
    whole = isinstance(answer.body, bytes)
    length = len(answer.body) if isinstance(answer.body, bytes) else answer.length or 0
    headers = answer.headers if answer.status in NO_BODY else {**answer.headers, "Content-Length": str(length)}
    encoded = [(name.lower().encode("latin-1"), value.encode("utf-8")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
    if whole and not cut:
        return await send({"type": "http.response.body", "body": b"" if answer.status in NO_BODY else answer.body})
    left = length // 2 if cut else length
    pieces = iter([answer.body]) if isinstance(answer.body, bytes) else answer.body
    try:
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece[:left], "more_body": True})
            left -= len(piece)
            if left <= 0:
                break
    finally:
        if hasattr(pieces, "close"):
            pieces.close()  # type: ignore[union-attr]
    if not cut:
        await send({"type": "http.response.body", "body": b""})
    return None
