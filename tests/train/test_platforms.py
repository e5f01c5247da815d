"""A run that asks for a TPU, or is on a machine that has one, does not go on without it in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpulm import accelerators
from tpulm.errors import ConfigError, DeviceError
from tpulm.train import platforms
from tpulm.train.platforms import check_platform


@pytest.fixture
def pci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any PCI device."""
    monkeypatch.setattr(accelerators, "_PCI_DEVICES", tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    return tmp_path


def attach(pci: Path, device: str, count: int) -> None:
    for number in range(count):
        folder = pci / f"0000:00:{number:02x}.0"
        folder.mkdir()
        (folder / "vendor").write_text("0x1ae0\n")
        (folder / "device").write_text(f"{device}\n")


@pytest.mark.parametrize(("device", "wanted"), [("", "auto"), ("", "cpu"), ("0x0063", "any"), ("0x0042", "auto")])
def test_a_machine_without_a_wanted_tpu_computes_on_its_cpu(pci: Path, device: str, wanted: platforms.Platform):
    """0x0042 is Google's network card."""
    attach(pci, device, 4 if device else 0)
    check_platform(wanted)


@pytest.mark.parametrize(
    ("chips", "wanted", "variable", "message"),
    [
        (0, "tpu", "", "TPU .*--allow-cpu"),
        (1, "tpu", "", r"pip install -e '\.\[tpu\]'"),
        (1, "tpu", "cpu", "JAX_PLATFORMS=cpu"),
        (4, "auto", "", "4 TPU chips"),
        (0, "gpu", "", "GPU.*NVIDIA"),
        (0, "gpu", "cpu", "GPU.*NVIDIA"),  # as `import tpulm` sets it
    ],
)
def test_a_device_that_is_not_used_stops_the_run_with_the_reason(
    pci: Path, monkeypatch: pytest.MonkeyPatch, chips: int, wanted: platforms.Platform, variable: str, message: str
):
    attach(pci, "0x0063", chips)
    monkeypatch.setenv("JAX_PLATFORMS", variable)
    monkeypatch.setattr(platforms, "find_spec", lambda name: None)
    monkeypatch.setattr(platforms, "nvidia_driver", lambda: False)
    with pytest.raises(ConfigError, match=message):
        check_platform(wanted)


BUSY = (  # marin issue 4783
    "Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Device or resource busy: "
    "Device or resource busy; Couldn't open iommu group /dev/vfio/0"
)


@pytest.mark.parametrize("message", [BUSY, ""], ids=["raised", "fell back to the CPU"])
def test_a_tpu_that_is_set_up_and_fails_is_the_machines_fault(pci: Path, monkeypatch: pytest.MonkeyPatch, message: str):
    def default_backend() -> str:
        if message:
            raise RuntimeError(message)
        return "cpu"

    attach(pci, "0x0063", 4)
    monkeypatch.setattr(platforms, "find_spec", lambda name: name)
    monkeypatch.setattr(platforms.jax, "default_backend", default_backend)
    with pytest.raises(DeviceError, match="resource busy" if message else "another process"):
        check_platform("auto")


@pytest.mark.parametrize(("order", "extra"), [("tpulm, jax", {}), ("jax, tpulm", {"TPU_STDERR_LOG_LEVEL": "2"})])
def test_libtpu_says_nothing_where_there_is_no_tpu(user_environment: dict[str, str], order: str, extra: dict[str, str]):
    """In a script, too, as the benchmarks are."""
    environment = {name: value for name, value in user_environment.items() if not name.startswith(("TPU_", "JAX_"))} | extra
    code = f"import {order}; print(jax.devices())"
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
