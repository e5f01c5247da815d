"""Objects and buckets as they are stored and sent, their hashes, and the preconditions of requests."""

from __future__ import annotations

import base64
import bisect
import datetime
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import google_crc32c

from cloud_emulator import recorded
from cloud_emulator.errors import invalid, storage_error

# What an upload or a patch may set on an object; the server sets everything else.
_TEXTS = ("contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "customTime")
WRITABLE_FIELDS = (*_TEXTS, "storageClass", "temporaryHold", "eventBasedHold", "metadata")
MULTI_REGIONS = {"US", "EU", "ASIA"}
DUAL_REGIONS = {"NAM4", "EUR4", "EUR5", "EUR7", "EUR8", "ASIA1"}


@dataclass(frozen=True)
class StoredObject:
    """`generation` is the time of creation in microseconds, made unique; a composed object has no MD5."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    updated: int  # microseconds
    size: int
    crc32c: str
    md5: str | None
    component_count: int | None
    fields: dict[str, Any]
    content: bytes | Path = field(repr=False, compare=False)  # never changed; a file where objects are kept in a folder

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        stop = self.size if stop is None else stop
        if isinstance(self.content, bytes):
            return self.content if stop - start == self.size else self.content[start:stop]
        with self.content.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def resource(self, root: str) -> dict[str, Any]:
        """The resource as sent to clients; links begin with `root`."""
        values = {name: getattr(self, name) for name in ("bucket", "name", "generation", "metageneration", "size", "crc32c")}
        values |= {"path": f"b/{self.bucket}/o/{quote(self.name, safe='')}", "root": root, "updated": timestamp(self.updated)}
        values |= {"created": timestamp(self.generation), "etag": etag(self.generation, self.metageneration)}
        resource = recorded.filled(recorded.load("storage")["object"], **values)
        more = {"md5Hash": self.md5, "componentCount": self.component_count}
        return resource | self.fields | {name: value for name, value in more.items() if value is not None}


@dataclass
class Bucket:
    """`fields` are those of the resource that the client set: location, storageClass, labels, lifecycle, ..."""

    name: str
    created: int  # microseconds
    updated: int
    metageneration: int
    fields: dict[str, Any]
    policy: dict[str, Any]
    objects: dict[str, StoredObject] = field(default_factory=dict, repr=False)
    names: list[str] = field(default_factory=list, repr=False)  # sorted; code points sort as their UTF-8 does

    def put(self, stored: StoredObject) -> None:
        if stored.name not in self.objects:
            bisect.insort(self.names, stored.name)
        self.objects[stored.name] = stored

    def remove(self, name: str) -> StoredObject:
        del self.names[bisect.bisect_left(self.names, name)]
        return self.objects.pop(name)

    @property
    def location_type(self) -> str:
        location = self.fields["location"]
        return "multi-region" if location in MULTI_REGIONS else "dual-region" if location in DUAL_REGIONS else "region"

    def resource(self, root: str) -> dict[str, Any]:
        values = {"name": self.name, "root": root, "metageneration": self.metageneration, "location": self.location_type}
        values |= {"created": timestamp(self.created), "updated": timestamp(self.updated)}
        values |= {"etag": etag(self.updated, self.metageneration)}
        return recorded.filled(recorded.load("storage")["bucket"], **values) | self.fields

    def policy_resource(self) -> dict[str, Any]:
        tag = base64.b64encode(f"{self.created:x}/{self.policy.get('revision', 0)}".encode()).decode()
        known = recorded.filled(recorded.load("storage")["policy"], name=self.name, etag=tag)
        return known | {name: self.policy[name] for name in ("version", "bindings") if name in self.policy}


def timestamp(microseconds: int) -> str:
    """RFC 3339 with milliseconds, as the service writes times."""
    moment = datetime.datetime.fromtimestamp(microseconds / 1e6, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def etag(generation: int, metageneration: int) -> str:
    return base64.b64encode(f"{generation:x}/{metageneration:x}".encode()).decode()


def writable(resource: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request's resource that are kept. Raises ApiError for values that no header or resource can hold."""
    fields = {name: resource[name] for name in WRITABLE_FIELDS if resource.get(name) is not None}
    for name, value in fields.items():
        is_text = isinstance(value, str) and not re.search(r"[\x00-\x1f\x7f]", value)
        if not (
            isinstance(value, dict) if name == "metadata" else isinstance(value, bool) if name.endswith("Hold") else is_text
        ):
            raise invalid(f"Invalid value for {name}: {value!r}")
    return fields


def merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A patch: null removes, maps are merged, everything else is replaced."""
    new = dict(old)
    for name, value in changes.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, dict) and isinstance(new.get(name), dict):
            new[name] = merged(new[name], value)
        else:
            new[name] = value
    return new


class Preconditions(NamedTuple):
    """`ifGenerationMatch` and its kin. `generation` 0: there must be no object; `not_generation` 0: one must."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    def check(self, current: StoredObject | Bucket | None, *, reading: bool = False) -> None:
        """Raise 412, or 304 if a read finds what the client already has."""
        generation = current.generation if isinstance(current, StoredObject) else 0
        metageneration = current.metageneration if current else None
        wrong = (self.generation not in (None, generation)) or (self.metageneration not in (None, metageneration))
        unchanged = self.not_generation == generation or (
            self.not_metageneration is not None and self.not_metageneration == metageneration
        )
        if unchanged and reading and not wrong:
            raise storage_error(304, "Not Modified", "notModified")
        if wrong or unchanged:
            raise storage_error(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


class Hashes(NamedTuple):
    """In base64, as Cloud Storage writes them."""

    crc32c: str
    md5: str | None

    @classmethod
    def of(cls, content: bytes) -> Hashes:
        crc32c = google_crc32c.value(content).to_bytes(4, "big")
        md5 = hashlib.md5(content, usedforsecurity=False).digest()
        return cls(base64.b64encode(crc32c).decode(), base64.b64encode(md5).decode())

    def check(self, promised: Mapping[str, str]) -> None:
        if promised.get("crc32c", self.crc32c) != self.crc32c:
            raise invalid(f'Provided CRC32C "{promised["crc32c"]}" doesn\'t match calculated CRC32C "{self.crc32c}".')
        if promised.get("md5", self.md5) != self.md5:
            raise invalid(f'Provided MD5 hash "{promised["md5"]}" doesn\'t match calculated MD5 hash "{self.md5}".')


def promised_hashes(resource: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str]:
    """What the client says the content hashes to, under "crc32c" and "md5"."""
    parts = [part.strip().partition("=") for part in headers.get("x-goog-hash", "").split(",")]
    promised = {name: value for name, _, value in parts if name in ("crc32c", "md5")}
    promised |= {"md5": headers["content-md5"]} if "content-md5" in headers else {}
    return promised | {name: resource[key] for key, name in (("crc32c", "crc32c"), ("md5Hash", "md5")) if resource.get(key)}
