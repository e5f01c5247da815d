"""Attention on a GPU, forward and backward: our kernels, cuDNN's through jax.nn and the plain formula, in bfloat16.

    python benchmarks/attention_gpu.py [--rounds 5] [--json FILE]

Rows have three segments, as packed rows do. Rounds of all contenders alternate; milliseconds are medians over rounds of ten
calls. The error is the largest of output and gradients, relative to the norm of the float32 formula's. With dropout all draw
the same masks, which cuDNN cannot, so that it is left out there, as in windows to both sides, which jax.nn refuses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpulm.nn import flash_gpu
from tpulm.nn.attention import CAUSAL, EVERYTHING, AttentionWindow, attention
from tpulm.nn.dropout import row_seeds, seeds_at, site_seeds, token_seeds


class Case(NamedTuple):
    rows: int
    heads: int
    length: int
    head_size: int
    window: AttentionWindow
    rate: float


CASES = {
    "512": Case(64, 12, 512, 64, EVERYTHING, 0.0),
    "512, dropout": Case(64, 12, 512, 64, EVERYTHING, 0.1),
    "512, causal": Case(64, 12, 512, 64, CAUSAL, 0.0),
    "512, causal, dropout": Case(64, 12, 512, 64, CAUSAL, 0.1),
    "128": Case(256, 12, 128, 64, EVERYTHING, 0.0),
    "128, dropout": Case(256, 12, 128, 64, EVERYTHING, 0.1),
    "4096": Case(4, 12, 4096, 64, EVERYTHING, 0.0),
    "4096, window 64": Case(4, 12, 4096, 64, AttentionWindow(64, 64), 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    results = {}
    for name in options.cases:
        results[name] = measure(CASES[name], options.rounds, options.calls)
        print(f"{name:22}", json.dumps(results[name]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


def measure(case: Case, rounds: int, calls: int) -> dict[str, Any]:
    shape = case.rows, case.heads, case.length, case.head_size
    *arrays, g = (jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 4))
    edges = jnp.sort(jax.random.randint(jax.random.key(1), (case.rows, 2), 1, case.length), axis=1)
    segments = jnp.sum(jnp.arange(case.length)[None, :, None] >= edges[:, None], axis=2, dtype=jnp.int32)
    few = slice(0, 2)  # rows whose values are compared
    with jax.default_matmul_precision("highest"):
        exact = _gradients(contenders(case, segments[few])["plain"])(*(x[few].astype(jnp.float32) for x in (*arrays, g)))
    running, figures = dict[str, Callable[[], Any]](), dict[str, dict[str, Any]]()
    for name, function in contenders(case, segments).items():
        program = _gradients(function)
        try:
            results = jax.block_until_ready(program(*arrays, g))
        except Exception as error:  # a contender that does not compile is left out, and said to be
            figures[name] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
            continue
        errors = [_error(x[few], y) for x, y in zip(results, exact, strict=True)]
        memory = program.lower(*arrays, g).compile().memory_analysis()
        figures[name] = {"error": round(max(errors), 5), "temporary_mb": round(memory.temp_size_in_bytes / 1e6)}
        running[name] = partial(program, *arrays, g)
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, run in running.items():
            begun = time.perf_counter()
            jax.block_until_ready([run() for _ in range(calls)])
            times[name].append((time.perf_counter() - begun) / calls)
    for name, each in times.items():
        figures[name]["ms"] = round(1000 * statistics.median(each), 3)
    return figures


def contenders(case: Case, segments: jax.Array) -> dict[str, Callable[..., jax.Array]]:
    """Functions of query, key and value [B, H, L, K]."""
    tokens = token_seeds(row_seeds(jax.random.split(jax.random.key(2), case.rows)), case.length)
    seeds = seeds_at(site_seeds(jax.random.key(3), ()), tokens, (case.rows, 1, case.length, 1))
    seeds = jax.tree.map(lambda x: x[: len(segments)], seeds) if case.rate else None
    dropped: dict[str, Any] = {"seeds": seeds, "dropout_rate": case.rate}
    one = NamedSharding(Mesh(np.array(jax.devices()[:1]), "data"), PartitionSpec("data"))
    before, after = case.window[:2]
    found: dict[str, Callable[..., jax.Array]] = {
        "kernels": partial(flash_gpu.flash_attention, segments=segments, **dropped, before=before, after=after, rows=one),
        "plain": partial(attention, segments=segments, **dropped, window=case.window),
        "plain, weights computed again": partial(
            attention, segments=segments, **dropped, window=case.window, keep_weights=False
        ),
    }
    if not case.rate and case.window in (EVERYTHING, CAUSAL):
        found["cudnn"] = partial(_cudnn, segments=segments, causal=case.window == CAUSAL)
    return found


def _cudnn(query: jax.Array, key: jax.Array, value: jax.Array, *, segments: jax.Array, causal: bool) -> jax.Array:
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    mask = segments[:, None, :, None] == segments[:, None, None, :]
    mixed = jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=causal, implementation="cudnn")
    return mixed.swapaxes(1, 2)


def _gradients(function: Callable[..., jax.Array]) -> Any:
    def run(query: jax.Array, key: jax.Array, value: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        mixed, pull = jax.vjp(function, query, key, value)
        return (mixed, *pull(g))

    return jax.jit(run)


def _error(found: jax.Array, exact: jax.Array) -> float:
    difference = found.astype(jnp.float32) - exact
    return float(jnp.linalg.norm(difference.ravel()) / jnp.linalg.norm(exact.ravel()))


if __name__ == "__main__":
    main()
