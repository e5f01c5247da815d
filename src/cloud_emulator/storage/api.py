"""Calls on buckets and objects: listings, uploads, downloads, copies, policies."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import re
import threading
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.responses import Response
from starlette.routing import BaseRoute

from cloud_emulator import batch
from cloud_emulator.errors import ApiError, invalid, storage_error
from cloud_emulator.http import Call, Endpoint, integer, json_object
from cloud_emulator.storage import listing
from cloud_emulator.storage.objects import Preconditions, StoredObject, etag, promised_hashes
from cloud_emulator.storage.store import ObjectRef, Store

BUCKET = "/storage/v1/b/{bucket}"
OBJECT = BUCKET + "/o/{name}"
UPLOAD = "/upload/storage/v1/b/{bucket}/o"
RANGE = re.compile(r"bytes=(?!-$)(\d*)-(\d*)")
QUANTUM_BYTES = 256 * 1024  # what is kept of an unfinished upload is a multiple of this
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
JSON_API = ("storage", "upload", "download", "batch")


class StorageApi:
    def __init__(self, store: Store, is_granted: Callable[[str], bool]):
        self._store = store
        self._is_granted = is_granted
        self._sessions: dict[str, Session] = {}  # lost with the emulator: the next one answers 404, and clients start over

    def routes(self) -> list[BaseRoute]:
        media = "storage.objects.get"
        table: list[tuple[Any, ...]] = [
            ("GET media", "GET", OBJECT, media, self.download, "alt=media"),
            ("GET media", "GET", "/download" + OBJECT, media, self.download),
            ("GET object", "GET", OBJECT, "storage.objects.get", self.get),
            ("LIST objects", "GET", BUCKET + "/o", "storage.objects.list", self.list),
            ("PATCH object", "PATCH", OBJECT, "storage.objects.update", self.change),
            ("UPDATE object", "PUT", OBJECT, "storage.objects.update", self.change),
            ("DELETE object", "DELETE", OBJECT, "storage.objects.delete", self.delete),
            ("COMPOSE object", "POST", OBJECT + "/compose", "storage.objects.create", self.compose),
            ("REWRITE object", "POST", OBJECT + "/rewriteTo/b/{to_bucket}/o/{to}", "storage.objects.create", self.rewrite),
            ("COPY object", "POST", OBJECT + "/copyTo/b/{to_bucket}/o/{to}", "storage.objects.create", self.copy),
            ("MOVE object", "POST", OBJECT + "/moveTo/o/{to}", "storage.objects.move", self.copy),
            ("PUT chunk", "PUT", UPLOAD, "storage.objects.create", self.chunk, "upload_id"),
            ("PUT chunk", "POST", UPLOAD, "storage.objects.create", self.chunk, "upload_id"),
            ("CANCEL upload", "DELETE", UPLOAD, "storage.objects.create", self.cancel, "upload_id"),
            ("POST resumable", "POST", UPLOAD, "storage.objects.create", self.begin, "uploadType=resumable"),
            ("POST object", "POST", UPLOAD, "storage.objects.create", self.upload, "uploadType=multipart"),
            ("POST object", "POST", UPLOAD, "storage.objects.create", self.upload, "uploadType=media"),
            ("GET bucket", "GET", BUCKET, "storage.buckets.get", self.get_bucket),
            ("LIST buckets", "GET", "/storage/v1/b", "storage.buckets.list", self.list_buckets),
            ("CREATE bucket", "POST", "/storage/v1/b", "storage.buckets.create", self.create_bucket),
            ("PATCH bucket", "PATCH", BUCKET, "storage.buckets.update", self.change_bucket),
            ("UPDATE bucket", "PUT", BUCKET, "storage.buckets.update", self.change_bucket),
            ("DELETE bucket", "DELETE", BUCKET, "storage.buckets.delete", self.delete),
            ("GET layout", "GET", BUCKET + "/storageLayout", "storage.objects.list", self.layout),
            ("GET policy", "GET", BUCKET + "/iam", "storage.buckets.getIamPolicy", self.policy),
            ("SET policy", "PUT", BUCKET + "/iam", "storage.buckets.setIamPolicy", self.policy),
            ("TEST permissions", "GET", BUCKET + "/iam/testPermissions", "", self.test_permissions),
        ]
        path = "/{bucket}/{name:path}"  # every path has this form, so these are last
        xml: list[tuple[Any, ...]] = [(f"{verb} media", verb, path, media, self.xml_download) for verb in ("GET", "HEAD")]
        endpoints = [Endpoint(*row, api="storage") for row in (*table, *xml)]
        return [batch.Batch("/batch/storage/v1"), *endpoints]

    def name_of(self, call: Call) -> str:
        """The name of the object that a request is for, wherever it is given; for a listing its prefix."""
        parameters, query = call.path_params, call.query_params
        if not call.scope["path"].startswith(call.scope["root_path"] + "/upload/"):
            name = parameters.get("to") or parameters.get("name")
            return unquote(name) if name else query.get("prefix", "")
        try:
            if "upload_id" in query:
                return self._session(call).target.name
            return self._described(call)[0]
        except ApiError:  # will be refused anyway
            return query.get("name", "")

    # Objects

    def get(self, call: Call, bucket: str, name: str) -> dict[str, Any]:
        return self._store.find(_ref(call, bucket, name), reading=True).resource(call.root)

    def list(self, call: Call, bucket: str) -> dict[str, Any]:
        query = listing.query_of(call)
        with self._store.lock:
            home = self._store.bucket(bucket)
            page = listing.page_of(home.names, query)
            items = [home.objects[name].resource(call.root) for name in page.names]
        content = {"nextPageToken": page.token, "prefixes": page.prefixes, "items": items}
        return {"kind": "storage#objects", **{key: value for key, value in content.items() if value}}

    def change(self, call: Call, bucket: str, name: str) -> dict[str, Any]:
        changed = self._store.change(_ref(call, bucket, name), call.content(), replace=call.method == "PUT")
        return changed.resource(call.root)

    def delete(self, call: Call, bucket: str, name: str = "") -> Response:
        """Delete an object, or an empty bucket."""
        if name:
            self._store.delete(_ref(call, bucket, name))
        else:
            self._store.delete_bucket(bucket, _conditions(call))
        return Response(status_code=204)

    def compose(self, call: Call, bucket: str, name: str) -> dict[str, Any]:
        request = call.content()
        sources = []
        for part in request.get("sourceObjects", []):
            condition = integer("ifGenerationMatch", part.get("objectPreconditions", {}).get("ifGenerationMatch"))
            generation = integer("generation", part.get("generation"))
            sources.append(ObjectRef(bucket, str(part.get("name", "")), Preconditions(condition), generation))
        fields, consume = request.get("destination", {}), bool(request.get("deleteSourceObjects"))
        return self._store.compose(sources, _ref(call, bucket, name), fields, consume=consume).resource(call.root)

    def rewrite(self, call: Call, bucket: str, name: str, to_bucket: str, to: str) -> dict[str, Any]:
        """Always done in one call, as the service does for small objects."""
        resource = self.copy(call, bucket, name, to, to_bucket)
        progress = {"totalBytesRewritten": resource["size"], "objectSize": resource["size"], "done": True}
        return {"kind": "storage#rewriteResponse", **progress, "resource": resource}

    def copy(self, call: Call, bucket: str, name: str, to: str, to_bucket: str = "") -> dict[str, Any]:
        """Copy an object, or move it within its bucket."""
        source = ObjectRef(bucket, name, _conditions(call, "Source"), call.integer("sourceGeneration"))
        target = ObjectRef(to_bucket or bucket, to, _conditions(call))
        return self._store.copy(source, target, call.content(), move=not to_bucket).resource(call.root)

    # Uploads

    def _described(self, call: Call) -> tuple[str, dict[str, Any]]:
        """The name of the object to create, and the fields in the request."""
        kind = call.query_params["uploadType"]
        if kind == "multipart":
            resource = json_object(batch.related_parts(call)[0].content)
        else:
            resource = call.content() if kind == "resumable" else {}
        return call.query_params.get("name") or str(resource.get("name", "")), resource

    def upload(self, call: Call, bucket: str) -> dict[str, Any]:
        name, resource = self._described(call)
        if call.query_params["uploadType"] == "multipart":
            part = batch.related_parts(call)[1]
            content, kind = part.content, part.headers.get("content-type", "application/octet-stream")
        else:
            content, kind = call.data, call.headers.get("content-type", "application/octet-stream")
            if "contentEncoding" in call.query_params:
                resource = {"contentEncoding": call.query_params["contentEncoding"]}
        promised = promised_hashes(resource, call.headers)
        target = ObjectRef(bucket, name, _conditions(call))
        return self._store.put(target, content, {"contentType": kind, **resource}, promised).resource(call.root)

    def begin(self, call: Call, bucket: str) -> Response:
        name, resource = self._described(call)
        fields = {"contentType": call.headers.get("x-upload-content-type", "application/octet-stream"), **resource}
        session = Session(ObjectRef(bucket, name, _conditions(call)), fields, promised_hashes(resource, call.headers))
        self._store.check(session.target)
        key = uuid.uuid4().hex
        self._sessions[key] = session
        location = f"{call.root}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={key}"
        return Response(headers={"Location": location, "X-GUploader-UploadID": key})

    def _session(self, call: Call) -> Session:
        session = self._sessions.get(call.query_params["upload_id"])
        if session is None:
            raise storage_error(404, "No such upload session.", "notFound")
        if session.cancelled:
            raise storage_error(499, "The upload was cancelled.", "cancelled")
        return session

    def chunk(self, call: Call, bucket: str) -> dict[str, Any] | Response:
        """Keep what is new of a chunk, and create the object once all is there. A finished session repeats its answer."""
        key, session, byte_range = call.query_params["upload_id"], self._session(call), ByteRange.parse(call)
        with session.lock:
            if session.done is None:
                session.append(call.data, byte_range, complete=call.complete)
                if call.complete and len(session.content) == byte_range.total:
                    promised = session.promised | promised_hashes({}, call.headers)
                    content, session.content = bytes(session.content), bytearray()
                    try:
                        stored = self._store.put(session.target, content, session.fields, promised)
                    except ApiError:
                        del self._sessions[key]
                        raise
                    session.done = dataclasses.replace(stored, content=b"")  # only its metadata is needed again
            if session.done is not None:
                return session.done.resource(call.root)
            received = len(session.content)
        return Response(b"", 308, {"X-GUploader-UploadID": key} | ({"Range": f"bytes=0-{received - 1}"} if received else {}))

    def cancel(self, call: Call, bucket: str) -> Response:
        session = self._session(call)
        with session.lock:
            session.cancelled, session.content = True, bytearray()
        return Response(status_code=499)

    # Downloads

    def xml_download(self, call: Call, bucket: str, name: str) -> Response:
        if bucket in JSON_API:
            raise storage_error(404, f"Not Found: the emulator has no {call.method} /{bucket}/{name}", "notFound")
        return self.download(call, bucket, name)

    def download(self, call: Call, bucket: str, name: str) -> Response:
        with self._store.lock:  # the bytes are read before the object can be deleted
            stored = self._store.find(_ref(call, bucket, name), reading=True)
            headers = _headers(stored)
            if stored.fields.get("contentEncoding") == "gzip" and "gzip" not in call.headers.get("accept-encoding", ""):
                headers.pop("Content-Encoding")  # stored compressed, for a client that does not accept gzip
                with contextlib.suppress(OSError, EOFError, zlib.error):  # else it is sent as it is
                    return Response(gzip.decompress(stored.read()), headers=headers)
            requested_range = call.headers.get("range", "")
            span = range_of(requested_range, stored.size)
            content = stored.read(span.start, span.stop)
        if RANGE.fullmatch(requested_range):
            return Response(content, 206, headers | {"Content-Range": f"bytes {span.start}-{span.stop - 1}/{stored.size}"})
        return Response(content, headers=headers)

    # Buckets

    def get_bucket(self, call: Call, bucket: str) -> dict[str, Any]:
        with self._store.lock:
            resource = self._store.bucket(bucket)
            _conditions(call).check(resource, reading=True)
            return resource.resource(call.root)

    def list_buckets(self, call: Call) -> dict[str, Any]:
        with self._store.lock:
            buckets = {bucket.name: bucket.resource(call.root) for bucket in self._store.buckets()}
        page = listing.page_of(list(buckets), listing.query_of(call))
        more = {"nextPageToken": page.token} if page.token else {}
        return {"kind": "storage#buckets", "items": [buckets[name] for name in page.names], **more}

    def create_bucket(self, call: Call) -> dict[str, Any]:
        request = call.content()
        return self._store.create_bucket(str(request.get("name", "")), request).resource(call.root)

    def change_bucket(self, call: Call, bucket: str) -> dict[str, Any]:
        replace = call.method == "PUT"
        return self._store.change_bucket(bucket, call.content(), _conditions(call), replace=replace).resource(call.root)

    def layout(self, call: Call, bucket: str) -> dict[str, Any]:
        resource = self._store.bucket(bucket)
        where = {"location": resource.fields["location"], "locationType": resource.location_type}
        return {"kind": "storage#storageLayout", "bucket": bucket, **where, "hierarchicalNamespace": {"enabled": False}}

    def policy(self, call: Call, bucket: str) -> dict[str, Any]:
        store, writes = self._store, call.method == "PUT"
        return (store.set_policy(bucket, call.content()) if writes else store.bucket(bucket)).policy_resource()

    def test_permissions(self, call: Call, bucket: str) -> dict[str, Any]:
        """Every permission is granted, except those that a read-only fault takes away."""
        self._store.bucket(bucket)
        granted = [permission for permission in call.query_params.getlist("permissions") if self._is_granted(permission)]
        return {"kind": "storage#testIamPermissionsResponse"} | ({"permissions": granted} if granted else {})


def _ref(call: Call, bucket: str, name: str) -> ObjectRef:
    return ObjectRef(bucket, name, _conditions(call), call.integer("generation"))


def _conditions(call: Call, infix: str = "") -> Preconditions:
    """The preconditions in the query; `infix` "Source" reads those on the source of a copy."""
    generation, metageneration = f"if{infix}Generation", f"if{infix}Metageneration"
    fields = (f"{generation}Match", f"{generation}NotMatch", f"{metageneration}Match", f"{metageneration}NotMatch")
    return Preconditions(*map(call.integer, fields))


def range_of(header: str, size: int) -> range:
    """The bytes that a Range header asks for; a malformed one asks for all of them, as in the standard."""
    match = RANGE.fullmatch(header)
    if match is None:
        return range(size)
    first, last = match.groups()
    if first == "":  # a suffix
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
    if start >= size or start >= stop:
        message = "The requested range cannot be satisfied."
        raise storage_error(416, message, "requestedRangeNotSatisfiable", {"Content-Range": f"bytes */{size}"})
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
        "Content-Encoding": stored.fields.get("contentEncoding"),
        "Cache-Control": stored.fields.get("cacheControl"),
        "Content-Disposition": stored.fields.get("contentDisposition"),
    }
    return {name: value.encode().decode("latin-1") for name, value in headers.items() if value is not None}  # sent as UTF-8


# Resumable uploads: sessions that collect an object's bytes over several requests and broken connections


class ByteRange(NamedTuple):
    """The bytes that a request carries. `start` is None in a status query; `total` is None while it is unknown."""

    start: int | None
    total: int | None

    @classmethod
    def parse(cls, call: Call) -> ByteRange:
        header = call.headers.get("content-range")
        if header is None:  # the whole object in one go
            return cls(0, len(call.data))
        match = CONTENT_RANGE.fullmatch(header.strip())
        if match is None:
            raise invalid(f"Failed to parse Content-Range header: '{header}'")
        first, _, total = match.groups()
        return cls(None if first is None else int(first), None if total == "*" else int(total))


@dataclass
class Session:
    target: ObjectRef
    fields: dict[str, Any]
    promised: dict[str, str]
    content: bytearray = field(default_factory=bytearray, repr=False)
    done: StoredObject | None = None
    cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def append(self, chunk: bytes, byte_range: ByteRange, *, complete: bool) -> None:
        received, start = len(self.content), byte_range.start
        if start is None:
            return
        if start > received:
            message = (
                f"Invalid request.  According to the Content-Range header, the upload offset is {start} byte(s), "
                f"which exceeds already uploaded size of {received} byte(s)."
            )
            raise storage_error(503, message, "backendError")
        end = start + len(chunk)
        if byte_range.total is not None and end > byte_range.total:
            raise invalid(f"The Content-Range header announces {byte_range.total} bytes, and {end} were sent.")
        if not complete or end != byte_range.total:
            end -= end % QUANTUM_BYTES
        if end > received:
            self.content += memoryview(chunk)[received - start : end - start]
