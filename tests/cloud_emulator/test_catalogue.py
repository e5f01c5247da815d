"""The emulator's own reading of the accelerators' figures is tpulm's."""

from __future__ import annotations

from cloud_emulator.catalogue import Catalogue, region_of
from tpulm import accelerators

CATALOGUE = Catalogue()


def test_types():
    for found in CATALOGUE.types:
        known = accelerators.find(found.name)
        assert (found.chips, found.hosts, found.runtime_version) == (known.chips, known.hosts, known.runtime_version)
        assert found.topology == known.topology
        assert {region_of(zone) for zone in known.zones} <= {region_of(zone) for zone in found.zones}


def test_larger_ones_and_none():
    larger = CATALOGUE.find("v4-384")
    assert larger is not None and larger.hosts == 48
    assert [CATALOGUE.find(name) for name in ("v3-9", "V3-8", "v3-08", "tpu7x-8", "v3-")] == [None] * 5
    assert CATALOGUE.with_topology("V3", "2x2") == CATALOGUE.find("v3-8")
