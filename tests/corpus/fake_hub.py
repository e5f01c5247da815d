"""A Hugging Face Hub on this machine with one dataset: what its clients ask when they list and read one, by HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class FakeHub:
    """Serves `folder` as the dataset `name`, at a commit that follows from its files."""

    def __init__(self, folder: Path, name: str = "owner/texts"):
        self.folder, self.name = folder, name
        self.gated = False
        self.silent = False  # every connection is dropped
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_POST(self) -> None:
                hub.answer(self, body=True)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def files(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }

    @property
    def commit(self) -> str:
        digest = hashlib.sha1()
        for name, content in self.files().items():
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        if self.silent:
            request.close_connection = True
            return
        length = int(request.headers.get("Content-Length") or 0)
        posted = request.rfile.read(length).decode()
        path = unquote(urlsplit(request.path).path)
        self.requests.append(f"{request.command} {path}")
        api, files = f"/api/datasets/{self.name}", f"/datasets/{self.name}/resolve/"
        if path == api or path.startswith(f"{api}/revision/"):
            if path not in (api, *(f"{api}/revision/{name}" for name in ("main", self.commit))):
                _send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
            else:
                _send_json(request, {"id": self.name, "sha": self.commit, "siblings": [], "tags": [], "downloads": 0})
        elif path == f"{api}/auth-check":
            _send(request, 403 if self.gated else 200, b"{}", {"X-Error-Code": "GatedRepo"} if self.gated else {})
        elif path.startswith(f"{api}/paths-info/"):
            _send_json(request, [item for item in self._tree() if item["path"] in unquote(posted.replace("+", " "))])
        elif path.startswith(f"{api}/tree/"):
            below = path.removeprefix(f"{api}/tree/").partition("/")[2]
            _send_json(request, self._tree(below))
        elif path.startswith(files):
            self._send_file(request, path.removeprefix(files).partition("/")[2], body=body)
        else:
            _send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})

    def _tree(self, below: str = "") -> list[dict[str, Any]]:
        items: dict[str, dict[str, Any]] = {}
        for name, content in self.files().items():
            if below and not name.startswith(f"{below}/") and name != below:
                continue
            for parent in list(Path(name).parents)[:-1]:
                items[str(parent)] = {"type": "directory", "path": str(parent), "oid": "0" * 40, "size": 0}
            oid = hashlib.sha1(content).hexdigest()
            items[name] = {"type": "file", "path": name, "oid": oid, "size": len(content)}
        return [item for item in items.values() if item["path"] != below or item["type"] == "file"]

    def _send_file(self, request: BaseHTTPRequestHandler, name: str, *, body: bool) -> None:
        content = self.files().get(name)
        headers = {"X-Repo-Commit": self.commit}
        if self.gated:
            _send(request, 403, b"", headers | {"X-Error-Code": "GatedRepo"})
        elif content is None:
            _send(request, 404, b"", headers | {"X-Error-Code": "EntryNotFound"})
        else:
            headers |= {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "Accept-Ranges": "bytes"}
            status, asked = 200, request.headers.get("Range", "")
            if asked.startswith("bytes="):
                first, _, last = asked.removeprefix("bytes=").partition("-")
                end = min(int(last) + 1 if last else len(content), len(content))
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
                status, content = 206, content[int(first) : end]
            _send(request, status, content, headers, body=body)


def _send_json(request: BaseHTTPRequestHandler, value: Any) -> None:
    _send(request, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _send(request: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str], *, body: bool = True) -> None:
    request.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(content))}.items():
        request.send_header(name, value)
    request.end_headers()
    if body and request.command != "HEAD":
        request.wfile.write(content)
