"""Facts about the model of a work folder, gathered for the model card and the report."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

from tpulm import dataset
from tpulm.config import RunConfig, changes
from tpulm.convert.model_card import CardFacts
from tpulm.report.history import History
from tpulm.tokenization import Tokenization
from tpulm.workfolder import read_result


def gather(config: RunConfig, workdir: PurePath, history: History, *, step: int, tokenizer: Tokenization) -> CardFacts:
    """From the manifests, metrics and results in `workdir`; what is missing stays unknown. Scores are the newest."""
    trained, pairs = (read_result(workdir, name) or {} for name in ("train", "pairs"))
    scored = history.newest("evaluation")
    return CardFacts(
        config=config,
        vocab_size=tokenizer.vocab_size,
        mask_token=tokenizer.token(tokenizer.special.mask),
        steps=step,
        dataset=dataset.load_manifest(workdir),
        training_curve=history.curve("train", "loss"),
        holdout_curve=history.curve("evaluation", "loss"),
        scores={**scored.values, "step": scored.step} if scored and "baseline_accuracy" in scored.values else {},
        pairs={name: score for name, score in pairs.items() if score["step"] == step},
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
