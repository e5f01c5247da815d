"""The catalogue of accelerators: what a TPU type consists of, and the peak FLOP/s of a device as JAX names it.

Figures with their sources and dates are in accelerators.toml next to this file, which is read on first use. Prices here belong
to no particular region and serve to compare types; `tpulm.cloud.prices` has what a TPU costs in a zone.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from tpulm.errors import ConfigError, suggest
from tpulm.storage import parse_toml

_PRICES = ("on_demand", "spot")
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"  # PCI vendor ID, shared by Google's network cards
ComputeType = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A TPU type such as "v3-8": a slice with a given number of chips and hosts. Totals are of the whole slice."""

    name: str
    generation: str
    chips: int
    cores: int
    devices: int  # as JAX counts them
    hosts: int
    hbm_bytes: int
    peak_flops: float  # bfloat16 FLOP/s
    hbm_bytes_per_second: float
    clock_hertz: float  # of a core
    ici_links: int  # of a chip, to its neighbours
    ici_bytes_per_second: float  # of one link, in one direction
    axes: int  # dimensions in which chips are linked
    ring_from: int  # an axis of this many chips or more is closed to a ring
    quota: str  # name of its quota, with placeholders {spot}, {pod} and {serving}
    gke_nodes: str  # label of GKE nodes that have it; "" where GKE does not offer it
    runtime_version: str
    zones: tuple[str, ...]  # "us-east5-*" stands for every zone of that region
    dollars_per_hour: float | None  # on demand, in no particular region; None: no price is listed
    spot_dollars_per_hour: float | None
    prices_as_of: str
    prices_source: str
    own_prices: frozenset[str] = frozenset()  # "on_demand", "spot": prices from the user's file, for every region

    @property
    def shape(self) -> tuple[int, ...]:
        """The topology: as near to a square or a cube as the number of chips allows; (2, 4) for eight chips of a v5e."""
        if self.axes == 2:
            return _near_equal(self.chips, 2)
        return (2, 2, 1) if self.chips == 4 else _near_equal(self.chips, 3)  # (2, 2, 1) is one host

    @property
    def topology(self) -> str:
        """The shape as Google writes it: "2x4"."""
        return "x".join(map(str, self.shape))

    @property
    def hbm_bytes_per_device(self) -> int:
        return self.hbm_bytes // self.devices

    @property
    def peak_flops_per_device(self) -> float:
        return self.peak_flops / self.devices

    def hours(self, flops: float, utilization: float) -> float:
        """How many hours `flops` floating-point operations take at this fraction of the peak (MFU)."""
        return flops / (self.peak_flops * utilization) / 3600


def find(name: str) -> Accelerator:
    """The accelerator type of that name. Raises ConfigError, with the nearest names, if there is none."""
    prefix, _, number = name.strip().lower().rpartition("-")
    for entry in _catalogue()["tpu"]:
        if entry["prefix"] == prefix and number.isdecimal() and _exists(entry, int(number)):
            return _accelerator(entry, int(number))
    for entry in _catalogue()["gpu"]:
        if name.strip() and set(re.split(r"[\s-]+", name.strip().lower())) >= set(entry["words"]):
            raise ConfigError(f"'{name}' is a GPU, and only for TPUs is there a compiler without the device")
    known = names()
    of_generation = [item for item in known if item.startswith(f"{prefix}-")]
    smallest = [f"{entry['prefix']}-{entry['sizes'][0]}" for entry in _catalogue()["tpu"] if entry["sizes"]]
    hint = f" Known {prefix} types: {', '.join(of_generation)}." if of_generation else suggest(name, known)
    raise ConfigError(
        f"no accelerator type is named '{name}'.{hint or ' Known: ' + ', '.join(smallest)} "
        "The number counts cores in v2-, v3-, v4-, v5p- and tpu7x-, and chips in v5litepod- and v6e-."
    )


def names() -> list[str]:
    """The usual type names, by generation and size."""
    return [f"{entry['prefix']}-{size}" for entry in _catalogue()["tpu"] for size in entry["sizes"]]


def tpu_chips() -> int:
    ids = {entry["pci_id"] for entry in _catalogue()["tpu"]}
    google = (vendor for vendor in _PCI_DEVICES.glob("*/vendor") if _text(vendor) == _GOOGLE)
    return sum(_text(vendor.with_name("device")) in ids for vendor in google)


def nvidia_driver() -> bool:
    return any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))


def cpu_features() -> str:
    """The line of /proc/cpuinfo that lists the processor's instruction sets; "" if there is none."""
    return _cpuinfo("flags", "Features")


def processor() -> str:
    """The processor's name, such as "AMD EPYC 7B13", or its architecture if the system does not report the name."""
    return _cpuinfo("model name").partition(":")[2].strip() or platform.machine()


def _cpuinfo(*names: str) -> str:
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    return next((line for line in lines if line.startswith(names)), "")


def cpu_multiplies_bfloat16() -> bool:
    """Whether this processor has bfloat16 instructions (on Linux) and XLA_FLAGS do not keep XLA from using them.

    Products then take half the time or less; otherwise bfloat16 is converted to float32 and back (benchmarks/RESULTS.md).
    """
    widest = re.search(r"--xla_cpu_max_isa=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpu_features().split()) and (
        widest is None or widest[1].upper() in ("AVX512_BF16", "AMX", "AMX_FP16")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def from_device_kind(kind: str, compute_type: ComputeType = "bfloat16") -> float | None:
    """Peak FLOP/s of one device with JAX's `device_kind`, for matrix products with operands of `compute_type`.

    JAX's default precision is assumed: float32 products run as bfloat16 on a TPU and as TensorFloat-32 on GPUs that have it.
    None for a CPU, a fraction of a GPU (MIG), and any device missing from the catalogue.
    """
    for entry in _catalogue()["tpu"]:
        if kind in entry["device_kinds"]:
            return entry["bf16_tflops"] * 1e12 / entry["devices"]
    words = set(re.split(r"[\s-]+", kind.lower()))
    if "mig" in words:
        return None
    for entry in _catalogue()["gpu"]:
        if words.issuperset(entry["words"]):
            float32 = entry.get("tf32_tflops", entry["fp32_tflops"])  # which bfloat16 becomes without hardware support
            return 1e12 * (entry.get("bf16_tflops", float32) if compute_type == "bfloat16" else float32)
    return None


def _near_equal(number: int, axes: int) -> tuple[int, ...]:
    """`axes` factors of `number` in ascending order, as nearly equal as possible."""
    if axes == 1:
        return (number,)
    root = round(number ** (1 / axes) + 1e-6)
    first = max(size for size in range(1, root + 1) if number % size == 0)
    return tuple(sorted((first, *_near_equal(number // first, axes - 1))))


def _exists(entry: dict[str, Any], number: int) -> bool:
    cube = entry.get("cube")
    return number in entry["sizes"] or bool(cube and number % cube == 0 and 0 < number <= entry["largest"])


def _accelerator(entry: dict[str, Any], number: int) -> Accelerator:
    chips = number if entry["number_counts"] == "chips" else number // entry["cores"]
    gke_nodes, has_one_host = entry.get("gke_nodes", ""), chips in entry["one_host"]
    return Accelerator(
        name=f"{entry['prefix']}-{number}",
        generation=entry["generation"],
        chips=chips,
        cores=chips * entry["cores"],
        devices=chips * entry["devices"],
        hosts=1 if has_one_host else chips // entry["chips_per_host"],
        hbm_bytes=chips * entry["hbm_gib"] * 2**30,
        peak_flops=chips * entry["bf16_tflops"] * 1e12,
        hbm_bytes_per_second=chips * entry["hbm_gigabytes_per_second"] * 1e9,
        clock_hertz=entry["clock_ghz"] * 1e9,
        ici_links=entry["ici_links"],
        ici_bytes_per_second=entry["ici_gigabytes_per_second"] * 1e9,
        axes=entry["axes"],
        ring_from=entry["ring_from"],
        quota=entry["quota"],
        gke_nodes=entry.get("gke_nodes_of_one_host", gke_nodes) if has_one_host else gke_nodes,
        runtime_version=entry["runtime_version"],
        zones=tuple(entry["zones"]),
        dollars_per_hour=chips * entry["on_demand"] if "on_demand" in entry else None,
        spot_dollars_per_hour=chips * entry["spot"] if "spot" in entry else None,
        prices_as_of=_catalogue()["prices"]["as_of"],
        prices_source=_catalogue()["prices"]["source"],
        own_prices=frozenset(entry.get("own_prices", ())),
    )


@functools.cache
def _catalogue() -> dict[str, Any]:
    own, listed = (
        tomllib.loads((resources.files("tpulm") / name).read_text(encoding="utf-8"))
        for name in ("accelerators.toml", "cloud/prices.toml")
    )
    own["prices"] = prices = listed["comparison"]
    for entry in own["tpu"]:
        entry |= {name: of[entry["generation"]] for name in _PRICES if entry["generation"] in (of := prices[name])}
    path = user_file()
    return _with_own(own, path) if path.exists() else own


def user_file() -> Path:
    """The path of the user's own figures; the file need not exist."""
    if named := os.environ.get("TPULM_ACCELERATORS"):
        return Path(named)
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "tpulm" / "accelerators.toml"


def _with_own(catalogue: dict[str, Any], path: Path) -> dict[str, Any]:
    """The catalogue, overridden by the user's entries. Raises ConfigError naming file and key."""
    try:
        own = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if unknown := sorted(set(own) - {"prices", "tpu"}):
        raise ConfigError(f"{path}: unknown key '{unknown[0]}'.{suggest(unknown[0], ['prices', 'tpu'])} Known: prices, tpu.")
    entries = {entry["prefix"]: entry for entry in catalogue["tpu"]}
    required = set.intersection(*(set(entry) for entry in catalogue["tpu"]))
    allowed = set.union(*(set(entry) for entry in catalogue["tpu"]))
    for entry in own.get("tpu", []):
        prefix = str(entry.get("prefix", ""))
        if wrong := sorted(set(entry) - allowed):
            raise ConfigError(f"{path}: '{prefix}' has an unknown key '{wrong[0]}'.{suggest(wrong[0], sorted(allowed))}")
        whole = {**entries.get(prefix, {}), **entry}
        if missing := sorted(required - set(whole)):
            raise ConfigError(f"{path}: '{prefix}' is not a known type, and lacks {', '.join(missing)}")
        for key, value in entry.items():
            like = next(known[key] for known in catalogue["tpu"] if key in known)
            if not isinstance(value, (int, float) if isinstance(like, (int, float)) else type(like)) or value == []:
                raise ConfigError(f"{path}: {key} of '{prefix}' is {value!r}; expected something like {like!r}")
        entries[prefix] = {**whole, "own_prices": {*whole.get("own_prices", ()), *entry} & {*_PRICES}}
    return {**catalogue, "prices": {**catalogue["prices"], **own.get("prices", {})}, "tpu": list(entries.values())}
