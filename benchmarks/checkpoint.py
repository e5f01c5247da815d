"""How long the training step is blocked by a save of bert-base: asynchronous against synchronous, on disk and in Cloud Storage.

    python benchmarks/checkpoint.py [--rounds 3] [--recipe bert-base] [--places disk emulator] [--json]

Blocked is the time inside `Checkpoints.save` until the state may be changed again; a synchronous save ends when the checkpoint
is committed. Between two saves the state is changed, as training would. Rounds alternate between the two kinds; figures are
medians. The emulator is a process of its own on this machine, in memory.
The last line of the output is one JSON object with --json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from cloud_stand_in import emulator

from tpulm import config
from tpulm.config import CheckpointConfig
from tpulm.special_tokens import SpecialTokens
from tpulm.train.checkpoint import Checkpoints
from tpulm.train.program import PretrainingProgram

SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
ALLOWED_SHARE = 0.10


class Save(NamedTuple):
    blocked_seconds: float
    total_seconds: float


def main() -> None:
    arguments = parse()
    program = PretrainingProgram(config.load(arguments.recipe), vocab_size=30_522, special=SPECIAL)
    state = program.initial_state()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    print(f"{arguments.recipe}: {size / 1e9:.2f} GB a checkpoint", file=sys.stderr)
    report: dict[str, Any] = {"recipe": arguments.recipe, "gigabytes": round(size / 1e9, 3)}
    for place in arguments.places:
        with disk() if place == "disk" else emulator() as folder:
            found = measure(folder, state, rounds=arguments.rounds)
        report[place] = found
        verdict = "ok" if found["passed"] else "TOO LONG"
        print(
            f"{place:9} synchronous {found['synchronous_seconds']:.2f} s, asynchronous {found['total_seconds']:.2f} s, of "
            f"which {found['blocked_seconds']:.3f} s blocked, a share of {found['share']:.1%}: {verdict}"
        )
    if arguments.json:
        print(json.dumps(report))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="bert-base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--places", nargs="+", choices=("disk", "emulator"), default=["disk", "emulator"])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(folder: str, state: Any, *, rounds: int) -> dict[str, Any]:
    change = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf * 1.0001, params))
    synchronous: list[Save] = []
    asynchronous: list[Save] = []
    step = 0
    with Checkpoints(folder, CheckpointConfig(keep=2, every_minutes=None, every_steps=1)) as checkpoints:
        for number in range(2 * rounds + 1):
            state = dataclasses.replace(state, params=change(state.params))
            jax.block_until_ready(state)
            step += 1
            begun = time.perf_counter()
            checkpoints.save(step, state, {"step": step})
            blocked = time.perf_counter() - begun
            checkpoints.wait()
            save = Save(blocked, time.perf_counter() - begun)
            if number:  # the first one compiles
                (synchronous if number % 2 else asynchronous).append(save)
    whole = statistics.median(save.total_seconds for save in synchronous)
    blocked = statistics.median(save.blocked_seconds for save in asynchronous)
    return {
        "synchronous_seconds": round(whole, 3),
        "blocked_seconds": round(blocked, 4),
        "total_seconds": round(statistics.median(save.total_seconds for save in asynchronous), 3),
        "share": round(blocked / whole, 4),
        "passed": blocked <= ALLOWED_SHARE * whole,
    }


@contextlib.contextmanager
def disk() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="tpulm-checkpoint-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
