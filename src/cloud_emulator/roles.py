"""Roles that Google predefines, as far as runs in the cloud need them: with some of their permissions."""

from __future__ import annotations

_NODES = [f"tpu.nodes.{verb}" for verb in ("create", "delete", "get", "list", "reimage", "reset", "start", "stop", "update")]
_LOOKING = [
    f"tpu.{thing}.{verb}"
    for thing in ("acceleratortypes", "locations", "operations", "runtimeversions")
    for verb in ("get", "list")
]
_OBJECTS = [f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update")]
_PROJECT = ["resourcemanager.projects.get"]
_BUCKETS = [f"storage.buckets.{verb}" for verb in ("create", "delete", "get", "getIamPolicy", "list", "setIamPolicy", "update")]
_INSTANCES = [f"compute.instances.{verb}" for verb in ("create", "delete", "get", "list")]
_EDITOR = [
    *_PROJECT,
    "serviceusage.services.use",
    *_INSTANCES,
    *_NODES,
    *_LOOKING,
    *_OBJECTS,
    "storage.buckets.create",
    "storage.buckets.get",
    "storage.buckets.list",
]

PREDEFINED: dict[str, list[str]] = {
    "roles/owner": sorted(
        {
            *_EDITOR,
            *_BUCKETS,
            "iam.serviceAccounts.actAs",
            "resourcemanager.projects.getIamPolicy",
            "resourcemanager.projects.setIamPolicy",
            "secretmanager.versions.access",
        }
    ),
    "roles/editor": sorted({*_EDITOR, "iam.serviceAccounts.actAs"}),
    "roles/viewer": sorted({*_PROJECT, *_LOOKING, "tpu.nodes.get", "tpu.nodes.list", "storage.buckets.list"}),
    "roles/tpu.admin": sorted({*_PROJECT, *_NODES, *_LOOKING}),
    "roles/tpu.viewer": sorted({*_PROJECT, *_LOOKING, "tpu.nodes.get", "tpu.nodes.list"}),
    "roles/storage.admin": sorted({*_BUCKETS, *_OBJECTS}),
    "roles/storage.objectAdmin": sorted({*_PROJECT, *_OBJECTS}),
    "roles/storage.objectUser": sorted({*_PROJECT, *_OBJECTS}),
    "roles/storage.objectCreator": sorted({*_PROJECT, "storage.objects.create"}),
    "roles/storage.objectViewer": sorted({*_PROJECT, "storage.objects.get", "storage.objects.list"}),
    "roles/iam.serviceAccountUser": sorted({*_PROJECT, "iam.serviceAccounts.actAs", "iam.serviceAccounts.get"}),
    "roles/compute.instanceAdmin.v1": sorted({*_PROJECT, *_INSTANCES}),
    "roles/serviceusage.serviceUsageConsumer": ["serviceusage.services.use"],
    "roles/logging.logWriter": ["logging.logEntries.create"],
    "roles/secretmanager.secretAccessor": sorted({*_PROJECT, "secretmanager.versions.access"}),
}
