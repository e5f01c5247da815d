"""The masked objective: what is predicted, what is counted; test_laws.py has what holds for every objective."""

from typing import Any

import jax
import numpy as np
from cases import CASES, SPECIAL, batch, compiled, keys, make

from tpulm.config import ObjectiveConfig
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


def test_an_encoder_that_predicts_the_next_token_sees_none_that_follow():
    objective: Any = CASES["next token, of an encoder"].make(num_layers=2)
    data = batch(kind="packed")
    inputs = jax.device_get(objective.make_inputs(data, keys()))
    ids = np.asarray(data["tokens"], np.int32)
    predicted = inputs.weights > 0
    np.testing.assert_array_equal(inputs.labels[predicted], np.roll(ids, -1, axis=1)[predicted])
    assert not np.isin(inputs.labels[predicted], [SPECIAL.cls, SPECIAL.pad]).any()
    params = initialize(objective.spec, jax.random.key(0))

    def loss(place: int, token: int) -> float:
        """Of the first row's predictions before place 6, with this token in a place."""
        changed, weights = ids.copy(), np.zeros_like(inputs.weights)
        changed[0, place], weights[0, :6] = token, 1.0
        some = inputs._replace(tokens=inputs.tokens._replace(ids=changed), weights=weights)
        return float(objective.loss(params, some, {"mlm": 6.0}, dropout_key=None).loss)

    assert loss(6, 5) == loss(6, 7) and loss(5, 5) != loss(5, 7)
