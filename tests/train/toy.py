"""Tiny runs on made-up rows, for the tests of the trainer: one for each objective."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices import first
from encoders import LLAMA_LIKE
from tpulm.config import RunConfig
from tpulm.progress import SILENT, Progress
from tpulm.special_tokens import SpecialTokens
from tpulm.train.evaluate import Evaluation, evaluate
from tpulm.train.loop import Run, TrainResult, train
from tpulm.train.program import PretrainingProgram
from tpulm.train.throughput import Meter

VOCAB_SIZE, LENGTH, BATCH = 200, 16, 8
SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)


# What differs from a packed masked run, by objective.
KINDS: dict[str, dict[str, Any]] = {
    "masked": {},
    "modern": {"model": {"architecture": "modernbert", "num_layers": 4, "local_window": 4, "dropout": 0.1}},
    "replaced": {"model": {"architecture": "electra", "activation": "gelu", "embedding_size": 16}},
    "causal": {
        "data": {"rows": "causal"},
        "model": {"architecture": "decoder", "norm_position": "pre", **LLAMA_LIKE},
    },
}

EACH = [pytest.param(kind, marks=pytest.mark.slow if kind != "masked" else ()) for kind in KINDS]


def config(
    kind: str = "masked", *, train: dict[str, Any] | None = None, hardware: dict[str, Any] | None = None, **model: Any
) -> RunConfig:
    settings = {
        "steps": 12,
        "batch_size": BATCH,
        "log_every_steps": 4,
        "evaluate_every_steps": 6,
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 3},
        "checkpoint": {"every_steps": 5, "every_minutes": None},
    }
    small = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": LENGTH}
    return RunConfig.model_validate(
        {
            "data": {"sequence_length": LENGTH, "rows": "packed", **KINDS[kind].get("data", {})},
            "model": {**small, **KINDS[kind].get("model", {}), **model},
            "train": {**settings, **(train or {})},
            "hardware": hardware or {"data": 1},
        }
    )


class Rows:
    """An endless stream of rows in which each token tells the next one; cursors count rows."""

    def __init__(self, batch_size: int = BATCH):
        self._batch_size = batch_size

    def batch(self, cursor: int) -> dict[str, np.ndarray]:
        numbers = range(cursor // BATCH, (cursor + self._batch_size) // BATCH)
        start = np.concatenate([np.random.default_rng(number).integers(0, 4, (BATCH, 1)) for number in numbers])
        tokens = 5 + (start + 3 * np.arange(LENGTH)) % (VOCAB_SIZE - 5)
        tokens[:, 0], tokens[:, -1] = SPECIAL.cls, SPECIAL.sep
        return {"tokens": tokens.astype(np.uint16)}

    def iterate(
        self, start_cursor: int, *, skipped: tuple[tuple[int, int], ...] = ()
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        cursor = start_cursor
        while True:
            if not any(first <= cursor < last for first, last in skipped):
                yield cursor, self.batch(cursor)
            cursor += self._batch_size

    def row_indices(self, cursor: int) -> np.ndarray:
        return np.arange(self._batch_size) + cursor


def program(settings: RunConfig, devices: int = 1) -> PretrainingProgram:
    return PretrainingProgram(settings, vocab_size=VOCAB_SIZE, special=SPECIAL, devices=first(devices))


def scorer(made: PretrainingProgram) -> Any:
    def score(params: Any, advance: Any = lambda rows: None) -> Evaluation:
        size = made.evaluation_batch_size
        rows = [Rows().batch(8_000_000 + i * BATCH)["tokens"] for i in range(size // BATCH)]
        batches = [{"tokens": np.concatenate(rows)}]
        counts = np.bincount(np.concatenate(rows).ravel(), minlength=VOCAB_SIZE)
        return evaluate(
            made, params, batches, rows=size, batch_size=size, tokens_per_character=0.5, training_counts=counts, advance=advance
        )

    return score


def run(
    made: PretrainingProgram,
    settings: RunConfig,
    workdir: Path,
    *,
    stream: Any = None,
    evaluate: Any = None,
    progress: Progress = SILENT,
    steps: tuple[int, int] | None = None,
) -> TrainResult:
    asked = Run(
        program=made,
        config=settings.train,
        stream=stream or Rows(),
        evaluate=lambda params, advance: (evaluate or scorer(made))(params, advance).values(),
        workdir=workdir,
        meter=Meter(per_row=LENGTH),
        identity={"dataset_fingerprint": "toy"},
        progress=progress,
        advice="Try that",
        steps=steps,
    )
    return train(asked)
