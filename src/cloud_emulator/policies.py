"""Policies within a project: who may do what, kept with an etag; nothing but `deny` acts on them."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cloud_emulator.calls import Call
from cloud_emulator.projects import Project
from cloud_emulator.rpc import RpcError, bad_argument


def tested(project: Project, call: Call) -> dict[str, Any]:
    """The answer to testIamPermissions."""
    granted = [permission for permission in call.json().get("permissions", []) if project.is_granted(permission)]
    return {"permissions": granted} if granted else {}


def policy_of(project: Project, of: str) -> dict[str, Any]:
    kept = project.policies.get(of, {"version": 1, "bindings": []})
    return {**kept, "etag": etag(kept)}


def set_policy(project: Project, of: str, call: Call) -> dict[str, Any]:
    wanted = call.json().get("policy")
    if not isinstance(wanted, dict):
        raise bad_argument("The request has no policy.")
    if wanted.get("etag") not in (None, "", policy_of(project, of)["etag"]):
        raise RpcError(
            409,
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff. The "
            "request's ETag did not match the current policy's ETag.",
            "ABORTED",
        )
    for binding in wanted.get("bindings", []):
        for member in binding.get("members", []):
            _check_member(project, member)
    project.policies[of] = {"version": wanted.get("version", 1), "bindings": wanted.get("bindings", [])}
    return policy_of(project, of)


def _check_member(project: Project, member: str) -> None:
    email = member.removeprefix("serviceAccount:")
    if member != email and email.endswith(f"@{project.name}.iam.gserviceaccount.com") and email not in project.accounts:
        raise bad_argument(f"Service account {email} does not exist.")


def etag(content: object) -> str:
    return base64.b64encode(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()[:8]).decode()
