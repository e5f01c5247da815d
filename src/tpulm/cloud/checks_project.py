"""Is there somebody, a project, billing, the APIs; and may this somebody begin a run?"""

from __future__ import annotations

from tpulm.cloud import apis, policies
from tpulm.cloud.google_rest import GoogleError
from tpulm.cloud.look import Check, Look, spoken
from tpulm.errors import CloudRefused

CONSOLE = "https://console.cloud.google.com"
NODES = (  # of queued resources, too, which have no permissions of their own
    "tpu.nodes.create",
    "tpu.nodes.delete",
    "tpu.nodes.get",
    "tpu.nodes.list",
    "tpu.operations.get",
)
OBJECTS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
ACT_AS = "iam.serviceAccounts.actAs"


def credentials(look: Look) -> Check:
    name = "credentials"
    try:
        who = look.identity
    except CloudRefused as error:
        what, _, remedy = str(error).partition(". ")
        return Check(name, False, what, remedy)
    return Check(name, True, f"{who.email}, by {who.source}" if who.email else who.source)


def project(look: Look) -> Check:
    name = "project"
    try:
        found = look.rest.get("cloudresourcemanager", f"v3/projects/{look.project}")
    except GoogleError as error:
        if error.status == 0:
            return Check(name, False, str(error), "see to the network of this machine, or its proxy (HTTPS_PROXY)")
        if not (error.refused or error.missing):
            raise
        return _by_its_services(look, name, error)
    if found.get("state") != "ACTIVE":
        return Check(
            name, False, f"{look.project} is in the state {found.get('state')}", f"gcloud projects undelete {look.project}"
        )
    return Check(name, True, look.project)


def _by_its_services(look: Look, name: str, refused: GoogleError) -> Check:
    """Resource Manager is off in a new project, and not everybody may ask it."""
    try:
        _ = look.apis
    except GoogleError as error:
        if not (error.refused or error.missing):
            raise
        return Check(
            name,
            False,
            f"there is no project {look.project}, or you may not see it ({refused})",
            "correct it in cloud.toml or --project: 'gcloud projects list' shows yours, 'gcloud projects create ID' makes one",
        )
    return Check(name, True, look.project)


def billing(look: Look) -> Check:
    found = look.rest.get("cloudbilling", f"v1/projects/{look.project}/billingInfo")
    if found.get("billingEnabled"):
        return Check("billing", True, found.get("billingAccountName", "").removeprefix("billingAccounts/") or "on")
    return Check(
        "billing",
        False,
        f"{look.project} has no billing account, without which there are neither TPUs nor buckets",
        f"{CONSOLE}/billing/linkedaccount?project={look.project}",
    )


def services(look: Look) -> Check:
    off = [name for name in apis.needed(look.settings) if not look.apis[name]]
    if off:
        return Check("APIs", False, f"off: {_short(off)}", "tpulm cloud setup")
    return Check("APIs", True, f"on: {_short(apis.needed(look.settings))}")


def _short(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(name.removesuffix(".googleapis.com") for name in names)


def own_nodes(look: Look) -> Check:
    return _own(
        look,
        "you: TPUs",
        policies.project(look.rest),
        NODES,
        f"gcloud projects add-iam-policy-binding {look.project} --member={look.identity.member} --role=roles/tpu.admin",
    )


def own_account(look: Look) -> Check:
    email = look.settings.service_account
    return _own(
        look,
        "you: VM account",
        policies.account(look.rest, email),
        (ACT_AS,),
        f"gcloud iam service-accounts add-iam-policy-binding {email} --member={look.identity.member} "
        f"--role=roles/iam.serviceAccountUser --project={look.project}",
    )


def own_bucket(look: Look, name: str, bucket: str) -> Check:
    return _own(
        look,
        name,
        policies.bucket(look.rest, bucket),
        OBJECTS,
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={look.identity.member} "
        "--role=roles/storage.objectAdmin",
    )


def _own(look: Look, name: str, place: policies.Place, wanted: tuple[str, ...], remedy: str) -> Check:
    granted = place.tested(wanted)
    lacking = [permission for permission in wanted if permission not in granted]
    if lacking:
        return Check(name, False, f"you lack {', '.join(lacking)} on {place.name}", f"{remedy}   (by somebody who may)")
    return Check(name, True, spoken(wanted))
