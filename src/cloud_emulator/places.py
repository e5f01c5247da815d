"""The default catalogue of accelerators."""

from cloud_emulator.catalogue import AI_ZONES, CONFIG_TYPES, Accelerator, Catalogue, region_of

__all__ = ["AI_ZONES", "CATALOGUE", "CONFIG_TYPES", "region_of"]
CATALOGUE = Catalogue()


def offered() -> dict[str, list[Accelerator]]:
    return CATALOGUE.zones


def regions() -> list[str]:
    return CATALOGUE.regions


def runtime_versions(zone: str) -> list[str]:
    return CATALOGUE.runtime_versions(zone)


def all_runtime_versions() -> set[str]:
    return set(CATALOGUE.runtime_versions())


def find(name: str) -> Accelerator | None:
    return CATALOGUE.find(name)


def topology(accelerator: Accelerator) -> str:
    return accelerator.topology


def with_topology(config_type: str, wanted: str) -> Accelerator | None:
    return CATALOGUE.with_topology(config_type, wanted)
