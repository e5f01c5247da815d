"""Whether a TPU would help: how matrix products fill its units, whether the input keeps up, how long it takes here and there.

Arithmetic only, nothing is compiled; `tpulm plan` says more, and takes longer. The rules: a TPU multiplies in squares of 128
(256 from v6e on), so that other widths leave part of it idle; its vector units take 8 rows at once; a product is limited by
arithmetic, not by memory, only if it does more operations per byte than the chip; and narrow models spend more of their time
between the products.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import jax

from tpulm import storage, tokenization
from tpulm.accelerators import Accelerator
from tpulm.config import RunConfig, phases_of
from tpulm.dataset import Batches, write_random_rows
from tpulm.readable import duration
from tpulm.train.program import PretrainingProgram

_UNITS, _SUBLANES = {"v6e": 256, "tpu7x": 256}, 8  # side of the units by generation, else 128
_USUAL_MFU, _WIDE = 0.35, 768  # of a TPU, for models at least so wide; proportional for narrower ones (docs/planning.md)
_USUAL_SHARE_HERE = 0.5  # fraction of a measured product's speed that a whole step reaches (benchmarks/RESULTS.md)
_FILLED = 0.75
_WORTH_HOURS = 1.0
_ENOUGH_INPUT = 2.0  # rows read for each row needed
_MADE_UP_TOKENS, _BLOCK_ROWS = 2_000_000, 64


class AdviceItem(NamedTuple):
    good: bool
    what: str
    message: str


@dataclass(frozen=True)
class Advice:
    """The findings about a run on an accelerator, and the verdict."""

    findings: tuple[AdviceItem, ...]
    hours_here: float | None  # None: the speed of this machine is not known
    hours_there: float
    use_tpu: bool
    verdict: str


def advise(config: RunConfig, accelerator: Accelerator, *, here: float | None) -> Advice:
    """`here`: FLOP/s that this machine reaches in products, on all devices together; None if it could not be measured."""
    phases, one = phases_of(config), jax.devices()[:1]
    vocabulary = tokenization.expected(config.tokenizer)._asdict()
    programs = (PretrainingProgram(phase.config, **vocabulary, devices=one) for phase in phases)
    per_row = [program.objective.flops_per_row for program in programs]
    flops = sum(
        per * phase.config.train.batch_size * (phase.last_step - phase.first_step)
        for per, phase in zip(per_row, phases, strict=True)
    )
    length, batch_size = phases[0].config.data.sequence_length, phases[0].config.train.batch_size
    rows = batch_size / accelerator.devices
    unit = _UNITS.get(accelerator.generation, 128)
    model = config.model
    fill, size, tokens = _fill(config, unit), model.hidden_size, rows * length
    # Operations per byte moved, for hidden size x hidden size in bfloat16: the narrowest product of a layer.
    intensity = 2 * tokens * size * size / (2 * (2 * tokens * size + size * size))
    balance = accelerator.peak_flops / accelerator.hbm_bytes_per_second
    mfu = _USUAL_MFU * min(1.0, size / _WIDE) * fill * min(1.0, intensity / balance)
    needed, read = accelerator.peak_flops * mfu / per_row[0], rows_per_second(length, batch_size)
    findings = (
        AdviceItem(
            intensity >= balance,
            "products",
            f"{intensity:,.0f} operations a byte in the narrowest of a layer, {accelerator.name} can do {balance:,.0f}: "
            + ("limited by arithmetic, as it should be" if intensity >= balance else "limited by memory"),
        ),
        AdviceItem(
            fill >= _FILLED,
            "widths",
            f"fill {fill:.0%} of the {unit} x {unit} units: hidden {size}, feed-forward {model.intermediate_size}, heads of "
            f"{size // model.num_heads}{'' if model.generator is None else f', generator {model.generator_sizes[0]}'}",
        ),
        AdviceItem(
            rows >= _SUBLANES and rows % _SUBLANES == 0,
            "batch",
            f"{rows:g} rows a device; multiples of {_SUBLANES} fill the vector units",
        ),
        AdviceItem(
            read >= _ENOUGH_INPUT * needed,
            "input",
            f"{read:,.0f} rows a second are read here from local disk, {needed:,.0f} are needed there",
        ),
    )
    hours_there = accelerator.hours(flops, mfu)
    hours_here = None if not here else flops / (here * _USUAL_SHARE_HERE) / 3600
    return Advice(findings, hours_here, hours_there, *_verdict(accelerator, findings, hours_here, hours_there))


def _verdict(
    accelerator: Accelerator, findings: tuple[AdviceItem, ...], hours_here: float | None, hours_there: float
) -> tuple[bool, str]:
    time_there = duration(hours_there * 3600)
    if hours_here is not None and hours_here < _WORTH_HOURS:
        return False, f"no TPU is needed: about {duration(hours_here * 3600)} here, and an hour is gone before a TPU has begun"
    if hours_here is not None and hours_here < 2 * hours_there:
        return False, f"{accelerator.name} would hardly help: about {time_there} there, {duration(hours_here * 3600)} here"
    bad = [finding.what for finding in findings if not finding.good]
    gain = "" if hours_here is None else f" instead of {duration(hours_here * 3600)} here"
    less = f"; it would be faster with better {', '.join(bad)}" if bad else ""
    return True, f"{accelerator.name} would help: about {time_there}{gain}{less}"


def _fill(config: RunConfig, unit: int) -> float:
    """The fraction of the units that a layer's products use, weighted by their operations."""
    model = config.model
    size, inner = model.hidden_size, model.intermediate_size
    attention, feed_forward = 4.0 * size * size, (3.0 if model.feed_forward == "gated" else 2.0) * size * inner
    size_share, inner_share = (width / (-(-width // unit) * unit) for width in (size, inner))
    used = attention * size_share**2 + feed_forward * size_share * inner_share
    return used / (attention + feed_forward)


def rows_per_second(sequence_length: int, batch_size: int, *, seconds: float = 1.0) -> float:
    """Rows per second read from this machine's temporary folder: a random dataset, read for about a second."""
    with storage.scratch_folder() as folder:
        rows = write_random_rows(folder, max(2 * batch_size, _MADE_UP_TOKENS // sequence_length), sequence_length, _BLOCK_ROWS)
        iterator = Batches(rows, batch_size=batch_size, seed=0).iterate(0)
        next(iterator)  # the threads have begun
        count, begun = 0, time.perf_counter()
        while (passed := time.perf_counter() - begun) < seconds:
            next(iterator)
            count += batch_size
        iterator.close()
        return count / passed
