"""Looks at what runs in the cloud need of a project, and makes what is missing.

`examine` changes nothing. A check that finds something missing brings the steps that make it, where setup can. Every step is
idempotent, so an interrupted setup is simply run again. Existing buckets keep their settings, policies their other bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from tpulm.cloud import google_rest, policies
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.provider import making_network
from tpulm.cloud.settings import CloudSettings, is_of_regions, near, region_of
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, ConfigError, TpulmError, Unavailable, suggest
from tpulm.runtime.hosts import DEFAULT_PORT

SETUP = "tpulm cloud setup"
_CONSOLE = "https://console.cloud.google.com"
_OBJECTS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
_SELF_DELETION = ("tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list")
_NODES = ("tpu.nodes.create", *_SELF_DELETION, "tpu.operations.get")  # queued resources have no permissions of their own
_PATIENCE_SECONDS = 20.0  # somebody is waiting
_UPLOAD_DAYS = 7

_NO_OBSTACLES = ("zones", "quota", "network", "bucket: location", "secrets", "your rights")  # to setup

Answer = TypeVar("Answer")


class SetupStep(NamedTuple):
    what: str  # "make the bucket gs://runs in us-central1"
    detail: str
    act: Callable[[], object]


class SetupCheck(NamedTuple):
    """What a check found; `ok` with a remedy is a warning."""

    ok: bool | None  # None: not checked
    found: str
    remedy: str = ""  # a command, a page, or what to change in cloud.toml
    steps: tuple[SetupStep, ...] = ()  # that make what is missing
    name: str = ""


class _Grant(NamedTuple):
    place: policies.Place
    permissions: tuple[str, ...]  # needed there, through this role or another
    role: str


def examine(settings: CloudSettings, *, rest: GoogleRest | None = None) -> list[SetupCheck]:
    """Run every check, dependencies first. Raises MissingExtra only."""
    project = Project(settings, rest)
    checks: list[SetupCheck] = []
    causes: dict[str, str] = {}  # failed or skipped check -> the check to blame
    for name, run_check, after in _table(project):
        cause = causes.get(after)
        check = SetupCheck(None, f"not checked, because of '{cause}' above") if cause else _result_of(run_check, project)
        checks.append(check._replace(name=name))
        if cause or check.ok is False:
            causes[name] = cause or name
    return checks


def steps(checks: Iterable[SetupCheck]) -> list[SetupStep]:
    """What is missing and can be made, in order. Raises CloudRefused for what has to be mended first, such as billing."""
    checks = list(checks)
    for check in checks:
        if check.ok is False and not check.steps and check.name not in _NO_OBSTACLES:
            raise CloudRefused(f"{check.found}: {check.remedy}")
    return [step for check in checks for step in check.steps]


def apply(steps: Iterable[SetupStep], *, log: Callable[[SetupStep], None] = lambda step: None) -> None:
    """Take the steps in order. Raises CloudRefused with the missing permission; TpulmError for transient errors."""
    for step in steps:
        log(step)
        try:
            google_rest.when_enabled(step.act)
        except GoogleError as error:
            if error.refused:
                lacking = error.permission or "a permission that Google does not name"
                raise CloudRefused(
                    f"cannot {step.what}: you lack {lacking} ({error}); have an owner of the project run this or grant it"
                ) from error
            if error.is_final:
                raise CloudRefused(f"cannot {step.what}: {error}") from error
            raise TpulmError(f"cannot {step.what}: {error}; run the same command again to continue where it stopped") from error


def require(settings: CloudSettings) -> None:
    """Raises CloudRefused with everything that is wrong, and how to fix it."""
    wrong = [check for check in examine(settings) if check.ok is False]
    if wrong:
        listed = "\n".join(f"  {check.name}: {check.found}" + (f"; {check.remedy}" if check.remedy else "") for check in wrong)
        raise CloudRefused(
            f"nothing was launched:\n{listed}\n'tpulm cloud doctor' shows all checks; --no-check launches regardless"
        )


def _table(project: Project) -> Iterator[tuple[str, Callable[[Project], SetupCheck], str]]:
    """Name, check, and the check that must pass first."""
    settings = project.settings
    yield "credentials", _credentials, ""
    yield "project", _project, "credentials"
    yield "billing", _billing, "project"
    yield "APIs", _apis, "project"
    yield "zones", zones if settings.accelerator else _no_accelerator, "project"
    yield "quota", quota if settings.accelerator else _no_accelerator, "zones"
    yield "network", _network, "project"
    if settings.bucket:
        yield "bucket", _bucket, "project"
        yield "bucket: location", _bucket_location, "bucket"
    else:
        yield "bucket", lambda project: SetupCheck(None, "none is named", 'bucket = "NAME" in cloud.toml, or --bucket'), ""
    yield "VM account", _worker_account, "project"
    yield "VM account: rights", _worker_rights, "project"
    if settings.secrets:
        yield "secrets", _secrets, "project"
    yield "your rights", _own_rights, "project"


def _result_of(examine: Callable[[Project], SetupCheck], project: Project) -> SetupCheck:
    """What the check found; errors are findings, too, so that all other checks still run."""
    try:
        return examine(project)
    except ConfigError as error:  # a zone pattern that matches nothing
        return SetupCheck(None, f"not checked: {error}")
    except (CloudRefused, Unavailable, GoogleError) as raised:
        error = raised.__cause__ if isinstance(raised, TpulmError) else raised
        if not isinstance(error, GoogleError):  # the credentials
            what, _, remedy = str(raised).partition("; ")
            return SetupCheck(False, what, remedy)
        if api := error.disabled_api:
            return SetupCheck(None, f"not checked, because the API {api} is off", SETUP)
        if error.refused:
            lacking = error.permission or "a permission that Google does not name"
            return SetupCheck(None, f"not checked, because you lack {lacking} ({error})")
        return SetupCheck(None, f"not checked, because {error.service}.googleapis.com answered: {error}", "try again later")


class Project:
    """What the checks read of a project, mostly cached. Raises GoogleError, or an error caused by one."""

    def __init__(self, settings: CloudSettings, rest: GoogleRest | None = None):
        self.settings = settings
        self.id = settings.project
        self.rest = rest or GoogleRest(settings.project, patience_seconds=_PATIENCE_SECONDS)
        self.role = cache(partial(policies.permissions_of, self.rest))
        self._tpu = TpuApi(settings.project, self.rest)
        self.types = cache(self._tpu.types)  # by zone

    @cached_property
    def apis(self) -> dict[str, bool]:
        """The APIs that runs need, and those that setup and `prices` read -> whether they are enabled."""
        return google_rest.enabled_apis(self.rest, (*google_rest.needed_apis(self.settings), *google_rest.FOR_READING))

    @cached_property
    def known_zones(self) -> tuple[str, ...]:
        return tuple(self._tpu.zones())

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """The zones of the settings, patterns expanded. Raises ConfigError for a pattern that matches nothing."""
        if not any(zone.endswith("*") for zone in self.settings.zones):
            return self.settings.zones
        return self.settings.expanded(self.known_zones).zones

    def bucket(self) -> dict[str, Any] | None:
        return self.rest.find("storage", f"storage/v1/b/{self.settings.bucket}")


def _get_or_default(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """The answer; `otherwise` for what does not exist yet, or is of an API that is off."""
    try:
        return ask()
    except GoogleError as error:
        if error.missing or error.disabled_api:
            return otherwise
        raise


def _create_once(act: Callable[[], object]) -> bool:
    """Create something; False if it already exists."""
    try:
        act()
    except GoogleError as error:
        if error.status != 409:
            raise
        return False
    return True


# -- you and the project ------------------------------------------------------------------------------------------------


def _credentials(project: Project) -> SetupCheck:
    return SetupCheck(True, google_rest.identity(project.rest))


def _project(project: Project) -> SetupCheck:
    try:
        resource = project.rest.get("cloudresourcemanager", f"v3/projects/{project.id}")
    except GoogleError as error:
        if error.status == 0:
            return SetupCheck(False, str(error), "see to the network of this machine, or its proxy (HTTPS_PROXY)")
        if not (error.refused or error.missing):
            raise
        try:  # Resource Manager is off in a new project, and not everybody may ask it
            _ = project.apis
        except GoogleError as second:
            if not (second.refused or second.missing):
                raise
            remedy = "correct it in cloud.toml or --project: 'gcloud projects list' shows yours, 'gcloud projects create ID' "
            return SetupCheck(False, f"there is no project {project.id}, or you may not see it ({error})", f"{remedy}makes one")
        return SetupCheck(True, project.id)
    if resource.get("state") != "ACTIVE":
        return SetupCheck(
            False, f"{project.id} is in the state {resource.get('state')}", f"gcloud projects undelete {project.id}"
        )
    return SetupCheck(True, project.id)


def _billing(project: Project) -> SetupCheck:
    info = project.rest.get("cloudbilling", f"v1/projects/{project.id}/billingInfo")
    if info.get("billingEnabled"):
        return SetupCheck(True, info.get("billingAccountName", "").removeprefix("billingAccounts/") or "on")
    lacking = f"{project.id} has no billing account, without which there are neither TPUs nor buckets"
    return SetupCheck(False, lacking, f"{_CONSOLE}/billing/linkedaccount?project={project.id}")


def _apis(project: Project) -> SetupCheck:
    off = [name for name in project.apis if not project.apis[name]]
    needed = set(google_rest.needed_apis(project.settings))
    shown = ", ".join(name.removesuffix(".googleapis.com") for name in off or project.apis)
    if not off:
        return SetupCheck(True, f"on: {shown}")
    act = partial(google_rest.enable_apis, project.rest, off)
    step = SetupStep(f"turn on the APIs {shown}", "costs nothing; takes a minute or two", act)
    return SetupCheck(not needed & set(off), f"off: {shown}", SETUP, (step,))


def _own_rights(project: Project) -> SetupCheck:
    rest, settings = project.rest, project.settings
    grants = [_Grant(policies.project(rest), _NODES, "roles/tpu.admin")]
    if settings.bucket:
        grants.append(_bucket_grant(project))
    account = policies.account(rest, settings.service_account)
    grants.append(_Grant(account, ("iam.serviceAccounts.actAs",), "roles/iam.serviceAccountUser"))
    lacking, roles = [], []
    for place, permissions, role in grants:
        granted = _get_or_default(partial(place.tested, permissions), set(permissions))
        if missing := [permission for permission in permissions if permission not in granted]:
            lacking.append(f"{', '.join(missing)} on {place.name}")
            roles.append(f"{role} on {place.name}")
    if lacking:
        return SetupCheck(False, f"you lack {'; '.join(lacking)}", f"an owner of the project grants you {' and '.join(roles)}")
    return SetupCheck(True, "to create TPUs, use the bucket, and act as the VMs' account")


# -- the TPU: where it is offered, and quota ----------------------------------------------------------------------------


def _no_accelerator(project: Project) -> SetupCheck:
    remedy = 'accelerator = "v3-8" in cloud.toml, or --accelerator TYPE'
    return SetupCheck(None, "not checked, because no accelerator is named", remedy)


def zones(project: Project) -> SetupCheck:
    kind = project.settings.kind
    try:
        requested = project.zones
    except ConfigError as error:
        return SetupCheck(False, str(error), f"zones = {_toml(kind.zones)} in cloud.toml")
    known = project.known_zones
    missing = [zone for zone in requested if zone not in known]
    without = [zone for zone in requested if zone in known and kind.name not in project.types(zone)]
    good = [zone for zone in requested if zone not in (*missing, *without)]
    wrong = [f"no zone with TPUs is named {zone}.{suggest(zone, known)}".rstrip(".") for zone in missing]
    wrong += [f"{kind.name} is not offered in {', '.join(without)}"] if without else []
    if wrong:
        return SetupCheck(False, "; ".join(wrong), f"zones = {_toml(good or kind.zones)} in cloud.toml, or another accelerator")
    return SetupCheck(True, f"{kind.name} is offered in {', '.join(good)}")


def quota(project: Project) -> SetupCheck:
    """Quotas are per region and per zone, whichever exist, and separate for on demand and spot."""
    kind, spot = project.settings.kind, project.settings.spot
    stem = kind.quota.format(spot="Preemptible" * spot, pod="Pod" * (kind.hosts > 1), serving="Serving" * (kind.hosts == 1))
    of_region, of_zone = (f"{stem}PerProjectPer{place}ForTPUAPI" for place in ("Region", "Zone"))
    path = f"v1/projects/{project.id}/locations/global/services/tpu.googleapis.com/quotaInfos"
    pages = project.rest.pages("cloudquotas", path, pageSize=500)
    infos = {info.get("quotaId"): info for answer in pages for info in answer.get("quotaInfos", ())}
    page = f"{_CONSOLE}/iam-admin/quotas?project={project.id}"
    if of_region not in infos and of_zone not in infos:
        return SetupCheck(None, f"Google lists no quota {of_zone}, nor one per region", f"{page} (filter: Cloud TPU API)")
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
        return SetupCheck(
            False, f"too little for a {kind.name}, {form}: {limits}", f"ask for {needed} of it at {page}{instead}"
        )
    if not enough:
        return SetupCheck(None, f"Google lists no limit for {', '.join(project.zones)}", page)
    return SetupCheck(True, f"enough for a {kind.name}, {form}, in {', '.join(enough)}")


def _limit(info: dict[str, Any], place: str) -> int | None:
    """The limit of a region or zone; -1: unlimited; None: not listed.

    The place's own entry takes precedence over one without dimensions, the default of many places. A missing value is zero.
    """
    items = info.get("dimensionsInfos", ())
    own = [item for item in items if place in item.get("dimensions", {}).values()]
    default = [item for item in items if not item.get("dimensions") and place in item.get("applicableLocations", [place])]
    return next((int(item.get("details", {}).get("value", 0)) for item in (*own, *default)), None)


def _network(project: Project) -> SetupCheck:
    """Whether the VMs' network exists, and lets the hosts of a slice reach each other."""
    name = project.settings.network or "default"
    path = name if "/" in name else f"projects/{project.id}/global/networks/{name}"
    of_project, _, name = path.rpartition("/networks/")
    if project.rest.find("compute", f"compute/v1/{path}") is None:
        return SetupCheck(False, f"there is no network {name}", f'{making_network(name)}, or network = "NAME" in cloud.toml')
    if not project.settings.accelerator or project.settings.kind.hosts == 1:
        return SetupCheck(True, name)
    rules = [
        rule for page in project.rest.pages("compute", f"compute/v1/{of_project}/firewalls") for rule in page.get("items", ())
    ]
    ports = (DEFAULT_PORT, DEFAULT_PORT + 1)  # the rule that Google adds for slices opens only the first
    if all(any(_opens(rule, name, port) for rule in rules) for port in ports):
        return SetupCheck(True, f"{name}, in which hosts reach each other")
    command = f"gcloud compute firewall-rules create {name}-hosts --project={project.id} --network={name}"
    return SetupCheck(
        False,
        f"no firewall rule of {name} lets the hosts of a slice reach each other on the TCP ports {ports[0]} and {ports[1]}",
        f"{command} --allow=tcp:{ports[0]}-{ports[1]} --source-ranges=10.0.0.0/8,172.16.0.0/12,192.168.0.0/16",
    )


def _opens(rule: dict[str, Any], network: str, port: int) -> bool:
    if rule.get("direction") != "INGRESS" or rule.get("disabled") or rule.get("targetTags"):
        return False
    spans = [
        span.partition("-")
        for allowed in rule.get("allowed", ())
        if allowed.get("IPProtocol") in ("all", "tcp")
        for span in allowed.get("ports", ["0-65535"])
    ]
    return rule["network"].endswith(f"/networks/{network}") and any(
        int(first) <= port <= int(last or first) for first, _, last in spans
    )


# -- buckets ------------------------------------------------------------------------------------------------------------


def _bucket(project: Project) -> SetupCheck:
    name = project.settings.bucket
    try:
        bucket = _get_or_default(project.bucket, None)
    except GoogleError as error:
        if not error.refused:
            raise
        return SetupCheck(
            False,
            f"gs://{name} is somebody else's, or you may not look at it ({error})",
            "choose another name in cloud.toml (names of buckets are unique in the world), or have yourself granted "
            f"roles/storage.admin on gs://{name}",
        )
    if bucket is None:
        missing = f"there is no bucket gs://{name}"
        if not project.settings.zones:
            return SetupCheck(
                False, missing, "it is made in the region of the TPUs: name zones or an accelerator in cloud.toml"
            )
        region = region_of(project.settings.zones[0])
        what, detail = f"make the bucket gs://{name} in {region}", "private, and nothing kept (or billed) after it is deleted"
        return SetupCheck(False, missing, SETUP, (SetupStep(what, detail, partial(_make_bucket, project, region)),))
    days = int(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)) / 86400
    update = f"gcloud storage buckets update gs://{name}"
    if bucket.get("versioning", {}).get("enabled"):
        waste = "it keeps old versions: every deleted checkpoint is billed for good"
        return SetupCheck(True, f"gs://{name}, but {waste}", f"{update} --no-versioning --clear-soft-delete")
    if days:
        waste = f"it keeps what is deleted for {days:g} days (soft delete): so long is every deleted checkpoint billed"
        return SetupCheck(True, f"gs://{name}, but {waste}", f"{update} --clear-soft-delete")
    return SetupCheck(True, f"gs://{name}")


def _make_bucket(project: Project, region: str) -> None:
    """Create a bucket without versioning and soft delete: deleted checkpoints would be billed for another week."""
    body = {
        "name": project.settings.bucket,
        "location": region.upper(),
        "storageClass": "STANDARD",
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
        "lifecycle": {"rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": _UPLOAD_DAYS}}]},
    }
    if not _create_once(lambda: project.rest.post("storage", "storage/v1/b", body, project=project.id)):
        project.bucket()  # ours from an earlier attempt, else this raises


def _bucket_location(project: Project) -> SetupCheck:
    where, zones = str((project.bucket() or {})["location"]), project.zones
    if not zones:
        return SetupCheck(None, f"{where}; not compared, because no zones are named")
    beside, may_be_far = near(where, zones), project.settings.far_bucket
    first = region_of(zones[0])
    if not beside and not may_be_far:
        message = f"{where}, but the TPUs are in {', '.join(zones)}: slow, and every byte between them is charged"
        return SetupCheck(False, message, f"zones in {where.lower()}, or name another bucket, which '{SETUP}' makes in {first}")
    if far := [zone for zone in zones if zone not in beside]:
        message = f"{where}; far from {', '.join(far)}"
        if project.settings.has_default_zones and not may_be_far:
            return SetupCheck(True, f"{message}, which a launch leaves out")
        remedy = (
            f"zones = {_toml(beside)} keeps TPUs and data together; far_bucket = true accepts the distance, and its charges"
        )
        return SetupCheck(may_be_far, message, remedy if beside else "")
    if is_of_regions(where):
        return SetupCheck(
            True, f"{where}, several regions: reads may be slower, and charged", f"a bucket in {first} is cheaper"
        )
    return SetupCheck(True, where)


# -- the VMs' account ---------------------------------------------------------------------------------------------------


def _worker_account(project: Project) -> SetupCheck:
    """One of another project is used but never created, and may be invisible."""
    email, path = project.settings.service_account, policies.account_path(project.settings.service_account)
    account = _get_or_default(lambda: project.rest.find("iam", path), None)
    if account is None:
        if not path.startswith(f"v1/projects/{project.id}/"):
            remedy = "correct service_account in cloud.toml, or make it in its own project"
            return SetupCheck(False, f"there is no account {email}", remedy)
        described = {"displayName": "tpulm worker", "description": "What tpulm's TPU VMs run as"}
        body = {"accountId": email.partition("@")[0], "serviceAccount": described}
        make = partial(project.rest.post, "iam", f"v1/projects/{project.id}/serviceAccounts", body)
        step = SetupStep(f"make the account {email}", "the VMs' own; it has no key to lose", partial(_create_once, make))
        return SetupCheck(False, f"there is no account {email}", SETUP, (step,))
    if account.get("disabled"):
        return SetupCheck(False, f"{email} is disabled", f"gcloud iam service-accounts enable {email}")
    return SetupCheck(True, email)


def _worker_rights(project: Project) -> SetupCheck:
    """A VM that may not delete itself is billed after its end until a supervisor deletes it."""
    own = _Grant(policies.project(project.rest), _SELF_DELETION, f"projects/{project.id}/roles/tpulmWorker")
    return _granted(project, own, *([_bucket_grant(project)] if project.settings.bucket else []))


def _bucket_grant(project: Project) -> _Grant:
    return _Grant(policies.bucket(project.rest, project.settings.bucket), _OBJECTS, "roles/storage.objectAdmin")


def _secrets(project: Project) -> SetupCheck:
    """A secret is in Secret Manager, or an object in a bucket."""
    grants, missing, remedies = list[_Grant](), list[str](), list[str]()
    for source in dict.fromkeys(project.settings.secrets.values()):
        if source.startswith("gs://"):
            bucket, _, name = source.removeprefix("gs://").partition("/")
            find = partial(project.rest.find, "storage", f"storage/v1/b/{bucket}/o/{quote(name, safe='')}")
            command = f"gcloud storage cp FILE {source}"
            grant = _Grant(policies.bucket(project.rest, bucket), ("storage.objects.get",), "roles/storage.objectViewer")
        else:
            find = partial(project.rest.find, "secretmanager", f"v1/projects/{project.id}/secrets/{source}")
            command = f"gcloud secrets create {source} --data-file=FILE --project={project.id}"
            place = policies.secret(project.rest, source)
            grant = _Grant(place, ("secretmanager.versions.access",), "roles/secretmanager.secretAccessor")
        if _get_or_default(find, {}) is None:
            missing.append(source)
            remedies.append(command)
        else:
            grants.append(grant)
    rights = _granted(project, *grants)
    if not missing:
        return rights
    suffix = "" if rights.ok else f"; {rights.found}"
    return SetupCheck(False, f"there is no {', '.join(missing)}{suffix}", "; ".join(remedies), rights.steps)


def _granted(project: Project, *grants: _Grant) -> SetupCheck:
    """Whether the VMs' account has these rights, by roles on the place or on the project; and the steps that grant them."""
    member = f"serviceAccount:{project.settings.service_account}"

    def permitted(place: policies.Place) -> frozenset[str]:
        return _get_or_default(
            lambda: frozenset().union(*map(project.role, policies.roles_of(place.read(), member))), frozenset()
        )

    of_project = permitted(policies.project(project.rest))
    lacking, steps = list[str](), list[SetupStep]()
    for place, permissions, role in grants:
        may = of_project if of_project.issuperset(permissions) else of_project | permitted(place)
        if missing := [permission for permission in permissions if permission not in may]:
            lacking.append(f"{', '.join(missing)} on {place.name}")
            name = role
            if role.startswith("projects/"):
                name = role.rpartition("/")[2]
                known = _get_or_default(partial(project.role, role), frozenset())
                if not known.issuperset(permissions):
                    detail = f"lets a TPU VM delete its own TPU: {', '.join(permissions)}"
                    steps.append(SetupStep(f"make the role {name}", detail, partial(_make_role, project, role, permissions)))
            what = f"grant the VMs {name} on {place.name}"
            steps.append(SetupStep(what, "next to the bindings that are there", partial(policies.grant, place, role, member)))
    if lacking:
        return SetupCheck(False, f"it lacks {'; '.join(lacking)}", SETUP, tuple(steps))
    return SetupCheck(True, f"as needed on {', '.join(place.name for place, _, _ in grants)}")


def _make_role(project: Project, path: str, permissions: tuple[str, ...]) -> None:
    described = {"title": "tpulm worker", "description": "Lets a TPU VM of tpulm delete its own TPU", "stage": "GA"}
    rest, body = project.rest, {**described, "includedPermissions": list(permissions)}
    new = {"roleId": path.rpartition("/")[2], "role": body}
    if _create_once(lambda: rest.post("iam", f"v1/projects/{project.id}/roles", new)):
        return
    role = rest.get("iam", f"v1/{path}")
    if role.get("deleted"):  # it can be undeleted for a week, and keeps its name until then
        rest.post("iam", f"v1/{path}:undelete", {})
    changed = {"includedPermissions": sorted({*role.get("includedPermissions", ()), *permissions})}
    rest.request("PATCH", "iam", f"v1/{path}", body=changed, query={"updateMask": "includedPermissions"})


def _toml(names: Iterable[str]) -> str:
    """ "a", "b" -> ["a", "b"], for what to write into cloud.toml."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
