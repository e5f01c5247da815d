"""What is attached to this machine, whether or not JAX can use it."""

from __future__ import annotations

from pathlib import Path

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"  # PCI vendor; its network cards have it, too
_TPU_IDS = {"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}  # v2 and v3, v4, v5p, v5e, v6e, tpu7x, as in JAX


def tpu_chips() -> int:
    count = 0
    for vendor in _PCI_DEVICES.glob("*/vendor"):
        if _text(vendor) == _GOOGLE and _text(vendor.with_name("device")) in _TPU_IDS:
            count += 1
    return count


def nvidia_driver() -> bool:
    return any(Path(name).exists() for name in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
