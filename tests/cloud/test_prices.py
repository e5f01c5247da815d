"""What a TPU costs where: Google's own rows give Google's prices, and what is not known is never counted as nothing."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from cloud_emulator import Emulator
from tpulm import accelerators
from tpulm.cloud import prices
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.settings import CloudSettings
from tpulm.errors import ConfigError

COMPUTE_ENGINE, CLOUD_TPU = "6F81-5844-456A", "E000-3F24-B8AA"
ROWS = json.loads((resources.files("cloud_emulator") / "recorded" / "billing.json").read_text())["services"]


def settings_of(accelerator: str, **changes: Any) -> CloudSettings:
    return CloudSettings(project="tpulm-emulator", accelerator=accelerator, **changes)


def per_hour(accelerator: str, *zones: str, notes: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    settings = settings_of(accelerator, **changes)
    rest = GoogleRest(settings.project, patience_seconds=0.0)
    found = prices.find_prices(settings, zones, rest=rest, note=[].append if notes is None else notes.append)
    assert all(price.zone == zone and price.spot == settings.spot for zone, price in found.items())
    return {zone: pytest.approx(price.dollars_per_hour) for zone, price in found.items()}


class Catalog(GoogleRest):
    """A session's client that serves these rows, all in one page, and counts how often it is asked."""

    def __init__(self, *rows: dict[str, Any], of: str = COMPUTE_ENGINE):
        super().__init__("tpulm-emulator")
        self.rows, self.of, self.asked = rows, of, 0

    def get(self, service: str, path: str, **query: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert (service, path) == ("cloudbilling", f"v1/services/{self.of}/skus")
        self.asked += 1
        return {"skus": list(self.rows), "nextPageToken": ""}


DALLAS = ROWS[COMPUTE_ENGINE][2]["sku"]


def of_rows(*rows: dict[str, Any], catalog: Catalog | None = None) -> prices.Price:
    """What a v6e-1 costs in Dallas on demand."""
    settings = settings_of("v6e-1", spot=False)
    return prices.find_prices(settings, ["us-south1-a"], rest=catalog or Catalog(*rows))["us-south1-a"]


@pytest.fixture
def cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING", raising=False)
    return tmp_path / "tpulm" / "prices" / f"{COMPUTE_ENGINE}.json"


def test_googles_rows_give_googles_prices(gcs: Emulator):
    """Captured from the Cloud Billing Catalog API on 2026-06-14, per chip: Google's rows, verbatim in recorded/billing.json."""
    for accelerator, zone, spot, dollars in (
        ("v5litepod-1", "asia-south2-a", False, 1.44132),
        ("v5p-8", "southamerica-east1-a", False, 4 * 6.430995),
        ("v6e-1", "us-south1-ai1b", False, 2.70),
        ("v5litepod-8", "asia-southeast1-b", True, 8 * 0.78),
        ("v6e-8", "us-east5-b", False, 8 * 2.70),
        ("v6e-8", "us-east5-b", True, 8 * 1.4033),  # 2026-08-07; not the rows of DWS, and of optimized capacity
    ):
        (price,) = prices.find_prices(settings_of(accelerator, spot=spot), [zone]).values()
        assert (price.zone, price.spot, price.dollars_per_hour) == (zone, spot, pytest.approx(dollars))
        assert price.source == "Cloud Billing Catalog" and len(price.as_of) == len("2026-06-14")


def test_what_a_row_means(gcs: Emulator):
    for accelerator, zones, spot, expected in (
        ("v3-8", "us-central1-a", False, [8.0]),
        ("v3-8", "us-central1-a", True, [2.04]),  # its usageType is OnDemand, too
        ("v3-32", "us-central1-a", False, [4 * 7.2]),  # slices have rows of their own
        ("v5p-8", "europe-west4-b", False, []),  # there is a commitment for 3 years alone
        ("v5p-8", "asia-south2-a", False, []),  # there is a reservation alone; its usageType is OnDemand
        ("v5litepod-4", "us-central1-a", False, [4 * 1.2]),  # and no sole tenancy
        ("v4-8", "us-central2-b", True, []),
        ("v5litepod-1", "europe-west4-b", False, [1.56]),  # the newest entry counts
        ("v5litepod-1", "europe-west4-b", True, [0.624]),  # without "units"
        ("v5litepod-1", "europe-west8-a europe-west12-a", False, []),  # another currency, another unit
    ):
        assert list(per_hour(accelerator, *zones.split(), spot=spot).values()) == expected, (accelerator, zones)


def test_tpu7x_is_in_every_region_of_its_row(gcs: Emulator):
    rest = GoogleRest("tpulm-emulator", patience_seconds=0.0)
    found = prices.of_type(accelerators.find("tpu7x-8"), ["us-west1-a", "us-east1-b", "us-east5-a"], spot=False, rest=rest)
    assert {zone: price.dollars_per_hour for zone, price in found.items()} == {"us-west1-a": 48.0, "us-east1-b": 48.0}


def test_a_v4_is_always_priced_as_a_slice(cache: Any):
    row = {**ROWS[CLOUD_TPU][-1]["sku"], "description": "Tpu-v4 Pod Accelerator USA"}  # the name is Google's
    catalog = Catalog(row, {**row, "description": "Tpu-v4 accelerator USA"}, of=CLOUD_TPU)
    (price,) = prices.find_prices(settings_of("v4-8", spot=False), ["us-central2-b"], rest=catalog).values()
    assert price.dollars_per_hour == pytest.approx(8.1144)


def test_a_row_in_another_form_hides_no_other(cache: Any):
    without_rates = {"pricingExpression": {"usageUnit": "h", "tieredRates": []}}
    wrong = ({"pricingInfo": []}, {"pricingInfo": [without_rates]}, {"category": {}}, {"description": None})
    assert of_rows(*({**DALLAS, **change} for change in wrong), DALLAS).source == prices.CATALOG


def test_the_rate_from_the_first_hour_on_counts_and_of_two_rows_the_dearer(cache: Any):
    rates = [{"startUsageAmount": amount, "unitPrice": {"currencyCode": "USD", "units": str(amount or 3)}} for amount in (9, 0)]
    tiered = {**DALLAS, "pricingInfo": [{"pricingExpression": {"usageUnit": "h", "tieredRates": rates}}]}
    assert of_rows(tiered, DALLAS).dollars_per_hour == 3.0


def test_where_the_catalogue_is_off_the_file_counts_and_it_is_told(gcs: Emulator):
    """In which a spot v6e in Europe is not a third of its price, either."""
    in_europe = {"europe-west4-a": 8 * 1.78}
    assert per_hour("v6e-8", "europe-west4-a", budget=100.0) == in_europe
    gcs.tpu.disable_service("cloudbilling.googleapis.com")
    assert per_hour("v6e-8", "europe-west4-a", budget=100.0) == in_europe
    notes: list[str] = []
    assert per_hour("v6e-8", "us-east5-a", "us-central1-b", notes=notes) == {"us-east5-a": 8 * 1.62}
    (note,) = notes
    assert "Cloud Billing API has not been used in project" in note and "of the dates given" in note
    (price,) = prices.find_prices(settings_of("v6e-8"), ["us-east5-a"]).values()
    assert str(price) == ("$12.96 an hour spot in us-east5-a (readings of the Cloud Billing Catalog by third parties, 2026-08)")


def test_a_budget_needs_a_price_of_every_zone(gcs: Emulator):
    with pytest.raises(ConfigError, match="us-central2-b"):
        per_hour("v4-8", "us-central2-b", budget=100.0)
    with pytest.raises(ConfigError, match=r'asia-east1-c.*zones = \["us-central1-a"\]'):
        per_hour("v3-8", *(zones := ("us-central1-a", "asia-east1-c")), zones=zones, budget=100.0)
    assert per_hour("v4-8", "us-central2-b", budget=100.0, dollars_per_hour=0.0) == {"us-central2-b": 0.0}


def test_a_budget_leaves_out_default_zones_without_a_price(gcs: Emulator):
    notes: list[str] = []
    zones = settings_of("v5p-8").zones
    assert per_hour("v5p-8", *zones, notes=notes, budget=100.0) == per_hour("v5p-8", "us-central1-a")
    assert notes == ["no price is known in us-east5-a, europe-west4-b: left out, since a budget needs one"]
    with pytest.raises(ConfigError, match="us-east5-a"):
        per_hour("v5p-8", *zones[:2], zones=zones[:2], budget=100.0)
    assert per_hour("v5p-8", *zones, notes=(none := [])) == per_hour("v5p-8", "us-central1-a") and none == []


def test_the_users_own_prices_come_first(gcs: Emulator, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    (own := tmp_path / "own.toml").write_text('[prices]\nas_of = "2026-11"\n[[tpu]]\nprefix = "v4"\nspot = 0.5\n')
    monkeypatch.setenv("TPULM_ACCELERATORS", str(own))
    accelerators._catalogue.cache_clear()
    try:
        (price,) = prices.find_prices(settings_of("v4-16"), ["us-central2-b"]).values()
        assert (price.dollars_per_hour, price.source, price.as_of) == (4.0, str(own), "2026-11")
        assert per_hour("v4-16", "us-central2-b", spot=False) == {}
    finally:
        accelerators._catalogue.cache_clear()


def test_the_catalogue_is_kept_for_a_day(cache: Any):
    catalog = Catalog(DALLAS)
    assert of_rows(catalog=catalog) == of_rows(catalog=catalog) and catalog.asked == 1
    for damage in ("{", "[]", "{}", '{"at": 9e99, "dollars": {}}', '{"at": "now", "dollars": {}}'):
        cache.write_text(damage)
        asked = catalog.asked
        assert of_rows(catalog=catalog).source == prices.CATALOG and catalog.asked == asked + 1, damage
    kept, asked = json.loads(cache.read_text()), catalog.asked
    cache.write_text(json.dumps({**kept, "at": kept["at"] - 90_000}))
    assert of_rows(catalog=catalog).dollars_per_hour == 2.7 and catalog.asked == asked + 1


def test_nothing_of_an_emulator_is_kept(gcs: Emulator, cache: Any, monkeypatch: pytest.MonkeyPatch):
    for name, value in gcs.environment.items():
        monkeypatch.setenv(name, value)
    assert per_hour("v6e-8", "us-east5-a") and not cache.exists()


def test_every_price_of_the_file_has_a_date_and_a_source():
    for part in [*prices.table()["tpu"], prices.table()["storage"], prices.table()["comparison"]]:
        assert part["as_of"] and part["source"]
