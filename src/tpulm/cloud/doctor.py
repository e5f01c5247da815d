"""What a run in the cloud needs and whether it is there: looks at everything, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tpulm.cloud import checks_bucket, checks_network, checks_project, checks_tpu, checks_worker
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.look import Check, Look
from tpulm.cloud.settings import CloudSettings
from tpulm.errors import CloudRefused, ConfigError

__all__ = ["Check", "examine"]


@dataclass(frozen=True)
class _Examination:
    name: str
    make: Callable[[Look], Check]
    after: tuple[str, ...] = ()  # without these to be found well, it is not made


def examine(settings: CloudSettings, *, rest: GoogleRest | None = None) -> list[Check]:
    """Every check, in the order of their dependence. Raises MissingExtra alone."""
    look = Look(settings, rest)
    found: dict[str, Check] = {}
    causes: dict[str, str] = {}  # of what was not found well, or not looked for: the check that is to blame
    for examination in _examinations(settings):
        name = examination.name
        cause = next((causes[before] for before in examination.after if before in causes), None)
        if cause is not None:
            found[name] = Check(name, None, f"not checked, because of '{cause}' above")
        else:
            found[name] = _made(examination, look)
        if cause is not None or found[name].ok is False:
            causes[name] = cause or name
    return list(found.values())


def _examinations(settings: CloudSettings) -> Iterator[_Examination]:
    project = ("project",)
    yield _Examination("credentials", checks_project.credentials)
    yield _Examination("project", checks_project.project, ("credentials",))
    yield _Examination("billing", checks_project.billing, project)
    yield _Examination("APIs", checks_project.services, project)
    yield _Examination("you: TPUs", checks_project.own_nodes, project)
    yield _Examination("zones", checks_tpu.zones, project)
    yield _Examination("quota", checks_tpu.quota, (*project, "zones"))
    yield _Examination("price", checks_tpu.price)
    yield _Examination("network", checks_network.network, project)
    if settings.zones:
        yield _Examination("subnetwork", checks_network.subnetwork, (*project, "network"))
        if not settings.external_addresses:
            yield _Examination("Private Google Access", checks_network.private_access, (*project, "subnetwork"))
        elif settings.accelerator:
            yield _Examination("external addresses", checks_network.addresses, project)
    if not settings.buckets:
        nothing = Check("bucket", None, "none is named", 'bucket = "NAME" in cloud.toml, or --bucket')
        yield _Examination("bucket", lambda look: nothing)
    for label, bucket in settings.labelled_buckets.items():
        yield _Examination(label, partial(checks_bucket.exists, name=label, bucket=bucket), project)
        yield _Examination(
            f"{label}: location", partial(checks_bucket.location, name=f"{label}: location", bucket=bucket), (label,)
        )
        yield _Examination(f"you: {label}", partial(checks_project.own_bucket, name=f"you: {label}", bucket=bucket), (label,))
    account = ("VM account",)
    yield _Examination("VM account", checks_worker.account, project)
    yield _Examination("you: VM account", checks_project.own_account, account)
    yield _Examination("VM account: its TPU", checks_worker.deletion, account)
    for label, bucket in settings.labelled_buckets.items():
        name = f"VM account: {label}"
        yield _Examination(name, partial(checks_worker.bucket, name=name, bucket=bucket), (*account, label))
    for variable in settings.secrets:
        yield _Examination(f"secret {variable}", partial(checks_worker.secret, variable=variable), account)


def _made(examination: _Examination, look: Look) -> Check:
    """What may not be seen hides nothing else."""
    name = examination.name
    try:
        return examination.make(look)
    except ConfigError as error:  # of a pattern among the zones
        return Check(name, None, f"not checked: {error}")
    except CloudRefused as error:  # of the credentials
        what, _, remedy = str(error).partition("; ")
        return Check(name, False, what, remedy)
    except GoogleError as error:
        if api := error.is_off:
            return Check(name, None, f"not checked, because the API {api} is off", "tpulm cloud setup")
        if error.refused:
            lacking = error.permission or "a permission that Google does not name"
            return Check(name, None, f"not checked, because you lack {lacking} ({error})")
        return Check(name, None, f"not checked, because {error.service}.googleapis.com answered: {error}", "try again later")
