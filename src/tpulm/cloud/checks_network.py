"""Are the network and its subnetworks there, do VMs reach Google from them, and are there external addresses for all hosts?

Paths and fields: https://cloud.google.com/compute/docs/reference/rest/v1 (networks, subnetworks, regions).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tpulm.cloud.checks_project import CONSOLE
from tpulm.cloud.google_rest import GoogleError
from tpulm.cloud.look import Check, Look, toml
from tpulm.cloud.settings import region_of

ADDRESSES = "IN_USE_ADDRESSES"
_NAMED = re.compile(r"(?:.*?\bprojects/(?P<project>[^/]+)/)?(?:global|regions/(?P<region>[^/]+))/[a-z]+/(?P<name>[^/]+)")


class _Place(NamedTuple):
    """A network or subnetwork: named alone, or with its project as in a shared VPC."""

    project: str
    name: str
    region: str | None = None


def network(look: Look) -> Check:
    wanted = _network(look)
    try:
        found = _get(look, _path(wanted))
    except GoogleError as error:
        if not error.missing:
            return _unseen(look, "network", error)
        return Check(
            "network",
            False,
            f"there is no network {wanted.name} in {wanted.project}",
            f"gcloud compute networks create {wanted.name} --subnet-mode=auto --project={wanted.project}, or "
            'network = "NAME" in cloud.toml',
        )
    if look.settings.subnetwork is None and not found.get("autoCreateSubnetworks"):
        there = sorted({name for url in found.get("subnetworks", ()) if (name := _in_regions(url, look.settings.regions))})
        return Check(
            "network",
            False,
            f"{wanted.name} is a network in custom mode, and no subnetwork is named",
            f'subnetwork = "{there[0] if there else "NAME"}" in cloud.toml',
        )
    return Check("network", True, wanted.name)


def subnetwork(look: Look) -> Check:
    """In every region of the zones, and in the network."""
    name, of = "subnetwork", _network(look)
    missing: dict[str, str] = {}
    for region in look.settings.regions:
        wanted = _subnetwork(look, region)
        if wanted.region not in (None, region):
            missing[region] = f"{wanted.name} is in {wanted.region}, not in {region}"
            continue
        try:
            found = look.subnetwork(region, _path(wanted, region))
        except GoogleError as error:
            if not error.missing:
                return _unseen(look, name, error)
            missing[region] = f"there is no subnetwork {wanted.name} in {region}"
            continue
        if (its := _last(found.get("network", of.name))) != of.name:
            missing[region] = f"{wanted.name} in {region} is of the network {its}, not of {of.name}"
    if missing:
        there = [zone for zone in look.settings.zones if region_of(zone) not in missing]
        instead = f", or zones = {toml(there)}" if there else ""
        return Check(name, False, "; ".join(missing.values()), f'another subnetwork = "NAME" in cloud.toml{instead}')
    return Check(name, True, f"{_subnetwork(look, '').name} in {', '.join(look.settings.regions)}")


def private_access(look: Look) -> Check:
    """Without external addresses VMs reach Google's services by it alone."""
    name = "Private Google Access"
    off = []
    for region in look.settings.regions:
        wanted = _subnetwork(look, region)
        try:
            found = look.subnetwork(region, _path(wanted, region))
        except GoogleError as error:
            return _unseen(look, name, error)
        if not found.get("privateIpGoogleAccess"):
            off.append((region, wanted))
    if off:
        region, wanted = off[0]
        return Check(
            name,
            False,
            f"off on {', '.join(f'{place.name} in {region}' for region, place in off)}: VMs without external addresses do not "
            "reach the bucket",
            f"gcloud compute networks subnets update {wanted.name} --region={region} --enable-private-ip-google-access "
            f"--project={wanted.project}",
        )
    return Check(name, True, f"on in {', '.join(look.settings.regions)}")


def addresses(look: Look) -> Check:
    """Every host takes an external address of the region's quota."""
    name, hosts = "external addresses", look.settings.kind.hosts
    short: dict[str, str] = {}
    told: list[str] = []
    for region in look.settings.regions:
        try:
            found = _get(look, f"projects/{look.project}/regions/{region}")
        except GoogleError as error:
            return _unseen(look, name, error)
        quota = next((item for item in found.get("quotas", ()) if item.get("metric") == ADDRESSES), None)
        if quota is None:
            continue
        limit, used = float(quota.get("limit", 0)), float(quota.get("usage", 0))
        told.append(f"{limit - used:g} of {limit:g} free in {region}")
        if limit >= 0 and limit - used < hosts:
            short[region] = told[-1]
    if short:
        there = [zone for zone in look.settings.zones if region_of(zone) not in short]
        page = f"{CONSOLE}/iam-admin/quotas?project={look.project}"
        instead = f", or zones = {toml(there)}" if there else ""
        return Check(
            name,
            False,
            f"{look.settings.kind.name} takes {hosts}: {'; '.join(short.values())} ({ADDRESSES})",
            "external_addresses = false in cloud.toml (with Private Google Access, and Cloud NAT for what is not Google's), "
            f"or ask for more at {page}{instead}",
        )
    if not told:
        return Check(name, None, f"Google lists no quota {ADDRESSES}")
    return Check(name, True, f"{hosts} needed; {'; '.join(told)}")


def _get(look: Look, path: str) -> dict[str, Any]:
    return look.rest.get("compute", f"compute/v1/{path}")


def _network(look: Look) -> _Place:
    return _named(look.settings.network or "default", look.project)


def _subnetwork(look: Look, region: str) -> _Place:
    """That of a network in auto mode has the network's name."""
    of = _network(look)
    return of if look.settings.subnetwork is None else _named(look.settings.subnetwork, of.project)


def _named(text: str, project: str) -> _Place:
    if found := _NAMED.fullmatch(text):
        return _Place(found["project"] or project, found["name"], found["region"])
    return _Place(project, text)


def _path(place: _Place, region: str | None = None) -> str:
    if region is None:
        return f"projects/{place.project}/global/networks/{place.name}"
    return f"projects/{place.project}/regions/{region}/subnetworks/{place.name}"


def _in_regions(url: str, regions: tuple[str, ...]) -> str:
    """The name of a subnetwork, if it is in one of the regions."""
    place = _named(url, "")
    return place.name if place.region in regions else ""


def _last(url: str) -> str:
    return url.rpartition("/")[2]


def _unseen(look: Look, name: str, error: GoogleError) -> Check:
    """What may not be looked at may still be right. Raises what is told of every API alike."""
    if error.is_off or not error.refused:
        raise error
    binding = f"--member={look.identity.member} --role=roles/compute.viewer"
    remedy = f"gcloud projects add-iam-policy-binding {look.project} {binding}   (by somebody who may)"
    return Check(name, None, f"not checked: {error}", remedy)
