"""Accelerator types and the zones that offer them, read from a file such as the accelerators.toml beside this module.

The file is a list of `[[tpu]]` with `prefix`, `generation`, `sizes`, `number_counts`, `cores`, `one_host`, `chips_per_host`,
`axes`, `quota`, `runtime_version` and `zones` ("us-east5-*" stands for all of a region); other keys are ignored.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT = Path(__file__).with_name("accelerators.toml")
LETTERS = "abc"  # the zones that "us-east5-*" stands for
AI_ZONES = {"us-south1-ai1b": "v6e"}  # besides the file's, for the form of their names

# Generations in AcceleratorConfig.Type; others cannot be requested.
CONFIG_TYPES = {"v2": "V2", "v3": "V3", "v4": "V4", "v5e": "V5LITE_POD", "v5p": "V5P", "v6e": "V6E"}


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


class Accelerator(NamedTuple):
    """A type such as "v3-8"."""

    name: str
    generation: str
    chips: int
    hosts: int
    dimensions: int  # of the links between its chips
    quota: str  # with {spot}, {pod} and {serving}
    runtime_version: str
    zones: tuple[str, ...]

    @property
    def number(self) -> int:
        """What quota counts: the N of the name, chips or cores."""
        return int(self.name.rpartition("-")[2])

    @property
    def topology(self) -> str:
        """How its chips are arranged, such as "2x4", or "2x2x1" for the generations with three dimensions."""
        sides, remaining = [1] * self.dimensions, self.chips
        while remaining > 1:
            order = range(self.dimensions) if self.dimensions == 3 else reversed(range(self.dimensions))
            smallest = min(order, key=sides.__getitem__)
            sides[smallest] *= 2 if remaining % 2 == 0 else remaining
            remaining = remaining // 2 if remaining % 2 == 0 else 1
        return "x".join(map(str, sorted(sides) if self.dimensions == 3 and self.chips > 4 else sides))


class Catalogue:
    """`zones` has the types of each zone; everything is in a stable order."""

    def __init__(self, path: Path = DEFAULT):
        self._entries = [
            entry
            for entry in tomllib.loads(path.read_text(encoding="utf-8"))["tpu"]
            if entry["generation"] in CONFIG_TYPES and entry["zones"]
        ]
        self.types = [_accelerator(entry, size) for entry in self._entries for size in entry["sizes"]]
        zones = sorted({zone for accelerator in self.types for zone in accelerator.zones})
        self.zones = {zone: [item for item in self.types if zone in item.zones] for zone in zones}
        self.regions = sorted({region_of(zone) for zone in zones})

    def runtime_versions(self, zone: str | None = None) -> list[str]:
        return sorted({accelerator.runtime_version for accelerator in (self.types if zone is None else self.zones[zone])})

    def find(self, name: str) -> Accelerator | None:
        """The type of that exact name."""
        prefix, _, number = name.rpartition("-")
        for entry in self._entries:
            if entry["prefix"] == prefix and number.isdecimal() and name == f"{prefix}-{int(number)}":
                cube = entry.get("cube")
                if int(number) in entry["sizes"] or (cube and int(number) % cube == 0 and 0 < int(number) <= entry["largest"]):
                    return _accelerator(entry, int(number))
        return None

    def with_topology(self, config_type: str, topology: str) -> Accelerator | None:
        """The type with this AcceleratorConfig."""
        fits = (each for each in self.types if (CONFIG_TYPES[each.generation], each.topology) == (config_type, topology))
        return next(fits, None)


def _accelerator(entry: dict[str, Any], number: int) -> Accelerator:
    chips = number if entry["number_counts"] == "chips" else number // entry["cores"]
    zones: list[str] = []
    for zone in entry["zones"]:
        zones += [zone[:-1] + letter for letter in LETTERS] if zone.endswith("*") else [zone]
    return Accelerator(
        f"{entry['prefix']}-{number}",
        entry["generation"],
        chips,
        1 if chips in entry["one_host"] else chips // entry["chips_per_host"],
        entry["axes"],
        entry["quota"],
        entry["runtime_version"],
        (*zones, *(zone for zone, generation in AI_ZONES.items() if generation == entry["generation"])),
    )
