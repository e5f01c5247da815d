"""Google's APIs that runs and these commands need: which are on, and turning them on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.settings import CloudSettings
from tpulm.errors import CloudRefused

TPU, STORAGE, IAM = "tpu.googleapis.com", "storage.googleapis.com", "iam.googleapis.com"
COMPUTE = "compute.googleapis.com"  # the network that TPU VMs are in
PROJECTS = "cloudresourcemanager.googleapis.com"
SECRETS = "secretmanager.googleapis.com"
BILLING, QUOTAS = "cloudbilling.googleapis.com", "cloudquotas.googleapis.com"  # for looking at them; both without cost
_SECONDS = 600.0  # that turning on may take
_SETTLE_SECONDS = 180.0  # until what was turned on answers everywhere


def needed(settings: CloudSettings) -> tuple[str, ...]:
    """By runs in the cloud, and for setting them up."""
    return (TPU, COMPUTE, STORAGE, IAM, PROJECTS, *([SECRETS] if settings.secret_names else []))


def useful(settings: CloudSettings) -> tuple[str, ...]:
    """Those, and what `doctor` looks through."""
    return (*needed(settings), BILLING, QUOTAS)


def states(rest: GoogleRest, apis: Iterable[str]) -> dict[str, bool]:
    """Which are on."""
    names = list(apis)
    path = f"v1/projects/{rest.project}/services"
    found = rest.get("serviceusage", f"{path}:batchGet", names=[f"projects/{rest.project}/services/{name}" for name in names])
    on = {item["config"]["name"] for item in found.get("services", ()) if item.get("state") == "ENABLED"}
    return {name: name in on for name in names}


def enable(rest: GoogleRest, apis: Iterable[str], *, wait: Callable[[float], None] = time.sleep) -> None:
    """All of them or none; returns when Google says that it is done. Raises CloudRefused after ten minutes."""
    body = {"serviceIds": list(apis)}
    operation = rest.post("serviceusage", f"v1/projects/{rest.project}/services:batchEnable", body)
    give_up_at = time.monotonic() + _SECONDS
    pause = 0.2
    while not operation.get("done"):
        if time.monotonic() > give_up_at:
            raise CloudRefused(
                f"Google has been turning on {', '.join(body['serviceIds'])} for ten minutes; run this again later"
            )
        wait(pause)
        pause = min(5.0, 2 * pause)
        operation = rest.get("serviceusage", f"v1/{operation['name']}")
    if failed := operation.get("error"):
        raise GoogleError("serviceusage", 400, str(failed.get("code", "")), str(failed.get("message", "")))


def settled(act: Callable[[], None], *, wait: Callable[[float], None] = time.sleep) -> None:
    """Do it, again while an API that was turned on a moment ago still says that it is off."""
    give_up_at = time.monotonic() + _SETTLE_SECONDS
    while True:
        try:
            return act()
        except GoogleError as error:
            if not error.is_off or time.monotonic() > give_up_at:
                raise
        wait(5.0)
