"""Uploads: simple, multipart, and resumable."""

from __future__ import annotations

from typing import Any

from cloud_emulator import multipart, preconditions
from cloud_emulator.answers import Answer, ApiError, invalid, json_answer
from cloud_emulator.calls import Call, json_object
from cloud_emulator.hashes import promised_hashes
from cloud_emulator.resources import object_resource
from cloud_emulator.router import Route
from cloud_emulator.store import Store
from cloud_emulator.uploads import Sessions, byte_range_of

UPLOAD = "upload/storage/v1/b/{bucket}/o"
PERMISSION = "storage.objects.create"


class UploadRoutes:
    def __init__(self, store: Store, sessions: Sessions):
        self._store = store
        self._sessions = sessions

    def routes(self) -> list[Route]:
        return [
            Route("PUT chunk", "PUT", UPLOAD, PERMISSION, self.chunk, argument="upload_id"),
            Route("PUT chunk", "POST", UPLOAD, PERMISSION, self.chunk, argument="upload_id"),
            Route("CANCEL upload", "DELETE", UPLOAD, PERMISSION, self.cancel, argument="upload_id"),
            Route("POST resumable", "POST", UPLOAD, PERMISSION, self.begin, argument="uploadType=resumable"),
            Route("POST object", "POST", UPLOAD, PERMISSION, self.multipart, argument="uploadType=multipart"),
            Route("POST object", "POST", UPLOAD, PERMISSION, self.media, argument="uploadType=media"),
        ]

    def name_in(self, call: Call) -> str:
        """The object that an upload is for, wherever the request says so."""
        if "upload_id" in call.query:
            return self._sessions.name_of(call.query["upload_id"])
        if "name" in call.query:
            return call.query["name"]
        try:
            if call.query.get("uploadType") == "resumable":
                return str(call.json().get("name", ""))
            if call.query.get("uploadType") == "multipart":
                return str(json_object(_parts(call)[0].content).get("name", ""))
        except ApiError:  # will be refused anyway
            pass
        return ""

    def media(self, call: Call, bucket: str) -> Answer:
        fields = {"contentType": call.headers.get("content-type", "application/octet-stream")}
        if "contentEncoding" in call.query:
            fields["contentEncoding"] = call.query["contentEncoding"]
        return self._put(call, bucket, call.query.get("name", ""), call.body, fields, {})

    def multipart(self, call: Call, bucket: str) -> Answer:
        about, content = _parts(call)
        resource = json_object(about.content)
        fields = {"contentType": content.headers.get("content-type", "application/octet-stream"), **resource}
        name = call.query.get("name") or str(resource.get("name", ""))
        return self._put(call, bucket, name, content.content, fields, resource)

    def _put(self, call: Call, bucket: str, name: str, content: bytes, fields: dict[str, Any], said: dict[str, Any]) -> Answer:
        if not call.complete:
            raise invalid("The body is shorter than its Content-Length.")
        promised = promised_hashes(said, call.headers)
        stored = self._store.put(bucket, name, content, fields, preconditions.from_call(call), promised)
        return json_answer(object_resource(stored, call.base_url))

    def begin(self, call: Call, bucket: str) -> Answer:
        resource = call.json()
        name = call.query.get("name") or str(resource.get("name", ""))
        fields = {"contentType": call.headers.get("x-upload-content-type", "application/octet-stream"), **resource}
        promised = promised_hashes(resource, call.headers)
        session = self._sessions.begin(bucket, name, fields, preconditions.from_call(call), promised)
        location = f"{call.base_url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={session.key}"
        return Answer(200, {"Location": location, "X-GUploader-UploadID": session.key})

    def chunk(self, call: Call, bucket: str) -> Answer:
        given = byte_range_of(call.headers.get("content-range"), len(call.body))
        promised = promised_hashes({}, call.headers) if given.total is not None else {}
        key = call.query["upload_id"]
        session = self._sessions.receive(key, call.body, given, promised, complete=call.complete)
        if session.done is not None:
            return json_answer(object_resource(session.done, call.base_url))
        kept = len(session.content)
        headers = {"X-GUploader-UploadID": key} | ({"Range": f"bytes=0-{kept - 1}"} if kept else {})
        return Answer(308, headers)

    def cancel(self, call: Call, bucket: str) -> Answer:
        self._sessions.cancel(call.query["upload_id"])
        return Answer(499)


def _parts(call: Call) -> tuple[multipart.Part, multipart.Part]:
    return multipart.related_parts(call.body, call.headers.get("content-type", ""))
