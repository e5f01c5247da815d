"""Facts about the model of a work folder, gathered for the model card and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import PurePath
from typing import Any, NamedTuple

from tpulm import tokenization
from tpulm.config import RunConfig, changes
from tpulm.convert.model_card import CardFacts
from tpulm.dataset import DatasetManifest, load_manifests
from tpulm.report.history import History
from tpulm.tokenization import Tokenization
from tpulm.workfolder import is_prepared, open_run, read_results, same_average


class RunData(NamedTuple):
    """What a run has made so far; `results` by name."""

    config: RunConfig
    results: Mapping[str, dict[str, Any]]
    tokenizer: Tokenization | None = None
    datasets: tuple[DatasetManifest, ...] = ()  # of each phase

    @classmethod
    def read(cls, workdir: PurePath) -> RunData:
        """Read them from a work folder. Raises ConfigError if it has no run."""
        config, results = open_run(workdir), read_results(workdir)
        if not is_prepared(workdir, "tokenizer"):
            return cls(config, results)
        return cls(config, results, tokenization.load(workdir / "tokenizer"), load_manifests(workdir, config))


def gather(data: RunData, history: History, *, step: int) -> CardFacts | None:
    """What is missing stays unknown; None if that is the tokenizer. Scores are the newest."""
    if (tokenizer := data.tokenizer) is None:
        return None
    trained, pairs = (data.results.get(name, {}) for name in ("train", "pairs"))
    scored = history.newest("evaluation")
    return CardFacts(
        config=data.config,
        vocab_size=tokenizer.vocab_size,
        mask_token=tokenizer.token(tokenizer.special.mask),
        steps=step,
        datasets=data.datasets,
        training_curve=history.curve("train", "loss"),
        holdout_curve=history.curve("evaluation", "loss"),
        scores={**scored.values, "step": scored.step} if scored and "baseline_accuracy" in scored.values else {},
        pairs={name: score for name, score in pairs.items() if score["step"] == step and same_average(data.config, score)},
        hardware=f"{trained['devices']} x {trained['device_kind']}" if trained else None,
        tokens_per_second=trained.get("tokens_per_second"),
        version=version("tpulm"),
    )


def changed(before: dict[str, Any], now: dict[str, Any], *, without: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """(setting, before, now) of those that differ, as JSON; settings that begin with `without` are left out."""
    return [
        (change.name, json.dumps(change.before, ensure_ascii=False), json.dumps(change.now, ensure_ascii=False))
        for change in changes(before, now)
        if not change.name.startswith(without)
    ]
