"""The catalogue: what type names mean, what they cost, and the peaks behind MFU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tpulm import accelerators
from tpulm.errors import ConfigError


def test_a_v3_8_is_four_chips_of_two_cores():
    v3 = accelerators.find("v3-8")
    assert (v3.chips, v3.cores, v3.devices, v3.hosts) == (4, 8, 8, 1)
    assert v3.hbm_bytes == 4 * 32 * 2**30
    assert v3.hbm_bytes_per_device == 16 * 2**30
    assert v3.peak_flops == pytest.approx(492e12)
    assert v3.dollars_per_hour == pytest.approx(8.0)
    assert v3.spot_dollars_per_hour == pytest.approx(2.04)
    assert v3.prices_as_of == "undated"
    assert v3.runtime_version == "tpu-ubuntu2204-base"


# Chips, cores, devices and hosts. With megacore there is one device a chip; v4-384 is three cubes.
SLICES = {"v2-512": (256, 512, 512, 64), "v4-384": (192, 384, 192, 48), "v5litepod-8": (8, 8, 8, 1)}
SLICES |= {"v5litepod-16": (16, 16, 16, 4), "v5p-16": (8, 16, 8, 2), "v6e-4": (4, 4, 4, 1)}


def test_what_the_number_in_a_name_counts():
    found = {name: accelerators.find(name) for name in SLICES}
    assert {name: (one.chips, one.cores, one.devices, one.hosts) for name, one in found.items()} == SLICES


def test_every_name_is_found_and_is_whole():
    for name in accelerators.names():
        found = accelerators.find(name)
        assert found.name == name
        assert found.hosts >= 1 and found.chips % found.hosts == 0
        assert found.clock_hertz and found.ici_links and found.ici_bytes_per_second
        if found.generation == "tpu7x":  # no price is listed, and the TPU API does not know it
            assert found.dollars_per_hour is None and found.spot_dollars_per_hour is None
            continue
        assert found.dollars_per_hour and found.spot_dollars_per_hour
        assert found.spot_dollars_per_hour < found.dollars_per_hour
        assert found.zones and found.runtime_version


def test_an_unknown_name_gets_a_suggestion_and_a_gpu_none():
    suggested = {"v3-16": "Known v3 types: v3-8, v3-32.*v5litepod-", "v5lite-8": "v5litepod-8", "": "Known.*v5litepod-"}
    suggested |= {"v5e-8": "v6e-8.*v5litepod-"}  # the nearest spelling first
    for name, message in (suggested | {"a100": "'a100' .*GPU"}).items():
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            accelerators.find(name)


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TPULM_ACCELERATORS", str(tmp_path / "own.toml"))
    accelerators._catalogue.cache_clear()
    yield tmp_path / "own.toml"
    accelerators._catalogue.cache_clear()


def test_the_users_own_figures_come_first(own_file: Path):
    own_file.write_text('[prices]\nas_of = "2026-11"\n[[tpu]]\nprefix = "v3"\non_demand = 1\n')
    v3 = accelerators.find("v3-8")
    assert (v3.dollars_per_hour, v3.spot_dollars_per_hour, v3.prices_as_of) == (4.0, pytest.approx(2.04), "2026-11")
    assert v3.own_prices == {"on_demand"}, "so that it holds in every zone"
    assert accelerators.find("v2-8").dollars_per_hour == pytest.approx(4.5) and not accelerators.find("v2-8").own_prices


def test_wrong_figures_are_named(own_file: Path):
    for text, message in (
        ("[tpu", "own.toml: Expected"),
        ("[gpus]", "'gpus'"),
        ('[[tpu]]\nprefix = "v3"\non_deman = 1', "'on_demand'"),
        ('[[tpu]]\nprefix = "v3"\non_demand = "1"', "on_demand of 'v3' is '1'"),
        ('[[tpu]]\nprefix = "v9"', "axes, bf16_tflops"),
    ):
        own_file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            accelerators.find("v3-8")


TFLOPS = {"TPU v3": 61.5, "TPU v5 lite": 197, "TPU v5": 459, "TPU v6 lite": 918, "TPU7x": 1153.5, "NVIDIA H200": 989.5}
TFLOPS |= {"NVIDIA H200 NVL": 835.5, "NVIDIA H100 80GB HBM3": 989.5, "NVIDIA A100 80GB PCIe": 312}
TFLOPS |= {"Tesla V100-SXM2-16GB": 15.7}  # no bfloat16 units: computed as float32


def test_the_peak_of_a_device():
    for kind, tflops in TFLOPS.items():
        assert accelerators.from_device_kind(kind, "bfloat16") == pytest.approx(tflops * 1e12), kind
    for kind, tflops in (("TPU v3", 61.5), ("NVIDIA H200", 494.5)):  # which multiplies TensorFloat-32
        assert accelerators.from_device_kind(kind, "float32") == pytest.approx(tflops * 1e12), kind
    for kind in ("cpu", "NVIDIA L40S", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "TPU v99", ""):
        assert accelerators.from_device_kind(kind, "bfloat16") is None, kind


def test_a_processor_that_multiplies_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, xla_flags, expected in (
        ("avx2 avx512f avx512_bf16", "", True),
        ("avx512f amx_tile amx_bf16", "", True),
        ("avx2 avx512f avx512_vnni", "", False),
        ("avx512_bf16", "--xla_cpu_max_isa=AVX2", False),
        ("avx512_bf16", "--xla_cpu_max_isa=AVX512_BF16 --xla_dump_to=x", True),
    ):
        info = f"processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t\t: none\n"
        monkeypatch.setattr(accelerators, "_text", lambda path, info=info: info)
        monkeypatch.setenv("XLA_FLAGS", xla_flags)
        assert accelerators.cpu_multiplies_bfloat16() is expected, flags
