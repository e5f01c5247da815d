"""Who may do what on a bucket: the policy is kept, and every permission is granted except what a read-only fault takes away."""

from __future__ import annotations

import base64
from collections.abc import Callable

from cloud_emulator.answers import Answer, ApiError, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.objects import Bucket
from cloud_emulator.router import Route
from cloud_emulator.store import Store

POLICY = "storage/v1/b/{bucket}/iam"


class IamRoutes:
    def __init__(self, store: Store, is_granted: Callable[[str], bool]):
        self._store = store
        self._is_granted = is_granted

    def routes(self) -> list[Route]:
        return [
            Route("GET policy", "GET", POLICY, "storage.buckets.getIamPolicy", self.get),
            Route("SET policy", "PUT", POLICY, "storage.buckets.setIamPolicy", self.set),
            Route("TEST permissions", "GET", f"{POLICY}/testPermissions", "", self.test),
        ]

    def get(self, call: Call, bucket: str) -> Answer:
        with self._store.lock:
            return json_answer(_policy(self._store.bucket(bucket)))

    def set(self, call: Call, bucket: str) -> Answer:
        request = call.json()
        with self._store.lock:
            found = self._store.bucket(bucket)
            if request.get("etag") not in (None, _etag(found)):
                raise ApiError(412, "The IAM policy was changed by somebody else meanwhile.", "conditionNotMet")
            revision = int(found.policy.get("revision", 0)) + 1
            kept = {name: request[name] for name in ("bindings", "version") if name in request}
            self._store.set_policy(bucket, {**kept, "revision": revision})
            return json_answer(_policy(found))

    def test(self, call: Call, bucket: str) -> Answer:
        self._store.bucket(bucket)
        granted = [permission for permission in call.all_of("permissions") if self._is_granted(permission)]
        return json_answer({"kind": "storage#testIamPermissionsResponse"} | ({"permissions": granted} if granted else {}))


def _policy(bucket: Bucket) -> dict[str, object]:
    return {
        "kind": "storage#policy",
        "resourceId": f"projects/_/buckets/{bucket.name}",
        "version": bucket.policy.get("version", 1),
        "etag": _etag(bucket),
        "bindings": bucket.policy.get("bindings", []),
    }


def _etag(bucket: Bucket) -> str:
    return base64.b64encode(f"{bucket.created:x}/{bucket.policy.get('revision', 0)}".encode()).decode()
