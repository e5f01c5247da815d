"""The object store: every change to buckets and objects is made here, one at a time, under one lock."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cloud_emulator.errors import ApiError, EmulatorError, invalid, storage_error
from cloud_emulator.http import json_object
from cloud_emulator.storage.objects import Bucket, Hashes, Preconditions, StoredObject, merged, writable

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
OBJECT_NAME_BYTES = 1024  # the service's limit on the UTF-8 of a name


class ObjectRef(NamedTuple):
    """The object that a request reads or writes."""

    bucket: str
    name: str
    conditions: Preconditions = Preconditions()
    generation: int | None = None


class Store:
    """Objects in memory, or in a folder that the next emulator can take over."""

    def __init__(self, folder: Path | None = None):
        self.lock = threading.RLock()
        self._folder = None if folder is None else Folder(folder)
        self._buckets = {bucket.name: bucket for bucket in self._folder.buckets()} if self._folder else {}
        generations = [stored.generation for bucket in self._buckets.values() for stored in bucket.objects.values()]
        self._last_time = max([*generations, *(bucket.updated for bucket in self._buckets.values())], default=0)

    def close(self) -> None:
        """Release the folder for another emulator."""
        if self._folder:
            self._folder.close()

    def _now(self) -> int:
        """Microseconds, strictly increasing whatever the clock does; the caller holds the lock."""
        self._last_time = max(self._last_time + 1, time.time_ns() // 1000)
        return self._last_time

    # Buckets

    def buckets(self) -> list[Bucket]:
        with self.lock:
            return [self._buckets[name] for name in sorted(self._buckets)]

    def bucket(self, name: str) -> Bucket:
        with self.lock:
            if name not in self._buckets:
                raise storage_error(404, "The specified bucket does not exist.", "notFound")
            return self._buckets[name]

    def create_bucket(self, name: str, fields: dict[str, Any]) -> Bucket:
        if not BUCKET_NAME.fullmatch(name) or ".." in name:
            raise invalid(f"Invalid bucket name: '{name}'")
        with self.lock:
            if name in self._buckets:
                message = "Your previous request to create the named bucket succeeded and you already own it."
                raise storage_error(409, message, "conflict")
            writable({"storageClass": fields.get("storageClass")})
            fields = {"storageClass": "STANDARD", **{key: value for key, value in fields.items() if key != "name"}}
            fields["location"] = str(fields.get("location", "US")).upper()
            now = self._now()
            return self._save(Bucket(name, now, now, 1, fields, {}))

    def _save(self, bucket: Bucket) -> Bucket:
        self._buckets[bucket.name] = bucket
        if self._folder:
            self._folder.put_bucket(bucket)
        return bucket

    def change_bucket(self, name: str, changes: dict[str, Any], conditions: Preconditions, *, replace: bool = False) -> Bucket:
        with self.lock:
            bucket = self.bucket(name)
            conditions.check(bucket)
            writable({"storageClass": changes.get("storageClass")})
            keep = {key: bucket.fields[key] for key in ("location", "storageClass")}
            bucket.fields = {**keep, **changes} if replace else merged(bucket.fields, changes)
            bucket.fields["location"] = keep["location"]
            bucket.metageneration += 1
            bucket.updated = self._now()
            return self._save(bucket)

    def set_policy(self, name: str, policy: dict[str, Any]) -> Bucket:
        with self.lock:
            bucket = self.bucket(name)
            if policy.get("etag") not in (None, bucket.policy_resource()["etag"]):
                raise storage_error(412, "The IAM policy was changed by somebody else meanwhile.", "conditionNotMet")
            fields = {name: policy[name] for name in ("bindings", "version") if name in policy}
            bucket.policy = {**fields, "revision": int(bucket.policy.get("revision", 0)) + 1}
            return self._save(bucket)

    def delete_bucket(self, name: str, conditions: Preconditions) -> None:
        with self.lock:
            bucket = self.bucket(name)
            conditions.check(bucket)
            if bucket.objects:
                raise storage_error(409, "The bucket you tried to delete is not empty.", "conflict")
            if self._folder:
                self._folder.remove_bucket(name)
            del self._buckets[name]

    # Objects

    def find(self, ref: ObjectRef, *, reading: bool = False) -> StoredObject:
        with self.lock:
            stored = self.bucket(ref.bucket).objects.get(ref.name)
            if stored is None or ref.generation not in (None, stored.generation):
                raise storage_error(404, f"No such object: {ref.bucket}/{ref.name}", "notFound")
            ref.conditions.check(stored, reading=reading)
            return stored

    def check(self, ref: ObjectRef) -> None:
        """Raise ApiError if a write would be refused now."""
        if not ref.name:
            raise storage_error(400, "Required", "required")
        if len(ref.name.encode()) > OBJECT_NAME_BYTES or ref.name in (".", "..") or "\r" in ref.name or "\n" in ref.name:
            raise invalid(f"Invalid object name: '{ref.name[:100]}'")
        with self.lock:
            ref.conditions.check(self.bucket(ref.bucket).objects.get(ref.name))

    def put(self, ref: ObjectRef, content: bytes, fields: dict[str, Any], promised: dict[str, str]) -> StoredObject:
        """An upload; `promised` are the hashes that the client expects."""
        self.check(ref)
        hashes = Hashes.of(content)
        hashes.check(promised)
        return self._commit(ref, content, len(content), hashes, fields)

    def _commit(
        self,
        ref: ObjectRef,
        content: bytes | Path,
        size: int,
        hashes: Hashes,
        fields: dict[str, Any],
        components: int | None = None,
    ) -> StoredObject:
        """The only place where an object appears: conditions are checked and the object replaced under the lock."""
        with self.lock:
            home = self.bucket(ref.bucket)
            old = home.objects.get(ref.name)
            ref.conditions.check(old)
            fields = {"storageClass": home.fields["storageClass"], **writable(fields)}
            now = self._now()
            stored = StoredObject(ref.bucket, ref.name, now, 1, now, size, *hashes, components, fields, content)
            if self._folder:
                stored = self._folder.put(stored)
                if old is not None:
                    self._folder.forget_body(old)
            home.put(stored)
            return stored

    def change(self, ref: ObjectRef, changes: dict[str, Any], *, replace: bool = False) -> StoredObject:
        with self.lock:
            old = self.find(ref)
            keep = {"storageClass": old.fields["storageClass"]}
            fields = {**keep, **writable(changes if replace else merged(old.fields, changes))}
            new = dataclasses.replace(old, fields=fields, metageneration=old.metageneration + 1, updated=self._now())
            if self._folder:
                new = self._folder.put(new)
            self.bucket(ref.bucket).put(new)
            return new

    def delete(self, ref: ObjectRef) -> None:
        with self.lock:
            self._remove(self.find(ref))

    def _remove(self, stored: StoredObject) -> None:
        self.bucket(stored.bucket).remove(stored.name)
        if self._folder:
            self._folder.remove(stored)

    def copy(self, source: ObjectRef, to: ObjectRef, changes: dict[str, Any], *, move: bool = False) -> StoredObject:
        """A copy under another name, with the source's metadata unless `changes` has its own; a move is one atomic step."""
        with self.lock:
            old = self.find(source)
            self.check(to)
            if move and source.name == to.name:
                raise invalid("The source and destination object names must be different.")
            hashes, fields = Hashes(old.crc32c, old.md5), {**old.fields, **writable(changes)}
            new = self._commit(to, old.content, old.size, hashes, fields, old.component_count)
            if move:
                self._remove(old)
            return new

    def compose(self, sources: list[ObjectRef], to: ObjectRef, fields: dict[str, Any], *, consume: bool) -> StoredObject:
        """Concatenate the sources' bytes; `consume` deletes the sources."""
        if not 1 <= len(sources) <= 32:
            raise invalid(f"The number of source components provided ({len(sources)}) must be between 1 and 32.")
        with self.lock:
            objects = [self.find(source) for source in sources]
            self.check(to)
            content = b"".join(part.read() for part in objects)
            count = sum(part.component_count or 1 for part in objects)
            new = self._commit(to, content, len(content), Hashes.of(content)._replace(md5=None), fields, count)
            if consume:
                for part in {part.name: part for part in objects if part.name != to.name}.values():
                    self._remove(part)
            return new


class Folder:
    """A folder in which buckets and objects outlive the emulator.

        FOLDER/BUCKET/bucket.json             the bucket
        FOLDER/BUCKET/objects/HASH.json       one object; HASH is of its name
        FOLDER/BUCKET/bodies/GENERATION       its bytes

    The record of an object is written last and replaced atomically, so a kill leaves the old object or the new one; bodies
    that no record names are removed at the next start.
    """

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
            with _named_if_broken(file):
                bucket = Bucket(**json_object(file.read_bytes()))
                for unfinished in file.parent.rglob("*.new"):
                    unfinished.unlink()
                for record in (file.parent / "objects").glob("*.json"):
                    with _named_if_broken(record):
                        content = json_object(record.read_bytes())
                        body = file.parent / "bodies" / str(content["generation"])
                        bucket.put(StoredObject(**{"size": body.stat().st_size, **content, "content": body}))
                referenced = {stored.content for stored in bucket.objects.values()}
                is_whole = not any((file.parent / "objects").glob("*.broken"))
                for body in set((file.parent / "bodies").iterdir()) - referenced if is_whole else ():
                    body.unlink()
                yield bucket

    def put(self, stored: StoredObject) -> StoredObject:
        """Returns the object as kept; a hard link may share its bytes with another object."""
        path = self._path / stored.bucket / "bodies" / str(stored.generation)
        if isinstance(stored.content, bytes):
            path.write_bytes(stored.content)
        elif stored.content != path:
            try:
                os.link(stored.content, path)
            except OSError:  # a file system without hard links
                shutil.copyfile(stored.content, path)
        on_disk = dataclasses.replace(stored, content=path)
        _write_whole(self._record(on_disk), {name: value for name, value in vars(on_disk).items() if name != "content"})
        return on_disk

    def remove(self, stored: StoredObject) -> None:
        self._record(stored).unlink()
        self.forget_body(stored)

    def forget_body(self, stored: StoredObject) -> None:
        """Removes the content of an object whose record is gone or replaced."""
        assert isinstance(stored.content, Path)
        stored.content.unlink(missing_ok=True)

    def _record(self, stored: StoredObject) -> Path:
        return self._path / stored.bucket / "objects" / f"{hashlib.sha256(stored.name.encode()).hexdigest()}.json"

    def put_bucket(self, bucket: Bucket) -> None:
        for name in ("objects", "bodies"):
            (self._path / bucket.name / name).mkdir(parents=True, exist_ok=True)
        content = {name: value for name, value in vars(bucket).items() if name not in ("objects", "names")}
        _write_whole(self._path / bucket.name / "bucket.json", content)

    def remove_bucket(self, name: str) -> None:
        (self._path / name / "bucket.json").unlink()  # first: without it the rest is not a bucket
        shutil.rmtree(self._path / name)


@contextlib.contextmanager
def _named_if_broken(record: Path) -> Iterator[None]:
    """Set a record aside that cannot be read."""
    try:
        yield
    except (ApiError, KeyError, TypeError, OSError) as error:
        aside = record.replace(record.with_suffix(".broken"))
        print(f"cloud_emulator: {record} is damaged ({error!r}); left out, and kept as {aside.name}", file=sys.stderr)


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    temporary.replace(path)
