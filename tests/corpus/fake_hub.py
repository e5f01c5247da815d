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
        self.converted: Path | None = None  # what the Hub has made of it
        self.gated = False
        self.silent = False  # every connection is dropped
        self.requests: list[str] = []
        super().__init__()

    @staticmethod
    def files(folder: Path) -> dict[str, bytes]:
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    def commit_of(self, folder: Path) -> str:
        digest = hashlib.sha1()
        for name, content in self.files(folder).items():
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()

    @property
    def commit(self) -> str:
        return self.commit_of(self.folder)

    def at(self, revision: str) -> Path | None:
        """What there is at a branch or a commit."""
        if self.converted is not None and revision in ("refs/convert/parquet", self.commit_of(self.converted)):
            return self.converted
        return self.folder if revision in ("main", self.commit) else None

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        if self.silent:
            request.close_connection = True
            return
        self.requests.append(f"{request.command} {path}")
        api, files = f"/api/datasets/{self.name}", f"/datasets/{self.name}/resolve/"
        if path == api or path.startswith(f"{api}/revision/"):
            folder = self.at(unquote(path.removeprefix(api).removeprefix("/revision/")) or "main")
            if folder is None:
                send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
            else:
                send_json(request, {"id": self.name, "sha": self.commit_of(folder), "siblings": [], "tags": [], "downloads": 0})
        elif path.startswith(f"{api}/tree/"):
            send_json(request, self._tree(self.at(path.removeprefix(f"{api}/tree/").partition("/")[0]) or self.folder))
        elif path.startswith(files):
            revision, _, name = path.removeprefix(files).partition("/")
            self._send_file(request, self.at(revision) or self.folder, name)
        else:
            send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})

    def _tree(self, folder: Path) -> list[dict[str, Any]]:
        items: dict[str, dict[str, Any]] = {}
        for name, content in self.files(folder).items():
            for parent in list(Path(name).parents)[:-1]:
                items[str(parent)] = {"type": "directory", "path": str(parent), "oid": "0" * 40, "size": 0}
            items[name] = {"type": "file", "path": name, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
        return list(items.values())

    def _send_file(self, request: BaseHTTPRequestHandler, folder: Path, name: str) -> None:
        content = self.files(folder).get(name)
        headers = {"X-Repo-Commit": self.commit_of(folder)}
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
