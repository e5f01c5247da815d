"""Objects and buckets as they are stored: immutable records, replaced whole."""

from __future__ import annotations

import bisect
import datetime
from dataclasses import dataclass, field
from typing import Any

from cloud_emulator.bodies import Body

# What an upload or a patch may say about an object; everything else in the request is the server's business.
WRITABLE_FIELDS = (
    "contentType",
    "contentEncoding",
    "contentDisposition",
    "contentLanguage",
    "cacheControl",
    "customTime",
    "storageClass",
    "temporaryHold",
    "eventBasedHold",
    "metadata",
)


def timestamp(microseconds: int) -> str:
    """RFC 3339 with milliseconds, as the service writes times."""
    moment = datetime.datetime.fromtimestamp(microseconds / 1e6, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


@dataclass(frozen=True)
class StoredObject:
    """`generation` is the time of creation in microseconds, made unique; a composed object has no MD5."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    updated: int  # microseconds
    crc32c: str
    md5: str | None
    component_count: int | None
    fields: dict[str, Any]
    body: Body = field(repr=False, compare=False)

    @property
    def size(self) -> int:
        return self.body.size

    @property
    def created(self) -> int:
        return self.generation


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


def writable(resource: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request's resource that are kept."""
    return {name: resource[name] for name in WRITABLE_FIELDS if resource.get(name) is not None}


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
