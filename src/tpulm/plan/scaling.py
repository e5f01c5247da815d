"""The law that predicts a run's held-out loss from small runs on the same text, and the interval that they support.

    L(N, D) = E + (L0 - E) h / (1 + h),   h = (N / N0)^-alpha + ((D' - S) / D0 (N / N0)^gamma)^-beta        nats a token

N: parameters; D: tokens trained on; E: the loss that remains; L0: that of token frequencies alone, measured. For little h and
no gamma or S this is E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv 2203.15556, equation 2). The bound L0 is for
runs so short that they are still near the unigrams (as in arXiv 2605.09189), and gamma because a larger model needs fewer
tokens for the same loss (Kaplan et al. 2020, arXiv 2001.08361, figure 2), by more than its floor is lower. S are tokens on the
plateau at the unigrams, from which a run falls faster than any power of D (docs/experiments.md). Text that is read again
counts for less (Muennighoff et al. 2023, arXiv 2305.16264, equation 5): D' = U + U R (1 - exp(-(D / U - 1) / R)) for U tokens
of text, R = 15.39.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

REPEATS = 15.387756  # R: Muennighoff et al. 2023, section 6
_NOISE = 0.005  # of a loss, relative: what a seed changes
_OTHER_SIZE = 2.0  # so many times more for each factor e in parameters beside the run's own: docs/experiments.md
# Where the fit begins, for alpha, beta and gamma: alpha as in Hoffmann et al. 2022, section 3.3, the others nearer to what runs
# of minutes show (docs/experiments.md). Then how far a few pilots may take log E, log N0, alpha, log D0, beta, gamma and log S;
# N0 and D0 begin at the pilots' means, and S as a share of the shortest pilot, which it may not exceed, or of a quarter of the
# longest of the widest if that is shorter: where short pilots have been left out, the plateau is no longer than before.
_EXPONENTS = (0.34, 0.6, 0.2)
_PLATEAU, _LONGEST_PLATEAU = 0.7, 0.9
_SPREAD = (0.5, 4.0, 0.15, 4.0, 0.15, 0.2, 0.5)
_FAR = 40.0  # at most, of log N0 and log D0 from the means, so that no power of them overflows
_SAFETY = 2.0  # deviations to either side
_LEAST_TO_CHECK = 3  # pilots that a held-out one is predicted from


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
    gamma: float
    plateau: float  # S, tokens

    def loss(self, parameters: float, tokens: float, *, text: float | None = None) -> float:
        """Nats a held-out token; `text`: tokens of another amount of text."""
        worth = effective(tokens, text or self.text)
        learned = max(worth - self.plateau, (1 - _LONGEST_PLATEAU) * worth)
        size, length = math.log(parameters / self.parameters), math.log(learned / self.tokens)
        h = math.exp(-self.alpha * size) + math.exp(-self.beta * (length + self.gamma * size))
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


class Fit:
    """The law nearest to some runs in squares of log losses; what they leave open stays near published exponents.

    Where pilots have the run's own size, `parameters`, those of another count for less.
    """

    def __init__(self, pilots: Sequence[ScalingPoint], *, unigrams: float, text: float, parameters: float):
        sizes, lengths = np.log([one.parameters for one in pilots]), np.log([effective(one.tokens, text) for one in pilots])
        self._unigrams, self._text, self._means = unigrams, text, (float(sizes.mean()), float(lengths.mean()))
        observed = np.log([one.loss for one in pilots])
        noise = np.full(len(pilots), _NOISE)
        if any(one.parameters == parameters for one in pilots):
            noise *= 1 + _OTHER_SIZE * np.abs(sizes - math.log(parameters))
        shortest, quarter = float(lengths.min()), float(lengths[sizes == sizes.max()].max()) - math.log(4)
        plateau = min(shortest, quarter) + math.log(_PLATEAU)
        begin = np.array([math.log(unigrams / 3), 0.0, _EXPONENTS[0], 0.0, *_EXPONENTS[1:], plateau])

        def residuals(x: np.ndarray) -> np.ndarray:
            law = self._law(x)
            predicted = np.log([law.loss(one.parameters, one.tokens) for one in pilots])
            return np.concatenate([(predicted - observed) / noise, (x - begin) / _SPREAD])

        lowest = [-np.inf, -_FAR, 0.02, -_FAR, 0.02, -1.0, -np.inf]
        highest = [math.log(unigrams * 0.95), _FAR, 2.0, _FAR, 4.0, 2.0, shortest + math.log(_LONGEST_PLATEAU)]
        self._x = least_squares(residuals, begin, bounds=(lowest, highest), loss="huber", f_scale=3.0).x
        slopes, misfit = _slopes(residuals, self._x), float(np.sum(residuals(self._x) ** 2)) / len(pilots)
        self._covariance = np.linalg.inv(slopes.T @ slopes) * max(1.0, misfit)

    @property
    def law(self) -> Law:
        return self._law(self._x)

    def deviation(self, parameters: float, tokens: float) -> float:
        """Of the logarithm of the loss of such a run, by what these runs leave open; at least the noise of a seed."""

        def log_loss(x: np.ndarray) -> np.ndarray:
            return np.array([math.log(self._law(x).loss(parameters, tokens))])

        [slope] = _slopes(log_loss, self._x)
        return max(_NOISE, math.sqrt(float(slope @ self._covariance @ slope)))

    def _law(self, x: np.ndarray) -> Law:
        floor, size, alpha, length, beta, gamma, plateau = x.tolist()
        size, length = size + self._means[0], length + self._means[1] - gamma * size
        floor, size, length, plateau = map(math.exp, (floor, size, length, plateau))
        return Law(floor, self._unigrams, self._text, size, alpha, length, beta, gamma, plateau)


def _slopes(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The derivatives of the function's values [values, len(x)], by central differences."""
    return np.stack([(function(x + to) - function(x - to)) / (2 * step) for to in step * np.eye(len(x))], axis=1)


def predict(pilots: Sequence[ScalingPoint], run: tuple[float, float], *, unigrams: float, text: float) -> LossPrediction:
    """The loss of a run of (parameters, tokens), with an interval of two deviations to either side.

    The deviation is of what the pilots leave open. Each of the three largest pilots is also predicted from those of at most
    half its compute; where one misses by more than one of its own deviations, the run's grows by that factor.
    """
    fit = functools.partial(Fit, unigrams=unigrams, text=text, parameters=run[0])
    fitted, ordered, worst = fit(pilots), sorted(pilots, key=_compute), 1.0
    for one in ordered[-3:]:
        smaller = [other for other in ordered if _compute(other) <= _compute(one) / 2]
        if len(smaller) >= _LEAST_TO_CHECK:
            before, size = fit(smaller), (one.parameters, one.tokens)
            worst = max(worst, abs(math.log(before.law.loss(*size) / one.loss)) / before.deviation(*size))
    loss, width = fitted.law.loss(*run), math.exp(_SAFETY * worst * fitted.deviation(*run))
    return LossPrediction(loss, loss / width, min(loss * width, unigrams), fitted.law)


def _compute(one: ScalingPoint) -> float:
    return one.parameters * one.tokens
