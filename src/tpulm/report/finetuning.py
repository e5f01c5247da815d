"""OUT/report/index.html: the current state of a fine-tuning."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tpulm import pages, storage
from tpulm.config import FinetuneConfig
from tpulm.convert.model_card import name_of
from tpulm.labelled.entities import shown_label
from tpulm.readable import decimals, utc
from tpulm.report.facts import changed
from tpulm.report.history import History, chart

SUMMARY, MISTAKES, WORK, INPUTS = "finetune.json", "mistakes.jsonl", "finetuning", "inputs.json"
_MOST_MISTAKES, _MOST_CLASSES = 20, 20


def is_finetuning(folder: PurePath) -> bool:
    return storage.exists(folder / WORK / INPUTS)


def render(folder: PurePath, *, with_samples: bool = True) -> str:
    """The page as HTML, `with_samples` of the mistakes or without."""
    work, done = folder / WORK, storage.exists(folder / SUMMARY)
    summary: dict[str, Any] = storage.read_json(folder / SUMMARY) if done else {}
    inputs: dict[str, Any] = storage.read_json(work / INPUTS)
    seeds = sorted(
        (path for path in storage.list_folder(work) if path.name.startswith("seed-")), key=lambda path: len(path.name)
    )
    histories = {path.name.replace("-", " "): History.read(path, {}) for path in seeds}
    metric = summary.get("chosen_by", "").removeprefix("dev_") or FinetuneConfig.model_validate(inputs["settings"]).chosen_by
    health, held = summary.get("health", ""), not done and storage.holder(work) is not None
    state = "Done" if done else "Under way" if held else "Stopped; run the same command to continue"
    defaults = FinetuneConfig().model_dump(mode="json")
    names: list[str] = summary.get("labels", inputs["labels"])
    shown, scored = metric.replace("_", " "), [part for part in ("dev", "test") if part in summary.get("examples", {})]
    scores = [name.removeprefix("dev_") for name in summary if name.startswith("dev_") and not name.endswith("_deviation")]
    return pages.render(
        "report.html",
        name=f"Fine-tuned: {name_of(summary.get('model', folder.name))}",
        headline=f"{state}. {health[:1].upper()}{health[1:]}".rstrip(". ") + ".",
        tone="" if not health else "good" if health == "all right" else "bad",
        under_way=held,
        written=utc(time.time()),
        summary=[(f"{shown} on {part}", value) for part in ("dev", "test") if (value := _score(summary, f"{part}_{metric}"))],
        charts=_charts(histories, metric),
        scored=scored,
        scores=[(name.replace("_", " "), *(_score(summary, f"{part}_{name}") for part in scored)) for name in scores],
        data=[(f"{part} examples", f"{count:,}") for part, count in summary.get("examples", {}).items()]
        + [(f"left out: {reason.replace('_', ' ')}", f"{count:,}") for reason, count in summary.get("skipped", {}).items()]
        + ([("texts cut", f"{summary['cut']:,}")] if summary else []),
        changed=changed({name: defaults.get(name) for name in inputs["settings"]}, inputs["settings"]),
        machine=next((one.machine for one in histories.values() if one.machine), []),
        confusion=_confusion(summary, names),
        by_class=class_rows(summary.get("by_class", {})),
        mistakes=_mistakes(folder) if with_samples else (),
    )


def _score(summary: dict[str, Any], name: str) -> str:
    if name not in summary:
        return ""
    return decimals(summary[name], summary[f"{name}_deviation"] if len(summary["seeds"]) > 1 else None)


def _charts(histories: dict[str, History], metric: str) -> list[Any]:
    def draw(title: str, kind: str, score: str) -> Any:
        curves = {
            label: (history.curve(kind, score), {"steps": float, "hours": history.hours})
            for label, history in histories.items()
        }
        return chart(title, curves)

    title = metric.replace("_", " ")
    drawn = [draw("Training loss", "train", "loss"), draw(f"{title[:1].upper()}{title[1:]} on dev", "dev", metric)]
    return [one for one in [*drawn, draw("Loss on dev", "dev", "loss")] if one is not None]


def _confusion(summary: dict[str, Any], names: list[str]) -> list[tuple[str, list[tuple[str, float]]]] | None:
    """By true class: each prediction's count and its share of the class; None if there are too many classes to show."""
    counts = summary.get("confusion")
    if not counts or len(names) > _MOST_CLASSES:
        return None
    return [
        (name, [(f"{count:,}", count / max(sum(row), 1)) for count in row]) for name, row in zip(names, counts, strict=True)
    ]


def class_rows(scores: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """(class, precision, recall, F1, number of true ones), most common first."""
    ordered = sorted(scores.items(), key=lambda item: -item[1]["count"])
    return [(name, *(f"{of[one]:.3f}" for one in ("precision", "recall", "f1")), f"{of['count']:,}") for name, of in ordered]


def read_lines(path: PurePath) -> list[dict[str, Any]]:
    """The objects of a jsonl, whose texts may hold other line separators, such as U+2028."""
    return [json.loads(line) for line in storage.read_text(path).split("\n") if line]


def _mistakes(folder: PurePath) -> list[dict[str, Any]]:
    mistakes = read_lines(folder / MISTAKES)[:_MOST_MISTAKES] if storage.exists(folder / MISTAKES) else []
    return [one | {name: shown_label(one[name], one["text"]) for name in ("label", "predicted")} for one in mistakes]
