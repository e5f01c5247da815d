"""From an empty project to one that runs can be launched in: what is missing, in order, and making it.

Every step can be taken again, so a setup that was killed half-way is run again. Only what is missing is made: a bucket that is
there keeps its settings, a policy whatever others have granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tpulm.cloud import doctor, google_rest, policies
from tpulm.cloud.doctor import ACCESS, ACT_AS, OBJECTS, SELF_DELETION, Finding, Project, how_to_make
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.settings import SUPERVISOR, CloudSettings, region_of
from tpulm.errors import CloudRefused, ConfigError, TpulmError

OBJECT_ADMIN, SECRET_ACCESSOR = "roles/storage.objectAdmin", "roles/secretmanager.secretAccessor"
TPU_ADMIN, ACCOUNT_USER = "roles/tpu.admin", "roles/iam.serviceAccountUser"
# Of a supervisor's VM: to delete itself, and to have its requests counted against the project (`quota_project_id`).
SUPERVISION = ("compute.instances.delete", "compute.instances.get", "serviceusage.services.use")
NODES = ("tpu.nodes.create", *SELF_DELETION)
_UPLOAD_DAYS = 7


@dataclass(frozen=True)
class _Role:
    """Of the project's own."""

    name: str
    title: str
    description: str
    permissions: tuple[str, ...]
    reason: str

    def path(self, project: Project) -> str:
        return f"projects/{project.id}/roles/{self.name}"


_WORKER_ROLE = _Role(
    "tpulmWorker",
    "tpulm worker",
    "Lets a TPU VM of tpulm delete its own TPU",
    SELF_DELETION,
    "what a VM needs to delete its TPU; roles/tpu.admin could also create some",
)
_SUPERVISOR_ROLE = _Role(
    "tpulmSupervisor",
    "tpulm supervisor",
    "Lets a VM that supervises runs of tpulm delete itself",
    SUPERVISION,
    "what a supervisor needs to delete its own VM",
)


@dataclass(frozen=True)
class Step:
    what: str  # "make the bucket gs://runs in us-central1"
    detail: str
    act: Callable[[], None]


def steps(settings: CloudSettings, *, rest: GoogleRest | None = None) -> list[Step]:
    """What is missing, found by looking. Raises CloudRefused for what cannot be mended from here, such as billing."""
    project = Project(settings, rest)
    try:
        _ = project.identity
        for check in (doctor.project_exists(project), _billing(project)):
            if check.ok is False:
                raise CloudRefused(f"{check.found}: {check.remedy}")
        off = [name for name in google_rest.useful_apis(settings) if not project.apis[name]]
        found = [_enabling(project, off)] if off else []
        found += _making_buckets(project)
        found += _making_account(project)
        found += _granting(project)
        if settings.supervise == "cloud":
            found += _supervisor(project)
    except GoogleError as error:
        raise refusal("look at what is there", error) from error
    return found


def apply(found: Iterable[Step], *, tell: Callable[[Step], None] = lambda step: None) -> None:
    """Take the steps in their order. Raises CloudRefused, naming the permission that is missing; TpulmError for what passes."""
    for step in found:
        tell(step)
        try:
            google_rest.when_enabled(step.act)
        except GoogleError as error:
            raise refusal(step.what, error) from error


def refusal(doing: str, error: GoogleError) -> TpulmError:
    """What a command ends with: CloudRefused where trying again is of no use."""
    if error.refused:
        lacking = error.permission or "a permission that Google does not name"
        return CloudRefused(
            f"cannot {doing}: you lack {lacking} ({error}); have an owner of the project run this, or grant it to you"
        )
    if 400 <= error.status < 500 and error.status not in (408, 409, 429):
        return CloudRefused(f"cannot {doing}: {error}")
    return TpulmError(f"cannot {doing}: {error}; run the same command again, it goes on where it stopped")


def _billing(project: Project) -> Finding:
    try:
        return doctor.billing(project)
    except GoogleError as error:
        if not error.refused:
            raise
        return Finding(None, str(error))  # turning on the APIs fails, in Google's words, where there is none


def _enabling(project: Project, off: list[str]) -> Step:
    names = ", ".join(name.removesuffix(".googleapis.com") for name in off)
    return Step(
        f"turn on the APIs {names}", "costs nothing; takes a minute or two", lambda: google_rest.enable_apis(project.rest, off)
    )


# -- buckets and accounts -----------------------------------------------------------------------------------------------


def _making_buckets(project: Project) -> Iterator[Step]:
    for bucket in project.settings.buckets:
        if _there(lambda bucket=bucket: project.bucket(bucket), f"gs://{bucket}"):
            continue
        if not project.settings.zones:
            raise ConfigError(
                f"gs://{bucket} is made in the region of the TPUs: name zones or an accelerator in cloud.toml, or --zone"
            )
        region = region_of(project.settings.zones[0])
        yield Step(
            f"make the bucket gs://{bucket} in {region}",
            "where the first zone is; access by policy alone, never public, and nothing kept (or billed) after it is deleted",
            lambda bucket=bucket, region=region: _make_bucket(project, bucket, region),
        )


def _make_bucket(project: Project, bucket: str, region: str) -> None:
    """Without versions and soft delete, lest every deleted checkpoint is billed for another week."""
    body = {
        "name": bucket,
        "location": region.upper(),
        "storageClass": "STANDARD",
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
        "lifecycle": {"rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": _UPLOAD_DAYS}}]},
    }
    try:
        project.rest.post("storage", "storage/v1/b", body, project=project.id)
    except GoogleError as error:
        if error.status != 409:
            raise
        _there(lambda: project.bucket(bucket), f"gs://{bucket}")  # ours by an earlier attempt, or somebody else's


def _there(see: Callable[[], object], name: str) -> bool:
    try:
        see()
    except GoogleError as error:
        if error.missing or error.is_off:
            return False
        if error.refused and name.startswith("gs://"):
            raise CloudRefused(
                f"{name} is somebody else's, or you may not look at it ({error}): choose another name, as names of buckets are "
                "unique in the world, or have yourself granted roles/storage.admin on it"
            ) from error
        raise
    return True


def _making_account(project: Project) -> Iterator[Step]:
    email = project.settings.service_account
    foreign = not policies.account_path(email).startswith(f"v1/projects/{project.id}/")
    try:
        if _there(project.account, email):
            return
    except GoogleError as error:
        if foreign and error.refused:  # what may not be seen may be granted something all the same
            return
        raise
    if foreign:
        raise CloudRefused(f"there is no account {email}: correct service_account in cloud.toml, or make it in its own project")
    yield _account_step(project, email, "worker", "What tpulm's TPU VMs run as")


def _account_step(project: Project, email: str, title: str, description: str) -> Step:
    def act() -> None:
        _make_account(project, email.partition("@")[0], {"displayName": f"tpulm {title}", "description": description})

    return Step(f"make the account {email}", "the VMs' own; there is no key of it to lose", act)


def _make_account(project: Project, name: str, described: dict[str, str]) -> None:
    body = {"accountId": name, "serviceAccount": described}
    try:
        project.rest.post("iam", f"v1/projects/{project.id}/serviceAccounts", body)
    except GoogleError as error:
        if error.status != 409:
            raise


# -- rights -------------------------------------------------------------------------------------------------------------


def _granting(project: Project) -> Iterator[Step]:
    of = policies.project(project.rest)
    of_project = _may(project, of)
    if not of_project.issuperset(SELF_DELETION):
        yield from _making_role(project, _WORKER_ROLE)
        yield _grant(of, _WORKER_ROLE.path(project), project.worker)
    for bucket in project.settings.buckets:
        place = policies.bucket(project.rest, bucket)
        if not (of_project | _may(project, place)).issuperset(OBJECTS):
            yield _grant(place, OBJECT_ADMIN, project.worker)
    for secret in project.settings.secret_names:
        place = policies.secret(project.rest, secret)
        if ACCESS not in of_project | _may(project, place):
            yield _grant(place, SECRET_ACCESSOR, project.worker)


def _supervisor(project: Project) -> Iterator[Step]:
    """The account of supervisors' VMs: it creates and deletes TPUs, and its own VM."""
    email = project.settings.supervisor_account
    if not _there(lambda: project.rest.get("iam", policies.account_path(email)), email):
        yield _account_step(project, email, "supervisor", "What the VMs run as that supervise runs of tpulm")
    member = f"serviceAccount:{email}"
    of = policies.project(project.rest)
    of_project = _may(project, of, member)
    if not of_project.issuperset(SUPERVISION):
        yield from _making_role(project, _SUPERVISOR_ROLE)
        yield _grant(of, _SUPERVISOR_ROLE.path(project), member)
    if not of_project.issuperset(NODES):
        yield _grant(of, TPU_ADMIN, member)
    for place, permissions, role in (
        *((policies.bucket(project.rest, bucket), OBJECTS, OBJECT_ADMIN) for bucket in project.settings.buckets),
        (policies.account(project.rest, project.settings.service_account), (ACT_AS,), ACCOUNT_USER),
    ):
        if not (of_project | _may(project, place, member)).issuperset(permissions):
            yield _grant(place, role, member)


def _may(project: Project, place: policies.Place, member: str | None = None) -> frozenset[str]:
    """What the place itself permits an account, the worker's by default; nothing where it is not there yet."""
    try:
        return project.roles.of(policies.roles_of(place.read(), member or project.worker))
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
    return Step(f"grant {whose} {shown} on {place.name}", "beside whatever others have there", act)


def _making_role(project: Project, role: _Role) -> Iterator[Step]:
    if not _role_is_whole(project, role):
        yield Step(
            f"make the role {role.name}", f"{', '.join(role.permissions)}: {role.reason}", lambda: _make_role(project, role)
        )


def _role_is_whole(project: Project, role: _Role) -> bool:
    try:
        return project.roles.permissions(role.path(project)).issuperset(role.permissions)
    except GoogleError as error:
        if error.missing or error.is_off:
            return False
        raise


def _make_role(project: Project, role: _Role) -> None:
    body = {
        "title": role.title,
        "description": role.description,
        "includedPermissions": list(role.permissions),
        "stage": "GA",
    }
    path = role.path(project)
    try:
        project.rest.post("iam", f"v1/projects/{project.id}/roles", {"roleId": role.name, "role": body})
        return
    except GoogleError as error:
        if error.status != 409:
            raise
    found = project.rest.get("iam", f"v1/{path}")
    if found.get("deleted"):  # which can be taken back for a week, and keeps the name
        project.rest.post("iam", f"v1/{path}:undelete", {})
    permissions = sorted({*found.get("includedPermissions", ()), *role.permissions})
    changed = {"includedPermissions": permissions}
    project.rest.request("PATCH", "iam", f"v1/{path}", body=changed, query={"updateMask": "includedPermissions"})
