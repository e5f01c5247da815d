"""May the VMs, by their own account, do what they must: read and write the bucket, read secrets, delete themselves?"""

from __future__ import annotations

from urllib.parse import quote

from tpulm.cloud import policies
from tpulm.cloud.checks_project import OBJECTS
from tpulm.cloud.google_rest import GoogleError
from tpulm.cloud.look import Check, Look, spoken

SELF_DELETION = ("tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list")
ACCESS = "secretmanager.versions.access"


def account(look: Look) -> Check:
    email = look.settings.service_account
    try:
        found = look.account()
    except GoogleError as error:
        if error.missing:
            remedy = "tpulm cloud setup"
            if not email.endswith(f"@{look.project}.iam.gserviceaccount.com"):
                remedy = "correct service_account in cloud.toml: setup makes accounts in the run's own project only"
            return Check("VM account", False, f"there is no account {email}", remedy)
        raise
    if found.get("disabled"):
        return Check("VM account", False, f"{email} is disabled", f"gcloud iam service-accounts enable {email}")
    return Check("VM account", True, email)


def bucket(look: Look, name: str, bucket: str) -> Check:
    return _rights(look, name, policies.bucket(look.rest, bucket), OBJECTS)


def deletion(look: Look) -> Check:
    """Without it a VM that is done goes on billing until the supervisor looks."""
    name, may = "VM account: its TPU", look.worker_may(look.policy)
    lacking = [permission for permission in SELF_DELETION if permission not in may]
    if lacking:
        return Check(name, False, f"it lacks {', '.join(lacking)}, and cannot delete its TPU when done", "tpulm cloud setup")
    return Check(name, True, spoken(SELF_DELETION))


def secret(look: Look, variable: str) -> Check:
    """One of Secret Manager, or an object."""
    wanted = look.settings.secrets[variable]
    name = f"secret {variable}"
    if wanted.startswith("gs://"):
        return _object(look, name, wanted)
    try:
        look.rest.get("secretmanager", f"v1/projects/{look.project}/secrets/{wanted}")
    except GoogleError as error:
        if error.missing:
            return Check(name, False, f"there is no secret {wanted}", how_to_make(wanted, look.project))
        raise
    return _rights(look, name, policies.secret(look.rest, wanted), (ACCESS,))


def how_to_make(secret: str, project: str) -> str:
    return f"gcloud secrets create {secret} --data-file=FILE --project={project}"


def _object(look: Look, name: str, path: str) -> Check:
    where, _, object_name = path.removeprefix("gs://").partition("/")
    try:
        look.rest.get("storage", f"storage/v1/b/{where}/o/{quote(object_name, safe='')}")
    except GoogleError as error:
        if error.missing:
            return Check(name, False, f"there is no object {path}", f"gcloud storage cp FILE {path}")
        raise
    return _rights(look, name, policies.bucket(look.rest, where), ("storage.objects.get",))


def _rights(look: Look, name: str, place: policies.Place, wanted: tuple[str, ...]) -> Check:
    may = look.worker_may(place.read())
    unseen = False
    if not may.issuperset(wanted):
        try:
            may |= look.worker_may(look.policy)
        except GoogleError as error:
            if not error.refused:
                raise
            unseen = True
    lacking = ", ".join(permission for permission in wanted if permission not in may)
    if lacking and unseen:
        found = f"{place.name} itself does not grant it {lacking}; what the project grants, you may not see"
        return Check(name, None, found, _remedy(look, place))
    if lacking:
        return Check(name, False, f"it lacks {lacking} on {place.name}", _remedy(look, place))
    return Check(name, True, spoken(wanted))


def _remedy(look: Look, place: policies.Place) -> str:
    """Setup grants rights on the buckets and secrets of cloud.toml, and on nothing else."""
    if place.service != "storage" or place.name.removeprefix("gs://") in look.settings.buckets:
        return "tpulm cloud setup"
    binding = f"--member={look.worker} --role=roles/storage.objectViewer"
    return f"gcloud storage buckets add-iam-policy-binding {place.name} {binding}"
