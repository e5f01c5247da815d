"""Which kind of device JAX found, and why it is not the requested one: never silently the slow one."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

import jax

from tpulm.accelerators import nvidia_driver, tpu_chips
from tpulm.errors import ConfigError, DeviceError, TpulmError, installing

Platform = Literal["auto", "any", "cpu", "gpu", "tpu"]
_NAMES = {"cpu": "the CPU", "gpu": "a GPU", "tpu": "a TPU"}


def check_platform(target: Platform) -> None:
    """Raise ConfigError, with the reason, unless JAX uses the requested platform; DeviceError if a TPU that is set up fails.

    auto: a TPU wherever the machine has one; any: whatever there is.
    """
    if target == "any":
        return
    kind = _default_backend()
    asked = f'the run asks for {_NAMES.get(target, "")} (hardware.platform = "{target}")'
    if target == "auto":
        if kind != "cpu" or not tpu_chips():
            return
        target, asked = "tpu", f"this machine has {tpu_chips()} TPU chips"
    if kind != target:
        raise _kind_of_error()(
            f"{asked}, but JAX computes on {_NAMES.get(kind, kind)}: {why_not(target)}. Fix that, or continue with what there "
            "is: --allow-cpu (hardware.platform = 'any')"
        )


def why_not(platform: Literal["cpu", "gpu", "tpu"]) -> str:
    """The most likely reason why JAX does not use this platform."""
    if platform == "tpu" and not tpu_chips():
        return "this machine has no TPU chip"
    if platform == "gpu" and not nvidia_driver():  # before the variable, which `tpulm` itself sets where there is neither
        return "no NVIDIA driver is here"
    if (named := os.environ.get("JAX_PLATFORMS")) and platform not in named.replace("cuda", "gpu").split(","):
        return f"the environment says JAX_PLATFORMS={named}"
    match platform:
        case "cpu":
            return "another device is there; JAX_PLATFORMS=cpu keeps to the CPU"
        case "gpu":
            return f"JAX's CUDA plugin is not installed or did not start: {installing('cuda')}"
        case "tpu":
            if find_spec("libtpu") is None:
                return f"libtpu is not installed: {installing('tpu')}"
            return "another process may hold it (one at a time can), or libtpu did not start; see /tmp/tpu_logs"


def _kind_of_error() -> type[TpulmError]:
    """DeviceError where nothing but the chips can be at fault."""
    excluded = "tpu" not in os.environ.get("JAX_PLATFORMS", "tpu").split(",")
    return ConfigError if excluded or not tpu_chips() or find_spec("libtpu") is None else DeviceError


def _default_backend() -> str:
    try:
        return jax.default_backend()
    except RuntimeError as error:
        raise _kind_of_error()(
            f"JAX found no device: {str(error).splitlines()[0]}; see JAX_PLATFORMS, or continue with --allow-cpu"
        ) from error
