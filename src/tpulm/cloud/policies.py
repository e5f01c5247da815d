"""IAM policies of projects, buckets, service accounts and secrets: read, and extended without touching other bindings."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tpulm.cloud.google_rest import GoogleError, GoogleRest, Service

_VERSION = 3  # the newest: with an older one conditions of bindings would be lost
_CHANGED = (409, 412)  # the policy was changed since it was read
_ATTEMPTS = 10
_SETTLE_SECONDS = 90.0  # until a new account is known everywhere


@dataclass(frozen=True)
class Place:
    """A resource with an IAM policy."""

    rest: GoogleRest
    service: Service
    path: str  # "v3/projects/my-project", "storage/v1/b/my-bucket"
    name: str  # for people

    def read(self) -> dict[str, Any]:
        if self.service == "storage":
            return self.rest.get("storage", f"{self.path}/iam", optionsRequestedPolicyVersion=_VERSION)
        if self.service == "secretmanager":
            return self.rest.get("secretmanager", f"{self.path}:getIamPolicy", **{"options.requestedPolicyVersion": _VERSION})
        return self.rest.post(self.service, f"{self.path}:getIamPolicy", {"options": {"requestedPolicyVersion": _VERSION}})

    def write(self, policy: dict[str, Any]) -> None:
        if self.service == "storage":
            self.rest.request("PUT", "storage", f"{self.path}/iam", body=policy)
        else:
            self.rest.post(self.service, f"{self.path}:setIamPolicy", {"policy": policy})

    def tested(self, permissions: Iterable[str]) -> set[str]:
        """Which of the permissions the caller has here."""
        requested = list(permissions)
        if self.service == "storage":
            response = self.rest.get("storage", f"{self.path}/iam/testPermissions", permissions=requested)
        else:
            response = self.rest.post(self.service, f"{self.path}:testIamPermissions", {"permissions": requested})
        return set(response.get("permissions", ()))


def project(rest: GoogleRest) -> Place:
    return Place(rest, "cloudresourcemanager", f"v3/projects/{rest.project}", f"the project {rest.project}")


def bucket(rest: GoogleRest, name: str) -> Place:
    return Place(rest, "storage", f"storage/v1/b/{name}", f"gs://{name}")


def account(rest: GoogleRest, email: str) -> Place:
    return Place(rest, "iam", account_path(email), email)


def account_path(email: str) -> str:
    """A service account's path, with its project: for the wildcard "-", IAM answers 403, not 404, if there is no account."""
    domain = email.partition("@")[2]
    name, _, above = domain.removesuffix(".iam.gserviceaccount.com").partition(".")
    project = f"{above}:{name}" if above else name
    return f"v1/projects/{project if domain.endswith('.iam.gserviceaccount.com') else '-'}/serviceAccounts/{email}"


def secret(rest: GoogleRest, name: str) -> Place:
    return Place(rest, "secretmanager", f"v1/projects/{rest.project}/secrets/{name}", f"the secret {name}")


def roles_of(policy: dict[str, Any], member: str) -> list[str]:
    """The roles granted to a member directly and unconditionally; those of its groups are not visible here."""
    roles = [
        binding["role"]
        for binding in policy.get("bindings", ())
        if member in binding.get("members", ()) and not binding.get("condition")
    ]
    return list(dict.fromkeys(roles))


def with_binding(policy: dict[str, Any], role: str, member: str) -> dict[str, Any]:
    new = copy.deepcopy(policy)
    bindings = new.setdefault("bindings", [])
    free = [binding for binding in bindings if not binding.get("condition")]
    if len(free) < len(bindings):
        new["version"] = _VERSION
    members = next((binding.setdefault("members", []) for binding in free if binding.get("role") == role), None)
    if members is None:
        bindings.append({"role": role, "members": [member]})
    elif member not in members:
        members.append(member)
    return new


def grant(place: Place, role: str, member: str, wait: Callable[[float], None] = time.sleep) -> None:
    """Grant a role by compare-and-swap on the etag; retried after a concurrent change, and while `member` is too new."""
    give_up_at = time.monotonic() + _SETTLE_SECONDS
    for attempt in range(1, _ATTEMPTS + 1):
        policy = place.read()
        if role in roles_of(policy, member):
            return
        try:
            place.write(with_binding(policy, role, member))
            return
        except GoogleError as error:
            too_new = error.status == 400 and "does not exist" in error.message and time.monotonic() < give_up_at
            if attempt == _ATTEMPTS or not (too_new or error.status in _CHANGED):
                raise
            wait(random.uniform(0.5, 1.0) * (10.0 if too_new else min(8.0, 0.1 * 2**attempt)))


def permissions_of(rest: GoogleRest, role: str) -> frozenset[str]:
    """The permissions of "roles/tpu.admin" or "projects/my-project/roles/mine"; none if the role is deleted."""
    definition = rest.get("iam", f"v1/{role}")
    return frozenset(() if definition.get("deleted") else definition.get("includedPermissions", ()))
