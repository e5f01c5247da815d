"""Is my run all right? Held-out scores against what is known of healthy runs.

Two kinds of bands. A law for any text: a model that has learned anything beyond how frequent each token is has a loss below the
entropy of those frequencies. And what was published of ELECTRA-small: google-research/electra issue 81 (at 5,000 steps: total
loss 25, masked loss 7.1, detection accuracy 0.867, AUC 0.68, recall 0.05), ymcui/Chinese-ELECTRA issue 21 (at the end: total
about 8, masked loss 2 to 3). Corpora and vocabularies differ, so the bands are wide: outside of them something is wrong, inside
of them nothing is proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

Architecture = Literal["bert", "electra", "decoder"]
_PUBLISHED_FROM = 5_000  # steps; before, the curves are too steep to tell


class Check(NamedTuple):
    """One score, and the band [low, high] it should lie in."""

    name: str
    value: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.value <= self.high

    def __str__(self) -> str:
        low, high = (f"{bound:.2f}" if math.isfinite(bound) else "" for bound in (self.low, self.high))
        band = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"
        return f"{self.name.replace('_', ' ')} {self.value:.3f} ({band})"


_ELECTRA = {
    "mlm_loss": (1.5, 7.6),
    "detection_loss": (0.06, 0.42),  # what of the published totals is not the masked loss, over its weight there, 50
    "detection_accuracy": (0.83, 0.99),
    "detection_auc": (0.60, 1.0),
    "detection_recall": (0.02, 1.0),
}


def judge(architecture: Architecture, step: int, scores: Mapping[str, float]) -> list[Check]:
    """The checks that apply to these held-out scores after `step` steps."""
    token_loss = scores.get("mlm_loss", scores["loss"])
    checks = [Check("token_loss", token_loss, -math.inf, scores["unigram_entropy"])]
    if architecture == "electra" and step >= _PUBLISHED_FROM:
        checks += [Check(name, scores[name], *band) for name, band in _ELECTRA.items()]
    return checks


def verdict(checks: list[Check], step: int) -> str:
    """One line for people."""
    outside = [check for check in checks if not check.inside]
    if not outside:
        return "all right: " + "; ".join(map(str, checks))
    begun = checks[0] in outside and "; nothing learned yet but how frequent each token is: it may need more steps"
    return f"outside after {step:,} steps: " + "; ".join(map(str, outside)) + (begun or "")
