"""What a classifier is surest of and wrong about: where to look for bad labels, and for what it has not learned."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tpulm.labelled import Examples
from tpulm.predict.classify import log_probabilities


class Mistake(NamedTuple):
    """`confidence` is the probability given to the wrong label, or of a regression the distance from the true number."""

    text: str
    pair: str | None
    label: Any
    predicted: Any
    confidence: float
    place: str  # where the example stands


def mistakes(examples: Examples, labels: np.ndarray, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
    """All wrong ones, the most confident first; with no `names`, of a regression, all examples, the farthest off first."""
    if names:
        predicted = outputs.argmax(axis=1)
        confidence = np.exp(log_probabilities(outputs).max(axis=1))
        wrong = np.flatnonzero(predicted != labels)
        true_of, predicted_of = (lambda i: names[labels[i]]), (lambda i: names[predicted[i]])
    else:
        confidence = np.abs(outputs[:, 0] - labels)
        wrong = np.arange(len(labels))
        true_of, predicted_of = (lambda i: float(labels[i])), (lambda i: float(outputs[i, 0]))
    order = wrong[np.argsort(-confidence[wrong], kind="stable")]
    return [
        Mistake(
            examples.texts[i],
            None if examples.pairs is None else examples.pairs[i],
            true_of(i),
            predicted_of(i),
            round(float(confidence[i]), 6),
            examples.places[i],
        )
        for i in order
    ]
