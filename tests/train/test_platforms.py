"""A run that asks for a TPU, or is on a machine that has one, does not go on without it in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpulm import accelerators
from tpulm.errors import ConfigError
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


@pytest.mark.parametrize("wanted", ["auto", "any", "cpu"])
def test_a_machine_without_a_tpu_computes_on_its_cpu(pci: Path, wanted: platforms.Platform):
    check_platform(wanted)


def test_a_tpu_that_was_asked_for_is_missed(pci: Path):
    with pytest.raises(ConfigError, match=r"asks for a TPU .*computes on the CPU: this machine has no TPU chip.*--allow-cpu"):
        check_platform("tpu")


def test_libtpu_says_nothing_where_there_is_no_tpu(user_environment: dict[str, str]):
    """In a script, too, as the benchmarks are."""
    environment = {name: value for name, value in user_environment.items() if not name.startswith(("TPU_", "JAX_"))}
    code = "import tpulm, jax; print(jax.devices())"
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_libtpu_the_extra_is_named(pci: Path, monkeypatch: pytest.MonkeyPatch):
    attach(pci, "0x0063", 1)
    monkeypatch.setattr(platforms, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[tpu\]'"):
        check_platform("tpu")


def test_the_environment_that_forbids_it_is_named(pci: Path, monkeypatch: pytest.MonkeyPatch):
    attach(pci, "0x0063", 1)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(ConfigError, match="JAX_PLATFORMS=cpu"):
        check_platform("tpu")


def test_chips_that_jax_does_not_use_stop_the_run(pci: Path):
    attach(pci, "0x0063", 4)
    with pytest.raises(ConfigError, match="this machine has 4 TPU chips, but JAX computes on the CPU"):
        check_platform("auto")
    check_platform("any")


def test_googles_network_card_is_no_tpu(pci: Path):
    attach(pci, "0x0042", 1)
    check_platform("auto")


def test_a_gpu_without_its_driver(pci: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platforms, "nvidia_driver", lambda: False)
    with pytest.raises(ConfigError, match=r"asks for a GPU.*no NVIDIA driver"):
        check_platform("gpu")
