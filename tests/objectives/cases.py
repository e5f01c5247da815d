"""Every objective on rows it is made for, for the laws that hold for all of them (test_laws.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from encoders import LLAMA_LIKE
from tpulm import objectives
from tpulm.config import ModelConfig, ObjectiveConfig
from tpulm.nn.transformer import Execution
from tpulm.objectives import Objective, Setup
from tpulm.special_tokens import SpecialTokens

SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
VOCAB_SIZE, L = 50, 16
TINY = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_positions": L}

Rows = Literal["segments", "packed", "causal"]


@dataclass(frozen=True)
class Case:
    rows: Rows
    model: dict[str, object] = field(default_factory=dict)
    next_sentence: bool = False
    objective: str | None = None

    def make(self, **changes: Any) -> Objective:
        objective = ObjectiveConfig(name=self.objective)
        return make(rows=self.rows, next_sentence=self.next_sentence, **{"objective": objective, **self.model, **changes})

    def batch(self, rows: int = 8) -> dict[str, jax.Array]:
        return batch(rows, kind=self.rows, next_sentence=self.next_sentence)


ELECTRA = {"architecture": "electra", "activation": "gelu", "hidden_size": 32}
CASES = {
    "masked, with next sentence": Case("segments", next_sentence=True),
    "masked, packed": Case("packed"),
    "masked, ModernBERT": Case("packed", {"architecture": "modernbert", "num_layers": 4, "local_window": 4}),
    "next token, of an encoder": Case("packed", {"norm_position": "pre"}, objective="clm"),
    "replaced": Case("segments", {**ELECTRA, "embedding_size": 8}),
    "replaced, own embeddings": Case("segments", {**ELECTRA, "generator": {"own_embeddings": True}}),
    "replaced, one body": Case("segments", {**ELECTRA, "generator": {"own_layers": False, "width": 1.0}}),
    "causal, as GPT-2": Case("causal", {"architecture": "decoder", "norm_position": "pre", "tied_output": False}),
    "causal, as Llama": Case("causal", {"architecture": "decoder", "norm_position": "pre", **LLAMA_LIKE}),
}


def make(
    *,
    rows: Rows = "segments",
    next_sentence: bool = False,
    dtype: Any = jnp.float32,
    evaluation: bool = False,
    objective: ObjectiveConfig | None = None,
    special: SpecialTokens = SPECIAL,
    **model: object,
) -> Objective:
    setup = Setup(
        ModelConfig.model_validate(TINY | model),
        objective or ObjectiveConfig(),
        Execution(dtype, "none", unroll=False),
        sequence_length=L,
        row_kind=rows,
        next_sentence=next_sentence,
        vocab_size=VOCAB_SIZE,
        special=special,
        evaluation=evaluation,
    )
    return objectives.make(setup)


def batch(rows: int = 8, *, kind: Rows = "segments", next_sentence: bool = False, seed: int = 0) -> dict[str, jax.Array]:
    """Rows of several lengths, the last one nothing but padding."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, VOCAB_SIZE, (rows, L)).astype(np.uint16)
    for i, row in enumerate(tokens):
        length = max(L - i, 2) if i < rows - 1 else 0
        row[length:] = SPECIAL.pad
        if length:
            row[0], row[length // 2], row[length - 1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
        if kind == "packed" and length > 4:
            row[length // 2 + 1] = SPECIAL.cls
        if kind == "causal" and length:
            row[0] = SPECIAL.sep if i % 2 else 7
    result = {"tokens": jnp.asarray(tokens)}
    if next_sentence:
        result["next_sentence"] = jnp.asarray(rng.integers(0, 2, rows).astype(np.uint8))
    return result


def keys(rows: int = 8, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), rows)


@cache
def compiled(objective: Objective) -> Any:
    """(batch -> inputs and totals), (params, inputs, totals, key -> loss, sums and gradients)."""

    def prepare(data: Any) -> Any:
        inputs = objective.make_inputs(data, keys(data["tokens"].shape[0]))
        return inputs, objective.totals(inputs)

    return jax.jit(prepare), jax.jit(jax.value_and_grad(objective.loss, has_aux=True))


def run(objective: Objective, params: Any, data: Any, *, parts: int = 1) -> tuple[float, dict, Any]:
    """Loss, sums and gradients, with the rows computed in `parts` micro-batches."""
    prepare, gradient = compiled(objective)
    inputs, totals = jax.device_get(prepare(data))
    size = data["tokens"].shape[0] // parts
    results = []
    for part in range(parts):
        some = jax.tree.map(lambda x, part=part: x[part * size : (part + 1) * size], inputs)
        results.append(jax.device_get(gradient(params, some, totals, dropout_key=jax.random.key(1))))
    (loss, sums), grads = jax.tree.map(lambda *x: sum(x), *results)
    return float(loss), sums, grads
