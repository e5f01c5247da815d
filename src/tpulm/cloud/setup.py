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
from tpulm.cloud.settings import CloudSettings, region_of
from tpulm.errors import CloudRefused, ConfigError, TpulmError

ROLE = "tpulmWorker"  # of the project's own, by its id
OBJECT_ADMIN, SECRET_ACCESSOR = "roles/storage.objectAdmin", "roles/secretmanager.secretAccessor"
_UPLOAD_DAYS = 7


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
    name = email.partition("@")[0]
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
    yield Step(f"make the account {email}", "the VMs' own; there is no key of it to lose", lambda: _make_account(look, name))


def _make_account(look: Look, name: str) -> None:
    described = {"displayName": "tpulm worker", "description": "What tpulm's TPU VMs run as"}
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
        role = f"projects/{look.project}/roles/{ROLE}"
        if not _role_is_whole(look, role):
            yield Step(
                f"make the role {ROLE}",
                f"{', '.join(SELF_DELETION)}: what a VM needs to delete its TPU; roles/tpu.admin could also create some",
                lambda: _make_role(look, role),
            )
        yield _grant(look, project, role)
    for bucket in look.settings.buckets:
        place = policies.bucket(look.rest, bucket)
        if not (of_project | _may(look, place)).issuperset(OBJECTS):
            yield _grant(look, place, OBJECT_ADMIN)
    for secret in look.settings.secret_names:
        place = policies.secret(look.rest, secret)
        if ACCESS not in of_project | _may(look, place):
            yield _grant(look, place, SECRET_ACCESSOR)


def _may(look: Look, place: policies.Place) -> frozenset[str]:
    """What the place itself permits the VMs' account; nothing where it is not there yet."""
    try:
        return look.worker_may(place.read())
    except GoogleError as error:
        if error.missing or error.is_off:
            return frozenset()
        raise


def _grant(look: Look, place: policies.Place, role: str) -> Step:
    def act() -> None:
        try:
            policies.grant(place, role, look.worker)
        except GoogleError as error:
            if not (error.missing and place.service == "secretmanager"):
                raise
            secret = place.path.rpartition("/")[2]
            raise CloudRefused(
                f"there is no secret {secret}; make it, then run this again: {how_to_make(secret, look.project)}"
            ) from error

    shown = role.rpartition("/")[2] if role.startswith("projects/") else role
    return Step(f"grant the VMs {shown} on {place.name}", "beside whatever others have there", act)


def _role_is_whole(look: Look, role: str) -> bool:
    try:
        return look.roles.permissions(role).issuperset(SELF_DELETION)
    except GoogleError as error:
        if error.missing or error.is_off:
            return False
        raise


def _make_role(look: Look, role: str) -> None:
    body = {
        "title": "tpulm worker",
        "description": "Lets a TPU VM of tpulm delete its own TPU",
        "includedPermissions": list(SELF_DELETION),
        "stage": "GA",
    }
    try:
        look.rest.post("iam", f"v1/projects/{look.project}/roles", {"roleId": ROLE, "role": body})
        return
    except GoogleError as error:
        if error.status != 409:
            raise
    found = look.rest.get("iam", f"v1/{role}")
    if found.get("deleted"):  # which can be taken back for a week, and keeps the name
        look.rest.post("iam", f"v1/{role}:undelete", {})
    permissions = sorted({*found.get("includedPermissions", ()), *SELF_DELETION})
    changed = {"includedPermissions": permissions}
    look.rest.request("PATCH", "iam", f"v1/{role}", body=changed, query={"updateMask": "includedPermissions"})
