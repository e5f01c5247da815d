"""An HTTP server on this machine: what stand-ins for the services of others share."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class LocalServer:
    """Every request goes to `answer`, each in a thread of its own."""

    def __init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.answer(self, unquote(urlsplit(self.path).path), body)

            do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def send(request: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(content)), "Content-Type": "application/json", **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(content)


def send_json(request: BaseHTTPRequestHandler, value: Any, kind: str = "application/json") -> None:
    send(request, 200, json.dumps(value).encode(), {"Content-Type": kind})
