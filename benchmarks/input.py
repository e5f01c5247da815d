"""Batches delivered by the input pipeline against what a model consumes.

    python benchmarks/input.py [--workdir W] [--rows-per-second N] [--cloud-latency SECONDS]

Without --workdir a dataset of random tokens is written into a temporary folder, or, with --cloud-latency, into the emulator's
Cloud Storage, where each request takes that much longer. Without --rows-per-second the consumer is a
stand-in for bert-mini's training step: matrix products of its shapes, as many as forward and backward take.
The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from cloud_stand_in import emulator

from tpulm import storage
from tpulm.dataset import load_split, write_random_rows
from tpulm.dataset.batches import Batches
from tpulm.dataset.manifest import SplitManifest

LAYERS, HIDDEN, FEED_FORWARD, VOCABULARY, MASKED = 4, 256, 1024, 8000, 0.15  # bert-mini
REQUIRED = 5.0


class Delivery(NamedTuple):
    batches_per_second: float
    read_amplification: float
    first_batch_seconds: float


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="tpulm-input-") as temporary, contextlib.ExitStack() as cloud:
        if arguments.workdir:
            split = load_split(arguments.workdir / "dataset" / "train")
        else:
            place = temporary
            if arguments.cloud_latency is not None:
                place = cloud.enter_context(emulator(latency_seconds=arguments.cloud_latency))
            folder = storage.as_path(place) / "train"
            split = write_random_rows(folder, arguments.dataset_rows, arguments.sequence_length, arguments.block_rows)
        results = [deliver(split, arguments) for _ in range(arguments.repeats)]
        step = None if arguments.rows_per_second else stand_in(arguments.batch_size, split.rows.sequence_length)
        consumed = arguments.rows_per_second / arguments.batch_size if step is None else steps_per_second(step)
        waiting = None if step is None else waiting_share(split, arguments, step)
    delivered = statistics.median(result.batches_per_second for result in results)
    report = {
        "batch_size": arguments.batch_size,
        "num_hosts": arguments.num_hosts,
        "cloud_latency_seconds": arguments.cloud_latency,
        "delivered_batches_per_second": round(delivered, 1),
        "consumed_batches_per_second": round(consumed, 1),
        "ratio": round(delivered / consumed, 1),
        "required_ratio": REQUIRED,
        "passed": delivered >= REQUIRED * consumed,
        "waiting_share": None if waiting is None else round(waiting, 4),
        "read_amplification": round(statistics.median(result.read_amplification for result in results), 3),
        "first_batch_seconds": round(max(result.first_batch_seconds for result in results), 3),
    }
    for name, value in report.items():
        print(f"{name.replace('_', ' '):32}{value}")
    print(json.dumps(report))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=storage.as_path, help="a work folder with a prepared dataset")
    parser.add_argument("--cloud-latency", type=float, metavar="SECONDS", help="read from the emulator's Cloud Storage")
    parser.add_argument("--rows-per-second", type=float, help="what the consumer takes, instead of measuring the stand-in")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-hosts", type=int, default=1, help="measure the first of so many hosts (default 1)")
    parser.add_argument("--sequence-length", type=int, default=128, help="of the random dataset")
    parser.add_argument("--dataset-rows", type=int, default=200_000, help="of the random dataset")
    parser.add_argument("--block-rows", type=int, default=64, help="of the random dataset")
    parser.add_argument("--batches", type=int, default=3000, help="delivered in each measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements; the median counts")
    return parser.parse_args()


def open_batches(split: SplitManifest, arguments: argparse.Namespace) -> Batches:
    return Batches(split, batch_size=arguments.batch_size * arguments.num_hosts, seed=0, num_hosts=arguments.num_hosts)


def deliver(split: SplitManifest, arguments: argparse.Namespace) -> Delivery:
    """The whole pipeline, with nobody doing anything with the batches."""
    batches = open_batches(split, arguments)
    started_at = time.perf_counter()
    iterator = batches.iterate(0)
    next(iterator)
    first = time.perf_counter()
    for _ in itertools.islice(iterator, arguments.batches):
        pass
    ended_at = time.perf_counter()
    iterator.close()
    return Delivery(arguments.batches / (ended_at - first), batches.read_amplification, first - started_at)


def stand_in(batch_size: int, sequence_length: int) -> Callable[[], None]:
    """Matrix products with the shapes and the number of bert-mini's training step: each one of the forward pass three times."""
    tokens = batch_size * sequence_length
    masked = int(tokens * MASKED)
    shapes = LAYERS * [(tokens, HIDDEN, 4 * HIDDEN), (tokens, HIDDEN, FEED_FORWARD), (tokens, FEED_FORWARD, HIDDEN)]
    shapes += [(masked, HIDDEN, HIDDEN), (masked, HIDDEN, VOCABULARY)]
    operands = {(m, k, n): (np.ones((m, k), np.float32), np.ones((k, n), np.float32)) for m, k, n in shapes}

    def step() -> None:
        for shape in shapes:
            left, right = operands[shape]
            for _ in range(3):
                np.matmul(left, right)

    return step


def steps_per_second(step: Callable[[], None]) -> float:
    step()
    times = []
    for _ in range(5):
        started_at = time.perf_counter()
        step()
        times.append(time.perf_counter() - started_at)
    return 1 / statistics.median(times)


def waiting_share(split: SplitManifest, arguments: argparse.Namespace, step: Callable[[], None], num_steps: int = 50) -> float:
    """The share of its time that the stand-in waits for batches."""
    iterator = open_batches(split, arguments).iterate(0)
    next(iterator)
    waited = 0.0
    started_at = time.perf_counter()
    for _ in range(num_steps):
        asked_at = time.perf_counter()
        next(iterator)
        waited += time.perf_counter() - asked_at
        step()
    total = time.perf_counter() - started_at
    iterator.close()
    return waited / total


if __name__ == "__main__":
    main()
