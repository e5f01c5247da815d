"""What benchmarks/learning.py found: W/learning.json, W/learning.md and three plots."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from learning_data import labels_of, metric, read

RESAMPLES = 10_000
NAMES = {
    "A": "A: run_mlm's defaults",
    "B": "B: transformers, tuned",
    "C": "C: tpulm, B's settings",
    "D": "D: tpulm's recipe",
    "E": "E: transformers, D's settings",
    "F": "F: transformers, C's batches",
    "random D": "D with random weights",
    "TF-IDF": "TF-IDF",
}
COMPARED = (("D", "E"), ("D", "B"), ("D", "C"), ("D", "TF-IDF"), ("C", "B"), ("C", "F"))


class Cell(NamedTuple):
    """One way on one number of labels: test scores of all seeds, and for each test example its mean answer or correctness."""

    scores: list[float]
    answers: np.ndarray  # [seeds, N]

    def __str__(self) -> str:
        if len(self.scores) == 1:
            return f"{self.scores[0]:.4f}"
        return f"{statistics.mean(self.scores):.4f} ± {statistics.stdev(self.scores):.4f}"


class Found(NamedTuple):
    """What an experiment found."""

    budget_minutes: float
    curves: dict[str, list[dict[str, Any]]]
    pace: dict[str, Any]
    pilots: dict[str, Any]
    labels: list[int]
    cells: dict[tuple[str, int], Cell]  # by way and number of labels
    rates: list[str]  # that dev chose, a line for each way


def write(found: Found, folder: Path, data: Path) -> None:
    """Write the report on texts in `data` into the folder, and print it."""
    budget_minutes, curves, pace, pilots, labels, cells, rates = found
    truth = labels_of(read(data / "test.jsonl"))
    lines = [f"{pace['processor']}; {budget_minutes:g} minutes an arm", ""]
    lines += [*pretraining_table(curves), ""]
    most = len(read(data / "train.jsonl"))
    lines += [*finetuning_table(cells, labels, most), ""]
    lines += ["Learning rates that dev chose: ", "; ".join(rates), ""]
    lines += ["Paces (seconds before the first step's end, seconds of a step): "]
    lines += ["; ".join(f"{way} {one['first']:.1f}, {one['seconds']:.3f}" for way, one in pace["paces"].items()), ""]
    lines += ["Held-out losses of B's pilots, after half of the steps and, of the best two, all of them: "]
    lines += ["; ".join(f"{name} {loss:.3f}" for name, loss in pilots["losses"].items()), ""]
    lines += differences(cells, labels, truth)
    if tokens := tokens_to_match(curves):
        lines += ["", tokens]
    (folder / "learning.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = {"curves": curves, "pace": pace, "pilots": pilots, "budget_minutes": budget_minutes}
    record["scores"] = [{"way": way, "labels": count, "test": cell.scores} for (way, count), cell in cells.items()]
    (folder / "learning.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    draw(folder, curves, cells, most)
    print("\n".join(lines))


def pretraining_table(curves: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = ["| arm | steps | tokens | PFLOP | held-out loss | bits a character |", "|---|---|---|---|---|---|"]
    for name, curve in sorted(curves.items()):
        end = curve[-1]
        lines.append(
            f"| {NAMES[name[0]]}, seed {name[-1]} | {end['step']:,} | {end['tokens'] / 1e6:.1f}M | {end['flops'] / 1e15:.2f} | "
            f"{end['loss']:.3f} | {end['bits_per_character']:.3f} |"
        )
    return lines


def finetuning_table(cells: dict[tuple[str, int], Cell], labels: Sequence[int], most: int) -> list[str]:
    lines = ["| test score | " + " | ".join(f"{min(count, most):,} labels" for count in labels) + " |"]
    lines.append("|---" * (len(labels) + 1) + "|")
    for way, name in NAMES.items():
        found = [str(cells.get((way, count), "")) for count in labels]
        if any(found):
            lines.append(f"| {name} | " + " | ".join(found) + " |")
    return lines


def differences(cells: dict[tuple[str, int], Cell], labels: Sequence[int], truth: np.ndarray) -> list[str]:
    """Differences of two arms' scores with the same labels, and their intervals."""
    lines = []
    for count, (one, other) in itertools.product(labels, COMPARED):
        if (one, count) in cells and (other, count) in cells:
            mean, low, high = bootstrap(cells[one, count].answers, cells[other, count].answers, truth)
            lines.append(f"{one} - {other}, {count:,} labels: {mean:+.4f} ({low:+.4f} to {high:+.4f})")
    return lines


def bootstrap(ours: np.ndarray, theirs: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """Mean difference and its 95 % interval: test examples are drawn, the same for both, and runs of each."""
    chance, resamples = np.random.default_rng(0), RESAMPLES if truth.dtype.kind == "i" else RESAMPLES // 20

    def score(answers: np.ndarray, examples: np.ndarray) -> float:
        runs = chance.integers(0, len(answers), len(answers))
        return float(np.mean([metric(run[examples], truth[examples]) for run in answers[runs]]))

    drawn = []
    for _ in range(resamples):
        examples = chance.integers(0, len(truth), len(truth))
        drawn.append(score(ours, examples) - score(theirs, examples))
    mean = np.mean([metric(run, truth) for run in ours]) - np.mean([metric(run, truth) for run in theirs])
    return float(mean), *np.quantile(drawn, (0.025, 0.975))


def tokens_to_match(curves: dict[str, list[dict[str, Any]]]) -> str | None:
    """Where the worst of D's seeds has the last loss of B's best: between two of its stops, on a straight line."""
    ends = {name: curve[-1] for name, curve in curves.items()}
    if not {"B-0", "D-0"} <= ends.keys():
        return None
    goal = min((end for name, end in ends.items() if name[0] == "B"), key=lambda end: end["loss"])
    worst, before = max((name for name in ends if name[0] == "D"), key=lambda name: ends[name]["loss"]), None
    for point in curves[worst]:
        if point["loss"] <= goal["loss"]:
            share = 1.0 if before is None else (before["loss"] - goal["loss"]) / (before["loss"] - point["loss"])
            start = before or {"tokens": point["tokens"], "minutes": point["minutes"]}
            tokens, minutes = (start[key] + share * (point[key] - start[key]) for key in ("tokens", "minutes"))
            about = "at most " if before is None else ""
            return (
                f"{worst} has the last loss of the best B, {goal['loss']:.3f}, after {about}{tokens / 1e6:.1f}M tokens and "
                f"{minutes:.1f} minutes; B took {goal['tokens'] / tokens:.1f} times as many tokens and "
                f"{goal['minutes'] / minutes:.1f} times as long"
            )
        before = point
    return f"{worst} does not reach the last loss of the best B"


def draw(folder: Path, curves: dict[str, list[dict[str, Any]]], cells: dict[tuple[str, int], Cell], most: int) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tpulm"  # the same results give the same file
    import matplotlib.pyplot as plt

    colours = dict(zip("ABCDEF", plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for key, title, unit in (("minutes", "minutes", 1.0), ("flops", "10¹⁵ floating-point operations", 1e15)):
        figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        for name, curve in sorted(curves.items()):
            label = NAMES[name[0]] if name.endswith("-0") else None
            points = [point[key] / unit for point in curve], [point["loss"] for point in curve]
            axes.plot(*points, marker=".", color=colours[name[0]], label=label)
        axes.set(xlabel=title, ylabel="held-out loss, nats a masked token")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(folder / f"learning-{key}.svg", metadata={"Date": None})
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for way, name in NAMES.items():
        if not (counts := [count for one, count in cells if one == way]):
            continue
        means = [statistics.mean(cells[way, count].scores) for count in counts]
        spread = [statistics.stdev(scores) if len(scores := cells[way, count].scores) > 1 else 0.0 for count in counts]
        style: dict[str, Any] = {
            "color": colours.get(way[-1], "grey"),
            "ls": {"TF-IDF": ":", "random D": "--"}.get(way, "-"),
        }
        axes.errorbar([min(count, most) for count in counts], means, yerr=spread, marker="o", capsize=3, label=name, **style)
    axes.set(xscale="log", xlabel="labels", ylabel="test score")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(folder / "learning-labels.svg", metadata={"Date": None})
