"""Calls on buckets, and on the project's service account."""

from __future__ import annotations

from typing import Any

from cloud_emulator import listing, preconditions
from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.resources import bucket_resource, location_type
from cloud_emulator.router import Route
from cloud_emulator.store import Store

BUCKET = "storage/v1/b/{bucket}"


class BucketRoutes:
    def __init__(self, store: Store):
        self._store = store

    def routes(self) -> list[Route]:
        return [
            Route("GET bucket", "GET", BUCKET, "storage.buckets.get", self.get),
            Route("LIST buckets", "GET", "storage/v1/b", "storage.buckets.list", self.list),
            Route("CREATE bucket", "POST", "storage/v1/b", "storage.buckets.create", self.create),
            Route("PATCH bucket", "PATCH", BUCKET, "storage.buckets.update", self.patch),
            Route("UPDATE bucket", "PUT", BUCKET, "storage.buckets.update", self.update),
            Route("DELETE bucket", "DELETE", BUCKET, "storage.buckets.delete", self.delete),
            Route("GET layout", "GET", f"{BUCKET}/storageLayout", "storage.objects.list", self.layout),
            Route("GET account", "GET", "storage/v1/projects/{project}/serviceAccount", "", self.account),
        ]

    def get(self, call: Call, bucket: str) -> Answer:
        with self._store.lock:
            found = self._store.bucket(bucket)
            preconditions.from_call(call).check(None, found.metageneration, reading=True)
            return json_answer(bucket_resource(found, call.base_url))

    def list(self, call: Call) -> Answer:
        with self._store.lock:
            found = {bucket.name: bucket_resource(bucket, call.base_url) for bucket in self._store.buckets()}
        page = listing.page_of(list(found), listing.query_of(call))
        content: dict[str, Any] = {"kind": "storage#buckets", "items": [found[name] for name in page.names]}
        if page.token:
            content["nextPageToken"] = page.token
        return json_answer(content)

    def create(self, call: Call) -> Answer:
        request = call.json()
        return json_answer(bucket_resource(self._store.create_bucket(str(request.get("name", "")), request), call.base_url))

    def patch(self, call: Call, bucket: str) -> Answer:
        return self._change(call, bucket, replace=False)

    def update(self, call: Call, bucket: str) -> Answer:
        return self._change(call, bucket, replace=True)

    def _change(self, call: Call, bucket: str, *, replace: bool) -> Answer:
        changed = self._store.change_bucket(bucket, call.json(), preconditions.from_call(call), replace=replace)
        return json_answer(bucket_resource(changed, call.base_url))

    def delete(self, call: Call, bucket: str) -> Answer:
        self._store.delete_bucket(bucket, preconditions.from_call(call))
        return Answer(204)

    def layout(self, call: Call, bucket: str) -> Answer:
        location = self._store.bucket(bucket).fields["location"]
        content = {
            "kind": "storage#storageLayout",
            "bucket": bucket,
            "location": location,
            "locationType": location_type(location),
            "hierarchicalNamespace": {"enabled": False},
        }
        return json_answer(content)

    def account(self, call: Call, project: str) -> Answer:
        address = f"service-{project}@gs-project-accounts.iam.gserviceaccount.com"
        return json_answer({"kind": "storage#serviceAccount", "email_address": address})
