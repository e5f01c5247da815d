"""`tpulm devices`: what this machine has, and whether a TPU would help."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpulm.cli.options import AsJson, Overrides, load_run, vocabulary_of
from tpulm.cli.terminal import console, print_json, print_table

if TYPE_CHECKING:
    from tpulm.plan.advice import Advice

_FAST_PRODUCT = 4096  # a side of the matrices that are multiplied on a TPU or GPU; on a CPU they are smaller


def devices(
    reference: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run file or a recipe: would a TPU help it?", show_default=False)
    ] = None,
    accelerator: Annotated[str, typer.Option(metavar="TYPE", help="The TPU type to compare with.")] = "v3-8",
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """What JAX finds on this machine and how fast it multiplies; with a run, whether a TPU would be worth it.

    The advice is arithmetic on the run's sizes; 'tpulm plan' compiles the run for a TPU and knows better.
    """
    from tpulm import accelerators

    kind = accelerators.find(accelerator)
    config = None if reference is None else load_run(reference, overrides)
    found = _machine()
    print_table("This machine", _readable(found))
    advice = None
    if config is not None:
        from tpulm.plan.advice import advise

        here = found["matmul_flops"]["bfloat16" if found["platform"] != "cpu" else "float32"]
        advice = advise(config, kind, here=here, **vocabulary_of(config))
        _show(config.name, advice)
    if as_json:
        print_json({**found, **({} if advice is None else {"advice": _values(advice)})})


def _machine() -> dict[str, Any]:
    import jax

    from tpulm.accelerators import from_device_kind, tpu_chips
    from tpulm.train.platforms import why_not
    from tpulm.train.throughput import measured_matmul

    local = jax.local_devices()
    first, on_cpu = local[0], local[0].platform == "cpu"
    size = {} if on_cpu else {"size": _FAST_PRODUCT}
    together = 1 if on_cpu else len(local)  # the virtual devices of one CPU share its cores
    rates = {dtype: measured_matmul(first, dtype, **size) * together for dtype in ("float32", "bfloat16")}
    return {
        "platform": first.platform,
        "device_kind": first.device_kind,
        "devices": len(local),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(first),
        "matmul_flops": rates,
        "peak_flops": None if (peak := from_device_kind(first.device_kind)) is None else peak * together,
        "bfloat16": "fast" if rates["bfloat16"] > 0.8 * rates["float32"] else "slow: float32 is faster here",
        "tpu_chips": tpu_chips(),
        "no_tpu_because": None if first.platform == "tpu" else why_not("tpu"),
    }


def _memory(device: Any) -> int | None:
    """Of one device; of a CPU, the machine's."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _readable(found: dict[str, Any]) -> dict[str, str]:
    rates, memory, peak = found["matmul_flops"], found["memory_bytes"], found["peak_flops"]
    each = "" if found["platform"] == "cpu" else " each"
    return {
        "devices": f"{found['devices']} x {found['device_kind']} ({found['platform']}), {found['cpu_cores']} CPU cores",
        "memory": "unknown" if memory is None else f"{memory / 2**30:.1f} GiB{each}",
        "products": f"{rates['float32'] / 1e9:,.0f} GFLOP/s in float32, {rates['bfloat16'] / 1e9:,.0f} in bfloat16, measured",
        **({} if peak is None else {"peak": f"{peak / 1e12:,.1f} TFLOP/s in bfloat16, by the data sheet"}),
        "bfloat16": found["bfloat16"],
        "TPU": "in use" if found["platform"] == "tpu" else f"none in use: {found['no_tpu_because']}",
    }


def _show(name: str, advice: Advice) -> None:
    rows = [("ok" if finding.good else "!", finding.what, finding.said) for finding in advice.findings]
    print_table(f"\n{name} on a TPU", rows)
    colour = "green" if advice.use_tpu else "yellow"
    console.print(f"[bold {colour}]{advice.verdict}[/]")
    console.print("A rough guess from sizes; 'tpulm plan' compiles the run.")


def _values(advice: Advice) -> dict[str, Any]:
    return {
        "use_tpu": advice.use_tpu,
        "verdict": advice.verdict,
        "hours_here": advice.hours_here,
        "hours_there": advice.hours_there,
        "findings": [finding._asdict() for finding in advice.findings],
    }
