"""The masked objective: what is predicted, what is counted; test_laws.py has what holds for every objective."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import CASES, SPECIAL, VOCAB_SIZE, batch, compiled, keys, make

from tpulm.config import ObjectiveConfig
from tpulm.models import bert
from tpulm.nn.params import initialize


def test_rows_of_padding_count_for_nothing():
    objective = make(next_sentence=True)
    inputs, totals = compiled(objective)[0](batch(next_sentence=True))
    np.testing.assert_array_equal(inputs.row_weights, [1, 1, 1, 1, 1, 1, 1, 0])
    assert not np.asarray(inputs.weights)[-1].any()
    assert float(totals["next_sentence"]) == 7
    assert float(totals["mlm"]) == np.asarray(inputs.weights)[:7].sum()


def test_evaluation_masks_its_own_share():
    config = ObjectiveConfig(mask_fraction=0.5, evaluation_mask_fraction=0.15)
    made = [compiled(make(objective=config, evaluation=evaluation))[0] for evaluation in (False, True)]
    lengths = [16, 15, 14, 13, 12, 11, 10, 0]
    expected = [sum(min(8, round(length * 0.5)) for length in lengths), sum(round(length * 0.15) for length in lengths)]
    assert [int(prepare(batch())[1]["mlm"]) for prepare in made] == expected


def test_label_counts():
    objective = make()
    inputs, totals = compiled(objective)[0](batch())
    labels = np.asarray(inputs.labels)[np.asarray(inputs.weights) > 0]
    assert len(labels) == float(totals["mlm"])
    np.testing.assert_array_equal(objective.label_counts(inputs), np.bincount(labels, minlength=VOCAB_SIZE))


def test_an_encoder_that_predicts_the_next_token_sees_none_that_follow():
    objective: Any = CASES["next token, of an encoder"].make(num_layers=2, dropout=0.0, attention_dropout=0.0)
    data = batch(kind="packed")
    inputs = jax.device_get(objective.make_inputs(data, keys()))
    ids = np.asarray(data["tokens"], np.int32)
    predicted = inputs.weights > 0
    np.testing.assert_array_equal(inputs.labels[predicted], np.roll(ids, -1, axis=1)[predicted])
    assert not np.isin(inputs.labels[predicted], [SPECIAL.cls, SPECIAL.pad]).any()
    params = initialize(objective.spec, jax.random.key(0))

    def states(ids: np.ndarray) -> np.ndarray:
        tokens = inputs.tokens._replace(ids=jnp.asarray(ids))
        settings: dict[str, Any] = {"config": objective.model, "execution": objective.execution, "causal": objective.causal}
        return np.asarray(bert.encode(params, tokens, **settings, randomness=None))

    changed = ids.copy()
    changed[0, 6] = 5 if ids[0, 6] != 5 else 6
    moved = np.abs(states(changed) - states(ids)).max(axis=-1)[0] > 0
    assert not moved[:6].any() and moved[6]
