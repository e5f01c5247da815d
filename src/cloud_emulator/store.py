"""The store: every change to buckets and objects is made here, one at a time, under one lock."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from cloud_emulator.answers import ApiError, invalid, no_such_bucket, no_such_object
from cloud_emulator.bodies import Body
from cloud_emulator.hashes import check_hashes, hashes_of
from cloud_emulator.objects import Bucket, StoredObject, merged, writable
from cloud_emulator.preconditions import NONE, Preconditions
from cloud_emulator.shelf import FolderShelf, MemoryShelf, Shelf

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
OBJECT_NAME_BYTES = 1024  # the service's limit on the UTF-8 of a name


class Source(NamedTuple):
    """What a copy or a compose request takes its bytes from."""

    bucket: str
    name: str
    generation: int | None = None
    conditions: Preconditions = NONE


class Store:
    def __init__(self, folder: Path | None = None):
        self.lock = threading.RLock()
        self._shelf: Shelf = MemoryShelf() if folder is None else FolderShelf(folder)
        self._buckets = {bucket.name: bucket for bucket in self._shelf.buckets()}
        made = [stored.generation for bucket in self._buckets.values() for stored in bucket.objects.values()]
        self._last_time = max([*made, *(bucket.updated for bucket in self._buckets.values())], default=0)

    def close(self) -> None:
        """Leave the folder to another emulator."""
        self._shelf.close()

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
                raise no_such_bucket()
            return self._buckets[name]

    def create_bucket(self, name: str, fields: dict[str, Any]) -> Bucket:
        if not BUCKET_NAME.fullmatch(name) or ".." in name:
            raise invalid(f"Invalid bucket name: '{name}'")
        with self.lock:
            if name in self._buckets:
                message = "Your previous request to create the named bucket succeeded and you already own it."
                raise ApiError(409, message, "conflict")
            fields = {"storageClass": "STANDARD", **{key: value for key, value in fields.items() if key != "name"}}
            fields["location"] = str(fields.get("location", "US")).upper()
            now = self._now()
            bucket = Bucket(name, now, now, 1, fields, {})
            self._shelf.put_bucket(bucket)
            self._buckets[name] = bucket
            return bucket

    def change_bucket(self, name: str, changes: dict[str, Any], conditions: Preconditions, *, replace: bool = False) -> Bucket:
        with self.lock:
            bucket = self.bucket(name)
            conditions.check(None, bucket.metageneration)
            keep = {key: bucket.fields[key] for key in ("location", "storageClass")}
            bucket.fields = {**keep, **changes} if replace else merged(bucket.fields, changes)
            bucket.fields["location"] = keep["location"]
            bucket.metageneration += 1
            bucket.updated = self._now()
            self._shelf.put_bucket(bucket)
            return bucket

    def set_policy(self, name: str, policy: dict[str, Any]) -> None:
        with self.lock:
            bucket = self.bucket(name)
            bucket.policy = policy
            self._shelf.put_bucket(bucket)

    def delete_bucket(self, name: str, conditions: Preconditions) -> None:
        with self.lock:
            bucket = self.bucket(name)
            conditions.check(None, bucket.metageneration)
            if bucket.objects:
                raise ApiError(409, "The bucket you tried to delete is not empty.", "conflict")
            self._shelf.remove_bucket(name)
            del self._buckets[name]

    # Objects

    def find(
        self, bucket: str, name: str, generation: int | None = None, conditions: Preconditions = NONE, *, reading: bool = False
    ) -> StoredObject:
        with self.lock:
            stored = self.bucket(bucket).objects.get(name)
            if stored is None or generation not in (None, stored.generation):
                raise no_such_object(bucket, name)
            conditions.check(stored.generation, stored.metageneration, reading=reading)
            return stored

    def check(self, bucket: str, name: str, conditions: Preconditions) -> None:
        """Refuse now what would be refused if it were written now."""
        with self.lock:
            there = self.bucket(bucket).objects.get(name)
            conditions.check(there and there.generation, there and there.metageneration)

    def read(self, bucket: str, name: str, generation: int | None, conditions: Preconditions) -> StoredObject:
        return self.find(bucket, name, generation, conditions, reading=True)

    def put(
        self,
        bucket: str,
        name: str,
        content: bytes,
        fields: dict[str, Any],
        conditions: Preconditions = NONE,
        promised: dict[str, str] | None = None,
    ) -> StoredObject:
        """An upload; `promised` are the hashes that the client expects."""
        _check_name(name)
        self.check(bucket, name, conditions)
        hashes = hashes_of(content)
        check_hashes(promised or {}, hashes)
        body = self._shelf.body(bucket, content)
        return self._commit(bucket, name, body, *hashes, None, fields, conditions)

    def _commit(
        self,
        bucket: str,
        name: str,
        body: Body,
        crc32c: str,
        md5: str | None,
        components: int | None,
        fields: dict[str, Any],
        conditions: Preconditions,
    ) -> StoredObject:
        """The only place where an object appears: conditions are checked and the object replaced under the lock."""
        try:
            with self.lock:
                home = self.bucket(bucket)
                old = home.objects.get(name)
                conditions.check(old and old.generation, old and old.metageneration)
                fields = {"storageClass": home.fields["storageClass"], **writable(fields)}
                now = self._now()
                stored = StoredObject(bucket, name, now, 1, now, crc32c, md5, components, fields, body)
                stored = self._shelf.put(stored)
                home.put(stored)
        except BaseException:
            self._shelf.forget_body(body)
            raise
        if old is not None:
            self._shelf.forget_body(old.body)
        return stored

    def change(
        self,
        bucket: str,
        name: str,
        generation: int | None,
        changes: dict[str, Any],
        conditions: Preconditions,
        *,
        replace: bool = False,
    ) -> StoredObject:
        with self.lock:
            old = self.find(bucket, name, generation, conditions)
            keep = {"storageClass": old.fields["storageClass"]}
            fields = {**keep, **writable(changes)} if replace else {**keep, **writable(merged(old.fields, changes))}
            new = dataclasses.replace(old, fields=fields, metageneration=old.metageneration + 1, updated=self._now())
            new = self._shelf.put(new)
            self.bucket(bucket).put(new)
            return new

    def delete(self, bucket: str, name: str, generation: int | None, conditions: Preconditions) -> None:
        with self.lock:
            stored = self.find(bucket, name, generation, conditions)
            self._shelf.remove(self.bucket(bucket).remove(stored.name))

    def copy(
        self, source: Source, bucket: str, name: str, changes: dict[str, Any], conditions: Preconditions, *, move: bool = False
    ) -> StoredObject:
        """A copy under another name, with the source's metadata unless `changes` has its own; a move is one atomic step."""
        _check_name(name)
        with self.lock:
            old = self.find(source.bucket, source.name, source.generation, source.conditions)
            self.check(bucket, name, conditions)
            if move and old.name == name:
                raise invalid("The source and destination object names must be different.")
            body = self._shelf.copy_body(bucket, old.body)
            fields = {**old.fields, **writable(changes)}
            new = self._commit(bucket, name, body, old.crc32c, old.md5, old.component_count, fields, conditions)
            if move:
                self._shelf.remove(self.bucket(source.bucket).remove(source.name))
            return new

    def compose(
        self, bucket: str, name: str, sources: list[Source], fields: dict[str, Any], conditions: Preconditions, *, consume: bool
    ) -> StoredObject:
        """The sources' bytes one after another; `consume` deletes them."""
        _check_name(name)
        if not 1 <= len(sources) <= 32:
            raise invalid(f"The number of source components provided ({len(sources)}) must be between 1 and 32.")
        with self.lock:
            found = [self.find(*source) for source in sources]
            self.check(bucket, name, conditions)
            content = b"".join(piece for part in found for piece in part.body.open(0, part.size))
            count = sum(part.component_count or 1 for part in found)
            crc32c = hashes_of(content).crc32c
            new = self._commit(bucket, name, self._shelf.body(bucket, content), crc32c, None, count, fields, conditions)
            if consume:
                for part in {part.name: part for part in found if part.name != name}.values():
                    self._shelf.remove(self.bucket(bucket).remove(part.name))
            return new


def _check_name(name: str) -> None:
    if not name:
        raise ApiError(400, "Required", "required")
    if len(name.encode()) > OBJECT_NAME_BYTES or name in (".", "..") or "\r" in name or "\n" in name:
        raise invalid(f"Invalid object name: '{name[:100]}'")
