"""Objects and buckets as the JSON that clients are sent."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

from cloud_emulator.objects import Bucket, StoredObject, timestamp

MULTI_REGIONS = {"US", "EU", "ASIA"}
DUAL_REGIONS = {"NAM4", "EUR4", "EUR5", "EUR7", "EUR8", "ASIA1"}


def etag(generation: int, metageneration: int) -> str:
    return base64.b64encode(f"{generation:x}/{metageneration:x}".encode()).decode()


def object_resource(stored: StoredObject, base_url: str) -> dict[str, Any]:
    path = f"b/{stored.bucket}/o/{quote(stored.name, safe='')}"
    resource: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "selfLink": f"{base_url}/storage/v1/{path}",
        "mediaLink": f"{base_url}/download/storage/v1/{path}?generation={stored.generation}&alt=media",
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        **stored.fields,
        "size": str(stored.size),
        "crc32c": stored.crc32c,
        "etag": etag(stored.generation, stored.metageneration),
        "timeCreated": timestamp(stored.created),
        "updated": timestamp(stored.updated),
        "timeStorageClassUpdated": timestamp(stored.created),
        "timeFinalized": timestamp(stored.created),
    }
    if stored.md5 is not None:
        resource["md5Hash"] = stored.md5
    if stored.component_count is not None:
        resource["componentCount"] = stored.component_count
    return resource


def location_type(location: str) -> str:
    if location in MULTI_REGIONS:
        return "multi-region"
    return "dual-region" if location in DUAL_REGIONS else "region"


def bucket_resource(bucket: Bucket, base_url: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{base_url}/storage/v1/b/{bucket.name}",
        "name": bucket.name,
        "projectNumber": "0",
        "metageneration": str(bucket.metageneration),
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "inherited"},
        "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": timestamp(bucket.created)},
        **bucket.fields,
        "locationType": location_type(bucket.fields["location"]),
        "etag": etag(bucket.updated, bucket.metageneration),
        "timeCreated": timestamp(bucket.created),
        "updated": timestamp(bucket.updated),
    }
