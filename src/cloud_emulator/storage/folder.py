"""A folder in which buckets and objects outlive the emulator.

    FOLDER/BUCKET/bucket.json             the bucket
    FOLDER/BUCKET/objects/HASH.json       one object; HASH is of its name
    FOLDER/BUCKET/bodies/GENERATION       its bytes

The record of an object is written last and replaced atomically, so a kill leaves the old object or the new one; bodies
that no record names are removed at the next start.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloud_emulator.errors import EmulatorError
from cloud_emulator.storage.objects import Bucket, StoredObject


class Folder:
    def __init__(self, path: Path):
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = (path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise EmulatorError(f"another emulator is using {path}; stop it, or name another folder") from None

    def close(self) -> None:
        self._lock.close()

    def buckets(self) -> Iterator[Bucket]:
        for file in sorted(self._path.glob("*/bucket.json")):
            bucket = Bucket(**json.loads(file.read_text(encoding="utf-8")))
            for unfinished in file.parent.rglob("*.new"):
                unfinished.unlink()
            for record in (file.parent / "objects").glob("*.json"):
                content = json.loads(record.read_text(encoding="utf-8"))
                body = file.parent / "bodies" / str(content["generation"])
                bucket.put(StoredObject(**{"size": body.stat().st_size, **content, "content": body}))
            kept = {stored.content for stored in bucket.objects.values()}
            for body in (file.parent / "bodies").iterdir():
                if body not in kept:
                    body.unlink()
            yield bucket

    def put(self, stored: StoredObject) -> StoredObject:
        """What was kept; its bytes may be those of another object, which a hard link shares."""
        path = self._path / stored.bucket / "bodies" / str(stored.generation)
        if isinstance(stored.content, bytes):
            path.write_bytes(stored.content)
        elif stored.content != path:
            try:
                os.link(stored.content, path)
            except OSError:  # a file system without hard links
                shutil.copyfile(stored.content, path)
        kept = dataclasses.replace(stored, content=path)
        content = {each.name: getattr(kept, each.name) for each in dataclasses.fields(kept) if each.name != "content"}
        _write_whole(self._record(kept), content)
        return kept

    def remove(self, stored: StoredObject) -> None:
        self._record(stored).unlink()
        self.forget_body(stored)

    def forget_body(self, stored: StoredObject) -> None:
        """Of an object whose record is gone or replaced."""
        assert isinstance(stored.content, Path)
        stored.content.unlink(missing_ok=True)

    def _record(self, stored: StoredObject) -> Path:
        return self._path / stored.bucket / "objects" / f"{hashlib.sha256(stored.name.encode()).hexdigest()}.json"

    def put_bucket(self, bucket: Bucket) -> None:
        for name in ("objects", "bodies"):
            (self._path / bucket.name / name).mkdir(parents=True, exist_ok=True)
        content = {each.name: getattr(bucket, each.name) for each in dataclasses.fields(bucket)}
        del content["objects"], content["names"]
        _write_whole(self._path / bucket.name / "bucket.json", content)

    def remove_bucket(self, name: str) -> None:
        (self._path / name / "bucket.json").unlink()  # first: without it the rest is not a bucket
        shutil.rmtree(self._path / name)


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    beside.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    beside.replace(path)
