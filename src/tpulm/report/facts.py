"""Facts about the model of a work folder, gathered for the model card and the report."""

from __future__ import annotations

import json
from dataclasses import fields
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

from tpulm import dataset
from tpulm.config import RunConfig, changes
from tpulm.convert.model_card import CardFacts, CorpusFacts, DatasetFacts, Example, ImportFacts, Scores
from tpulm.dataset import DatasetManifest
from tpulm.report.history import History
from tpulm.tokenization import Tokenization
from tpulm.train.metrics import MetricsRecord
from tpulm.workfolder import is_imported, read_result

_ON_THE_CARD = 3  # samples


def gather(config: RunConfig, workdir: PurePath, history: History, *, step: int, tokenizer: Tokenization) -> CardFacts:
    """From the manifests, metrics and results in `workdir`; what is missing stays unknown. Scores are the newest."""
    trained, samples = (read_result(workdir, name) for name in ("train", "samples"))
    made, imported = dataset.load_manifest(workdir), is_imported(workdir)
    return CardFacts(
        name=config.name,
        config=config,
        vocab_size=tokenizer.vocab_size,
        mask_token=tokenizer.token(tokenizer.special.mask),
        steps=step,
        description=config.description,
        language=config.language,
        corpus=_corpus(made) if made and not imported else None,
        imported=_imported(made) if made and imported else None,
        dataset=_dataset(made) if made else None,
        training_curve=history.curve("train", "loss"),
        holdout_curve=history.curve("evaluation", "loss"),
        scores=_scores(history.newest("evaluation")),
        examples=_examples(samples, step),
        hardware=None if trained is None else f"{trained['devices']} x {trained['device_kind']}",
        tokens_per_second=None if trained is None else trained["tokens_per_second"],
        version=version("tpulm"),
    )


def _corpus(made: DatasetManifest) -> CorpusFacts:
    skipped: dict[str, int] = made.corpus["skipped"]
    return CorpusFacts(
        documents=made.corpus["documents"] + sum(skipped.values()),
        skipped=skipped,
        duplicates=made.train.counts.duplicates + made.holdout.counts.duplicates,
        training_documents=made.train.counts.documents,
        holdout_documents=made.holdout.counts.documents,
        characters=made.corpus["characters"],
        languages=made.corpus.get("languages", {}),
        removed_templates=made.corpus.get("removed_templates", {}),
    )


def _imported(made: DatasetManifest) -> ImportFacts:
    return ImportFacts(records=made.corpus["records"], duplicates=made.corpus["duplicates"], origin=made.corpus["imported"])


def _dataset(made: DatasetManifest) -> DatasetFacts:
    counts = made.train.counts
    return DatasetFacts(
        rows=counts.rows,
        tokens=counts.tokens,
        holdout_rows=made.holdout.counts.rows,
        padding_fraction=made.train.padding_fraction,
        unknown_fraction=made.train.unknown_fraction,
        tokens_per_character=made.train.tokens_per_character,
        tokens_per_row=(counts.tokens + counts.copied_tokens) / max(1, counts.rows) if counts.tokens else None,
        character_quantiles=counts.length_quantiles(counts.character_lengths),
        token_quantiles=counts.length_quantiles(counts.token_lengths),
    )


def _scores(found: MetricsRecord | None) -> Scores | None:
    if found is None or "baseline_accuracy" not in found.values:
        return None
    values = {**found.values, "step": found.step}
    return Scores(**{field.name: values[field.name] for field in fields(Scores) if field.name in values})


def _examples(found: dict[str, Any] | None, step: int) -> tuple[Example, ...]:
    """Filled masks, for the card."""
    masked = found["masked"][:_ON_THE_CARD] if found is not None and found["step"] == step and "masked" in found else ()
    return tuple(Example(one["text"], tuple((token, score) for token, score in one["answers"])) for one in masked)


def changed(before: dict[str, Any], now: dict[str, Any], *, without: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """(setting, before, now) of those that differ, as JSON; settings that begin with `without` are left out."""
    return [
        (change.name, json.dumps(change.before, ensure_ascii=False), json.dumps(change.now, ensure_ascii=False))
        for change in changes(before, now)
        if not change.name.startswith(without)
    ]
