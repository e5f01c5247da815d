"""Turns an empty project into one that runs can be launched in: finds the missing steps, in order, and takes them.

Every step is idempotent, so an interrupted setup is simply run again. Only what is missing is created: existing buckets keep
their settings, policies their other bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tpulm.cloud import doctor, google_rest, policies
from tpulm.cloud.doctor import ACCESS, ACT_AS, OBJECTS, SELF_DELETION, CheckResult, Project, how_to_make
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.settings import SUPERVISOR, CloudSettings, region_of
from tpulm.errors import CloudRefused, ConfigError, TpulmError

# What a supervisor's VM needs to delete itself, and to have its requests counted against the project (`quota_project_id`).
SUPERVISION = ("compute.instances.delete", "compute.instances.get", "serviceusage.services.use")
_UPLOAD_DAYS = 7


class _Role(NamedTuple):
    """A custom role of the project."""

    name: str
    title: str
    description: str
    permissions: tuple[str, ...]


_WORKER_ROLE = _Role("tpulmWorker", "tpulm worker", "Lets a TPU VM of tpulm delete its own TPU", SELF_DELETION)
_SUPERVISOR_ROLE = _Role(
    "tpulmSupervisor", "tpulm supervisor", "Lets a VM that supervises runs of tpulm delete itself", SUPERVISION
)


class _Grant(NamedTuple):
    place: policies.Place
    permissions: tuple[str, ...]  # which the account must have there, through this role or another
    role: str


@dataclass(frozen=True)
class Step:
    what: str  # "make the bucket gs://runs in us-central1"
    detail: str
    act: Callable[[], object]


def steps(settings: CloudSettings, *, rest: GoogleRest | None = None) -> list[Step]:
    """The steps that are missing. Raises CloudRefused for what setup cannot fix, such as billing."""
    project = Project(settings, rest)
    try:
        _ = project.identity
        for check in (doctor.project_exists(project), _billing(project)):
            if check.ok is False:
                raise CloudRefused(f"{check.found}: {check.remedy}")
        off = [name for name in google_rest.useful_apis(settings) if not project.apis[name]]
        found = [_enabling(project, off)] if off else []
        found += _making_buckets(project)
        found += _worker(project)
        if settings.supervise == "cloud":
            found += _supervisor(project)
    except GoogleError as error:
        raise refusal("look at what is there", error) from error
    return found


def apply(found: Iterable[Step], *, tell: Callable[[Step], None] = lambda step: None) -> None:
    """Take the steps in order. Raises CloudRefused with the missing permission; TpulmError for transient errors."""
    for step in found:
        tell(step)
        try:
            google_rest.when_enabled(step.act)
        except GoogleError as error:
            raise refusal(step.what, error) from error


def refusal(doing: str, error: GoogleError) -> TpulmError:
    """The error that a command ends with: CloudRefused if a retry is useless."""
    if error.refused:
        lacking = error.permission or "a permission that Google does not name"
        return CloudRefused(
            f"cannot {doing}: you lack {lacking} ({error}); have an owner of the project run this, or grant it to you"
        )
    if error.is_final:
        return CloudRefused(f"cannot {doing}: {error}")
    return TpulmError(f"cannot {doing}: {error}; run the same command again, it goes on where it stopped")


def _billing(project: Project) -> CheckResult:
    try:
        return doctor.billing(project)
    except GoogleError as error:
        if not error.refused:
            raise
        return CheckResult(None, str(error))  # without billing, enabling the APIs fails with Google's own message


def _enabling(project: Project, off: list[str]) -> Step:
    names = ", ".join(name.removesuffix(".googleapis.com") for name in off)
    act = partial(google_rest.enable_apis, project.rest, off)
    return Step(f"turn on the APIs {names}", "costs nothing; takes a minute or two", act)


def _unless_there(act: Callable[[], object]) -> bool:
    """Create something; False if it already exists."""
    try:
        act()
    except GoogleError as error:
        if error.status != 409:
            raise
        return False
    return True


# -- buckets ------------------------------------------------------------------------------------------------------------


def _making_buckets(project: Project) -> Iterator[Step]:
    for bucket in project.settings.buckets:
        if _has_bucket(project, bucket):
            continue
        if not project.settings.zones:
            raise ConfigError(
                f"gs://{bucket} is made in the region of the TPUs: name zones or an accelerator in cloud.toml, or --zone"
            )
        region = region_of(project.settings.zones[0])
        yield Step(
            f"make the bucket gs://{bucket} in {region}",
            "where the first zone is; access by policy alone, never public, and nothing kept (or billed) after it is deleted",
            partial(_make_bucket, project, bucket, region),
        )


def _make_bucket(project: Project, bucket: str, region: str) -> None:
    """Create a bucket without versioning and soft delete: deleted checkpoints would be billed for another week."""
    body = {
        "name": bucket,
        "location": region.upper(),
        "storageClass": "STANDARD",
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
        "lifecycle": {"rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": _UPLOAD_DAYS}}]},
    }
    if not _unless_there(lambda: project.rest.post("storage", "storage/v1/b", body, project=project.id)):
        _has_bucket(project, bucket)  # ours from an earlier attempt, else this raises


def _has_bucket(project: Project, bucket: str) -> bool:
    try:
        return project.bucket(bucket) is not None
    except GoogleError as error:
        if error.is_off:
            return False
        if not error.refused:
            raise
        raise CloudRefused(
            f"gs://{bucket} is somebody else's, or you may not look at it ({error}): choose another name, as names of buckets "
            "are unique in the world, or have yourself granted roles/storage.admin on it"
        ) from error


# -- accounts and their rights ------------------------------------------------------------------------------------------


def _worker(project: Project) -> Iterator[Step]:
    """Steps for the TPU VMs' account. One of another project is used but never created, and may be invisible."""
    settings, rest = project.settings, project.rest
    email = settings.service_account
    foreign = not policies.account_path(email).startswith(f"v1/projects/{project.id}/")
    try:
        there = _has_account(project, email)
    except GoogleError as error:
        if not (foreign and error.refused):
            raise
        there = True  # roles can be granted to an account that may not be seen
    if not there and foreign:
        raise CloudRefused(f"there is no account {email}: correct service_account in cloud.toml, or make it in its own project")
    if not there:
        yield _account(project, email, "worker", "What tpulm's TPU VMs run as")
    grants = [_object_admin(project, bucket) for bucket in settings.buckets]
    for secret in settings.secret_names:
        grants.append(_Grant(policies.secret(rest, secret), (ACCESS,), "roles/secretmanager.secretAccessor"))
    yield from _granting(project, email, _WORKER_ROLE, grants)


def _supervisor(project: Project) -> Iterator[Step]:
    """Steps for the account of supervisors' VMs, which creates and deletes TPUs, and deletes its own VM."""
    settings, rest = project.settings, project.rest
    email = settings.supervisor_account
    if not _has_account(project, email):
        yield _account(project, email, "supervisor", "What the VMs run as that supervise runs of tpulm")
    grants = [
        _Grant(policies.project(rest), ("tpu.nodes.create", *SELF_DELETION), "roles/tpu.admin"),
        *(_object_admin(project, bucket) for bucket in settings.buckets),
        _Grant(policies.account(rest, settings.service_account), (ACT_AS,), "roles/iam.serviceAccountUser"),
    ]
    yield from _granting(project, email, _SUPERVISOR_ROLE, grants)


def _object_admin(project: Project, bucket: str) -> _Grant:
    return _Grant(policies.bucket(project.rest, bucket), OBJECTS, "roles/storage.objectAdmin")


def _has_account(project: Project, email: str) -> bool:
    try:
        return project.account(email) is not None
    except GoogleError as error:
        if not error.is_off:
            raise
        return False


def _account(project: Project, email: str, title: str, description: str) -> Step:
    described = {"displayName": f"tpulm {title}", "description": description}
    body = {"accountId": email.partition("@")[0], "serviceAccount": described}
    make = partial(project.rest.post, "iam", f"v1/projects/{project.id}/serviceAccounts", body)
    return Step(f"make the account {email}", "the VMs' own; there is no key of it to lose", partial(_unless_there, make))


def _granting(project: Project, email: str, role: _Role, grants: Iterable[_Grant]) -> Iterator[Step]:
    """Grants of the custom role, and of whatever else the account lacks."""
    member, of = f"serviceAccount:{email}", policies.project(project.rest)

    def permitted(place: policies.Place) -> frozenset[str]:
        return project.roles.of(policies.roles_of(place.read(), member))

    of_project = _if_there(partial(permitted, of))
    path = f"projects/{project.id}/roles/{role.name}"
    if not of_project.issuperset(role.permissions):
        if not _if_there(partial(project.roles.permissions, path)).issuperset(role.permissions):
            detail = f"{role.description}: {', '.join(role.permissions)}"
            yield Step(f"make the role {role.name}", detail, partial(_make_role, project, role, path))
        yield _grant(of, path, member)
    for place, permissions, name in grants:
        if not (of_project | _if_there(partial(permitted, place))).issuperset(permissions):
            yield _grant(place, name, member)


def _if_there(permissions: Callable[[], frozenset[str]]) -> frozenset[str]:
    """The permissions; none on what does not exist yet."""
    try:
        return permissions()
    except GoogleError as error:
        if error.missing or error.is_off:
            return frozenset()
        raise


def _grant(place: policies.Place, role: str, member: str) -> Step:
    def act() -> None:
        try:
            policies.grant(place, role, member)
        except GoogleError as error:
            if not (error.missing and place.service == "secretmanager"):
                raise
            secret = place.path.rpartition("/")[2]
            raise CloudRefused(
                f"there is no secret {secret}; make it, then run this again: {how_to_make(secret, place.rest.project)}"
            ) from error

    shown = role.rpartition("/")[2] if role.startswith("projects/") else role
    whose = "the supervisor" if member.startswith(f"serviceAccount:{SUPERVISOR}@") else "the VMs"
    return Step(f"grant {whose} {shown} on {place.name}", "next to the bindings that are there", act)


def _make_role(project: Project, role: _Role, path: str) -> None:
    permissions = list(role.permissions)
    body = {"title": role.title, "description": role.description, "includedPermissions": permissions, "stage": "GA"}
    rest = project.rest
    if _unless_there(lambda: rest.post("iam", f"v1/projects/{project.id}/roles", {"roleId": role.name, "role": body})):
        return
    found = rest.get("iam", f"v1/{path}")
    if found.get("deleted"):  # it can be undeleted for a week, and keeps its name until then
        rest.post("iam", f"v1/{path}:undelete", {})
    changed = {"includedPermissions": sorted({*found.get("includedPermissions", ()), *permissions})}
    rest.request("PATCH", "iam", f"v1/{path}", body=changed, query={"updateMask": "includedPermissions"})
