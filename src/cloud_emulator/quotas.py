"""How much of which TPU a project may hold where: limits by quota, region and zone, under Google's names."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from cloud_emulator import places
from cloud_emulator.catalogue import Accelerator
from cloud_emulator.errors import EmulatorError, suggest
from cloud_emulator.places import CATALOGUE
from cloud_emulator.rpc import recorded_refusal

DEFAULT_LIMIT = 16_384  # enough for any type

Per = Literal["Region", "Zone"]


class Demand(NamedTuple):
    """What one slice takes."""

    accelerator: Accelerator
    spot: bool
    zone: str

    @property
    def amount(self) -> int:
        """In what its type's name counts, chips or cores."""
        return self.accelerator.number


def _quota_id(stem: str, per: Per) -> str:
    return f"{stem}PerProjectPer{per}ForTPUAPI"


class Quotas:
    """The limits of one project."""

    def __init__(self, as_it_was: frozenset[str] = frozenset()) -> None:
        self._as_it_was = as_it_was
        self._default = DEFAULT_LIMIT
        self._limits: dict[tuple[str, str], int] = {}  # by stem, and region or zone

    def set(self, accelerator: str, limit: int, location: str | None = None, spot: bool | None = None) -> None:
        """`accelerator` is a type, or "v5litepod" for all of them; `location` a region or a zone, None all regions.

        `spot` True is the preemptible quota, False the other, None both. -1 is no limit.
        """
        stems = {self._stem(found, kind) for found in _types(accelerator) for kind in (False, True) if spot in (None, kind)}
        known = [*places.regions(), *places.offered()]
        if location is not None and location not in known:
            raise EmulatorError(f"'{location}' is no region or zone with TPUs.{suggest(location, known)}")
        for stem in stems:
            for place in places.regions() if location is None else [location]:
                self._limits[stem, place] = limit

    def _stem(self, accelerator: Accelerator, spot: bool) -> str:
        preemptible = "Preemptible" if spot else ""
        pod = "Pod" if accelerator.hosts > 1 else ""
        serving = "Serving" if accelerator.hosts == 1 and "quota-names" not in self._as_it_was else ""
        forms = {
            "v2": f"TPUV2s{preemptible}{pod}",
            "v3": f"TPUV3s{preemptible}{pod}",
            "v4": f"TPUV4s{preemptible}Pod",
            "v5e": f"TPUV5s{preemptible}Litepod{serving}",
            "v5p": f"TPUV5P{preemptible}",
            "v6e": f"TPUV6E{preemptible}",
        }
        return forms[accelerator.generation]

    def limit(self, stem: str, place: str) -> int:
        return self._limits.get((stem, place), self._default)

    def check(self, wanted: Demand, held: list[Demand], number: int) -> None:
        """Raises RpcError where the region's or the zone's limit would be exceeded in the project of that number."""
        stem = self._stem(wanted.accelerator, wanted.spot)
        same = [demand for demand in held if self._stem(demand.accelerator, demand.spot) == stem]
        region = places.region_of(wanted.zone)
        in_region = sum(demand.amount for demand in same if places.region_of(demand.zone) == region)
        in_zone = sum(demand.amount for demand in same if demand.zone == wanted.zone)
        found: list[tuple[Per, str, int]] = [("Region", region, in_region), ("Zone", wanted.zone, in_zone)]
        refusals = [
            recorded_refusal("quota", quota=_quota_id(stem, per), limit=limit, place=f"{per.lower()} {place}", number=number)
            for per, place, used in found
            if 0 <= (limit := self.limit(stem, place)) < used + wanted.amount
        ]
        if refusals:  # told together
            refusals[0].details[0]["violations"] = [refusal.details[0]["violations"][0] for refusal in refusals]
            raise refusals[0]

    def infos(self, project_number: int) -> list[dict[str, Any]]:
        """As the Cloud Quotas API lists them."""
        stems = sorted({self._stem(found, spot) for found in CATALOGUE.types for spot in (False, True)})
        where: list[tuple[Per, list[str]]] = [("Region", places.regions()), ("Zone", list(places.offered()))]
        return [self._info(project_number, stem, per, locations) for stem in stems for per, locations in where]

    def _info(self, project_number: int, stem: str, per: Per, locations: list[str]) -> dict[str, Any]:
        name = _quota_id(stem, per)
        own = [place for place in locations if (stem, place) in self._limits]
        others = [place for place in locations if place not in own]
        details = [
            {"dimensions": {per.lower(): place}, "details": _details(self.limit(stem, place)), "applicableLocations": [place]}
            for place in own
        ]
        if others:  # an entry without dimensions is the default of its locations
            details.append({"details": _details(self._default), "applicableLocations": others})
        return {
            "name": f"projects/{project_number}/locations/global/services/tpu.googleapis.com/quotaInfos/{name}",
            "quotaId": name,
            "metric": f"tpu.googleapis.com/{stem.lower()}",
            "service": "tpu.googleapis.com",
            "isPrecise": True,
            "containerType": "PROJECT",
            "dimensions": [per.lower()],
            "metricDisplayName": stem,
            "quotaDisplayName": f"{stem} per project per {per.lower()}",
            "metricUnit": "1",
            "quotaIncreaseEligibility": {"isEligible": True},
            "dimensionsInfos": details,
        }


def _details(limit: int) -> dict[str, str]:
    """Zero is left out, as in all of Google's JSON; -1 is no limit."""
    return {"value": str(limit)} if limit else {}


def _names() -> list[str]:
    return [found.name for found in CATALOGUE.types]


def _types(wanted: str) -> list[Accelerator]:
    found = [found for found in CATALOGUE.types if wanted in (found.name, found.name.rpartition("-")[0])]
    if not found:
        raise EmulatorError(f"'{wanted}' is no accelerator type of the TPU API.{suggest(wanted, _names())}")
    return found
