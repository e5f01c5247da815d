"""Is the bucket there, near the TPUs, and cheap to keep checkpoints in?"""

from __future__ import annotations

from typing import Any

from tpulm.cloud.google_rest import GoogleError
from tpulm.cloud.look import Check, Look, toml
from tpulm.cloud.settings import region_of

_DUAL_REGIONS = {  # Google's predefined ones
    "NAM4": ("us-central1", "us-east1"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
}
_CONTINENTS = {"US": "us", "EU": "europe", "ASIA": "asia"}


def exists(look: Look, name: str, bucket: str) -> Check:
    try:
        found = look.bucket(bucket)
    except GoogleError as error:
        if error.missing:
            return Check(name, False, f"there is no bucket gs://{bucket}", "tpulm cloud setup")
        if error.refused and not error.is_off:
            return Check(
                name,
                False,
                f"gs://{bucket} is somebody else's, or you may not look at it ({error})",
                "choose another name in cloud.toml (names of buckets are unique in the world), or have yourself granted "
                f"roles/storage.admin on gs://{bucket}",
            )
        raise
    if waste := kept_deleted(found):
        return Check(name, True, f"gs://{bucket}, but {waste}", f"gcloud storage buckets update gs://{bucket} {_cure(found)}")
    return Check(name, True, f"gs://{bucket}")


def kept_deleted(found: dict[str, Any]) -> str:
    """Why deleted checkpoints, and there are many, go on costing money; "" if they do not."""
    days = int(found.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)) / 86400
    if found.get("versioning", {}).get("enabled"):
        return "it keeps old versions: every deleted checkpoint is billed for good"
    return (
        f"it keeps what is deleted for {days:g} days (soft delete): so long is every deleted checkpoint billed" if days else ""
    )


def _cure(found: dict[str, Any]) -> str:
    versions = found.get("versioning", {}).get("enabled")
    return "--no-versioning --clear-soft-delete" if versions else "--clear-soft-delete"


def location(look: Look, name: str, bucket: str) -> Check:
    found = look.bucket(bucket)
    where, regions = str(found["location"]), _regions(found)
    if not look.zones:
        return Check(name, None, f"{where}; not compared, because no zones are named")
    continent = None if "customPlacementConfig" in found else _CONTINENTS.get(where)
    near = [zone for zone in look.zones if region_of(zone) in regions or (continent and zone.startswith(f"{continent}-"))]
    far = [zone for zone in look.zones if zone not in near]
    if not near:
        return Check(
            name,
            False,
            f"{where}, but the TPUs are in {', '.join(look.zones)}: slow, and every byte between them is charged",
            f"{_zones_there(look, regions, continent)}name another bucket, which 'tpulm cloud setup' makes in "
            f"{region_of(look.zones[0])}",
        )
    if far:
        return Check(
            name,
            True,
            f"{where}; far from {', '.join(far)}",
            f"zones = {toml(near)} keeps TPUs and data together (cloud.toml)",
        )
    if continent:
        return Check(
            name,
            True,
            f"{where}, all of a continent: what TPUs read from there is charged, and slower",
            f"a bucket in {region_of(look.zones[0])} itself is cheaper",
        )
    return Check(name, True, where)


def _regions(found: dict[str, Any]) -> tuple[str, ...]:
    where = str(found["location"])
    own = found.get("customPlacementConfig", {}).get("dataLocations")
    return tuple(region.lower() for region in own) if own else _DUAL_REGIONS.get(where, (where.lower(),))


def _zones_there(look: Look, regions: tuple[str, ...], continent: str | None) -> str:
    """Where the type can be had beside the bucket."""
    if not look.settings.accelerator:
        return ""
    there = [
        zone
        for zone in look.settings.kind.zones
        if region_of(zone) in regions or (continent and zone.startswith(f"{continent}-"))
    ]
    return f"zones = {toml(there)} in cloud.toml, or " if there else ""
