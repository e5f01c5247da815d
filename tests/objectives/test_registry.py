"""An objective from outside of the package: a class under a name, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toy_runs import toy_config, write_corpus
from tpulm import objectives, pipeline
from tpulm.config import OBJECTIVES, SCHEDULES, OptimizerConfig, load
from tpulm.errors import ConfigError
from tpulm.objectives import Column
from tpulm.objectives.mlm import MaskedInputs, MaskedLanguageModel
from tpulm.tokenization import Tokenization
from tpulm.train.optimizer import learning_rate, register_schedule


def lengths(tokenization: Tokenization) -> np.ndarray:
    return np.array([len(token) for token in tokenization.vocabulary()])


class TokenLengths(MaskedLanguageModel):
    """How many characters each masked token has, by the logits of the first ids."""

    @property
    def columns(self) -> dict[str, Column]:
        return {"token_length": Column((self.sequence_length,), jnp.int8, of_tokens=lengths)}

    def make_inputs(self, batch: Mapping[str, Any], row_keys: Any) -> MaskedInputs:
        inputs = super().make_inputs(batch, row_keys)
        return inputs._replace(labels=jnp.take_along_axis(batch["token_length"].astype(jnp.int32), inputs.predicted, axis=1))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    objectives.register("token_lengths", TokenLengths)
    register_schedule("halves", halves)
    yield
    OBJECTIVES.discard("token_lengths")
    SCHEDULES.discard("halves")


@pytest.mark.slow
def test_an_objective_of_ones_own_runs_to_its_export(tmp_path: Path) -> None:
    objective = {"objective": {"name": "token_lengths"}, "optimizer": {"learning_rate": 0.01}}
    config = toy_config(
        write_corpus(tmp_path / "corpus.txt.gz"), train={"steps": 30, "batch_size": 16, "log_every_steps": 10, **objective}
    )
    summary = pipeline.run(config, tmp_path / "w")
    assert summary.eval_loss < 2.5  # knowing nothing is ln 60 = 4.1
    assert (tmp_path / "w" / "export" / "model.safetensors").exists()


def halves(n: jax.Array, config: OptimizerConfig, total_steps: int) -> jax.Array:
    return jnp.exp2(-jnp.floor(4 * n / total_steps))


def test_a_schedule_of_ones_own() -> None:
    rate = learning_rate(OptimizerConfig(schedule="halves", learning_rate=0.5, warmup_steps=0), 100)
    assert [float(jnp.asarray(rate(count))) for count in (0, 30, 60, 98)] == [0.5, 0.25, 0.125, 0.0625]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.objective.name=mlmm", r"train\.objective\.name.*'mlmm' .*mlm, rtd, clm.*'mlm'"),
        ("train.optimizer.schedule=liner", r"train\.optimizer\.schedule.*'liner' .*'linear'"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("quickstart", [setting])
