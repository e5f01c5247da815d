"""Where buckets and objects are kept between two lives of the emulator: nowhere, or in a folder.

    FOLDER/BUCKET/bucket.json             the bucket
    FOLDER/BUCKET/objects/HASH.json       one object; HASH is of its name
    FOLDER/BUCKET/bodies/GENERATION       its bytes

The record of an object is written last and replaced atomically, so a kill leaves the old object or the new one; bodies
that no record names are removed at the next start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from cloud_emulator.bodies import Body, FileBody, MemoryBody, read_all
from cloud_emulator.errors import EmulatorError
from cloud_emulator.objects import Bucket, StoredObject


class Shelf(Protocol):
    def buckets(self) -> Iterator[Bucket]: ...
    def body(self, bucket: str, content: bytes) -> Body: ...
    def copy_body(self, bucket: str, body: Body) -> Body: ...
    def put(self, stored: StoredObject) -> StoredObject: ...
    def forget_body(self, body: Body) -> None: ...
    def remove(self, stored: StoredObject) -> None: ...
    def put_bucket(self, bucket: Bucket) -> None: ...
    def remove_bucket(self, name: str) -> None: ...
    def close(self) -> None: ...


class MemoryShelf:
    """Keeps nothing: the store's own tables are all there is."""

    def buckets(self) -> Iterator[Bucket]:
        return iter(())

    def body(self, bucket: str, content: bytes) -> Body:
        return MemoryBody(content)

    def copy_body(self, bucket: str, body: Body) -> Body:
        return body

    def put(self, stored: StoredObject) -> StoredObject:
        return stored

    def forget_body(self, body: Body) -> None:
        pass

    def remove(self, stored: StoredObject) -> None:
        pass

    def put_bucket(self, bucket: Bucket) -> None:
        pass

    def remove_bucket(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


class FolderShelf:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise EmulatorError(f"another emulator is using {folder}; stop it, or name another folder") from None

    def close(self) -> None:
        self._lock.close()

    def buckets(self) -> Iterator[Bucket]:
        for file in sorted(self.folder.glob("*/bucket.json")):
            bucket = Bucket(**json.loads(file.read_text(encoding="utf-8")))
            kept = set()
            for unfinished in file.parent.rglob("*.new"):
                unfinished.unlink()
            for record in (file.parent / "objects").glob("*.json"):
                stored = self._read(record)
                bucket.objects[stored.name] = stored
                kept.add(str(stored.generation))
            bucket.names = sorted(bucket.objects)
            for body in (file.parent / "bodies").iterdir():
                if body.name not in kept:
                    body.unlink()
            yield bucket

    def _read(self, record: Path) -> StoredObject:
        content = json.loads(record.read_text(encoding="utf-8"))
        path = record.parents[1] / "bodies" / str(content["generation"])
        return StoredObject(**content, body=FileBody(path, path.stat().st_size))

    def body(self, bucket: str, content: bytes) -> Body:
        path = self._new_body(bucket)
        path.write_bytes(content)
        return FileBody(path, len(content))

    def copy_body(self, bucket: str, body: Body) -> Body:
        path = self._new_body(bucket)
        if isinstance(body, FileBody):
            try:
                os.link(body.path, path)
                return FileBody(path, body.size)
            except OSError:  # a file system without hard links
                shutil.copyfile(body.path, path)
                return FileBody(path, body.size)
        return self.body(bucket, read_all(body))

    def _new_body(self, bucket: str) -> Path:
        return self.folder / bucket / "bodies" / uuid.uuid4().hex

    def put(self, stored: StoredObject) -> StoredObject:
        """The record, and its body moved to where the record expects it."""
        folder = self.folder / stored.bucket
        body = stored.body
        assert isinstance(body, FileBody)
        path = folder / "bodies" / str(stored.generation)
        if body.path != path:
            body.path.replace(path)
        stored = dataclasses.replace(stored, body=FileBody(path, body.size))
        content = {field.name: getattr(stored, field.name) for field in dataclasses.fields(stored) if field.name != "body"}
        _write_whole(self._record(stored), content)
        return stored

    def forget_body(self, body: Body) -> None:
        if isinstance(body, FileBody):
            with contextlib.suppress(FileNotFoundError):
                body.path.unlink()

    def remove(self, stored: StoredObject) -> None:
        self._record(stored).unlink()
        self.forget_body(stored.body)

    def _record(self, stored: StoredObject) -> Path:
        return self.folder / stored.bucket / "objects" / f"{hashlib.sha256(stored.name.encode()).hexdigest()}.json"

    def put_bucket(self, bucket: Bucket) -> None:
        folder = self.folder / bucket.name
        for name in ("objects", "bodies"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        content = {field.name: getattr(bucket, field.name) for field in dataclasses.fields(bucket)}
        del content["objects"], content["names"]
        _write_whole(folder / "bucket.json", content)

    def remove_bucket(self, name: str) -> None:
        (self.folder / name / "bucket.json").unlink()  # first: without it the rest is not a bucket
        shutil.rmtree(self.folder / name)


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    beside.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    beside.replace(path)
