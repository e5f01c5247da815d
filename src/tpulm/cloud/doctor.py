"""Checks that a project has everything a run in the cloud needs; changes nothing.

Paths and fields of networks: https://cloud.google.com/compute/docs/reference/rest/v1 (networks, subnetworks, regions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from tpulm import readable
from tpulm.cloud import google_rest, policies, prices
from tpulm.cloud.google_rest import GoogleError, GoogleRest, Identity
from tpulm.cloud.provider import ADDRESSES
from tpulm.cloud.settings import CloudSettings, region_of
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, ConfigError, Unavailable, suggest

CONSOLE = "https://console.cloud.google.com"
OBJECTS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
SELF_DELETION = ("tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list")
ACCESS = "secretmanager.versions.access"
ACT_AS = "iam.serviceAccounts.actAs"
_NODES = ("tpu.nodes.create", *SELF_DELETION, "tpu.operations.get")  # queued resources have no permissions of their own
_PATIENCE_SECONDS = 20.0  # somebody is waiting
_SETUP = "tpulm cloud setup"

_DUAL_REGIONS = {  # Google's predefined ones
    "NAM4": ("us-central1", "us-east1"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
}
_CONTINENTS = {"US": "us", "EU": "europe", "ASIA": "asia"}

Answer = TypeVar("Answer")


class CheckResult(NamedTuple):
    """What a check found; `ok` with a remedy is a warning."""

    ok: bool | None  # None: not checked
    found: str
    remedy: str = ""  # a command, a page, or what to change in cloud.toml


@dataclass(frozen=True)
class Check:
    """A finding with the name of the check."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""


class _Entry(NamedTuple):
    name: str
    look: Callable[[Project], CheckResult]
    after: tuple[str, ...] = ()  # checks that must pass first


def examine(settings: CloudSettings, *, rest: GoogleRest | None = None) -> list[Check]:
    """Run every check, dependencies first. Raises MissingExtra only."""
    project = Project(settings, rest)
    checks: list[Check] = []
    causes: dict[str, str] = {}  # failed or skipped check -> the check to blame
    for entry in _entries(project):
        cause = next((causes[before] for before in entry.after if before in causes), None)
        finding = CheckResult(None, f"not checked, because of '{cause}' above") if cause else _looked(entry, project)
        checks.append(Check(entry.name, *finding))
        if cause or finding.ok is False:
            causes[entry.name] = cause or entry.name
    return checks


def require(settings: CloudSettings) -> None:
    """Raises CloudRefused with everything that is wrong, and how to fix it."""
    wrong = [check for check in examine(settings) if check.ok is False]
    if wrong:
        listed = "\n".join(f"  {check.name}: {check.found}" + (f"; {check.remedy}" if check.remedy else "") for check in wrong)
        raise CloudRefused(
            f"nothing was launched:\n{listed}\n'tpulm cloud doctor' shows all that is looked at; --no-check launches even so"
        )


def _entries(project: Project) -> Iterator[_Entry]:
    settings, rest = project.settings, project.rest
    exists, account, buckets = ("project",), ("VM account",), [("bucket", name) for name in settings.buckets]
    worker = policies.account(rest, settings.service_account)
    yield _Entry("credentials", credentials)
    yield _Entry("project", project_exists, ("credentials",))
    yield _Entry("billing", billing, exists)
    yield _Entry("APIs", services, exists)
    yield _Entry("you: TPUs", partial(_own, place=policies.project(rest), wanted=_NODES, role="tpu.admin"), exists)
    if settings.accelerator:
        yield _Entry("zones", zones, exists)
        yield _Entry("quota", quota, (*exists, "zones"))
        yield _Entry("price", price)
    else:
        for name in ("zones", "quota", "price"):
            yield _Entry(name, _no_accelerator)
    yield _Entry("network", network, exists)
    if settings.zones:
        yield _Entry("subnetwork", subnetwork, (*exists, "network"))
        if not settings.external_addresses:
            yield _Entry("Private Google Access", private_access, (*exists, "subnetwork"))
        elif settings.accelerator:
            yield _Entry("external addresses", addresses, exists)
    if not buckets:
        yield _Entry("bucket", lambda project: CheckResult(None, "none is named", 'bucket = "NAME" in cloud.toml, or --bucket'))
    for label, bucket in buckets:
        yield _Entry(label, partial(_bucket_exists, bucket=bucket), exists)
        yield _Entry(f"{label}: location", partial(_bucket_location, bucket=bucket), (label,))
        objects = policies.bucket(rest, bucket)
        yield _Entry(f"you: {label}", partial(_own, place=objects, wanted=OBJECTS, role="storage.objectAdmin"), (label,))
    yield _Entry("VM account", _worker_account, exists)
    yield _Entry("you: VM account", partial(_own, place=worker, wanted=(ACT_AS,), role="iam.serviceAccountUser"), account)
    yield _Entry("VM account: its TPU", _self_deletion, account)
    for label, bucket in buckets:
        objects = policies.bucket(rest, bucket)
        yield _Entry(f"VM account: {label}", partial(_rights, place=objects, wanted=OBJECTS), (*account, label))
    for variable, source in settings.secrets.items():
        yield _Entry(f"secret {variable}", partial(_secret, source=source), account)


def _looked(entry: _Entry, project: Project) -> CheckResult:
    """What the check found; errors are findings, too, so that all other checks still run."""
    try:
        return entry.look(project)
    except ConfigError as error:  # a zone pattern that matches nothing
        return CheckResult(None, f"not checked: {error}")
    except CloudRefused as error:  # the credentials
        what, _, remedy = str(error).partition("; ")
        return CheckResult(False, what, remedy)
    except GoogleError as error:
        if api := error.is_off:
            return CheckResult(None, f"not checked, because the API {api} is off", _SETUP)
        if error.refused:
            lacking = error.permission or "a permission that Google does not name"
            remedy = _grant(project, policies.project(project.rest), "compute.viewer") if error.service == "compute" else ""
            return CheckResult(None, f"not checked, because you lack {lacking} ({error})", remedy)
        return CheckResult(None, f"not checked, because {error.service}.googleapis.com answered: {error}", "try again later")


class Project:
    """What doctor and setup read of a project, mostly cached. Raises GoogleError for what the caller may not see."""

    def __init__(self, settings: CloudSettings, rest: GoogleRest | None = None):
        self.settings = settings
        self.id = settings.project
        self.rest = rest or GoogleRest(settings.project, patience_seconds=_PATIENCE_SECONDS)
        self.roles = policies.Roles(self.rest)
        self._tpu = TpuApi(settings.project, self.rest)
        self._known: dict[tuple[str, str], Any] = {}

    @cached_property
    def identity(self) -> Identity:
        return google_rest.identity(self.rest)

    @cached_property
    def apis(self) -> dict[str, bool]:
        """Useful APIs -> whether they are enabled."""
        return google_rest.enabled_apis(self.rest, google_rest.useful_apis(self.settings))

    @cached_property
    def policy(self) -> dict[str, Any]:
        return policies.project(self.rest).read()

    @cached_property
    def known_zones(self) -> tuple[str, ...]:
        return tuple(_as_rest_errors(self._tpu.zones))

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """The zones of the settings, patterns expanded. Raises ConfigError for a pattern that matches nothing."""
        if not any(zone.endswith("*") for zone in self.settings.zones):
            return self.settings.zones
        return self.settings.expanded(self.known_zones).zones

    def types(self, zone: str) -> set[str]:
        return self._once("types", zone, lambda: _as_rest_errors(lambda: self._tpu.types(zone)))

    def bucket(self, name: str) -> dict[str, Any] | None:
        return self._once("bucket", name, lambda: self.rest.find("storage", f"storage/v1/b/{name}"))

    def compute(self, path: str) -> dict[str, Any] | None:
        """A resource of Compute Engine, by its path below projects/."""
        return self._once("compute", path, lambda: self.rest.find("compute", f"compute/v1/projects/{path}"))

    def _once(self, kind: str, name: str, ask: Callable[[], Any]) -> Any:
        if self._known.get((kind, name)) is None:
            self._known[kind, name] = ask()
        return self._known[kind, name]

    def account(self, email: str | None = None) -> dict[str, Any] | None:
        """A service account, by default the VMs'."""
        return self.rest.find("iam", policies.account_path(email or self.settings.service_account))

    def worker_may(self, policy: dict[str, Any]) -> frozenset[str]:
        """What a policy permits the VMs' account."""
        return self.roles.of(policies.roles_of(policy, f"serviceAccount:{self.settings.service_account}"))


def _as_rest_errors(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except (CloudRefused, Unavailable) as error:
        if isinstance(error.__cause__, GoogleError):
            raise error.__cause__ from None
        raise


# -- you and the project ------------------------------------------------------------------------------------------------


def credentials(project: Project) -> CheckResult:
    try:
        who = project.identity
    except CloudRefused as error:
        what, _, remedy = str(error).partition(". ")
        return CheckResult(False, what, remedy)
    return CheckResult(True, f"{who.email}, by {who.source}" if who.email else who.source)


def project_exists(project: Project) -> CheckResult:
    try:
        found = project.rest.get("cloudresourcemanager", f"v3/projects/{project.id}")
    except GoogleError as error:
        if error.status == 0:
            return CheckResult(False, str(error), "see to the network of this machine, or its proxy (HTTPS_PROXY)")
        if not (error.refused or error.missing):
            raise
        try:  # Resource Manager is off in a new project, and not everybody may ask it
            _ = project.apis
        except GoogleError as second:
            if not (second.refused or second.missing):
                raise
            remedy = "correct it in cloud.toml or --project: 'gcloud projects list' shows yours, 'gcloud projects create ID' "
            return CheckResult(
                False, f"there is no project {project.id}, or you may not see it ({error})", f"{remedy}makes one"
            )
        return CheckResult(True, project.id)
    if found.get("state") != "ACTIVE":
        return CheckResult(
            False, f"{project.id} is in the state {found.get('state')}", f"gcloud projects undelete {project.id}"
        )
    return CheckResult(True, project.id)


def billing(project: Project) -> CheckResult:
    found = project.rest.get("cloudbilling", f"v1/projects/{project.id}/billingInfo")
    if found.get("billingEnabled"):
        return CheckResult(True, found.get("billingAccountName", "").removeprefix("billingAccounts/") or "on")
    lacking = f"{project.id} has no billing account, without which there are neither TPUs nor buckets"
    return CheckResult(False, lacking, f"{CONSOLE}/billing/linkedaccount?project={project.id}")


def services(project: Project) -> CheckResult:
    needed = google_rest.needed_apis(project.settings)
    off = [name for name in needed if not project.apis[name]]
    shown = ", ".join(name.removesuffix(".googleapis.com") for name in off or needed)
    return CheckResult(False, f"off: {shown}", _SETUP) if off else CheckResult(True, f"on: {shown}")


def _own(project: Project, place: policies.Place, wanted: tuple[str, ...], role: str) -> CheckResult:
    granted = place.tested(wanted)
    if lacking := [permission for permission in wanted if permission not in granted]:
        return CheckResult(False, f"you lack {', '.join(lacking)} on {place.name}", _grant(project, place, role))
    return CheckResult(True, _grouped(wanted))


def _grant(project: Project, place: policies.Place, role: str) -> str:
    return f"{place.grant_command(project.identity.member, role)}   (by somebody who may)"


# -- the TPU: where it is offered, quota, price -------------------------------------------------------------------------


def _no_accelerator(project: Project) -> CheckResult:
    remedy = 'accelerator = "v3-8" in cloud.toml, or --accelerator TYPE'
    return CheckResult(None, "not checked, because no accelerator is named", remedy)


def zones(project: Project) -> CheckResult:
    kind = project.settings.kind
    try:
        wanted = project.zones
    except ConfigError as error:
        return CheckResult(False, str(error), f"zones = {_toml(kind.zones)} in cloud.toml")
    known = project.known_zones
    missing = [zone for zone in wanted if zone not in known]
    without = [zone for zone in wanted if zone in known and kind.name not in project.types(zone)]
    good = [zone for zone in wanted if zone not in (*missing, *without)]
    wrong = [f"no zone with TPUs is named {zone}.{suggest(zone, known)}".rstrip(".") for zone in missing]
    wrong += [f"{kind.name} is not offered in {', '.join(without)}"] if without else []
    if wrong:
        return CheckResult(
            False, "; ".join(wrong), f"zones = {_toml(good or kind.zones)} in cloud.toml, or another accelerator"
        )
    return CheckResult(True, f"{kind.name} is offered in {', '.join(good)}")


def quota(project: Project) -> CheckResult:
    """Quotas are per region and per zone, whichever exist, and separate for on demand and spot."""
    kind, spot = project.settings.kind, project.settings.spot
    stem = kind.quota.format(spot="Preemptible" * spot, pod="Pod" * (kind.hosts > 1), serving="Serving" * (kind.hosts == 1))
    of_region, of_zone = (f"{stem}PerProjectPer{place}ForTPUAPI" for place in ("Region", "Zone"))
    path = f"v1/projects/{project.id}/locations/global/services/tpu.googleapis.com/quotaInfos"
    pages = project.rest.pages("cloudquotas", path, pageSize=500)
    infos = {info.get("quotaId"): info for found in pages for info in found.get("quotaInfos", ())}
    page = f"{CONSOLE}/iam-admin/quotas?project={project.id}"
    if of_region not in infos and of_zone not in infos:
        return CheckResult(None, f"Google lists no quota {of_zone}, nor one per region", f"{page} (filter: Cloud TPU API)")
    needed = int(kind.name.rpartition("-")[2])  # quota counts what the type's name counts
    unit = "chips" if needed == kind.chips else "cores"
    short: dict[str, str] = {}
    enough: list[str] = []
    for zone in project.zones:
        places = ((of_region, region_of(zone)), (of_zone, zone))
        limits = {f"{name} in {place}": _limit(infos[name], place) for name, place in places if name in infos}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        lacking = {name: f"{limit} of {needed} {unit}" for name, limit in limits.items() if 0 <= limit < needed}
        short |= lacking
        if limits and not lacking:
            enough.append(zone)
    form = "spot" if spot else "on demand"
    if short:
        limits = "; ".join(f"{name}: {limit}" for name, limit in short.items())
        instead = f", or zones = {_toml(enough)} in cloud.toml" if enough else ""
        return CheckResult(
            False, f"too little for a {kind.name}, {form}: {limits}", f"ask for {needed} of it at {page}{instead}"
        )
    if not enough:
        return CheckResult(None, f"Google lists no limit for {', '.join(project.zones)}", page)
    return CheckResult(True, f"enough for a {kind.name}, {form}, in {', '.join(enough)}")


def _limit(info: dict[str, Any], place: str) -> int | None:
    """The limit of a region or zone; -1: unlimited; None: not listed.

    The place's own entry takes precedence over one without dimensions, the default of many places. A missing value is zero.
    """
    items = info.get("dimensionsInfos", ())
    own = [item for item in items if place in item.get("dimensions", {}).values()]
    default = [item for item in items if not item.get("dimensions") and place in item.get("applicableLocations", [place])]
    return next((int(item.get("details", {}).get("value", 0)) for item in (*own, *default)), None)


def price(project: Project) -> CheckResult:
    """The price in the most expensive zone, by which a budget is counted until there is a node."""
    settings, zones, notes = project.settings, project.zones, list[str]()
    try:
        found = prices.of(settings, zones, rest=project.rest, note=notes.append)
    except ConfigError as error:
        return CheckResult(False, "; ".join([str(error), *notes]), "dollars_per_hour = … in cloud.toml, or other zones")
    unknown = f"none is known in {', '.join(zone for zone in zones if zone not in found)}"
    if not found:
        return CheckResult(None, "; ".join([unknown, *notes]), "dollars_per_hour = … in cloud.toml")
    dearest = max(found.values(), key=lambda item: item.dollars_per_hour)
    facts, remedy = [str(dearest), *notes], ""
    if settings.budget is None:
        facts[1:1] = [unknown] if len(found) < len(zones) else []
        facts.append("no budget is set")
        if dearest.dollars_per_hour:
            remedy = "budget = 100 in cloud.toml ends runs that would cost more dollars"
    elif dearest.dollars_per_hour:
        bought = readable.duration(settings.budget / dearest.dollars_per_hour * 3600)
        facts.append(f"{readable.dollars(settings.budget)} buy {bought}")
    else:
        facts.append("the budget is never reached")
    return CheckResult(True, "; ".join(facts), remedy)


# -- networks -----------------------------------------------------------------------------------------------------------

_NAMED = re.compile(r"(?:.*?\bprojects/(?P<project>[^/]+)/)?(?:global|regions/(?P<region>[^/]+))/[a-z]+/(?P<name>[^/]+)")


class _Net(NamedTuple):
    """A network or subnetwork; the project may be the host of a Shared VPC."""

    project: str
    name: str
    region: str | None = None

    def in_region(self, region: str) -> str:
        """The path of a subnetwork."""
        return f"{self.project}/regions/{region}/subnetworks/{self.name}"


def network(project: Project) -> CheckResult:
    wanted = _network(project)
    found = project.compute(f"{wanted.project}/global/networks/{wanted.name}")
    if found is None:
        remedy = f"gcloud compute networks create {wanted.name} --subnet-mode=auto --project={wanted.project}, or "
        lacking = f"there is no network {wanted.name} in {wanted.project}"
        return CheckResult(False, lacking, f'{remedy}network = "NAME" in cloud.toml')
    if project.settings.subnetwork is None and not found.get("autoCreateSubnetworks"):
        there = (_named(url, "") for url in found.get("subnetworks", ()))
        names = sorted({place.name for place in there if place.region in project.settings.regions})
        remedy = f'subnetwork = "{names[0] if names else "NAME"}" in cloud.toml'
        return CheckResult(False, f"{wanted.name} is a network in custom mode, and no subnetwork is named", remedy)
    return CheckResult(True, wanted.name)


def subnetwork(project: Project) -> CheckResult:
    """The subnetwork must exist in the network, in every region of the zones."""
    of, wanted = _network(project), _subnetwork(project)
    missing: dict[str, str] = {}
    for region in project.settings.regions:
        if wanted.region not in (None, region):
            missing[region] = f"{wanted.name} is in {wanted.region}, not in {region}"
        elif (found := project.compute(wanted.in_region(region))) is None:
            missing[region] = f"there is no subnetwork {wanted.name} in {region}"
        elif (its := found.get("network", of.name).rpartition("/")[2]) != of.name:
            missing[region] = f"{wanted.name} in {region} is of the network {its}, not of {of.name}"
    if missing:
        remedy = f'another subnetwork = "NAME" in cloud.toml{_other_zones(project, missing)}'
        return CheckResult(False, "; ".join(missing.values()), remedy)
    return CheckResult(True, f"{wanted.name} in {', '.join(project.settings.regions)}")


def private_access(project: Project) -> CheckResult:
    """Checks Private Google Access, the only way to Google's services for VMs without external addresses."""
    wanted, regions = _subnetwork(project), project.settings.regions
    there = {region: project.compute(wanted.in_region(region)) or {} for region in regions}
    if off := [region for region in regions if not there[region].get("privateIpGoogleAccess")]:
        where = ", ".join(f"{wanted.name} in {region}" for region in off)
        update = f"gcloud compute networks subnets update {wanted.name} --region={off[0]} --enable-private-ip-google-access"
        message = f"off on {where}: VMs without external addresses do not reach the bucket"
        return CheckResult(False, message, f"{update} --project={wanted.project}")
    return CheckResult(True, f"on in {', '.join(regions)}")


def addresses(project: Project) -> CheckResult:
    """Checks the regions' quotas of external addresses: every host needs one."""
    kind = project.settings.kind
    free: dict[str, str] = {}
    short: dict[str, str] = {}
    for region in project.settings.regions:
        quotas = (project.compute(f"{project.id}/regions/{region}") or {}).get("quotas", ())
        for item in (item for item in quotas if item.get("metric") == ADDRESSES):
            limit, used = float(item.get("limit", 0)), float(item.get("usage", 0))
            free[region] = f"{limit - used:g} of {limit:g} free in {region}"
            if limit >= 0 and limit - used < kind.hosts:
                short[region] = free[region]
    if short:
        return CheckResult(
            False,
            f"{kind.name} takes {kind.hosts}: {'; '.join(short.values())} ({ADDRESSES})",
            "external_addresses = false in cloud.toml (with Private Google Access, and Cloud NAT for what is not Google's), or "
            f"ask for more at {CONSOLE}/iam-admin/quotas?project={project.id}{_other_zones(project, short)}",
        )
    if not free:
        return CheckResult(None, f"Google lists no quota {ADDRESSES}")
    return CheckResult(True, f"{kind.hosts} needed; {'; '.join(free.values())}")


def _other_zones(project: Project, bad: Iterable[str]) -> str:
    """Suggests the zones of the settings outside the bad regions."""
    there = [zone for zone in project.settings.zones if region_of(zone) not in bad]
    return f", or zones = {_toml(there)}" if there else ""


def _network(project: Project) -> _Net:
    return _named(project.settings.network or "default", project.id)


def _subnetwork(project: Project) -> _Net:
    """In auto mode, subnetworks have the network's name."""
    of = _network(project)
    return of if project.settings.subnetwork is None else _named(project.settings.subnetwork, of.project)


def _named(text: str, project: str) -> _Net:
    if found := _NAMED.fullmatch(text):
        return _Net(found["project"] or project, found["name"], found["region"])
    return _Net(project, text)


# -- buckets ------------------------------------------------------------------------------------------------------------


def _bucket_exists(project: Project, bucket: str) -> CheckResult:
    try:
        found = project.bucket(bucket)
    except GoogleError as error:
        if not error.refused or error.is_off:
            raise
        return CheckResult(
            False,
            f"gs://{bucket} is somebody else's, or you may not look at it ({error})",
            "choose another name in cloud.toml (names of buckets are unique in the world), or have yourself granted "
            f"roles/storage.admin on gs://{bucket}",
        )
    if found is None:
        return CheckResult(False, f"there is no bucket gs://{bucket}", _SETUP)
    days = int(found.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)) / 86400
    update = f"gcloud storage buckets update gs://{bucket}"
    if found.get("versioning", {}).get("enabled"):
        waste = "it keeps old versions: every deleted checkpoint is billed for good"
        return CheckResult(True, f"gs://{bucket}, but {waste}", f"{update} --no-versioning --clear-soft-delete")
    if days:
        waste = f"it keeps what is deleted for {days:g} days (soft delete): so long is every deleted checkpoint billed"
        return CheckResult(True, f"gs://{bucket}, but {waste}", f"{update} --clear-soft-delete")
    return CheckResult(True, f"gs://{bucket}")


def _bucket_location(project: Project, bucket: str) -> CheckResult:
    found = project.bucket(bucket) or {}
    where, own = str(found["location"]), found.get("customPlacementConfig", {}).get("dataLocations")
    regions = [region.lower() for region in own] if own else _DUAL_REGIONS.get(where, (where.lower(),))
    if not project.zones:
        return CheckResult(None, f"{where}; not compared, because no zones are named")
    continent = None if "customPlacementConfig" in found else _CONTINENTS.get(where)

    def beside(zones: Iterable[str]) -> list[str]:
        return [zone for zone in zones if region_of(zone) in regions or (continent and zone.startswith(f"{continent}-"))]

    near, first = beside(project.zones), region_of(project.zones[0])
    if not near:
        there = beside(project.settings.kind.zones) if project.settings.accelerator else []
        instead = f"zones = {_toml(there)} in cloud.toml, or " if there else ""
        return CheckResult(
            False,
            f"{where}, but the TPUs are in {', '.join(project.zones)}: slow, and every byte between them is charged",
            f"{instead}name another bucket, which '{_SETUP}' makes in {first}",
        )
    if far := [zone for zone in project.zones if zone not in near]:
        remedy = f"zones = {_toml(near)} keeps TPUs and data together (cloud.toml)"
        return CheckResult(True, f"{where}; far from {', '.join(far)}", remedy)
    if continent:
        message = f"{where}, all of a continent: what TPUs read from there is charged, and slower"
        return CheckResult(True, message, f"a bucket in {first} itself is cheaper")
    return CheckResult(True, where)


# -- the VMs' account ---------------------------------------------------------------------------------------------------


def _worker_account(project: Project) -> CheckResult:
    email = project.settings.service_account
    found = project.account()
    if found is None:
        remedy = _SETUP
        if not email.endswith(f"@{project.id}.iam.gserviceaccount.com"):
            remedy = "correct service_account in cloud.toml: setup makes accounts in the run's own project only"
        return CheckResult(False, f"there is no account {email}", remedy)
    if found.get("disabled"):
        return CheckResult(False, f"{email} is disabled", f"gcloud iam service-accounts enable {email}")
    return CheckResult(True, email)


def _self_deletion(project: Project) -> CheckResult:
    """Without this, a finished VM is billed until the supervisor deletes it."""
    may = project.worker_may(project.policy)
    if lacking := [permission for permission in SELF_DELETION if permission not in may]:
        return CheckResult(False, f"it lacks {', '.join(lacking)}, and cannot delete its TPU when done", _SETUP)
    return CheckResult(True, _grouped(SELF_DELETION))


def _secret(project: Project, source: str) -> CheckResult:
    """A secret is in Secret Manager, or an object in a bucket."""
    if source.startswith("gs://"):
        bucket, _, name = source.removeprefix("gs://").partition("/")
        there = project.rest.find("storage", f"storage/v1/b/{bucket}/o/{quote(name, safe='')}")
        lacking = CheckResult(False, f"there is no object {source}", f"gcloud storage cp FILE {source}")
        place, wanted = policies.bucket(project.rest, bucket), "storage.objects.get"
    else:
        there = project.rest.find("secretmanager", f"v1/projects/{project.id}/secrets/{source}")
        lacking = CheckResult(False, f"there is no secret {source}", how_to_make(source, project.id))
        place, wanted = policies.secret(project.rest, source), ACCESS
    return lacking if there is None else _rights(project, place, (wanted,))


def how_to_make(secret: str, project: str) -> str:
    return f"gcloud secrets create {secret} --data-file=FILE --project={project}"


def _rights(project: Project, place: policies.Place, wanted: tuple[str, ...]) -> CheckResult:
    may = project.worker_may(place.read())
    unseen = False
    if not may.issuperset(wanted):
        try:
            may |= project.worker_may(project.policy)
        except GoogleError as error:
            if not error.refused:
                raise
            unseen = True
    lacking = ", ".join(permission for permission in wanted if permission not in may)
    if not lacking:
        return CheckResult(True, _grouped(wanted))
    remedy = _SETUP  # which grants rights on the buckets and secrets of cloud.toml only
    if place.service == "storage" and place.name.removeprefix("gs://") not in project.settings.buckets:
        remedy = place.grant_command(f"serviceAccount:{project.settings.service_account}", "storage.objectViewer")
    if unseen:
        message = f"{place.name} itself does not grant it {lacking}; what the project grants, you may not see"
        return CheckResult(None, message, remedy)
    return CheckResult(False, f"it lacks {lacking} on {place.name}", remedy)


def _grouped(permissions: Iterable[str]) -> str:
    """ "tpu.nodes.get", "tpu.nodes.list" -> "tpu.nodes: get, list"."""
    groups: dict[str, list[str]] = {}
    for permission in permissions:
        kind, _, verb = permission.rpartition(".")
        groups.setdefault(kind, []).append(verb)
    return "; ".join(f"{kind}: {', '.join(verbs)}" for kind, verbs in groups.items())


def _toml(names: Iterable[str]) -> str:
    """ "a", "b" -> ["a", "b"], for what to write into cloud.toml."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
