"""TPU prices by zone: from the Cloud Billing Catalog, else from prices.toml, whose figures are dated.

The catalogue's format: cloud.google.com/billing/docs/reference/rest/v1/services.skus. A row with an unknown unit, currency or
name gives no price, and neither does a region without a row.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import PurePath
from typing import Any

from tpulm import accelerators, storage
from tpulm.accelerators import Accelerator
from tpulm.cloud.google_rest import GoogleError, GoogleRest, is_anonymous
from tpulm.cloud.settings import CloudSettings, region_of
from tpulm.errors import CloudRefused, ConfigError, TpulmError
from tpulm.readable import dollars

CATALOG = "Cloud Billing Catalog"
_COMPUTE_ENGINE, _CLOUD_TPU = "6F81-5844-456A", "E000-3F24-B8AA"
_IN_CLOUD_TPU = ("v2", "v3", "v4")  # priced per 8 cores; later ones belong to Compute Engine, and are priced per chip
_CHIPS_OF_8_CORES = 4
_NAME = re.compile(r"(?:Preemptible )?T(?:puV|pu-v|PU)(?P<generation>2|3|4|5e|5p|6e|7x)\b")
_OTHER_TERMS = re.compile(r"Reserved|Calendar|Commitment|Sole Tenancy|Custom|Premium|Capacity Optimized|DWS")
_CACHE_SECONDS = 86_400.0  # of the catalogue's cache on this machine
_PATIENCE_SECONDS = 20.0
_FILE = "prices.json"  # in the CONTROL folder of a run: the prices of its launch


@dataclass(frozen=True)
class Price:
    dollars_per_hour: float  # of the whole slice, or of one chip below
    zone: str
    spot: bool
    source: str
    as_of: str  # "": no date

    @property
    def origin(self) -> str:
        """ "Cloud Billing Catalog, 2026-11-23"."""
        return ", ".join(filter(None, (self.source, self.as_of)))

    def __str__(self) -> str:
        return f"{dollars(self.dollars_per_hour)} an hour{' spot' * self.spot} in {self.zone} ({self.origin})"


def find_prices(
    settings: CloudSettings,
    zones: Iterable[str],
    *,
    rest: GoogleRest | None = None,
    note: Callable[[str], None] = lambda message: None,
) -> dict[str, Price]:
    """Prices by zone; zones without a known price are left out. Raises ConfigError if a budget needs one.

    `zones`: those of the settings, expanded. `note` is called when the catalogue could not be read, and for an accelerator's
    default zones that a budget rules out.
    """
    zones = tuple(zones)
    if settings.dollars_per_hour is not None:
        return {zone: Price(settings.dollars_per_hour, zone, settings.spot, "cloud.toml", "") for zone in zones}
    rest = rest or GoogleRest(settings.project, patience_seconds=_PATIENCE_SECONDS)
    prices = of_type(settings.kind, zones, spot=settings.spot, rest=rest, note=note)
    if settings.budget is not None and prices and settings.has_default_zones:
        if unknown := [zone for zone in zones if zone not in prices]:
            note(f"no price is known in {', '.join(unknown)}: left out, since a budget needs one")
    else:
        check_known(settings, zones, prices)
    return prices


def check_known(settings: CloudSettings, zones: Iterable[str], priced: Collection[str]) -> None:
    """Raises ConfigError if there is a budget and a zone is not among those with a known price."""
    if settings.budget is not None and (unknown := [zone for zone in zones if zone not in priced]):
        others = f', or zones = ["{next(iter(priced))}"]' if priced else ""
        raise ConfigError(
            f"a budget needs a price, and none is known for {'spot ' * settings.spot}{settings.kind.name} in "
            f"{', '.join(unknown)}: write dollars_per_hour = … in cloud.toml{others}, or leave the budget out"
        )


def of_type(
    kind: Accelerator, zones: Sequence[str], *, spot: bool, rest: GoogleRest, note: Callable[[str], None] = lambda message: None
) -> dict[str, Price]:
    """Prices of a type by zone, independent of settings; a user's own price for it holds in every zone."""
    own = kind.spot_dollars_per_hour if spot else kind.dollars_per_hour
    if own is not None and ("spot" if spot else "on_demand") in kind.own_prices:
        as_of = "" if kind.prices_as_of == table()["comparison"]["as_of"] else kind.prices_as_of
        return {zone: Price(own, zone, spot, str(accelerators.user_file()), as_of) for zone in zones}
    pod = kind.generation == "v4" or (kind.generation in ("v2", "v3") and kind.hosts > 1)
    family = kind.generation + " pod" * pod
    rates = dict(_table())
    try:
        rates |= _catalog(_CLOUD_TPU if kind.generation in _IN_CLOUD_TPU else _COMPUTE_ENGINE, rest)
    except (GoogleError, CloudRefused) as error:
        note(f"the {CATALOG} could not be read ({error}); the prices are those that come with tpulm, of the dates given")
    by_zone = {zone: rates.get(_key(family, region_of(zone), spot)) for zone in zones}
    return {
        zone: replace(rate, dollars_per_hour=kind.chips * rate.dollars_per_hour, zone=zone, spot=spot)
        for zone, rate in by_zone.items()
        if rate is not None
    }


def save(folder: PurePath, prices: Mapping[str, Price]) -> None:
    """Record the prices of a launch in the run's CONTROL folder."""
    storage.write_json(folder / _FILE, {zone: asdict(price) for zone, price in prices.items()})


def saved(folder: PurePath) -> dict[str, Price] | None:
    """What `save` wrote; None if it cannot be read."""
    with contextlib.suppress(TpulmError, ValueError, TypeError, AttributeError):
        values = storage.parse_json(storage.read_bytes(folder / _FILE))
        return {zone: Price(**value) for zone, value in values.items()}
    return None


# -- per chip-hour ------------------------------------------------------------------------------------------------------


def _key(family: str, region: str, spot: bool) -> str:
    return f"{family} in {region}, {'spot' if spot else 'on demand'}"


@functools.cache
def table() -> dict[str, Any]:
    """The content of prices.toml."""
    return tomllib.loads((resources.files("tpulm.cloud") / "prices.toml").read_text(encoding="utf-8"))


@functools.cache
def _table() -> dict[str, Price]:
    return {
        _key(family, region, name == "spot"): Price(value, region, name == "spot", part["source"], part["as_of"])
        for part in table()["tpu"]
        for name in ("on_demand", "spot")
        for family, regions in part.get(name, {}).items()
        for region, value in regions.items()
    }


def _catalog(service: str, rest: GoogleRest) -> dict[str, Price]:
    """The prices of a Google service, cached for a day. Raises GoogleError and CloudRefused if they cannot be read."""
    file = storage.cache_folder("prices") / f"{service}.json"
    keep = not is_anonymous("cloudbilling")  # an emulator's prices are not Google's
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        cached = json.loads(file.read_text(encoding="utf-8")) if keep else {}
        if 0 <= time.time() - cached["at"] < _CACHE_SECONDS:
            return _dated({str(key): float(value) for key, value in cached["dollars"].items()}, cached["at"])
    prices: dict[str, float] = {}
    for page in rest.pages("cloudbilling", f"v1/services/{service}/skus", pageSize=5000):
        for key, value in itertools.chain.from_iterable(_read(sku, service).items() for sku in page.get("skus", ())):
            prices[key] = max(value, prices.get(key, 0.0))  # the higher of two prices, so that no budget is exceeded
    now = time.time()
    if keep and prices:
        with contextlib.suppress(OSError, TpulmError):
            storage.write_json(file, {"at": now, "dollars": prices})
    return _dated(prices, now)


def _dated(prices: Mapping[str, float], at: float) -> dict[str, Price]:
    as_of = time.strftime("%Y-%m-%d", time.gmtime(at))
    return {key: Price(value, "", False, CATALOG, as_of) for key, value in prices.items()}


def _read(sku: Mapping[str, Any], service: str) -> dict[str, float]:
    """Dollars per chip-hour by region; empty for a row that is not a plain TPU price."""
    with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
        description = sku["description"]
        name = _NAME.match(description)
        if sku["category"]["resourceGroup"] != "TPU" or name is None or _OTHER_TERMS.search(description):
            return {}
        generation = name["generation"]
        family = ("tpu" if generation == "7x" else "v") + generation + " pod" * (" Pod" in description)
        per_unit = _dollars(sku["pricingInfo"])
        if per_unit is not None:
            per_chip = per_unit / _CHIPS_OF_8_CORES if service == _CLOUD_TPU else per_unit
            return {_key(family, region, "Preemptible" in description): per_chip for region in sku["serviceRegions"]}
    return {}


def _dollars(infos: Sequence[Mapping[str, Any]]) -> float | None:
    """Dollars per hour, by the newest entry; None for another unit or currency."""
    newest = max(infos, key=lambda info: info.get("effectiveTime", ""))["pricingExpression"]
    if newest["usageUnit"] != "h":
        return None
    for rate in newest["tieredRates"]:
        price = rate["unitPrice"]
        if not rate.get("startUsageAmount") and price["currencyCode"] == "USD":
            return float(price.get("units") or 0) + price.get("nanos", 0) / 1e9 or None
    return None
