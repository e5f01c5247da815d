"""The law of loss over parameters and tokens, against laws that are known."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

from tpulm.plan.scaling import REPEATS, Fit, Law, ScalingPoint, effective, predict

Pilots = Callable[[Law, float, int], list[ScalingPoint]]
PLATEAU = 0.45  # of the shortest pilot, as in real runs


def chinchilla(parameters: float, tokens: float) -> float:
    """Hoffmann et al. 2022, equation 10."""
    return 1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28


def of_narrower_models(law: Law, noise: float, seed: int) -> list[ScalingPoint]:
    """Nine pilots of a run of 4.5M parameters, none as wide as it, with the noise of seeds."""
    random = np.random.default_rng(seed)
    runs = [(size, share * tokens) for size, tokens in ((1.8e6, 5.5e4), (7e5, 1.1e5), (3e5, 2.2e5)) for share in (1, 2, 4)]
    return [ScalingPoint(*run, law.loss(*run) * math.exp(noise * random.normal())) for run in runs]


def of_its_own_model(law: Law, noise: float, seed: int, *, size: float = 3.4e5, longest: float = 7e5) -> list[ScalingPoint]:
    """Seven pilots of a run, with the noise of seeds; two are narrower, and off the law."""
    random = np.random.default_rng(seed)
    runs = [(size, longest / 2**halves) for halves in range(5)]
    pilots = [ScalingPoint(*run, law.loss(*run) * math.exp(noise * random.normal())) for run in runs]
    return pilots + [ScalingPoint(size / 3, tokens, law.loss(size / 3, tokens) * 1.01) for tokens in (longest / 2, longest)]


def test_repeated_text_counts_for_less():
    """Muennighoff et al. 2023: four epochs are worth nearly as much as new text, any number at most 1 + R times the text."""
    assert effective(50, 100) == 50
    assert effective(400, 100) == pytest.approx(400, rel=0.08)
    assert effective(1e9, 100) == pytest.approx(100 * (1 + REPEATS))


def test_far_from_the_unigrams_the_law_is_that_of_hoffmann():
    runs = [(size, 20.0 * size * more) for size in (1e8, 3e8, 1e9) for more in (0.5, 1.0, 2.0)]
    pilots = [ScalingPoint(*run, chinchilla(*run)) for run in runs]
    law = Fit(pilots, unigrams=10.0, text=1e15, parameters=3e9).law
    assert law.loss(3e9, 6e10) == pytest.approx(chinchilla(3e9, 6e10), rel=0.01)


@pytest.mark.parametrize(("alpha", "beta", "gamma"), [(0.3, 0.5, 0.0), (0.45, 0.25, 0.0), (0.3, 0.5, 0.3), (0.45, 0.25, 0.2)])
def test_fifteen_times_the_largest_of_narrower_pilots_is_near_and_in_the_interval(alpha: float, beta: float, gamma: float):
    law = Law(2.0, 7.1, 1e12, 2e5, alpha, 4e5, beta, gamma, PLATEAU * 5.5e4)
    check(law, (4.5e6, 1.32e6), of_narrower_models, median=0.015, worst=0.03)


@pytest.mark.parametrize(
    ("alpha", "beta", "gamma"), [(0.3, 0.6, 0.0), (0.33, 0.62, 0.26), (0.33, 0.55, 0.25), (0.33, 0.7, 0.25)]
)
def test_eleven_times_the_largest_of_its_own_pilots_is_near_and_in_the_interval(alpha: float, beta: float, gamma: float):
    """All but the first are laws of real runs (docs/experiments.md, "Pilots of minutes")."""
    law = Law(1.95, 6.0, 1e12, 1e5, alpha, 6e5, beta, gamma, PLATEAU * 7e5 / 16)
    check(law, (3.4e5, 8e6), of_its_own_model, median=0.02, worst=0.045)


@pytest.mark.parametrize(("alpha", "beta", "gamma"), [(0.3, 0.5, 0.0), (0.45, 0.25, 0.0), (0.3, 0.5, 0.3), (0.45, 0.25, 0.2)])
def test_flatter_laws_than_those_of_real_runs(alpha: float, beta: float, gamma: float):
    law = Law(2.0, 7.1, 1e12, 2e5, alpha, 5e4, beta, gamma, PLATEAU * 3e5 / 16)
    pilots = functools.partial(of_its_own_model, size=1.8e6, longest=3e5)
    check(law, (1.8e6, 3.3e6), pilots, median=0.02 if beta > 0.3 else 0.035, worst=0.045 if beta > 0.3 else 0.055)


@pytest.mark.parametrize(("alpha", "beta", "gamma"), [(0.3, 0.6, 0.0), (0.33, 0.62, 0.26), (0.33, 0.55, 0.25)])
def test_where_short_pilots_are_left_out_the_others_tell_less_and_say_so(alpha: float, beta: float, gamma: float):
    """Those of a quarter and less; a plateau of 0.7 of the shortest that is left would be 7 % off."""

    def longer(law: Law, noise: float, seed: int) -> list[ScalingPoint]:
        return [one for one in of_its_own_model(law, noise, seed) if one.tokens > 2e5]

    law = Law(1.95, 6.0, 1e12, 1e5, alpha, 6e5, beta, gamma, PLATEAU * 7e5 / 4)
    check(law, (3.4e5, 8e6), longer, median=0.035, worst=0.075, width=1.25)


def check(law: Law, run: tuple[float, float], pilots: Pilots, *, median: float, worst: float, width: float = 1.2) -> None:
    """Ten forecasts of a run of (parameters, tokens) are no further off than that, relatively, and nine hold its loss."""
    made = [predict(pilots(law, 0.003, seed), run, unigrams=law.unigrams, text=1e12) for seed in range(10)]
    errors = [abs(one.loss / law.loss(*run) - 1) for one in made]
    assert np.median(errors) < median and max(errors) < worst, errors
    assert sum(one.low <= law.loss(*run) <= one.high for one in made) >= 9
    assert np.median([one.high / one.low for one in made]) < width


def test_a_larger_model_needs_fewer_tokens():
    """Real pilots of a causal model (docs/experiments.md, "Pilots of minutes"): parameters, tokens, loss."""
    losses = {(1_328_256, 189e3): 4.159, (1_328_256, 319e3): 3.901, (1_328_256, 512e3): 3.706, (362_816, 319e3): 4.099}
    losses |= {(362_816, 512e3): 3.901, (362_816, 819e3): 3.743, (362_816, 1.28e6): 3.616}
    law = Fit([ScalingPoint(*run, loss) for run, loss in losses.items()], unigrams=5.519, text=4e6, parameters=5e6).law
    assert law.gamma > 0.05
    for run, loss in losses.items():
        assert law.loss(*run) == pytest.approx(loss, rel=0.006)
