"""A Hugging Face Hub on this machine for models: what huggingface_hub asks when it makes a repository and uploads.

The requests are those of huggingface_hub 2.4 (its `_commit_api.py`, `lfs.py` and `hf_api.py`); large files go by git LFS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler

from local_server import LocalServer, send, send_json


class ModelHub(LocalServer):
    def __init__(self) -> None:
        self.private: dict[str, bool] = {}  # by repository
        self.files: dict[str, dict[str, bytes]] = {}  # what its newest commit has; of a branch by NAME@BRANCH
        self.commits: dict[str, int] = {}
        self.large: dict[str, bytes] = {}  # by SHA-256: uploaded, committed or not
        self.uploads: list[str] = []
        self.stalled: threading.Event | None = None  # set when weights come, which are then not taken
        self.status: int | None = None  # with which everything is refused
        super().__init__()

    def commit(self, name: str) -> str:
        return hashlib.sha1(f"{name} {self.commits.get(name, 0)}".encode()).hexdigest()

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        if self.status is not None:
            send(request, self.status, b'{"error": "no"}')
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if name in self.files:
                send(request, 409, json.dumps({"error": "You already created it", "url": f"{self.url}/{name}"}).encode())
                return
            self.private[name], self.files[name] = asked.get("visibility") == "private" or bool(asked.get("private")), {}
            send_json(request, {"url": f"{self.url}/{name}", "id": name, "name": name})
        elif path == "/api/validate-yaml":
            send_json(request, {"errors": [], "warnings": []})
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
            send(request, 200, b"")
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [{"oid": one["oid"], "size": one["size"]} for one in json.loads(body)["objects"]]
            for one in objects:
                if one["oid"] not in self.large:
                    one["actions"] = {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}
            send_json(request, {"transfer": "basic", "objects": objects}, "application/vnd.git-lfs+json")
        elif path.startswith("/api/models/"):
            self._of_model(request, path.removeprefix("/api/models/"), body)
        else:
            send(request, 404, b"", {"X-Error-Code": "EntryNotFound"})

    def _of_model(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        name, action = "/".join(path.split("/")[:2]), "/".join(path.split("/")[2:])
        if action.startswith("preupload/"):
            paths = [one["path"] for one in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
            send_json(request, {"files": [{"path": path, "uploadMode": modes[path], "shouldIgnore": False} for path in paths]})
        elif action.startswith("branch/") and self._version(name, action) in self.files:
            send(request, 409, b'{"error": "Reference already exists"}')
        elif action.startswith("branch/"):
            self.files[self._version(name, action)] = dict(self.files[name])
            send(request, 200, b"")
        elif action.startswith("tree/"):
            files = self.files[self._version(name, action)].items()
            send_json(request, [{"type": "file", "path": path, "size": len(data), "oid": path} for path, data in files])
        elif action.startswith("commit/"):
            files = self.files[self._version(name, action)]
            for line in map(json.loads, body.splitlines()):
                kind, value = line["key"], line["value"]
                if kind in ("file", "lfsFile"):
                    files[value["path"]] = base64.b64decode(value["content"]) if kind == "file" else self.large[value["oid"]]
                elif kind == "deletedFile":
                    del files[value["path"]]
            self.commits[name] = self.commits.get(name, 0) + 1
            send_json(request, {"success": True, "commitOid": self.commit(name), "commitUrl": f"{self.url}/{name}/commit/1"})
        else:
            send_json(request, {"id": name, "sha": self.commit(name), "private": self.private[name], "tags": []})

    def _version(self, name: str, action: str) -> str:
        branch = action.split("/")[1]
        return name if branch == "main" else f"{name}@{branch}"
