"""Time of attention in a window against attention to everything, by the length of rows: forward and backward, 8,192 tokens.

    python benchmarks/attention_length.py [--lengths 512 2048 8192] [--rounds 5]

Two heads of 64, a window of 64 tokens on each side, one segment a row, no dropout, float32 on a CPU and bfloat16 elsewhere.
Rounds of all lengths alternate; milliseconds are medians, of the clock and, in brackets, of all cores' time for this process.
Memory is kept between runs, as in training: otherwise what comes after the largest case waits for its pages. A window's time
should not grow with the length, the other's does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tpulm.accelerators import nvidia_driver, tpu_chips
from tpulm.nn.attention import EVERYTHING, AttentionWindow, attention
from tpulm.runtime.memory import keep_between_steps

TOKENS, HEADS, HEAD_SIZE = 8192, 2, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keep_between_steps()
    if not (tpu_chips() or nvidia_driver()):
        jax.config.update("jax_platforms", "cpu")
    cases = {(name, length): made(window, length) for length in options.lengths for name, window in WINDOWS.items()}
    times: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case, run in cases.items():
            begun, processor_begun = time.perf_counter(), time.process_time()
            run()
            times[case].append((1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - processor_begun)))
    for name in WINDOWS:
        medians = {length: map(statistics.median, zip(*times[name, length], strict=True)) for length in options.lengths}
        print(name, *(f"{length}: {clock:.1f} ms ({busy:.1f})" for length, (clock, busy) in medians.items()), sep="  ")


WINDOWS = {"window": AttentionWindow(64, 64), "everything": EVERYTHING}


def made(window: AttentionWindow, length: int) -> Callable[[], Any]:
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    shape = (TOKENS // length, HEADS, length, HEAD_SIZE)
    arrays = [jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 3)]
    segments = jnp.zeros((shape[0], length), jnp.int32)

    @jax.jit
    def gradients(*arrays: jax.Array) -> Any:
        def loss(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            mixed = attention(query, key, value, segments, seeds=None, dropout_rate=0.0, window=window, keep_weights=False)
            return jnp.sum(jnp.square(mixed.astype(jnp.float32)))

        return jax.grad(loss, (0, 1, 2))(*arrays)

    def run() -> None:
        jax.block_until_ready(gradients(*arrays))

    run()
    return run


if __name__ == "__main__":
    main()
