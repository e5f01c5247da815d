"""Calls on objects: get, list, patch, delete, compose, rewrite, copy, move."""

from __future__ import annotations

from typing import Any

from cloud_emulator import listing, preconditions
from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.objects import StoredObject
from cloud_emulator.resources import object_resource
from cloud_emulator.router import Route
from cloud_emulator.store import Source, Store

OBJECT = "storage/v1/b/{bucket}/o/{name}"


class ObjectRoutes:
    def __init__(self, store: Store):
        self._store = store

    def routes(self) -> list[Route]:
        return [
            Route("GET object", "GET", OBJECT, "storage.objects.get", self.get),
            Route("LIST objects", "GET", "storage/v1/b/{bucket}/o", "storage.objects.list", self.list),
            Route("PATCH object", "PATCH", OBJECT, "storage.objects.update", self.patch),
            Route("UPDATE object", "PUT", OBJECT, "storage.objects.update", self.update),
            Route("DELETE object", "DELETE", OBJECT, "storage.objects.delete", self.delete),
            Route("COMPOSE object", "POST", f"{OBJECT}/compose", "storage.objects.create", self.compose),
            Route(
                "REWRITE object", "POST", f"{OBJECT}/rewriteTo/b/{{to_bucket}}/o/{{to}}", "storage.objects.create", self.rewrite
            ),
            Route("COPY object", "POST", f"{OBJECT}/copyTo/b/{{to_bucket}}/o/{{to}}", "storage.objects.create", self.copy),
            Route("MOVE object", "POST", f"{OBJECT}/moveTo/o/{{to}}", "storage.objects.move", self.move),
        ]

    def get(self, call: Call, bucket: str, name: str) -> Answer:
        return _answer(call, self._store.read(bucket, name, call.whole_number("generation"), preconditions.from_call(call)))

    def list(self, call: Call, bucket: str) -> Answer:
        query = listing.query_of(call)
        with self._store.lock:
            home = self._store.bucket(bucket)
            page = listing.page_of(home.names, query)
            found = [home.objects[name] for name in page.names]
        content: dict[str, Any] = {"kind": "storage#objects"}
        if page.token:
            content["nextPageToken"] = page.token
        if page.prefixes:
            content["prefixes"] = page.prefixes
        if found:
            content["items"] = [object_resource(stored, call.base_url) for stored in found]
        return json_answer(content)

    def patch(self, call: Call, bucket: str, name: str) -> Answer:
        return self._change(call, bucket, name, replace=False)

    def update(self, call: Call, bucket: str, name: str) -> Answer:
        return self._change(call, bucket, name, replace=True)

    def _change(self, call: Call, bucket: str, name: str, *, replace: bool) -> Answer:
        generation, conditions = call.whole_number("generation"), preconditions.from_call(call)
        return _answer(call, self._store.change(bucket, name, generation, call.json(), conditions, replace=replace))

    def delete(self, call: Call, bucket: str, name: str) -> Answer:
        self._store.delete(bucket, name, call.whole_number("generation"), preconditions.from_call(call))
        return Answer(204)

    def compose(self, call: Call, bucket: str, name: str) -> Answer:
        request = call.json()
        sources = [
            Source(
                bucket,
                str(part.get("name", "")),
                int(part["generation"]) if part.get("generation") else None,
                preconditions.from_generation(part.get("objectPreconditions", {}).get("ifGenerationMatch")),
            )
            for part in request.get("sourceObjects", [])
        ]
        fields, consume = request.get("destination", {}), bool(request.get("deleteSourceObjects"))
        conditions = preconditions.from_call(call)
        return _answer(call, self._store.compose(bucket, name, sources, fields, conditions, consume=consume))

    def rewrite(self, call: Call, bucket: str, name: str, to_bucket: str, to: str) -> Answer:
        """Always done in one call, as the service does for small objects."""
        stored = self._copy(call, bucket, name, to_bucket, to)
        content = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(stored.size),
            "objectSize": str(stored.size),
            "done": True,
            "resource": object_resource(stored, call.base_url),
        }
        return json_answer(content)

    def copy(self, call: Call, bucket: str, name: str, to_bucket: str, to: str) -> Answer:
        return _answer(call, self._copy(call, bucket, name, to_bucket, to))

    def move(self, call: Call, bucket: str, name: str, to: str) -> Answer:
        return _answer(call, self._copy(call, bucket, name, bucket, to, move=True))

    def _copy(self, call: Call, bucket: str, name: str, to_bucket: str, to: str, *, move: bool = False) -> StoredObject:
        source = Source(bucket, name, call.whole_number("sourceGeneration"), preconditions.from_call(call, "Source"))
        return self._store.copy(source, to_bucket, to, call.json(), preconditions.from_call(call), move=move)


def _answer(call: Call, stored: StoredObject) -> Answer:
    return json_answer(object_resource(stored, call.base_url))
