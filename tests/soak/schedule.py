"""What happens to a run, and when: a list drawn from a seed."""

from __future__ import annotations

import random
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "SIGTERM to one host",
    "kill one host",
    "kill all hosts",
    "kill all in a commit",
    "503 for everything",
    "429 for everything",
    "5 % dropped connections",
    "truncated reads",
    "lost answers",
]

DEADLY: tuple[Kind, ...] = ("SIGTERM to one host", "kill one host", "kill all hosts", "kill all in a commit")
FAULTS: dict[Kind, dict[str, Any]] = {
    "503 for everything": {"error_rate": 1.0, "error_status": 503, "seconds": 2.0},
    "429 for everything": {"error_rate": 1.0, "error_status": 429, "seconds": 1.0},
    "5 % dropped connections": {"drop_rate": 0.05, "seconds": 6.0},
    "truncated reads": {"truncate_rate": 0.2, "seconds": 6.0},
    "lost answers": {"error_after_rate": 0.1, "seconds": 6.0},
}


class Event(NamedTuple):
    kind: Kind
    at_step: int  # when a checkpoint of this step, or a later one, is there
    delay: float  # seconds after that
    host: int  # for what happens to one: each in turn


def draw_schedule(seed: int, *, count: int, steps: int) -> list[Event]:
    """Events in order of their steps, each kind about equally often, spread over the first nine tenths of the run."""
    random_ = random.Random(seed)
    kinds: tuple[Kind, ...] = (*DEADLY, *FAULTS)
    chosen: list[Kind] = [kinds[number % len(kinds)] for number in range(count)]
    random_.shuffle(chosen)
    last = 9 * steps // 10
    return [
        Event(kind, number * last // count, random_.uniform(0.0, 1.0), chosen[:number].count(kind) % 2)
        for number, kind in enumerate(chosen)
    ]
