"""A Hugging Face Hub on this machine for models: what huggingface_hub asks when it makes a repository, uploads and downloads.

The requests are those of huggingface_hub 2.4 (its `_commit_api.py`, `lfs.py` and `hf_api.py`); large files go by git LFS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class ModelHub:
    def __init__(self) -> None:
        self.private: dict[str, bool] = {}  # by repository
        self.files: dict[str, dict[str, bytes]] = {}  # what its newest commit has
        self.commits: dict[str, int] = {}
        self.large: dict[str, bytes] = {}  # by SHA-256: uploaded, committed or not
        self.uploads: list[str] = []
        self.stalled: threading.Event | None = None  # set when weights come, which are then not taken
        self.status: int | None = None  # with which everything is refused
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                hub.answer(self)

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_POST(self) -> None:
                hub.answer(self)

            def do_PUT(self) -> None:
                hub.answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def commit(self, name: str) -> str:
        return hashlib.sha1(f"{name} {self.commits.get(name, 0)}".encode()).hexdigest()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self.status is not None:
            _send(request, self.status, b'{"error": "no"}')
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if name in self.files:
                _send(
                    request,
                    409,
                    json.dumps({"error": "You already created this model repo", "url": f"{self.url}/{name}"}).encode(),
                )
                return
            self.private[name], self.files[name] = asked.get("visibility") == "private" or bool(asked.get("private")), {}
            _send_json(request, {"url": f"{self.url}/{name}", "id": name, "name": name})
        elif path == "/api/whoami-v2":
            _send_json(request, {"name": "user", "type": "user"})
        elif path == "/api/validate-yaml":
            _send_json(request, {"errors": [], "warnings": []})
        elif path.startswith("/lfs/"):
            oid = path.removeprefix("/lfs/")
            if self.stalled is not None:
                self.stalled.set()
                request.close_connection = True
                time.sleep(5)
                return
            assert hashlib.sha256(body).hexdigest() == oid
            self.large[oid] = body
            self.uploads.append(oid)
            _send(request, 200, b"")
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [self._batch(one) for one in json.loads(body)["objects"]]
            _send_json(request, {"transfer": "basic", "objects": objects}, "application/vnd.git-lfs+json")
        elif path.startswith("/api/models/"):
            self._of_model(request, path.removeprefix("/api/models/"), body)
        else:
            name, _, rest = path[1:].partition("/resolve/")
            self._file(request, name, rest.partition("/")[2])

    def _batch(self, one: dict[str, Any]) -> dict[str, Any]:
        """Without actions where the object is there."""
        found = {"oid": one["oid"], "size": one["size"]}
        if one["oid"] in self.large:
            return found
        return {**found, "actions": {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}}

    def _of_model(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        name, action = "/".join(path.split("/")[:2]), "/".join(path.split("/")[2:])
        if name not in self.files:
            _send(request, 404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif action.startswith("preupload/"):
            files = json.loads(body)["files"]
            modes = [
                {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular"}
                for one in files
            ]
            _send_json(request, {"files": [{**one, "shouldIgnore": False} for one in modes]})
        elif action.startswith("commit/"):
            lines = [json.loads(line) for line in body.splitlines() if line]
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    self.files[name][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[name][value["path"]] = self.large[value["oid"]]
            self.commits[name] = self.commits.get(name, 0) + 1
            _send_json(request, {"success": True, "commitOid": self.commit(name), "commitUrl": f"{self.url}/{name}/commit/1"})
        elif action.startswith("tree/"):
            _send_json(
                request,
                [{"type": "file", "path": one, "oid": "0", "size": len(data)} for one, data in self.files[name].items()],
            )
        else:
            siblings = [{"rfilename": one} for one in self.files[name]]
            _send_json(
                request, {"id": name, "sha": self.commit(name), "siblings": siblings, "private": self.private[name], "tags": []}
            )

    def _file(self, request: BaseHTTPRequestHandler, name: str, path: str) -> None:
        content = self.files.get(name, {}).get(path)
        if content is None:
            _send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.commit(name)})
        else:
            _send(
                request, 200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": self.commit(name)}
            )


def _send(request: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(content)), "Content-Type": "application/json", **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(content)


def _send_json(request: BaseHTTPRequestHandler, value: Any, kind: str = "application/json") -> None:
    _send(request, 200, json.dumps(value).encode(), {"Content-Type": kind})
