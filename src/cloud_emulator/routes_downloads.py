"""Downloads, whole or in ranges, by the JSON API's two addresses and by the XML API's."""

from __future__ import annotations

import gzip
import re

from cloud_emulator import preconditions
from cloud_emulator.answers import Answer, ApiError
from cloud_emulator.bodies import read_all
from cloud_emulator.calls import Call
from cloud_emulator.objects import StoredObject
from cloud_emulator.resources import etag
from cloud_emulator.router import Route
from cloud_emulator.store import Store

RANGE = re.compile(r"bytes=(\d*)-(\d*)")
JSON_API = ("storage", "upload", "download", "batch")
KIND, PERMISSION = "GET media", "storage.objects.get"


class DownloadRoutes:
    def __init__(self, store: Store):
        self._store = store

    def routes(self) -> list[Route]:
        plain = "storage/v1/b/{bucket}/o/{name}"
        return [
            Route(KIND, "GET", plain, PERMISSION, self.download, argument="alt=media", in_text=True),
            Route(KIND, "GET", f"download/{plain}", PERMISSION, self.download, in_text=True),
        ]

    def xml_routes(self) -> list[Route]:
        """To be tried last: every path has this form."""
        return [
            Route(KIND, "GET", "{bucket}/{name...}", PERMISSION, self.xml, in_text=True),
            Route("HEAD media", "HEAD", "{bucket}/{name...}", PERMISSION, self.xml, in_text=True),
        ]

    def xml(self, call: Call, bucket: str, name: str) -> Answer:
        if bucket in JSON_API:
            raise ApiError(404, f"Not Found: the emulator has no {call.method} /{bucket}/{name}", "notFound")
        return self.download(call, bucket, name)

    def download(self, call: Call, bucket: str, name: str) -> Answer:
        generation, conditions = call.whole_number("generation"), preconditions.from_call(call)
        with self._store.lock:  # the body is opened before the object can be deleted
            stored = self._store.read(bucket, name, generation, conditions)
            headers = _headers(stored)
            if stored.fields.get("contentEncoding") == "gzip" and "gzip" not in call.headers.get("accept-encoding", ""):
                return _unzipped(stored, headers)
            span = range_of(call.headers.get("range"), stored.size)
            pieces = stored.body.open(span.start, span.stop)
        if call.headers.get("range") and RANGE.fullmatch(call.headers["range"]):
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{stored.size}"
            return Answer(206, headers, pieces, len(span))
        return Answer(200, headers, pieces, stored.size)


def range_of(header: str | None, size: int) -> range:
    """The bytes that a Range header asks for; one that is malformed asks for all of them, as the standard has it."""
    found = RANGE.fullmatch(header or "")
    if found is None or found.groups() == ("", ""):
        return range(size)
    first, last = found.groups()
    if first == "":  # the last so many
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
    if start >= size or start >= stop:
        message = "The requested range cannot be satisfied."
        raise ApiError(416, message, "requestedRangeNotSatisfiable", {"Content-Range": f"bytes */{size}"})
    return range(start, stop)


def _headers(stored: StoredObject) -> dict[str, str]:
    hashes = [f"crc32c={stored.crc32c}"] + ([f"md5={stored.md5}"] if stored.md5 else [])
    headers = {
        "Content-Type": stored.fields.get("contentType", "application/octet-stream"),
        "ETag": etag(stored.generation, stored.metageneration),
        "Accept-Ranges": "bytes",
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Hash": ",".join(hashes),
        "X-Goog-Storage-Class": stored.fields["storageClass"],
        "X-Goog-Stored-Content-Length": str(stored.size),
        "X-Goog-Stored-Content-Encoding": stored.fields.get("contentEncoding", "identity"),
    }
    shown = {
        "contentEncoding": "Content-Encoding",
        "cacheControl": "Cache-Control",
        "contentDisposition": "Content-Disposition",
    }
    return headers | {header: stored.fields[field] for field, header in shown.items() if field in stored.fields}


def _unzipped(stored: StoredObject, headers: dict[str, str]) -> Answer:
    """An object stored compressed, for a client that did not say it takes it so; ranges do not apply to such."""
    headers.pop("Content-Encoding")
    return Answer(200, headers, gzip.decompress(read_all(stored.body)))
