"""Tiny runs on made-up rows, for the tests of the trainer: one for each objective."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices import first
from encoders import LLAMA_LIKE
from tpulm.config import RunConfig
from tpulm.progress import SILENT
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
    "modern": {
        "model": {"architecture": "modernbert", "num_layers": 4, "local_window": 4, "dropout": 0.1},
        "train": {"optimizer": {"name": "muon", "learning_rate": 3e-3, "warmup_steps": 3}},
    },
    "replaced": {"model": {"architecture": "electra", "activation": "gelu", "embedding_size": 16}},
    "causal": {"data": {"rows": "causal"}, "model": {"architecture": "decoder", "norm_position": "pre", **LLAMA_LIKE}},
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
            "train": {**settings, **KINDS[kind].get("train", {}), **(train or {})},
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

    def iterate(self, start_cursor: int, *, skipped: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[int, Any]]:
        for cursor in itertools.count(start_cursor, self._batch_size):
            if not any(first <= cursor < last for first, last in skipped):
                yield cursor, self.batch(cursor)

    def row_indices(self, cursor: int) -> np.ndarray:
        return np.arange(self._batch_size) + cursor


def program(settings: RunConfig, devices: int = 1) -> PretrainingProgram:
    return PretrainingProgram(settings, vocab_size=VOCAB_SIZE, special=SPECIAL, devices=first(devices))


def scorer(made: PretrainingProgram) -> Callable[..., Evaluation]:
    size = made.evaluation_batch_size
    batch = Rows(size).batch(8_000_000)
    settings: dict[str, Any] = {"rows": size, "batch_size": size, "tokens_per_character": 0.5}
    settings["training_counts"] = np.bincount(batch["tokens"].ravel(), minlength=VOCAB_SIZE)
    return lambda params, advance: evaluate(made, params, [batch], **settings, advance=advance)


def run(
    made: PretrainingProgram, settings: RunConfig, workdir: Path, *, stream: Any = None, evaluate: Any = None, **more: Any
) -> TrainResult:
    """`more` are other fields of `Run`."""
    more.setdefault("progress", SILENT)
    asked = Run(
        program=made,
        config=settings.train,
        stream=stream or Rows(),
        evaluate=lambda params, advance: (evaluate or scorer(made))(params, advance).values(),
        workdir=workdir,
        meter=Meter(per_row=LENGTH),
        identity={"dataset_fingerprint": "toy"},
        advice="Try that",
        **more,
    )
    return train(asked)
