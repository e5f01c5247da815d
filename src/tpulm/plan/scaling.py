"""The law that predicts a run's held-out loss from small runs on the same text, and the interval that they support.

    L(N, D) = E + (L0 - E) h / (1 + h),   h = (N / N0)^-alpha + (D' / D0)^-beta        nats a token

N: parameters; D: tokens trained on; E: the loss that remains; L0: that of token frequencies alone, measured. For little h
this is E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv 2203.15556, equation 2); the bound L0 is for runs so short
that they are still near the unigrams (as in arXiv 2605.09189). Text that is read again counts for less (Muennighoff et al.
2023, arXiv 2305.16264, equation 5): D' = U + U R (1 - exp(-(D / U - 1) / R)) for U tokens of text, R = 15.39.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

REPEATS = 15.387756  # R: Muennighoff et al. 2023, section 6
_NOISE = 0.005  # of a loss, relative: what a seed changes
# log E, log N0, alpha, log D0, beta: where the fit begins, and how far from there a few pilots may take it.
_EXPONENTS = (0.34, 0.28)  # Hoffmann et al. 2022, section 3.3
_SPREAD = (0.5, 4.0, 0.15, 4.0, 0.15)
_SAFETY = 2.0  # widths of the interval, by the errors on pilots that were held out
LEAST_PILOTS = 5


class ScalingPoint(NamedTuple):
    """A small run: its size, its text, and its loss."""

    parameters: float
    tokens: float
    loss: float  # nats a held-out token


@dataclass(frozen=True)
class Law:
    floor: float  # E
    unigrams: float  # L0
    text: float  # U, tokens
    parameters: float  # N0
    alpha: float
    tokens: float  # D0
    beta: float

    def loss(self, parameters: float, tokens: float, *, text: float | None = None) -> float:
        """Nats a held-out token; `text`: tokens of another amount of text."""
        h = (parameters / self.parameters) ** -self.alpha + (effective(tokens, text or self.text) / self.tokens) ** -self.beta
        return self.floor + (self.unigrams - self.floor) * h / (1 + h)


class LossPrediction(NamedTuple):
    loss: float
    low: float
    high: float
    law: Law


def effective(tokens: float, text: float) -> float:
    """How many tokens of new text are worth as much as `tokens` of a text of `text` tokens, read again and again."""
    if tokens <= text:
        return tokens
    return text + text * REPEATS * -math.expm1(-(tokens / text - 1) / REPEATS)


def fit(pilots: Sequence[ScalingPoint], *, unigrams: float, text: float) -> Law:
    """The law nearest to these runs in squares of log losses; what they leave open stays near the published exponents."""
    sizes, tokens = np.array([one.parameters for one in pilots]), np.array([effective(one.tokens, text) for one in pilots])
    observed = np.log([one.loss for one in pilots])
    begin = np.array([math.log(unigrams / 3), np.log(sizes).mean(), _EXPONENTS[0], np.log(tokens).mean(), _EXPONENTS[1]])

    def residuals(x: np.ndarray) -> np.ndarray:
        floor = math.exp(x[0])
        h = np.exp(-x[2] * (np.log(sizes) - x[1])) + np.exp(-x[4] * (np.log(tokens) - x[3]))
        errors = np.log(floor + (unigrams - floor) * h / (1 + h)) - observed
        return np.concatenate([errors / _NOISE, (x - begin) / _SPREAD])

    bounds = [-np.inf, -np.inf, 0.02, -np.inf, 0.02], [math.log(unigrams * 0.95), np.inf, 2.0, np.inf, 2.0]
    x = least_squares(residuals, begin, bounds=bounds, loss="huber", f_scale=3.0).x
    floor, parameters, alpha, tokens_scale, beta = x.tolist()
    return Law(math.exp(floor), unigrams, text, math.exp(parameters), alpha, math.exp(tokens_scale), beta)


def predict(pilots: Sequence[ScalingPoint], run: tuple[float, float], *, unigrams: float, text: float) -> LossPrediction:
    """The loss of a run of (parameters, tokens), with an interval.

    Each of the three largest pilots is predicted from those of at most half its compute; the largest error, for the logarithm
    of how much further it was than they were, says how far off the run may be.
    """
    law = fit(pilots, unigrams=unigrams, text=text)
    loss = law.loss(*run)
    ordered, worst = sorted(pilots, key=_compute), _NOISE / math.log(2)
    for one in ordered[-3:]:
        smaller = [other for other in ordered if _compute(other) <= _compute(one) / 2]
        if len(smaller) >= LEAST_PILOTS - 2:
            predicted = fit(smaller, unigrams=unigrams, text=text).loss(one.parameters, one.tokens)
            worst = max(worst, abs(math.log(predicted / one.loss)) / math.log(_compute(one) / _compute(smaller[-1])))
    beyond = max(run[0] * run[1] / _compute(ordered[-1]), 2.0)
    width = math.exp(_SAFETY * worst * math.log(beyond))
    return LossPrediction(loss, max(loss / width, law.floor), min(loss * width, unigrams), law)


def _compute(one: ScalingPoint) -> float:
    return one.parameters * one.tokens
