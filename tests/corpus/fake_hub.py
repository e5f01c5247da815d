"""A Hugging Face Hub on this machine with one dataset: what its clients ask when they list and read one, by HTTP."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from local_server import LocalServer, send, send_json


class FakeHub(LocalServer):
    """Serves `folder` as the dataset `name`, at a commit that follows from its files."""

    def __init__(self, folder: Path, name: str = "owner/texts"):
        self.folder, self.name = folder, name
        self.gated = False
        self.silent = False  # every connection is dropped
        self.requests: list[str] = []
        super().__init__()

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

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        if self.silent:
            request.close_connection = True
            return
        self.requests.append(f"{request.command} {path}")
        api, files = f"/api/datasets/{self.name}", f"/datasets/{self.name}/resolve/"
        if path == api or path.startswith(f"{api}/revision/"):
            if path not in (api, *(f"{api}/revision/{name}" for name in ("main", self.commit))):
                send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
            else:
                send_json(request, {"id": self.name, "sha": self.commit, "siblings": [], "tags": [], "downloads": 0})
        elif path == f"{api}/auth-check":
            send(request, 403 if self.gated else 200, b"{}", {"X-Error-Code": "GatedRepo"} if self.gated else {})
        elif path.startswith(f"{api}/paths-info/"):
            send_json(request, [item for item in self._tree() if item["path"] in unquote(body.decode().replace("+", " "))])
        elif path.startswith(f"{api}/tree/"):
            below = path.removeprefix(f"{api}/tree/").partition("/")[2]
            send_json(request, self._tree(below))
        elif path.startswith(files):
            self._send_file(request, path.removeprefix(files).partition("/")[2])
        else:
            send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})

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

    def _send_file(self, request: BaseHTTPRequestHandler, name: str) -> None:
        content = self.files().get(name)
        headers = {"X-Repo-Commit": self.commit}
        if self.gated:
            send(request, 403, b"", headers | {"X-Error-Code": "GatedRepo"})
        elif content is None:
            send(request, 404, b"", headers | {"X-Error-Code": "EntryNotFound"})
        else:
            headers |= {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "Accept-Ranges": "bytes"}
            status, asked = 200, request.headers.get("Range", "")
            if asked.startswith("bytes="):
                first, _, last = asked.removeprefix("bytes=").partition("-")
                end = min(int(last) + 1 if last else len(content), len(content))
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
                status, content = 206, content[int(first) : end]
            send(request, status, content, headers)
