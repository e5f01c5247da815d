"""Is my run healthy? Compares held-out scores with those of healthy runs.

There are two kinds of bands. Some hold for any text: a model that has learned more than token frequencies has a loss below
that of the unigrams, and a detector that has learned anything finds some of the replaced tokens. Others are published scores of
ELECTRA-small: google-research/electra issue 81 (at 5,000 steps: total loss 25, masked loss 7.1, detection accuracy 0.867, AUC
0.68, recall 0.05), ymcui/Chinese-ELECTRA issue 21 (at the end: total about 8, masked loss 2 to 3). Corpora and vocabularies
differ, so the bands are wide: outside of them something is wrong, inside of them nothing is proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tpulm.config import RunConfig, TrainConfig, flattened, list_recipes, load, phases_of
from tpulm.tokenization import UNKNOWN_WARNING

_PUBLISHED_FROM = 5_000  # steps; earlier, the curves are too steep to judge
_LEARNED = 0.1  # nats below the unigrams' loss; models that always answer the most frequent token gain less
_FEW_STEPS = 200  # a healthy model may still be at its unigrams
_SHORT_STEPS = 20_000  # a run this short hardly sees a text twice, so dropout only slows it


class HealthCheck(NamedTuple):
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
        return f"{self.name} {self.value:.3f} ({band})"


_DETECTOR = {"detection_auc": ("detector AUC", 0.60), "detection_recall": ("detector recall", 0.02)}
_PUBLISHED = {
    "mlm_loss": ("generator loss", 1.5, 7.6),
    "detection_loss": ("detector loss", 0.06, 0.42),  # the published totals less the masked loss, over the weight 50
    "detection_accuracy": ("detector accuracy", 0.83, 0.99),
}


def judge(step: int, scores: Mapping[str, float]) -> list[HealthCheck]:
    """The checks that apply to these held-out scores after `step` steps; the first is that of the token loss."""
    has_detector = "detection_auc" in scores
    of = "generator token loss" if has_detector else "token loss"
    checks = [HealthCheck(of, token_loss(scores), -math.inf, scores["unigram_entropy"] - _LEARNED)]
    if has_detector:
        checks += [HealthCheck(label, scores[name], low, math.inf) for name, (label, low) in _DETECTOR.items()]
        if step >= _PUBLISHED_FROM:
            checks += [HealthCheck(label, scores[name], *band) for name, (label, *band) in _PUBLISHED.items()]
    return checks


def is_at_unigrams(scores: Mapping[str, float]) -> bool:
    """Whether, by its held-out scores, a model has learned only how frequent each token is."""
    return not token_loss(scores) <= scores["unigram_entropy"] - _LEARNED


def verdict(checks: list[HealthCheck], step: int, *, advice: str = "") -> str:
    """The checks as one line of text; `advice` (from `advice_for`) is given if the model is still at its unigrams."""
    outside = [check for check in checks if not check.inside]
    if not outside:
        return "all right: " + "; ".join(map(str, checks))
    if step < _FEW_STEPS and math.isfinite(checks[0].value):
        return f"{step:,} steps are too few to tell ({'; '.join(map(str, outside))}). {advice}".rstrip()
    message = f"outside after {step:,} steps: " + "; ".join(map(str, outside))
    if checks[0] in outside:
        return f"{message}; nothing learned yet but how frequent each token is. {advice}".rstrip()
    if any(check.name.startswith("detector") for check in outside):
        message += (
            "; fine-tuning starts from the detector: it may need more steps or a smaller generator (model.generator.width)"
        )
    return message


def first_verdict(config: TrainConfig) -> int:
    """The step at which a run is looked at while it trains: after its warm-up, and when a healthy one has learned something."""
    return max(config.steps // 10, 2 * config.optimizer.warmup(config.steps), _FEW_STEPS)


def plateau_note(scores: Mapping[str, float], step: int, steps: int, advice: str) -> str:
    """The note shown during training for a run that is still at its unigrams."""
    whose = "generator's loss" if "detection_loss" in scores else "loss"
    return (
        f"after {step:,} of {steps:,} steps the {whose} on held-out tokens, {token_loss(scores):.2f}, is still that of "
        f"knowing how frequent each token is, {scores['unigram_entropy']:.2f}. {advice}"
    )


def advice_for(config: RunConfig, *, unknown_fraction: float = 0.0, imported: bool = False) -> str:
    """The change most likely to bring a run below its unigrams."""
    if unknown_fraction >= UNKNOWN_WARNING:
        cure = "a larger tokenizer.vocab_size, or tokenizer.algorithm = 'bpe' or 'unigram'"
        if config.tokenizer.path is not None:
            cure = "a vocabulary that fits it, or one trained on it (without tokenizer.path)"
        return f"{unknown_fraction:.0%} of the text's characters are unknown. Most likely to help: {cure}"
    settings = helpful_settings(config, imported=imported)
    if config.train.steps < _FEW_STEPS or not settings:
        return "More steps or more text may help"
    return f"Most likely to help, in a new work folder: {', '.join(settings)}"


def helpful_settings(config: RunConfig, *, imported: bool = False) -> list[str]:
    """Settings to change, as lines of a run file, without those that `train.start_from` or `imported` rows fix.

    Learning rate and initialization depend on the width: layers of 256 need 1e-3 and 0.06 (docs/experiments.md). A recipe for
    short runs has been tried: what a run has from there stays, but for fewer steps.
    """
    model, optimizer, steps = config.model, config.train.optimizer, config.train.steps
    width, fresh = model.hidden_size, config.train.start_from is None
    rate, spread = float(f"{min(1e-3, 0.256 / width):.0e}"), round(width**-0.5, 2)
    recipe = load(config.recipe) if config.recipe in list_recipes() else None
    tried = recipe if recipe is not None and recipe.train.steps <= _SHORT_STEPS else None
    advice = dict[str, str]()
    if tried is not None and steps < tried.train.steps:
        advice["train.steps"] = str(tried.train.steps)
    if optimizer.warmup(steps) > steps // 4:
        advice["train.optimizer.warmup_steps"] = str(steps // 10)
    usual = rate if optimizer.name == "adamw" else 0.0
    if tried is not None and tried.train.optimizer.name == optimizer.name:
        usual = tried.train.optimizer.learning_rate
    if optimizer.learning_rate <= usual / 2:
        advice["train.optimizer.learning_rate"] = f"{usual:g}"
    if fresh and width < 768 and model.initializer_range < 0.75 * spread:
        advice["model.initializer_range"] = f"{spread:g}"
    if not optimizer.bias_correction:
        advice["train.optimizer.bias_correction"] = "true"
    if steps <= _SHORT_STEPS:
        advice |= {f"model.{name}": "0" for name in ("dropout", "attention_dropout") if getattr(model, name)}
    if fresh and model.architecture == "bert" and model.norm_position == "post":
        advice["model.norm_position"] = '"pre"'
    if not imported and config.data.rows == "segments":
        advice |= {"data.next_sentence": "false"} if config.data.next_sentence else {}
        advice["data.rows"] = '"packed"'
    ours, theirs = flattened(config), {} if tried is None else flattened(tried)
    return [f"{name} = {value}" for name, value in advice.items() if name not in theirs or ours[name] != theirs[name]]


def loss_formula(config: RunConfig) -> str:
    """The terms that the loss sums, or "" where it is the token loss alone."""
    if config.model.architecture == "electra":
        weights = {
            "generator": config.train.objective.generator_weight,
            "detector": config.train.objective.discriminator_weight,
        }
        return " + ".join(name if weight == 1 else f"{weight:g} x {name}" for name, weight in weights.items())
    return "tokens + next sentence" if config.data.next_sentence else ""


def why_losses_differ(config: RunConfig) -> str:
    """Why a model's training loss and held-out loss are not the same quantity, or "" where they are."""
    config = phases_of(config)[-1].config
    objective, window = config.train.objective, config.train.log_every_steps
    reasons = [f"training's is the mean of up to {window} steps"] if window > config.train.steps / 20 else []
    if config.model.dropout or config.model.attention_dropout:
        reasons.append("training has dropout")
    if config.train.optimizer.average_decay is not None or config.train.checkpoint.average_last is not None:
        reasons.append("held-out text is scored by the averaged weights")
    if config.objectives[-1] != "clm":
        if objective.mask_fraction != objective.evaluation_mask_fraction:
            shares = f"{objective.mask_fraction:.0%} of the tokens, held-out text {objective.evaluation_mask_fraction:.0%}"
            reasons.append(f"training masks {shares}")
        if objective.whole_words:
            reasons.append("training masks whole words, held-out text tokens")
    return "; ".join(reasons)


def token_loss(scores: Mapping[str, float]) -> float:
    """The loss of tokens alone, where that of a run sums several."""
    return scores.get("mlm_loss", scores["loss"])
