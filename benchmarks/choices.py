"""What each hand-written piece of the training step is worth: the step with the plain way in its place, over the step as it is.

    python benchmarks/choices.py [--case bert-mini] [--rounds 7] [--only NAME ...]

Every variant is a step of its own, compiled with one thing put back to what JAX offers; rounds alternate, and the figure is the
median over rounds of variant's time / own time (above 1: our way is faster). The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast
from unittest import mock

import jax
import jax.numpy as jnp
import train_step
from jax import Array

from tpulm.models import bert
from tpulm.nn import attention, layers, transformer
from tpulm.nn.dropout import DropoutSeeds
from tpulm.objectives import rtd
from tpulm.runtime.memory import keep_between_steps
from tpulm.train.program import PretrainingProgram


def affine(x: Array, kernel: Array, bias: Array, *, dtype: Any) -> Array:
    return x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)[None, :]


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def drop(implementation: str, x: Array, *, rate: float, seeds: DropoutSeeds | None) -> Array:
    if seeds is None or rate == 0.0:
        return x
    data = jnp.ravel(seeds.first)[:4] if implementation == "rbg" else jnp.ravel(seeds.first)[:2]
    keep = jax.random.bernoulli(jax.random.wrap_key_data(data, impl=implementation), 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


@contextlib.contextmanager
def patched(*targets: tuple[Any, str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module, name, value in targets:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def dropout_of(implementation: str) -> tuple[tuple[Any, str, Any], ...]:
    function = partial(drop, implementation)
    return tuple((module, "dropout", function) for module in (bert, transformer, attention))


def sample_by_gumbel(logits: Array, keys: Array, *, temperature: float = 1.0) -> Array:
    noise = jax.vmap(lambda key, row: jax.random.gumbel(key, row.shape, jnp.float32))(keys, logits)
    return jnp.argmax(jax.lax.stop_gradient(logits) / temperature + noise, axis=-1).astype(jnp.int32)


VARIANTS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "as it is": (),
    "as it is, again": (),
    "dense: gradients by autodiff": ((layers, "affine", affine), (attention, "affine", affine)),
    "bias gradients by reduction": ((layers, "column_sums", partial(jnp.sum, axis=0)),),
    "kernel gradients over one axis": ((layers, "_CONTRACTED", 1 << 40),),
    "gelu: gradient by autodiff": ((layers, "gelu_tanh", gelu),),
    "attention: gradient by autodiff": ((attention, "_attention", cast("Any", attention)._attention.fun),),
    "dropout: threefry keys": dropout_of("threefry2x32"),
    "dropout: rbg keys": dropout_of("rbg"),
    "samples by the Gumbel trick": ((rtd, "sample_tokens", sample_by_gumbel),),  # --case electra-small
    "layers in a loop": (),
    "no dropout": (),
}


def step_of(name: str, case: train_step.Case) -> Callable[[], None]:
    config = train_step.configured(case)
    if name == "layers in a loop":
        config = config.model_copy(update={"hardware": config.hardware.model_copy(update={"unroll": False})})
    if name == "no dropout":
        model = config.model.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
        config = config.model_copy(update={"model": model})
    jax.clear_caches()
    with patched(*VARIANTS[name]):
        program = PretrainingProgram(config, vocab_size=case.vocab_size, special=train_step.SPECIAL, devices=jax.devices()[:1])
        compiled = program.step
    state = program.initial_state()
    batch, cursor = program.to_devices({"tokens": train_step.make_rows(case)}), program.cursor(0)

    def step() -> None:
        nonlocal state
        state, loss = compiled(state, batch, cursor)
        loss.block_until_ready()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=train_step.CASES, default="bert-mini")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS)[1:], metavar="NAME")
    options = parser.parse_args()
    keep_between_steps()
    case = train_step.CASES[options.case]
    own, *others = [step_of(name, case) for name in ("as it is", *options.only)]
    ratios: dict[str, list[float]] = {name: [] for name in options.only}
    for _ in range(options.rounds + 1):
        for name, step in zip(options.only, others, strict=True):
            own_seconds = train_step.seconds(own, case.steps_per_round)
            ratios[name].append(train_step.seconds(step, case.steps_per_round) / own_seconds)
    medians = {name: round(statistics.median(values[1:]), 3) for name, values in ratios.items()}  # the first round warms up
    for name, median in medians.items():
        print(f"{name:36}{median:6.2f}   {min(ratios[name][1:]):.2f} to {max(ratios[name][1:]):.2f}", file=sys.stderr)
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
