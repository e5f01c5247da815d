"""The results of fine-tuning with one or several seeds, and the README.md of a fine-tuned model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tpulm.config import FinetuneConfig
from tpulm.convert.markdown import card, table
from tpulm.convert.model_card import name_of
from tpulm.finetuning.tasks import find_task
from tpulm.labelled import summarize
from tpulm.readable import decimals


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed: its best epoch on dev, and the scores of that."""

    seed: int
    best_epoch: int
    epochs: int  # trained
    dev: dict[str, float]
    test: dict[str, float] | None
    confusion: list[list[int]] | None  # rows: true classes; of test if given, else of dev
    history: list[dict[str, float]]
    rows_per_second: float | None
    doubts: list[str] = field(default_factory=list)  # problems of the model, in words
    by_class: dict[str, list[int]] = field(default_factory=dict)  # counts: rightly predicted, predicted, true; of that part

    def scores_by_class(self) -> dict[str, dict[str, float]]:
        """Fractions, 0 if nothing was predicted or true; "count" is that of the true ones."""
        return {
            name: {
                "precision": right / max(predicted, 1),
                "recall": right / max(true, 1),
                "f1": 2 * right / max(predicted + true, 1),
                "count": true,
            }
            for name, (right, predicted, true) in self.by_class.items()
        }


@dataclass(frozen=True)
class FinetuneSummary:
    """Scores are means over the seeds, with sample deviations; the saved model is that of the seed that is best on dev."""

    model: str
    output: str
    task: str
    labels: tuple[str, ...]
    examples: dict[str, int]  # "train", "dev" and, if given, "test"
    skipped: dict[str, int]  # rows left out, by reason
    cut: int  # texts longer than max_length, in all parts
    settings: FinetuneConfig
    seeds: tuple[SeedResult, ...]
    best: int  # index in `seeds`
    doubts: tuple[str, ...] = ()  # about the texts
    nothing_to_do: bool = False
    learning_rates: dict[str, float] = field(default_factory=dict)  # if several were tried: the score that chose one, by rate

    def _repr_html_(self) -> str:
        from tpulm.report import Report

        return Report(self.output).html()

    @property
    def scored(self) -> tuple[str, ...]:
        """The parts that have scores: "dev" and, if given, "test"."""
        return tuple(part for part in ("dev", "test") if part in self.examples)

    @property
    def health(self) -> str:
        """One line for people: "all right", or what is wrong."""
        several = len(self.seeds) > 1
        of_models = [f"seed {seed.seed}: {doubt}" if several else doubt for seed in self.seeds for doubt in seed.doubts]
        advice = [f"a higher learning_rate (now {self.settings.learning_rate:g}), more epochs or more pretraining may help"]
        return "; ".join([*of_models, *(advice if of_models else []), *self.doubts]) or "all right"

    def shown(self, part: str, name: str) -> str:
        """A score of a part, with its deviation if there are several seeds; "" if the part has none."""
        scores = [getattr(seed, part) for seed in self.seeds]
        if name not in scores[0]:
            return ""
        mean, deviation = summarize([one[name] for one in scores])
        return decimals(mean, deviation if len(self.seeds) > 1 else None)

    def values(self) -> dict[str, Any]:
        """Flat, for `--json`: "dev_accuracy", "dev_accuracy_deviation", "test_accuracy", …, and without prefix the scores other
        than accuracy, of test if given, else of dev."""
        scores: dict[str, Any] = {}
        for part in self.scored:
            by_seed = [getattr(seed, part) for seed in self.seeds]
            for name in by_seed[0]:
                scores[f"{part}_{name}"], scores[f"{part}_{name}_deviation"] = summarize([one[name] for one in by_seed])
        plain = {name: scores[f"{self.scored[-1]}_{name}"] for name in self.seeds[0].dev if name != "accuracy"}
        best = self.seeds[self.best]
        return {
            **scores,
            **plain,
            "chosen_by": f"dev_{self.settings.chosen_by}",
            "learning_rate": self.settings.learning_rate,
            **({"learning_rates": self.learning_rates} if self.learning_rates else {}),
            "seeds": [seed.seed for seed in self.seeds],
            "best_seed": best.seed,
            "best_epochs": [seed.best_epoch for seed in self.seeds],
            "labels": list(self.labels),
            "confusion": best.confusion,
            "by_class": best.scores_by_class(),
            "examples": self.examples,
            "skipped": self.skipped,
            "cut": self.cut,
            "health": self.health,
            "rows_per_second": best.rows_per_second,
            "model": self.model,
            "output": self.output,
        }


def card_text(summary: FinetuneSummary) -> str:
    """The README.md: what the model is, how it was made and chosen, and its scores."""
    best, parts = summary.seeds[summary.best], summary.scored
    names = [name for name in best.dev if name != "loss"]
    rows = [[name.replace("_", " "), *(summary.shown(part, name) for part in parts)] for name in names]
    return card(
        "finetuned_card.md",
        summary=summary,
        origin=name_of(summary.model),
        settings=summary.settings,
        task=find_task(summary.settings),
        best=best,
        counts=", ".join(f"{part} {count:,}" for part, count in summary.examples.items()),
        scores=table(["", *parts], rows, right=range(1, len(parts) + 1)),
    )
