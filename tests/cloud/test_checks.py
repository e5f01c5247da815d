"""What the doctor says of networks, addresses and quotas, by answers in the shape that Google gives them.

Compute Engine: https://cloud.google.com/compute/docs/reference/rest/v1, networks, subnetworks, regions. Cloud Quotas:
https://cloud.google.com/docs/quotas/reference/rest/v1/projects.locations.services.quotaInfos.
"""

from __future__ import annotations

from typing import Any

import pytest
from compute_answers import REGIONS, network_of, region_of, subnetwork_of

from cloud_emulator.recorded import answer
from tpulm.cloud import doctor
from tpulm.cloud.doctor import CheckResult, Project
from tpulm.cloud.google_rest import GoogleError, GoogleRest, Identity
from tpulm.cloud.settings import CloudSettings


class Answers(GoogleRest):
    """Those of a project, by path below projects/."""

    def __init__(self, found: dict[str, Any]):
        super().__init__("my-project")
        self.found = found

    def get(self, service: str, path: str, **query: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        name = path.removeprefix("compute/").removeprefix("v1/projects/")
        answer = self.found.get(name)
        if answer is None:
            # recorded for addresses: k8s-config-connector; the form is the same for all
            raise GoogleError(service, 404, "notFound", f"The resource 'projects/{name}' was not found")
        if isinstance(answer, GoogleError):
            raise answer
        return answer


def look(found: dict[str, Any], **changes: Any) -> Project:
    values = {
        "project": "my-project",
        "accelerator": "v5litepod-16",
        "zones": ("us-central1-a", "us-east1-c"),
        "bucket": "runs",
    }
    made = Project(CloudSettings.model_validate({**values, **changes}), Answers(found))
    made.__dict__["identity"] = Identity("user", "me@example.com")
    return made


AUTO = {
    "my-project/global/networks/default": network_of(),
    **{f"my-project/regions/{region}/subnetworks/default": subnetwork_of("default", region) for region in REGIONS},
}
CUSTOM = {"my-project/global/networks/lab": network_of("lab", auto=False)}


def test_a_network_in_auto_mode_has_a_subnetwork_in_each_region():
    assert doctor.network(look(AUTO)) == CheckResult(True, "default")
    assert doctor.subnetwork(look(AUTO)) == CheckResult(True, "default in us-central1, us-east1")


def test_a_project_without_the_default_network():
    found = doctor.network(look({}))
    assert found.ok is False and found.found == "there is no network default in my-project"
    assert "gcloud compute networks create default --subnet-mode=auto --project=my-project" in found.remedy


def test_a_network_in_custom_mode_needs_the_name_of_a_subnetwork():
    found = doctor.network(look(CUSTOM, network="lab"))
    assert found.ok is False and "lab is a network in custom mode, and no subnetwork is named" in found.found
    assert found.remedy == 'subnetwork = "tpus" in cloud.toml'
    assert doctor.network(look(CUSTOM, network="lab", subnetwork="tpus")).ok


def test_a_subnetwork_that_some_regions_lack():
    there = {**CUSTOM, "my-project/regions/us-east1/subnetworks/tpus": subnetwork_of("tpus", "us-east1", of="lab")}
    found = doctor.subnetwork(look(there, network="lab", subnetwork="tpus"))
    assert found.ok is False and found.found == "there is no subnetwork tpus in us-central1"
    assert 'zones = ["us-east1-c"]' in found.remedy


def test_a_subnetwork_of_another_network():
    there = {f"my-project/regions/{region}/subnetworks/tpus": subnetwork_of("tpus", region) for region in REGIONS}
    found = doctor.subnetwork(look(there, network="lab", subnetwork="tpus"))
    assert found.ok is False and "tpus in us-central1 is of the network default, not of lab" in found.found


def test_a_shared_network_is_looked_for_in_its_own_project():
    shared = {
        "host/global/networks/lab": network_of("lab", auto=False),
        "host/regions/us-east1/subnetworks/tpus": subnetwork_of("tpus", "us-east1", of="lab"),
    }
    named = {"network": "projects/host/global/networks/lab", "subnetwork": "projects/host/regions/us-east1/subnetworks/tpus"}
    assert doctor.network(look(shared, **named)).ok
    assert doctor.subnetwork(look(shared, zones=("us-east1-c",), **named)).ok
    found = doctor.subnetwork(look(shared, **named))
    assert found.ok is False and found.found == "tpus is in us-east1, not in us-central1"


def test_without_external_addresses_google_is_reached_by_private_access():
    found = doctor.private_access(look(AUTO, external_addresses=False))
    assert found.ok is False and "off on default in us-central1, default in us-east1" in found.found
    assert (
        "gcloud compute networks subnets update default --region=us-central1 --enable-private-ip-google-access" in found.remedy
    )
    private = {
        f"my-project/regions/{region}/subnetworks/default": subnetwork_of("default", region, private=True) for region in REGIONS
    }
    assert doctor.private_access(look(private, external_addresses=False)).ok


def regions(**quotas: tuple[float, float]) -> dict[str, Any]:
    return {f"my-project/regions/{name.replace('_', '-')}": region_of(name, *quota) for name, quota in quotas.items()}


@pytest.mark.parametrize(
    ("accelerator", "quotas", "ok", "said"),
    [
        ("v5litepod-16", {"us_central1": (8.0, 1.0), "us_east1": (8.0, 0.0)}, True, "4 needed; 7 of 8 free in us-central1"),
        ("v5litepod-64", {"us_central1": (8.0, 0.0), "us_east1": (69.0, 0.0)}, False, "takes 16: 8 of 8 free in us-central1"),
        ("v5litepod-16", {"us_central1": (8.0, 6.0), "us_east1": (4.0, 0.0)}, False, "takes 4: 2 of 8 free in us-central1"),
    ],
)
def test_the_quota_of_external_addresses(accelerator: str, quotas: dict[str, Any], ok: bool, said: str):
    """Of 8 by default, 4 in new projects: more hosts than that are refused as IN_USE_ADDRESSES, in the middle of creation."""
    found = doctor.addresses(look(regions(**quotas), accelerator=accelerator))
    assert found.ok is ok and said in found.found
    if not ok:
        assert "external_addresses = false" in found.remedy and "Cloud NAT" in found.remedy
        assert 'or zones = ["us-east1-c"]' in found.remedy


# -- quota --------------------------------------------------------------------------------------------------------------

QUOTAS = "my-project/locations/global/services/tpu.googleapis.com/quotaInfos"


def quota(accelerator: str, stem: str, *dimensions: dict[str, Any], spot: bool = False) -> CheckResult:
    """With limits per zone alone."""
    info = {
        "quotaId": f"{stem}PerProjectPerZoneForTPUAPI",
        "service": "tpu.googleapis.com",
        "dimensions": ["zone"],
        "dimensionsInfos": list(dimensions),
    }
    return doctor.quota(look({QUOTAS: {"quotaInfos": [info]}}, accelerator=accelerator, spot=spot))


def of_zone(zone: str, **details: str) -> dict[str, Any]:
    return {"dimensions": {"zone": zone}, "details": details, "applicableLocations": [zone]}


def by_default(*zones: str, value: str = "16") -> dict[str, Any]:
    return {"details": {"value": value}, "applicableLocations": list(zones)}


@pytest.mark.parametrize("spot", [False, True])
def test_one_host_of_a_v5e_counts_against_the_serving_quota(spot: bool):
    """As the recorded refusal of a v5litepod-8 names it; more hosts count against the other."""
    preemptible = "Preemptible" if spot else ""
    serving, pods = f"TPUV5s{preemptible}LitepodServing", f"TPUV5s{preemptible}Litepod"
    assert "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI" in str(answer("quota"))
    zones = ("us-central1-a", "us-east1-c")
    for accelerator in ("v5litepod-1", "v5litepod-4", "v5litepod-8"):
        assert quota(accelerator, serving, by_default(*zones), spot=spot).ok
        assert quota(accelerator, pods, by_default(*zones), spot=spot).ok is None
    assert quota("v5litepod-16", pods, by_default(*zones), spot=spot).ok
    found = quota("v5litepod-8", serving, by_default(*zones, value="4"), spot=spot)
    assert found.ok is False and f"{serving}PerProjectPerZoneForTPUAPI in us-central1-a: 4 of 8 chips" in found.found


def test_the_three_kinds_of_limits():
    """A zone's own, which without a value is zero and not the default; the default of other zones; -1, none."""
    stem, default = "TPUV5sLitepod", by_default("us-central1-a", "us-east1-c")
    assert quota("v5litepod-16", stem, default).ok
    found = quota("v5litepod-16", stem, default, of_zone("us-central1-a"))
    assert found.ok is False and "in us-central1-a: 0 of 16 chips" in found.found and 'zones = ["us-east1-c"]' in found.remedy
    found = quota("v5litepod-32", stem, default, of_zone("us-central1-a", value="-1"), of_zone("us-east1-c", value="64"))
    assert found.ok, "unlimited, and 64"
    assert quota("v5litepod-32", stem, default).ok is False


def test_what_may_not_be_seen_is_not_checked(monkeypatch: pytest.MonkeyPatch):
    def examined(refused: GoogleError) -> CheckResult:
        project = look({"my-project/global/networks/default": refused})
        monkeypatch.setattr(doctor, "_entries", lambda project: [doctor._Entry("network", doctor.network)])
        monkeypatch.setattr(doctor, "Project", lambda settings, rest: project)
        (found,) = doctor.examine(project.settings)
        return CheckResult(found.ok, found.found, found.remedy)

    found = examined(
        GoogleError("compute", 403, "forbidden", "Required 'compute.networks.get' permission for 'projects/my-project'")
    )
    assert found.ok is None and found.found.startswith("not checked, because you lack ")
    assert "Required 'compute.networks.get' permission" in found.found
    assert "--member=user:me@example.com --role=roles/compute.viewer" in found.remedy
    off = GoogleError("compute", 403, "SERVICE_DISABLED", "Compute Engine API has not been used in project my-project before")
    assert "not checked, because the API " in examined(off).found
