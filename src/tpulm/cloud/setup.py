"""From an empty project to one that runs can be launched in: what is missing, in order, and making it.

Every step can be taken again, so a setup that was killed half-way is run again. Only what is missing is made: a bucket that is
there keeps its settings, a policy whatever others have granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tpulm.cloud import apis, checks_project, policies
from tpulm.cloud.checks_project import OBJECTS
from tpulm.cloud.checks_worker import ACCESS, SELF_DELETION, how_to_make
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.look import Check, Look
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

    def path(self, look: Look) -> str:
        return f"projects/{look.project}/roles/{self.name}"


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
    look = Look(settings, rest)
    try:
        _ = look.identity
        for check in (checks_project.project(look), _billing(look)):
            if check.ok is False:
                raise CloudRefused(f"{check.found}: {check.remedy}")
        off = [name for name in apis.useful(settings) if not look.apis[name]]
        found = [_enabling(look, off)] if off else []
        found += _making_buckets(look)
        found += _making_account(look)
        found += _granting(look)
        if settings.supervise == "cloud":
            found += _supervisor(look)
    except GoogleError as error:
        raise refusal("look at what is there", error) from error
    return found


def apply(found: Iterable[Step], *, tell: Callable[[Step], None] = lambda step: None) -> None:
    """Take the steps in their order. Raises CloudRefused, naming the permission that is missing; TpulmError for what passes."""
    for step in found:
        tell(step)
        try:
            apis.settled(step.act)
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


def _billing(look: Look) -> Check:
    try:
        return checks_project.billing(look)
    except GoogleError as error:
        if not error.refused:
            raise
        return Check("billing", None, str(error))  # turning on the APIs fails, in Google's words, where there is none


def _enabling(look: Look, off: list[str]) -> Step:
    names = ", ".join(name.removesuffix(".googleapis.com") for name in off)
    return Step(f"turn on the APIs {names}", "costs nothing; takes a minute or two", lambda: apis.enable(look.rest, off))


# -- buckets and accounts -----------------------------------------------------------------------------------------------


def _making_buckets(look: Look) -> Iterator[Step]:
    for bucket in look.settings.buckets:
        if _there(lambda bucket=bucket: look.bucket(bucket), f"gs://{bucket}"):
            continue
        if not look.settings.zones:
            raise ConfigError(
                f"gs://{bucket} is made in the region of the TPUs: name zones or an accelerator in cloud.toml, or --zone"
            )
        region = region_of(look.settings.zones[0])
        yield Step(
            f"make the bucket gs://{bucket} in {region}",
            "where the first zone is; access by policy alone, never public, and nothing kept (or billed) after it is deleted",
            lambda bucket=bucket, region=region: _make_bucket(look, bucket, region),
        )


def _make_bucket(look: Look, bucket: str, region: str) -> None:
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
        look.rest.post("storage", "storage/v1/b", body, project=look.project)
    except GoogleError as error:
        if error.status != 409:
            raise
        _there(lambda: look.bucket(bucket), f"gs://{bucket}")  # ours by an earlier attempt, or somebody else's


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


def _making_account(look: Look) -> Iterator[Step]:
    email = look.settings.service_account
    foreign = not policies.account_path(email).startswith(f"v1/projects/{look.project}/")
    try:
        if _there(look.account, email):
            return
    except GoogleError as error:
        if foreign and error.refused:  # what may not be seen may be granted something all the same
            return
        raise
    if foreign:
        raise CloudRefused(f"there is no account {email}: correct service_account in cloud.toml, or make it in its own project")
    yield _account_step(look, email, "worker", "What tpulm's TPU VMs run as")


def _account_step(look: Look, email: str, title: str, description: str) -> Step:
    def act() -> None:
        _make_account(look, email.partition("@")[0], {"displayName": f"tpulm {title}", "description": description})

    return Step(f"make the account {email}", "the VMs' own; there is no key of it to lose", act)


def _make_account(look: Look, name: str, described: dict[str, str]) -> None:
    body = {"accountId": name, "serviceAccount": described}
    try:
        look.rest.post("iam", f"v1/projects/{look.project}/serviceAccounts", body)
    except GoogleError as error:
        if error.status != 409:
            raise


# -- rights -------------------------------------------------------------------------------------------------------------


def _granting(look: Look) -> Iterator[Step]:
    project = policies.project(look.rest)
    of_project = _may(look, project)
    if not of_project.issuperset(SELF_DELETION):
        yield from _making_role(look, _WORKER_ROLE)
        yield _grant(project, _WORKER_ROLE.path(look), look.worker)
    for bucket in look.settings.buckets:
        place = policies.bucket(look.rest, bucket)
        if not (of_project | _may(look, place)).issuperset(OBJECTS):
            yield _grant(place, OBJECT_ADMIN, look.worker)
    for secret in look.settings.secret_names:
        place = policies.secret(look.rest, secret)
        if ACCESS not in of_project | _may(look, place):
            yield _grant(place, SECRET_ACCESSOR, look.worker)


def _supervisor(look: Look) -> Iterator[Step]:
    """The account of supervisors' VMs: it creates and deletes TPUs, and its own VM."""
    email = look.settings.supervisor_account
    if not _there(lambda: look.rest.get("iam", policies.account_path(email)), email):
        yield _account_step(look, email, "supervisor", "What the VMs run as that supervise runs of tpulm")
    member = f"serviceAccount:{email}"
    project = policies.project(look.rest)
    of_project = _may(look, project, member)
    if not of_project.issuperset(SUPERVISION):
        yield from _making_role(look, _SUPERVISOR_ROLE)
        yield _grant(project, _SUPERVISOR_ROLE.path(look), member)
    if not of_project.issuperset(NODES):
        yield _grant(project, TPU_ADMIN, member)
    for place, permissions, role in (
        *((policies.bucket(look.rest, bucket), OBJECTS, OBJECT_ADMIN) for bucket in look.settings.buckets),
        (policies.account(look.rest, look.settings.service_account), ("iam.serviceAccounts.actAs",), ACCOUNT_USER),
    ):
        if not (of_project | _may(look, place, member)).issuperset(permissions):
            yield _grant(place, role, member)


def _may(look: Look, place: policies.Place, member: str | None = None) -> frozenset[str]:
    """What the place itself permits an account, the worker's by default; nothing where it is not there yet."""
    try:
        return look.roles.of(policies.roles_of(place.read(), member or look.worker))
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


def _making_role(look: Look, role: _Role) -> Iterator[Step]:
    if not _role_is_whole(look, role):
        yield Step(
            f"make the role {role.name}", f"{', '.join(role.permissions)}: {role.reason}", lambda: _make_role(look, role)
        )


def _role_is_whole(look: Look, role: _Role) -> bool:
    try:
        return look.roles.permissions(role.path(look)).issuperset(role.permissions)
    except GoogleError as error:
        if error.missing or error.is_off:
            return False
        raise


def _make_role(look: Look, role: _Role) -> None:
    body = {
        "title": role.title,
        "description": role.description,
        "includedPermissions": list(role.permissions),
        "stage": "GA",
    }
    path = role.path(look)
    try:
        look.rest.post("iam", f"v1/projects/{look.project}/roles", {"roleId": role.name, "role": body})
        return
    except GoogleError as error:
        if error.status != 409:
            raise
    found = look.rest.get("iam", f"v1/{path}")
    if found.get("deleted"):  # which can be taken back for a week, and keeps the name
        look.rest.post("iam", f"v1/{path}:undelete", {})
    permissions = sorted({*found.get("includedPermissions", ()), *role.permissions})
    changed = {"includedPermissions": permissions}
    look.rest.request("PATCH", "iam", f"v1/{path}", body=changed, query={"updateMask": "includedPermissions"})
