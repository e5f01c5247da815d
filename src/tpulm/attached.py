"""What is attached to this machine, whether or not JAX can use it."""

from __future__ import annotations

from pathlib import Path

from tpulm import accelerators

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"  # PCI vendor; its network cards have it, too


def tpu_chips() -> int:
    count, ids = 0, accelerators.pci_ids()
    for vendor in _PCI_DEVICES.glob("*/vendor"):
        if _text(vendor) == _GOOGLE and _text(vendor.with_name("device")) in ids:
            count += 1
    return count


def nvidia_driver() -> bool:
    return any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
