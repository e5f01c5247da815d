"""Where to run: cloud.toml, overridden by a command's options. Not part of a run's identity."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from tpulm import accelerators, storage
from tpulm.accelerators import Accelerator
from tpulm.config.schema import PositiveFloat, RemovedSetting, Settings
from tpulm.config.validation import validated
from tpulm.errors import ConfigError, suggest

FILE = "cloud.toml"  # in the current folder, by default
WORKER = "tpulm-worker"  # the default name of the VMs' account

_PROJECT = re.compile(r"([a-z0-9.-]+\.[a-z]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-([a-z]|ai[0-9]+[a-z]|\*)")  # "us-south1-ai1b" is valid, too
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*[a-z0-9]")
_GOOGLES = re.compile(r"^goog|google")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,255}")
_EXAMPLES = {  # an example value, and how else it can be given
    "project": ('"my-project"', "--project, or GOOGLE_CLOUD_PROJECT"),
    "accelerator": ('"v3-8"', "--accelerator"),
    "bucket": ('"my-project-tpulm"', "--bucket"),
    "zones": ('["us-central1-a"]', "--zone"),
}


NotNegative = Annotated[float, Field(ge=0.0)]
_CONTINENTS = {"US": "us-", "NAM": "us-", "EU": "europe-", "ASIA": "asia-"}  # locations of several regions begin so -> zones do


class CloudSettings(Settings):
    """An empty string or tuple is not set; `load` checks what a command needs."""

    removed: ClassVar = {
        "data_bucket": RemovedSetting(None, "leave it out, and give the VMs' account roles/storage.objectAdmin on it")
    }

    project: str  # the project's id, not its number; by default GOOGLE_CLOUD_PROJECT, or the login's
    accelerator: str = ""  # the TPU type, such as "v3-8"
    zones: tuple[str, ...] = ()  # to try, in this order; "us-east5-*": all of that region; by default the type's
    bucket: str = ""  # the bucket of the work folders, without gs://
    spot: bool = True  # spot VMs are cheaper, and preempted at any time
    far_bucket: bool = False  # whether TPUs may be in another region than the bucket: every byte between them is charged
    queued: bool = False  # through queued resources, which wait for capacity, in all zones at once
    queue_hours: PositiveFloat = 24.0  # that they wait
    quota_patience_hours: NotNegative = 1.0  # to retry a zone that is out of quota (deleted nodes may still count against it)
    login_patience_hours: NotNegative = 12.0  # to retry a login that is refused
    hang_minutes: PositiveFloat | None = None  # without a new step; None: the larger of 10 and 20 typical steps
    budget: PositiveFloat | None = None  # dollars that a run may cost
    deadline_hours: PositiveFloat | None = None
    dollars_per_hour: NotNegative | None = None  # in place of those of `prices`
    service_account: str = ""  # what the VMs run as; by default tpulm-worker@PROJECT.iam.gserviceaccount.com
    network: str | None = None  # None: "default"
    subnetwork: str | None = None  # None: the network's own in auto mode
    external_addresses: bool = True  # without them VMs reach Google's services only, by Private Google Access
    secrets: dict[str, str] = Field(default_factory=dict)  # variable -> a secret of Secret Manager, or a gs:// object

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if not values.get("service_account") and isinstance(project := values.get("project"), str):
            domain, _, rest = project.rpartition(":")
            values["service_account"] = f"{WORKER}@{rest}{'.' + domain if domain else ''}.iam.gserviceaccount.com"
        if not values.get("zones") and isinstance(kind := values.get("accelerator"), str) and kind:
            with contextlib.suppress(ConfigError):  # `_known_type` reports it
                values["zones"] = accelerators.find(kind).zones
        return values

    @field_validator("project")
    @classmethod
    def _project_id(cls, value: str) -> str:
        if not _PROJECT.fullmatch(value):
            raise ValueError(
                "a project goes by its id, not by its name or number: 6 to 30 small letters, digits, hyphens, a letter first; "
                "'gcloud projects list' shows it"
            )
        return value

    @field_validator("accelerator")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if not value:
            return value
        try:
            kind = accelerators.find(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not kind.zones:
            raise ValueError(f"{kind.name} cannot be had through the Cloud TPU API; take another type, such as v6e-8")
        return kind.name

    @field_validator("zones", mode="before")
    @classmethod
    def _one_zone(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("zones")
    @classmethod
    def _zone_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for zone in value:
            if not _ZONE.fullmatch(zone):
                raise ValueError(f"'{zone}' is not a zone: a region with a letter ('us-central1-a'), or with '*' for all of it")
        return tuple(dict.fromkeys(value))

    @field_validator("bucket")
    @classmethod
    def _bucket_name(cls, value: str) -> str:
        if not value:
            return value
        name = value.removeprefix("gs://").rstrip("/")
        if "/" in name:
            raise ValueError(f"name the bucket alone, gs://{name.partition('/')[0]}; the folder in it is a run's --workdir")
        if not _is_bucket(name):
            raise ValueError(
                f"'{name}' cannot be a bucket's name: it has 3 to 63 characters, of small letters, digits, '-', '_' and '.', "
                "begins and ends with a letter or digit, has no 'google' in it, and never looks like an address"
            )
        return name

    @field_validator("service_account")
    @classmethod
    def _email(cls, value: str) -> str:
        if value and not _EMAIL.fullmatch(value):
            raise ValueError("a service account goes by its e-mail address, such as worker@my-project.iam.gserviceaccount.com")
        return value

    @field_validator("secrets")
    @classmethod
    def _secret_names(cls, value: dict[str, str]) -> dict[str, str]:
        for variable, secret in value.items():
            if not _VARIABLE.fullmatch(variable):
                raise ValueError(f"'{variable}' is not a name for an environment variable")
            if secret.startswith("gs://"):
                bucket, _, name = secret.removeprefix("gs://").partition("/")
                if not name or not _is_bucket(bucket):
                    raise ValueError(f"{variable}: '{secret}' is not an object in a bucket; write gs://bucket/name")
            elif not _SECRET.fullmatch(secret):
                raise ValueError(
                    f"{variable}: neither the name of a secret in Secret Manager nor a gs:// object; the value itself does not "
                    "belong into this file"
                )
        return value

    @property
    def kind(self) -> Accelerator:
        """The accelerator's entry in the catalogue. Raises ConfigError if none is named."""
        return accelerators.find(self.accelerator)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The secrets in Secret Manager."""
        return tuple(dict.fromkeys(secret for secret in self.secrets.values() if not secret.startswith("gs://")))

    @property
    def has_default_zones(self) -> bool:
        return bool(self.accelerator) and self.zones == self.kind.zones

    def expanded(self, known: Iterable[str]) -> Self:
        """The settings with "us-east5-*" replaced by the known zones of that region. Raises ConfigError if there are none."""
        known, zones = sorted(known), []
        for zone in self.zones:
            named = [other for other in known if other.startswith(zone[:-1])] if zone.endswith("*") else [zone]
            if not named:
                raise ConfigError(f"zones: no zone with TPUs begins with '{zone[:-1]}'.{suggest(zone, known)}")
            zones += named
        return self.model_copy(update={"zones": tuple(dict.fromkeys(zones))})


def region_of(zone: str) -> str:
    """ "us-central1-a" -> "us-central1"."""
    return zone.rpartition("-")[0]


def is_of_regions(location: str) -> bool:
    """Whether a bucket of this location is in several regions: "US", "NAM4"."""
    return "-" not in location


def near(location: str, zones: Iterable[str]) -> list[str]:
    """The zones in a bucket's region, or in the continent of one in several regions."""
    continent = next(
        (zone for start, zone in _CONTINENTS.items() if location.startswith(start) and is_of_regions(location)), None
    )
    return [zone for zone in zones if zone.startswith(continent or f"{location.lower()}-")]


def _is_bucket(name: str) -> bool:
    """See https://cloud.google.com/storage/docs/buckets#naming."""
    fits = _BUCKET.fullmatch(name) and 3 <= len(name) <= (222 if "." in name else 63)
    parts = name.split(".")
    is_address = len(parts) == 4 and all(part.isdecimal() for part in parts)
    return bool(fits) and all(1 <= len(part) <= 63 for part in parts) and not is_address and not _GOOGLES.search(name)


def load(path: str | PurePath | None = None, *, require: Sequence[str] = (), **options: Any) -> CloudSettings:
    """The settings of `path`, or of ./cloud.toml if it exists, overridden by the `options` that are not None.

    The project defaults to the environment's. Patterns among the zones stay patterns: see `CloudSettings.expanded`.
    `require` names the settings that must be set. Raises ConfigError with file, key, value and fix.
    """
    file = find(path)
    origin = str(file) if file else "the options"
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = storage.parse_toml(storage.read_bytes(file))
        except ValueError as error:
            raise ConfigError(f"{file}: {error}") from error
    overrides = {name: value for name, value in options.items() if value not in (None, (), [])}
    if not (values.get("project") or overrides.get("project")):
        values["project"] = default_project()
    if file is not None:
        validated(CloudSettings, {"project": "not-named-yet", **_set(values)}, origin)  # so that errors name the file
    merged = _set({**values, **overrides})
    missing = [name for name in ("project", *require) if not merged.get(name)]
    if "accelerator" in merged and "zones" in missing:
        missing.remove("zones")
    if missing:
        examples = ((name, *_EXAMPLES[name]) for name in missing)
        where = file or FILE
        raise ConfigError(
            "\n".join(f"{key} is not set: write {key} = {value} in {where}, or give {other}" for key, value, other in examples)
        )
    return validated(CloudSettings, merged, "the options" if overrides and file is not None else origin)


def find(path: str | PurePath | None = None) -> PurePath | None:
    """The file that `load` reads: the one named, which must exist, or ./cloud.toml if it exists."""
    if path is None:
        here = Path(FILE)
        return here if here.is_file() else None
    named = storage.as_path(path)
    if storage.info(named) is None:
        raise ConfigError(f"there is no file {named}; name one with --cloud, or leave it out for ./{FILE}")
    return named


def default_project() -> str:
    """GOOGLE_CLOUD_PROJECT, else the credentials' project; "" if neither is set."""
    if named := os.environ.get("GOOGLE_CLOUD_PROJECT"):
        return named
    with contextlib.suppress(Exception), warnings.catch_warnings():  # code that needs credentials reports errors better
        import google.auth

        warnings.simplefilter("ignore")
        return google.auth.default()[1] or ""
    return ""


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", (), [])}
