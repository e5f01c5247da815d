"""Which TPU types and runtime versions are offered where, by the catalogue of accelerators."""

from __future__ import annotations

import functools

from tpulm import accelerators
from tpulm.accelerators import Accelerator
from tpulm.errors import ConfigError

LETTERS = "abc"  # the zones that "us-east5-*" stands for
AI_ZONES = {"us-south1-ai1b": "v6e"}  # beyond the catalogue, for the form of their names

# The catalogue's generations as AcceleratorConfig.Type has them.
CONFIG_TYPES = {"v2": "V2", "v3": "V3", "v4": "V4", "v5e": "V5LITE_POD", "v5p": "V5P", "v6e": "V6E"}


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def zones_of(accelerator: Accelerator) -> tuple[str, ...]:
    found: list[str] = []
    for zone in accelerator.zones:
        found += [zone[:-1] + letter for letter in LETTERS] if zone.endswith("*") else [zone]
    return (*found, *(zone for zone, generation in AI_ZONES.items() if generation == accelerator.generation))


@functools.cache
def offered() -> dict[str, tuple[Accelerator, ...]]:
    """Accelerator types by zone; both in a stable order."""
    by_zone: dict[str, list[Accelerator]] = {}
    for name in accelerators.names():
        accelerator = accelerators.find(name)
        for zone in zones_of(accelerator):
            by_zone.setdefault(zone, []).append(accelerator)
    return {zone: tuple(by_zone[zone]) for zone in sorted(by_zone)}


def regions() -> list[str]:
    return sorted({region_of(zone) for zone in offered()})


def runtime_versions(zone: str) -> list[str]:
    return sorted({accelerator.runtime_version for accelerator in offered()[zone]})


def all_runtime_versions() -> set[str]:
    return {version for zone in offered() for version in runtime_versions(zone)}


def find(name: str) -> Accelerator | None:
    """The type of that exact name, if the TPU API has it."""
    try:
        accelerator = accelerators.find(name)
    except ConfigError:
        return None
    return accelerator if accelerator.name == name and accelerator.zones else None


def number_of(accelerator: Accelerator) -> int:
    """What quota counts: the N of the name, chips or cores."""
    return int(accelerator.name.rpartition("-")[2])


def topology(accelerator: Accelerator) -> str:
    """How its chips are arranged, such as "2x4", or "2x2x1" for the generations with three dimensions."""
    dimensions = 3 if accelerator.ici_links == 6 else 2
    sides = [1] * dimensions
    left = accelerator.chips
    while left > 1:
        smallest = dimensions - 1 - sides[::-1].index(min(sides)) if dimensions == 2 else sides.index(min(sides))
        sides[smallest] *= 2 if left % 2 == 0 else left
        left = left // 2 if left % 2 == 0 else 1
    if dimensions == 3 and accelerator.chips > 4:
        sides.sort()
    return "x".join(map(str, sides))


def with_topology(config_type: str, wanted: str) -> Accelerator | None:
    """The type whose AcceleratorConfig says the same."""
    for name in accelerators.names():
        accelerator = accelerators.find(name)
        if CONFIG_TYPES.get(accelerator.generation) == config_type and topology(accelerator) == wanted:
            return accelerator
    return None
