"""Replaced-token detection: what is sampled and replaced, what is judged, how the two losses add up, and the scores."""

from functools import cache, partial
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SPECIAL

from tpulm.config import ObjectiveConfig
from tpulm.models import electra
from tpulm.nn.params import initialize, named_leaves
from tpulm.objectives.rtd import ReplacedTokenDetection, _area_under_curve, _detection_sums, sample_tokens

VOCAB_SIZE, L, B = cases.VOCAB_SIZE, cases.L, 64


def make(objective: ObjectiveConfig | None = None, **model: Any) -> ReplacedTokenDetection:
    made = cases.make(objective=objective, **cases.ELECTRA, intermediate_size=64, **model)
    assert isinstance(made, ReplacedTokenDetection)
    return made


def batch(seed: int = 0) -> dict[str, jax.Array]:
    """Full rows and half rows in turn."""
    tokens = np.random.default_rng(seed).integers(5, VOCAB_SIZE, (B, L)).astype(np.uint16)
    tokens[:, 0], tokens[:, L // 2 - 1], tokens[:, -1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
    tokens[1::2, L // 2 :] = SPECIAL.pad
    return {"tokens": jnp.asarray(tokens)}


@cache
def compiled(objective: ReplacedTokenDetection) -> Any:
    """(batch, keys -> inputs), (params, inputs, totals -> loss and sums)."""
    return jax.jit(objective.make_inputs), jax.jit(partial(objective.loss, dropout_key=None))


def prepared(objective: ReplacedTokenDetection, seed: int = 0) -> Any:
    return compiled(objective)[0](batch(seed), jax.random.split(jax.random.key(seed), B))


@cache
def first_params(objective: ReplacedTokenDetection) -> Any:
    return initialize(objective.spec, jax.random.key(0))


def losses(objective: ReplacedTokenDetection, params: Any, inputs: Any) -> Any:
    return compiled(objective)[1](params, inputs, objective.totals(inputs))


def test_85_of_100_chosen_tokens_are_masked_and_the_others_stay():
    masked = kept = 0
    for seed in range(20):
        inputs = jax.device_get(prepared(make(), seed).masked)
        seen = np.take_along_axis(inputs.tokens.ids, inputs.predicted, axis=1)[inputs.weights > 0]
        masked += int((seen == SPECIAL.mask).sum())
        kept += int((seen == inputs.labels[inputs.weights > 0]).sum())
    total = masked + kept
    assert total == 20 * (B // 2) * (round(L * 0.15) + round(L // 2 * 0.15))  # nothing else became of any
    assert masked / total == pytest.approx(0.85, abs=4 * np.sqrt(0.85 * 0.15 / total))


def test_only_chosen_tokens_are_replaced_and_by_samples():
    objective = make()
    inputs, params = prepared(objective), first_params(objective)

    @jax.jit
    def replaced(params: Any, inputs: Any) -> Any:
        _, samples = objective._generate(electra.halves(params).generator, inputs, None)
        return objective._replace(inputs, samples)

    rows, originals = np.asarray(replaced(params, inputs)), np.asarray(inputs.originals)
    chosen = np.zeros_like(originals, bool)
    used = np.asarray(inputs.masked.weights) > 0
    for row, (places, use) in enumerate(zip(np.asarray(inputs.masked.predicted), used, strict=True)):
        chosen[row, places[use]] = True
    np.testing.assert_array_equal(rows[~chosen], originals[~chosen])
    assert (rows[chosen] < VOCAB_SIZE).all()
    # A generator that knows nothing draws evenly: nearly all differ from the original, and a sample that hits it is no fake.
    assert 0.9 < (rows[chosen] != originals[chosen]).mean() < 1.0
    sums = losses(objective, params, inputs).sums
    assert float(sums["replaced"]) == (rows != originals).sum()
    assert float(sums["detection_weight"]) == (originals != SPECIAL.pad).sum()


def test_the_loss_is_a_weighted_sum():
    objective = make(ObjectiveConfig(generator_weight=2.0, discriminator_weight=3.0))
    found = losses(objective, first_params(objective), prepared(objective))
    metrics = objective.metrics(jax.device_get(found.sums))
    assert float(found.loss) == pytest.approx(2.0 * metrics["mlm_loss"] + 3.0 * metrics["detection_loss"], rel=1e-6)
    assert metrics["loss"] == pytest.approx(float(found.loss), rel=1e-6)
    assert metrics["mlm_loss"] == pytest.approx(np.log(VOCAB_SIZE), abs=0.1)
    assert metrics["detection_loss"] == pytest.approx(np.log(2), abs=0.05)


@pytest.mark.parametrize("disentangled", [False, True])
def test_the_loss_of_detection_does_not_reach_the_generator(disentangled: bool):
    """Nor its embeddings, where these are disentangled (He et al. 2021, DeBERTaV3, section 3.3); shared ones are reached."""
    objective = make(ObjectiveConfig(generator_weight=1e-30), generator={"disentangled_embeddings": disentangled})
    inputs = prepared(objective)

    @jax.jit
    @jax.grad
    def gradient(params: Any) -> jax.Array:
        return objective.loss(params, inputs, objective.totals(inputs), dropout_key=None).loss

    leaves = named_leaves(gradient(first_params(objective)))
    largest = {name: float(np.abs(leaf).max()) for name, leaf in leaves.items()}
    of_generator = {name: value for name, value in largest.items() if name.startswith("generator/")}
    assert ("generator/embeddings/tokens" in of_generator) is disentangled and max(of_generator.values()) < 1e-12
    assert largest["difference/tokens" if disentangled else "discriminator/embeddings/tokens"] > 1e-3
    if disentangled:
        assert not np.any(first_params(objective).difference.tokens), "the discriminator begins with the generator's"


def test_what_is_shared_is_there_once():
    for generator, parts in (
        ({}, {"layers"}),
        ({"own_embeddings": True}, {"layers", "embeddings"}),
        ({"own_layers": False, "width": 1.0}, set()),
    ):
        leaves = (name.split("/") for name in named_leaves(make(generator=generator).spec))
        own = {part for half, part, *_ in leaves if half == "generator"}
        assert own & {"layers", "embeddings"} == parts


def test_scores_of_the_detection():
    logits = jnp.asarray([[2.0, -1.0, 3.0, -4.0, 9.0]])
    truth = jnp.asarray([[True, True, False, False, True]])
    weights = jnp.asarray([[1.0, 1.0, 1.0, 1.0, 0.0]])
    sums = jax.device_get(_detection_sums(logits, truth, weights))
    p = 1 / (1 + np.exp(-np.asarray(logits)[0, :4]))
    assert sums["detection_loss"] == pytest.approx(-np.log([p[0], p[1], 1 - p[2], 1 - p[3]]).sum(), rel=1e-5)
    assert (sums["detection_correct"], sums["detection_weight"]) == (2, 4)
    assert (sums["replaced"], sums["replaced_called"], sums["replaced_found"]) == (2, 2, 1)
    # Of the four pairs (replaced, original), two are in order: 2 > -4 and -1 > -4.
    assert _area_under_curve(sums["replaced_scores"], sums["original_scores"]) == pytest.approx(0.5)


def test_area_under_the_curve_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    positive, negative = rng.normal(1, 2, 400), rng.normal(0, 2, 900)
    logits, truth = np.concatenate([positive, negative])[None], np.arange(1300)[None] < 400
    sums = jax.device_get(_detection_sums(jnp.asarray(logits, jnp.float32), jnp.asarray(truth), jnp.ones((1, 1300))))
    exact = np.mean(positive[:, None] > negative[None, :])
    assert _area_under_curve(sums["replaced_scores"], sums["original_scores"]) == pytest.approx(exact, abs=0.005)
    assert _area_under_curve(np.zeros(4), np.ones(4)) == 0.5


# -- sampling: tokens come with their softmax probability, each row from its own key ----------------------------------------

WIDE = 384  # tokens to sample from
DRAWS = 20_000


def draw(logits: np.ndarray, *, temperature: float = 1.0, seed: int = 0) -> np.ndarray:
    """DRAWS samples of one distribution [WIDE], spread over rows and positions."""
    keys = jax.random.split(jax.random.key(seed), DRAWS // 100)
    spread = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (len(keys), 100, WIDE))
    return np.asarray(jax.jit(sample_tokens, static_argnames="temperature")(spread, keys, temperature=temperature)).ravel()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_are_those_of_the_softmax(temperature: float):
    logits = np.random.default_rng(0).normal(0, 1.5, WIDE)
    expected = np.asarray(jax.nn.softmax(logits / temperature)) * DRAWS
    found = np.bincount(draw(logits, temperature=temperature), minlength=WIDE)
    common = expected >= 5
    squares = np.sum((found - expected)[common] ** 2 / expected[common])
    rest = (found[~common].sum() - expected[~common].sum()) ** 2 / max(expected[~common].sum(), 1e-9)
    freedom = int(common.sum())
    assert squares + rest < freedom + 4 * np.sqrt(2 * freedom)  # chi-squared: four standard deviations


def test_a_token_of_probability_zero_is_never_drawn(monkeypatch: pytest.MonkeyPatch):
    logits = np.full(WIDE, -1e9)
    logits[[5, 130]] = 0.0
    found = np.bincount(draw(logits), minlength=WIDE)
    assert found[5] + found[130] == DRAWS
    assert abs(found[5] - DRAWS / 2) < 4 * np.sqrt(DRAWS / 4)
    for uniform, drawn in ((0.0, 5), (np.nextafter(np.float32(1), np.float32(0)), 130)):  # one in eight million is 0
        monkeypatch.setattr(jax.random, "uniform", lambda _, shape, dtype, value=uniform: jnp.full(shape, value, dtype))
        assert sample_tokens(jnp.asarray(logits)[None, None], jax.random.split(jax.random.key(0), 1)).item() == drawn
