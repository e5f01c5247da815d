"""`tpulm plan` and `tpulm devices`: a run on a TPU that is not here, and what this machine has."""

from __future__ import annotations

import math
import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit

from tpulm.cli.options import Overrides, RunFile, RunOptions, argument, option, path_option
from tpulm.cli.terminal import drawn_progress, print_json, print_table, say, show
from tpulm.errors import ConfigError
from tpulm.readable import amount, dollars, duration, plural

if TYPE_CHECKING:  # they bring JAX, which --help need not wait for
    from tpulm.accelerators import Accelerator
    from tpulm.config import RunConfig
    from tpulm.plan.analysis import Buffer, DoesNotFit
    from tpulm.plan.estimate import PhasePlan, Plan

_SHOWN_PARTS, _SHOWN_BUFFERS = 10, 8
_FAST_PRODUCT = 4096  # a side of the matrices that are multiplied on a TPU or GPU; on a CPU they are smaller
_LEFT_OUT = (
    "An estimate, from the compiler's own cost model: it leaves out waiting for input, evaluation, checkpoints, compiling, "
    "preemptions, and whatever overlaps. Published runs of other programs took 0.63 to 1.24 times as long, with steps below "
    "100 ms up to 3.4 times (docs/planning.md)."
)


def plan(
    reference: RunFile,
    accelerator: Annotated[str | None, option("The TPU type, such as v3-8, v5litepod-8 or v6e-8.", metavar="TYPE")] = None,
    compare: Annotated[str | None, option("Several types, with commas: one table of times and costs.", metavar="TYPES")] = None,
    fit: Annotated[bool, option("If it does not fit, look for micro-batch, recomputation and fsdp that do.", "--fit")] = False,
    pilot: Annotated[
        str | None, option("How good will it be? Train small runs on its text for so long, such as 15m.", metavar="TIME")
    ] = None,
    workdir: Annotated[
        PurePath | None, path_option("With --pilot: the work folder of the run, in W/pilots.", "--workdir", "-w", metavar="W")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Does a run fit on a TPU, how long does it take, what does it cost? Compiles the training step for it; no TPU is needed.

    Takes one to five minutes for each phase of a run on two cores; what was compiled before is remembered. Needs the TPU
    compiler, which the extra tpu brings. Ends with exit code 1 when the run does not fit.

    With --pilot: how good will it be? Prepares the run's text in W, as 'tpulm run' would, and trains small runs on it here.
    Their held-out losses say what to expect of the run, of more steps or text, and of other recipes. It may be stopped and
    repeated.
    """
    from tpulm import accelerators

    if (pilot is None) != (workdir is None):
        raise ConfigError("--pilot TIME and --workdir W belong together: the pilots' text and results lie in W")
    if pilot is not None and workdir is not None:
        if accelerator or compare or fit:
            raise ConfigError("--pilot trains here; ask for the time and cost on a TPU in a second call, without it")
        _forecast(RunOptions(reference, overrides).load(), workdir, _seconds(pilot))
        return
    if (accelerator is None) == (compare is None):
        examples = ", ".join(name for name in accelerators.names() if name.endswith("-8"))
        raise ConfigError(f"name a TPU type with --accelerator, or several with --compare: {examples}")
    if accelerator is not None and "," in accelerator:
        raise ConfigError(f"--accelerator takes one TPU type; for several, write --compare {accelerator}")
    types = [accelerators.find(name) for name in (accelerator or compare or "").split(",")]
    config = RunOptions(reference, overrides).load()
    os.environ["JAX_PLATFORMS"] = "cpu"  # the compiler is asked, no device
    if compare is not None:
        if fit:
            raise ConfigError("--fit is for one TPU type: name it with --accelerator")
        _compare(config, types)
    else:
        _plan(config, types[0], fit)


def _seconds(time: str) -> float:
    """The seconds in "90s", "15m" or "2h"."""
    number, unit = time[:-1], {"s": 1.0, "m": 60.0, "h": 3600.0}.get(time[-1:])
    try:
        seconds = float(number) * (unit or math.nan)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"--pilot {time}: give a time with its unit, such as 90s, 15m or 2h")
    return seconds


def _forecast(config: RunConfig, workdir: PurePath, seconds: float) -> None:
    from tpulm.pipeline.pilots import forecast
    from tpulm.plan.scaling import REPEATS
    from tpulm.runtime import interrupt

    with drawn_progress() as progress, interrupt.handled():
        result = forecast(config, workdir, seconds=seconds, progress=progress)
    rows = [
        (
            f"{one.tokens / 1e6:,.2f}M",
            amount(one.parameters),
            f"{one.loss:.3f}",
            f"{one.bits_per_character:.3f}",
            "" if one.learned else "left out",
        )
        for one in sorted(result.pilots, key=lambda one: one.parameters * one.tokens)
    ]
    print_table("Pilots", rows, header=("tokens", "parameters", "held-out loss", "bits a character", ""))
    if not all(one.learned for one in result.pilots):
        show("Left out: pilots that have gained less than half of what the best has, over frequencies alone.", fold=True)
    low, high = result.low * result.bits_per_loss, result.high * result.bits_per_loss
    print_table(
        f"\nForecast for {config.name}",
        {
            "held-out loss": f"{result.loss:.3f} nats, {result.low:.3f} to {result.high:.3f}",
            "bits a character": f"{result.loss * result.bits_per_loss:.3f}, {low:.3f} to {high:.3f}",
            "model": f"{amount(result.parameters)} parameters",
            "text": f"{amount(result.tokens)} tokens, {result.epochs:.1f} times the {amount(result.text_tokens)} there are",
            "time here": duration(result.seconds),
        },
    )
    others = [
        (name, f"{loss:.3f}", f"{loss * result.bits_per_loss:.3f}", f"{loss - result.loss:+.3f}")
        for name, loss in result.alternatives
    ]
    print_table("\nInstead", others, header=("", "held-out loss", "bits a character", "difference"))
    losses = dict(result.alternatives)
    steps, text = result.loss - losses["twice the steps"], result.loss - losses["twice the text, as many steps"]
    enough = "more steps gain more than more text" if steps > text else "the text is what limits it: find more"
    if result.epochs > REPEATS:
        enough += f". After {REPEATS:.0f} readings another teaches little (Muennighoff et al. 2023)"
    show(
        f"\nThe run reads its text {result.epochs:.1f} times; {enough}. The interval is from pilots that were predicted from "
        "smaller ones; what none of them shows, such as a rate that is too high in a long run, is not in it.",
        fold=True,
    )
    print_json(result.values())


def _plan(config: RunConfig, accelerator: Accelerator, search: bool) -> None:
    from tpulm.plan.analysis import DoesNotFit
    from tpulm.plan.estimate import dominating, fit, plan

    try:
        with drawn_progress() as progress:
            result = plan(config, accelerator, progress=progress)
    except DoesNotFit as error:
        if search:
            with drawn_progress() as progress:
                fitting = fit(config, accelerator, progress=progress)
            _show(config, fitting.plan)
            print_table("\nTried", [(line,) for line in fitting.tried])
            show("\nThis fits; for the run file:\n")
            show(fitting.toml())
            print_json({**fitting.plan.values(), "changes": fitting.changes, "tried": list(fitting.tried)})
            return
        with drawn_progress() as progress:
            progress.start("Compiling a smaller batch, to see what takes the room")
            largest = dominating(accelerator, error)
        show(f" {error}", lead=f"{config.name} does not fit {accelerator.name}:", style="bold red", fold=True)
        if largest:
            _show_buffers(largest, "What would take the room, on each device (scaled from a smaller batch)")
        say("\n--fit looks for settings that fit.")
        print_json(_too_large(accelerator, error, largest))
        raise Exit(1) from None
    _show(config, result)
    print_json(result.values())


def _compare(config: RunConfig, accelerators: list[Accelerator]) -> None:
    from tpulm.plan.analysis import DoesNotFit
    from tpulm.plan.estimate import plan

    rows, values = [], []
    for accelerator in accelerators:
        try:
            with drawn_progress() as progress:
                result = plan(config, accelerator, progress=progress)
        except DoesNotFit as error:
            rows.append((accelerator.name, "does not fit", "", "", "", "", "", ""))
            values.append(_too_large(accelerator, error, []))
            continue
        value = result.values()
        values.append(value)
        rows.append(
            (
                accelerator.name,
                f"{1e3 * value['step_seconds_estimate']:,.1f} ms",
                f"{value['mfu_estimate']:.0%}",
                f"{value['tokens_per_second'] / 1e3:,.0f}k",
                duration(result.hours * 3600),
                dollars(value["cost_on_demand_usd"]),
                dollars(value["cost_spot_usd"]),
                dollars(value["cost_per_billion_tokens_usd"]),
            )
        )
    header = ("type", "step", "MFU", "tokens/s", "time", "on demand", "spot", "per 10⁹ tokens")
    print_table(f"Estimates for {config.name}", rows, header=header)
    if fitting := [value for value in values if value["fits"]]:
        show(f"\nTokens are of text, {_assumed(fitting[0])}.", fold=True)
    show(f"\n{_LEFT_OUT} Prices ({accelerators[0].prices_as_of}): {accelerators[0].prices_source}.", fold=True)
    print_json({"run": config.name, "accelerators": values})


# -- what is shown ------------------------------------------------------------------------------------------------------


def _show(config: RunConfig, result: Plan) -> None:
    values, accelerator, heaviest = result.values(), result.accelerator, result.heaviest
    memory = heaviest.analysis.memory
    memory_parts = f"state {_size(memory.arguments)}, temporaries {_size(memory.temporaries)}, code {_size(memory.code)}"
    rows = {
        "devices": f"{accelerator.devices} on {plural(accelerator.hosts, 'host')}, "
        f"{_size(accelerator.hbm_bytes_per_device)} each",
        "parameters": f"{result.parameters:,}",
        "fits": f"yes: {_size(values['used_bytes'])} of {_size(values['hbm_bytes'])} on each device ({memory_parts})",
        "batch": ", then ".join(f"{phase.layout} of {phase.sequence_length} tokens" for phase in result.phases),
        "step": f"{_milliseconds(values['step_seconds_estimate'])} (at least "
        f"{_milliseconds(values['step_seconds_lower_bound'])})",
        "MFU": f"{values['mfu_estimate']:.0%} (at most {values['mfu_at_most']:.0%})",
        "operations": f"{values['compiled_flops_per_step'] / values['model_flops_per_step']:.2f} times the model's own",
        "speed": f"{values['tokens_per_second']:,.0f} tokens/s of text, {_assumed(values)}",
        "time": f"{duration(result.hours * 3600)} for {result.steps:,} steps, {result.tokens:,.0f} tokens",
        "cost": "no price is listed"
        if values["cost_on_demand_usd"] is None
        else f"{dollars(values['cost_on_demand_usd'])} on demand, {dollars(values['cost_spot_usd'])} spot "
        f"(prices, {values['prices_as_of']}: {values['prices_source']})",
        "compiler": values["compiler"],
    }
    print_table(f"Estimate for {config.name} on {accelerator.name}", rows)
    several = f" of phase {heaviest.number}" if len(result.phases) > 1 else ""
    _show_time(heaviest, accelerator, several)
    _show_buffers(list(heaviest.analysis.largest), f"Largest arrays{several}, on each device")
    show(f"\n{_LEFT_OUT}", fold=True)


def _show_time(phase: PhasePlan, accelerator: Accelerator, several: str) -> None:
    from tpulm.plan.estimate import collectives_by_kind

    analysis = phase.analysis
    shown = analysis.cycles_by_part.most_common(_SHOWN_PARTS)
    parts = [(name, cycles / accelerator.clock_hertz) for name, cycles in shown]
    rest = sum(phase.parts.values()) - sum(seconds for _, seconds in parts)
    rows = [(name, _milliseconds(seconds), f"{seconds / phase.seconds:.0%}") for name, seconds in parts]
    rows.append(("everything else", _milliseconds(rest), f"{rest / phase.seconds:.0%}"))
    print_table(f"\nWhat takes the time{several}", rows, header=("part", "of a step", ""))
    for one in collectives_by_kind(analysis.collectives):
        show(f"{one['count']} × {one['kind']} among {one['devices']} devices, {_size(one['bytes'])} in all")
    if analysis.unknown_loops:
        show(f"{analysis.unknown_loops} loops could not be counted and count once: the step takes longer", style="yellow")
    if analysis.opaque:
        kernels = ", ".join(f"{times} × {name}" for name, times in analysis.opaque.items())
        show(f"operations of these kernels cannot be counted: {kernels}", style="yellow")
    if analysis.kernels:
        show(
            f"{analysis.kernels} × our own kernel for attention; its time is not of the compiler's cost model "
            "(docs/planning.md)"
        )


def _show_buffers(largest: list[Buffer], title: str) -> None:
    rows = [(buffer.part, buffer.shape, _size(buffer.bytes)) for buffer in largest[:_SHOWN_BUFFERS]]
    print_table(f"\n{title}", rows, header=("part", "array", "size"))


def _too_large(accelerator: Accelerator, error: DoesNotFit, largest: list[Buffer]) -> dict[str, Any]:
    return {
        "accelerator": accelerator.name,
        "devices": accelerator.devices,
        "hbm_bytes": accelerator.hbm_bytes_per_device,
        "used_bytes": error.needed,
        "fits": False,
        "reason": str(error),
        "largest": [buffer._asdict() for buffer in largest],
    }


def _assumed(values: dict[str, Any]) -> str:
    return f"if {values['text_fraction_assumed']:.0%} of the rows' slots hold text (the rest is padding)"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:,.0f} µs"


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"


# -- this machine -------------------------------------------------------------------------------------------------------


def devices(
    reference: Annotated[
        str | None, argument("A run file or a recipe: would a TPU help it?", metavar="[RUN]", show_default=False)
    ] = None,
    accelerator: Annotated[str, option("The TPU type to compare with.", metavar="TYPE")] = "v3-8",
    overrides: Overrides = None,
) -> None:
    """What JAX finds on this machine and how fast it multiplies; with a run, whether a TPU would be worth it.

    The advice is arithmetic on the run's sizes; 'tpulm plan' compiles the run for a TPU and knows better.
    """
    from tpulm import accelerators

    kind = accelerators.find(accelerator)
    config = None if reference is None else RunOptions(reference, overrides).load()
    machine = _machine()
    print_table("This machine", _machine_rows(machine))
    if config is not None:
        from tpulm.plan.advice import advise

        here = machine["matmul_flops"]["bfloat16" if machine["platform"] != "cpu" else "float32"]
        advice = advise(config, kind, here=here)
        rows = [("ok" if finding.good else "!", finding.what, finding.message) for finding in advice.findings]
        print_table(f"\n{config.name} on a TPU", rows)
        show(advice.verdict, style="bold green" if advice.use_tpu else "bold yellow", fold=True)
        say("A rough guess from sizes; 'tpulm plan' compiles the run.")
        machine["advice"] = {**vars(advice), "findings": [finding._asdict() for finding in advice.findings]}
    print_json(machine)


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
        "memory_bytes": _device_memory(first),
        "matmul_flops": rates,
        "peak_flops": None if (peak := from_device_kind(first.device_kind)) is None else peak * together,
        "bfloat16": "fast" if rates["bfloat16"] > 0.8 * rates["float32"] else "slow: float32 is faster here",
        "tpu_chips": tpu_chips(),
        "no_tpu_because": None if first.platform == "tpu" else why_not("tpu"),
    }


def _device_memory(device: Any) -> int | None:
    """Bytes of one device; on a CPU, the machine's."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _machine_rows(machine: dict[str, Any]) -> dict[str, str]:
    rates, memory, peak = machine["matmul_flops"], machine["memory_bytes"], machine["peak_flops"]
    each = "" if machine["platform"] == "cpu" else " each"
    return {
        "devices": f"{machine['devices']} x {machine['device_kind']} ({machine['platform']}), {machine['cpu_cores']} CPU cores",
        "memory": "unknown" if memory is None else f"{memory / 2**30:.1f} GiB{each}",
        "products": f"{rates['float32'] / 1e9:,.0f} GFLOP/s in float32, {rates['bfloat16'] / 1e9:,.0f} in bfloat16, measured",
        **({} if peak is None else {"peak": f"{peak / 1e12:,.1f} TFLOP/s in bfloat16, by the data sheet"}),
        "bfloat16": machine["bfloat16"],
        "TPU": "in use" if machine["platform"] == "tpu" else f"none in use: {machine['no_tpu_because']}",
    }
