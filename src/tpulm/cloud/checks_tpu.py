"""Is the accelerator offered in the zones, may the project hold one, and what does it cost?"""

from __future__ import annotations

from typing import Any

from tpulm import readable
from tpulm.accelerators import Accelerator
from tpulm.cloud import prices
from tpulm.cloud.checks_project import CONSOLE
from tpulm.cloud.look import Check, Look, toml
from tpulm.cloud.settings import region_of
from tpulm.errors import ConfigError, suggest

UNNAMED = "not checked, because no accelerator is named"
NAME_ONE = 'accelerator = "v3-8" in cloud.toml, or --accelerator TYPE'


def zones(look: Look) -> Check:
    if not look.settings.accelerator:
        return Check("zones", None, UNNAMED, NAME_ONE)
    kind = look.settings.kind
    try:
        wanted = look.zones
    except ConfigError as error:
        return Check("zones", False, str(error), f"zones = {toml(kind.zones)} in cloud.toml")
    known = look.known_zones
    missing = [zone for zone in wanted if zone not in known]
    without = [zone for zone in wanted if zone in known and kind.name not in look.types(zone)]
    good = [zone for zone in wanted if zone not in (*missing, *without)]
    said = [f"no zone with TPUs is named {zone}.{suggest(zone, known)}".rstrip(".") for zone in missing]
    said += [f"{kind.name} is not offered in {', '.join(without)}"] if without else []
    if said:
        return Check(
            "zones", False, "; ".join(said), f"zones = {toml(good or kind.zones)} in cloud.toml, or another accelerator"
        )
    return Check("zones", True, f"{kind.name} is offered in {', '.join(good)}")


def quota(look: Look) -> Check:
    """Per region and per zone, whichever there is; on demand and spot have quotas of their own."""
    if not look.settings.accelerator:
        return Check("quota", None, UNNAMED, NAME_ONE)
    kind, spot = look.settings.kind, look.settings.spot
    stem = _stem(kind, spot)
    names = {place: f"{stem}PerProjectPer{place}ForTPUAPI" for place in ("Region", "Zone")}
    infos = {info["quotaId"]: info for info in _infos(look) if info.get("quotaId") in names.values()}
    page = f"{CONSOLE}/iam-admin/quotas?project={look.project}"
    if not infos:
        said = f"Google lists no quota {names['Zone']}, nor one per region"
        return Check("quota", None, said, f"{page} (filter: Cloud TPU API)")
    needed, unit = _amount(kind)
    short: list[str] = []
    enough: list[str] = []
    asked: dict[str, str] = {}
    for zone in look.zones:
        limits = {
            (name, place): limit
            for name, place in ((names["Region"], region_of(zone)), (names["Zone"], zone))
            if name in infos and (limit := _limit(infos[name], place)) is not None
        }
        lacking = {key: limit for key, limit in limits.items() if 0 <= limit < needed}
        for (name, place), limit in lacking.items():
            asked[f"{name} in {place}"] = f"{limit} of {needed} {unit}"
        if lacking:
            short.append(zone)
        elif limits:
            enough.append(zone)
    form = "spot" if spot else "on demand"
    if short:
        said = "; ".join(f"{name}: {limit}" for name, limit in asked.items())
        instead = f", or zones = {toml(enough)} in cloud.toml" if enough else ""
        return Check(
            "quota", False, f"too little for a {kind.name}, {form}: {said}", f"ask for {needed} of it at {page}{instead}"
        )
    if not enough:
        return Check("quota", None, f"Google lists no limit for {', '.join(look.zones)}", page)
    return Check("quota", True, f"enough for a {kind.name}, {form}, in {', '.join(enough)}")


def _stem(kind: Accelerator, spot: bool) -> str:
    several = kind.hosts > 1
    parts = {"spot": "Preemptible" if spot else "", "pod": "Pod" if several else "", "serving": "" if several else "Serving"}
    return kind.quota.format(**parts)


def _infos(look: Look) -> list[dict[str, Any]]:
    path = f"v1/projects/{look.project}/locations/global/services/tpu.googleapis.com/quotaInfos"
    return [info for page in look.rest.pages("cloudquotas", path, pageSize=500) for info in page.get("quotaInfos", ())]


def _limit(info: dict[str, Any], place: str) -> int | None:
    """Of a region or zone; -1: none. None: it is not told.

    An entry of the place itself goes before one without dimensions, the default of many places; in either, no value is zero.
    """
    items = info.get("dimensionsInfos", ())
    own = [item for item in items if place in item.get("dimensions", {}).values()]
    default = [item for item in items if not item.get("dimensions") and place in item.get("applicableLocations", [place])]
    return next((int(item.get("details", {}).get("value", 0)) for item in (*own, *default)), None)


def _amount(kind: Accelerator) -> tuple[int, str]:
    """What quota counts: the number in the type's name."""
    number = int(kind.name.rpartition("-")[2])
    return number, "chips" if number == kind.chips else "cores"


def price(look: Look) -> Check:
    """The dearest zone's, as a budget is counted until there is a node."""
    settings = look.settings
    if not settings.accelerator:
        return Check("price", None, UNNAMED, NAME_ONE)
    zones, notes = look.zones, list[str]()
    try:
        found = prices.of(settings, zones, rest=look.rest, note=notes.append)
    except ConfigError as error:
        return Check("price", False, "; ".join([str(error), *notes]), "dollars_per_hour = … in cloud.toml, or other zones")
    unknown = f"none is known in {', '.join(zone for zone in zones if zone not in found)}"
    if not found:
        return Check("price", None, "; ".join([unknown, *notes]), "dollars_per_hour = … in cloud.toml")
    dearest = max(found.values(), key=lambda item: item.dollars_per_hour)
    said = [str(dearest), *([unknown] if len(found) < len(zones) and settings.budget is None else []), *notes]
    if dearest.dollars_per_hour and settings.budget is not None:
        bought = readable.duration(settings.budget / dearest.dollars_per_hour * 3600)
        said.append(f"{readable.dollars(settings.budget)} buy {bought}")
    elif settings.budget is not None:
        said.append("the budget is never reached")
    else:
        said.append("no budget is set")
    unbounded = dearest.dollars_per_hour and settings.budget is None
    remedy = "budget = 100 in cloud.toml ends runs that would cost more dollars" if unbounded else ""
    return Check("price", True, "; ".join(said), remedy)
