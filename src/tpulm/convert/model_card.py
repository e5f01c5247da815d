"""The README.md of an exported model, with the front matter that the Hugging Face hub reads.

Every figure comes from `CardFacts`; the text is templates/model_card.md.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from huggingface_hub import ModelCardData

from tpulm import storage
from tpulm.config import ModelConfig, RunConfig, flatten, phases_of
from tpulm.convert.heads import Head, num_parameters, spec_of
from tpulm.convert.markdown import card, code, plain
from tpulm.dataset import DatasetManifest
from tpulm.models.electra import generator_config
from tpulm.readable import percent
from tpulm.tokenization import UNKNOWN_WARNING

CARD = "README.md"
CURVE_ROWS = 12  # of the table of losses
_LANGUAGES = 5  # named on the card
_HUB_NAME = re.compile(r"\w[\w-]*/\w[\w.-]*", re.ASCII)  # an owner whose name is no folder's, and a repository
_TEMPLATES = 20  # of those that were taken out of sentences
_SCRIPTS = {"bert": "BERT's create_pretraining_data.py", "electra": "ELECTRA's build_pretraining_dataset.py"}
_TASKS: dict[Head, str] = {
    "masked": "masked-language modelling",
    "next_sentence": "masked-language modelling and next-sentence prediction",
    "detection": "replaced-token detection",
    "causal": "causal language modelling",
}
# Transformers' name of what a model with the head does, and the hub's tag for how it was trained.
_PIPELINES: dict[Head, tuple[str, str]] = {
    "masked": ("fill-mask", "masked-language-model"),
    "next_sentence": ("fill-mask", "masked-language-model"),
    "detection": ("feature-extraction", "replaced-token-detection"),
    "causal": ("text-generation", "causal-language-model"),
}
# Of each score: its name, its format, and what it means.
_SCORES = {
    "loss": ("loss", ".4f", "{loss}"),
    "accuracy": ("accuracy", "%", "{whose}share of the predicted tokens whose likeliest answer is right"),
    "baseline_accuracy": (
        *("baseline accuracy", "%"),
        "the share that always answering the commonest token of the training text would get right",
    ),
    "detection_accuracy": ("detection accuracy", "%", "share of all tokens judged rightly"),
    "detection_auc": ("detection AUC", ".4f", "chance that a replaced token is rated above an original one; 0.5 is chance"),
    "detection_recall": (
        *("detection recall", "%"),
        "share of the replaced tokens that were found; {replaced} of all were replaced",
    ),
    "unigram_entropy": (
        *("unigram cross-entropy", ".4f"),
        "the loss, in nats, of knowing how frequent each token is in the training text (add-one smoothed)",
    ),
    "perplexity": ("perplexity", ".2f", "e to the loss: for each token of this vocabulary"),
    "bits_per_character": ("bits per character", ".4f", "{bits}"),
    "next_sentence_accuracy": ("next-sentence accuracy", "%", "share of the rows judged rightly"),
}
Row = tuple[str, str]
_Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # the head, the rows


@dataclass(frozen=True)
class CardFacts:
    """What a card states. None or empty means not measured or not known; the card then leaves it out."""

    config: RunConfig
    vocab_size: int
    mask_token: str
    steps: int  # done, not planned
    datasets: tuple[DatasetManifest, ...] = ()  # of each phase
    training_curve: Sequence[tuple[int, float]] = ()  # step, and the loss of its batch or the mean since the previous point
    holdout_curve: Sequence[tuple[int, float]] = ()
    scores: Mapping[str, Any] = field(default_factory=dict)  # on held-out text, as `train.evaluate` defines them, and "step"
    pairs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by benchmark: "accuracy", "pairs" and "method"
    hardware: str | None = None  # such as "8 x TPU v3"
    tokens_per_second: float | None = None
    version: str | None = None  # of tpulm
    half: Literal["generator", "discriminator"] | None = None  # of ELECTRA

    @property
    def name(self) -> str:
        return self.config.name if self.half is None else f"{self.config.name}-{self.half}"

    @property
    def model(self) -> ModelConfig:
        """The settings of the model that the card describes."""
        return generator_config(self.config.model) if self.half == "generator" else self.config.model

    @property
    def head(self) -> Head:
        if self.half is not None:
            return "detection" if self.half == "discriminator" else "masked"
        if self.config.model.architecture == "decoder":
            return "causal"
        return "next_sentence" if self.config.data.next_sentence else "masked"

    @property
    def row_lengths(self) -> str:
        """Tokens of the rows of each phase, such as "128 and 512"."""
        return " and ".join(dict.fromkeys(f"{one.config.data.sequence_length:,}" for one in phases_of(self.config)))

    @property
    def imported(self) -> bool:
        """Whether the rows were made from existing TFRecords instead of text."""
        return bool(self.datasets) and "imported" in self.datasets[0].corpus


def render(facts: CardFacts) -> str:
    """The text of README.md."""
    count = num_parameters(spec_of(facts.model, facts.head, vocab_size=facts.vocab_size), facts.model, facts.vocab_size)
    unknown = facts.datasets[0].train.counts.unknown_fraction if facts.datasets else 0.0
    return card(
        "model_card.md",
        facts=facts,
        metadata=_metadata(facts),
        parameters=f"{count / 1e6:.1f} million" if count >= 1_000_000 else f"{count:,}",
        origin=_origin(facts),
        data=data_rows(facts),
        training=_training_rows(facts),
        losses=_losses(facts),
        scores=score_rows(facts),
        unknown=percent(unknown, 2) if unknown >= UNKNOWN_WARNING else "",
    )


def _metadata(facts: CardFacts) -> str:
    """The front matter, in YAML."""
    begun = "pretrained-from-scratch" if facts.config.train.start_from is None else "continued-pretraining"
    pipeline, tag = _PIPELINES[facts.head]
    return ModelCardData(
        language=facts.config.language,
        mask_token=facts.mask_token if pipeline == "fill-mask" else None,
        library_name="transformers",
        pipeline_tag=pipeline,
        tags=[facts.model.architecture, tag, begun, "tpulm"],
    ).to_yaml()


def _origin(facts: CardFacts) -> str:
    """Where the weights started from, and the task they were trained on."""
    task, start = _TASKS[facts.head], facts.config.train.start_from
    if facts.config.train.objective.whole_words and facts.head != "causal":
        task += ", with whole words masked,"
    if start is None:
        return f"was pretrained from scratch by {task}"
    return f"was trained further, from the weights of {code(name_of(start))}, by {task}"


def is_hub_name(path: str | PurePath) -> bool:
    """Whether it is the name of a model on the Hugging Face Hub, as owner/name, and not of a folder."""
    folder = storage.as_path(path)
    return bool(_HUB_NAME.fullmatch(str(path))) and not (storage.exists(folder) or storage.exists(folder.parent))


def name_of(path: str | PurePath) -> str:
    """What a page may call a model that began at `path`: its name on the Hub, or its folder's without those above it."""
    names = [name for name in storage.as_path(path).parts if name not in ("export", "/")]
    return str(path) if is_hub_name(path) or not names else names[-1]


def data_rows(facts: CardFacts) -> list[Row]:
    """Counts of what was read and what was trained on."""
    if not facts.datasets:
        return []
    dataset = facts.datasets[0]
    counts = dataset.train.counts
    rows = [
        *(_import_rows(dataset) if facts.imported else _corpus_rows(dataset)),
        ("tokens", f"{counts.tokens:,}"),
        ("characters of a document", _quantiles(counts.length_quantiles(counts.character_lengths))),
        ("tokens of a document", _quantiles(counts.length_quantiles(counts.token_lengths))),
        ("unknown characters", percent(counts.unknown_fraction, 2)),
        ("tokens per character", f"{dataset.train.tokens_per_character:.3f}" if counts.characters else ""),
        *_rows_of_phases(facts),
    ]
    return [(name, value) for name, value in rows if value]


def _rows_of_phases(facts: CardFacts) -> Iterator[Row]:
    """Of each row length that was trained on."""
    phases = list(zip(phases_of(facts.config), facts.datasets, strict=False))
    read = Counter[str]()
    for phase, _ in phases:
        steps = min(phase.last_step, facts.steps) - min(phase.first_step, facts.steps)
        read[phase.folder] += steps * phase.config.train.batch_size
    made = {phase.folder: dataset for phase, dataset in phases}
    for folder, dataset in made.items():
        counts, length = dataset.train.counts, dataset.train.rows.sequence_length
        of_which = f" of {length:,} tokens" if len(made) > 1 else ""
        tokens_per_row = (counts.tokens + counts.copied_tokens) / max(1, counts.rows)
        yield f"training rows of {length:,} tokens", f"{counts.rows:,}"
        yield f"held-out rows{of_which}", f"{dataset.holdout.counts.rows:,}"
        yield f"tokens of text in a row{of_which}", f"{tokens_per_row:,.1f}" if counts.tokens else ""
        yield f"padding{' of rows' if of_which else ''}{of_which}", percent(dataset.train.padding_fraction, 2)
        yield f"passes over the rows{of_which}", f"{read[folder] / counts.rows:.2f}" if counts.rows else ""


def _import_rows(dataset: DatasetManifest) -> list[Row]:
    return [
        (f"records of {_SCRIPTS[dataset.corpus['imported']]} read", f"{dataset.corpus['records']:,}"),
        ("exact duplicate rows left out", f"{dataset.corpus['duplicates']:,}"),
    ]


def _corpus_rows(dataset: DatasetManifest) -> list[Row]:
    """Documents as they were read; characters are those of the documents kept, after cleaning."""
    corpus, train, held_out = dataset.corpus, dataset.train.counts, dataset.holdout.counts
    languages, templates = corpus.get("languages", {}), corpus.get("removed_templates", {})
    templates, whole = {code(name): count for name, count in templates.items()}, sum(languages.values())
    return [
        ("documents read", f"{corpus['documents'] + sum(corpus['skipped'].values()):,}"),
        *((f"left out: {why.replace('_', ' ')}", f"{count:,}") for why, count in sorted(corpus["skipped"].items()) if count),
        ("exact duplicates left out", f"{train.duplicates + held_out.duplicates:,}"),
        ("documents trained on", f"{train.documents:,}"),
        ("documents held out", f"{held_out.documents:,}"),
        ("characters", f"{corpus['characters']:,}"),
        ("languages recognized", ", ".join(f"{name} {percent(one / whole, 1)}" for name, one in _most(languages, _LANGUAGES))),
        ("taken out of sentences", ", ".join(f"{name} {count:,}" for name, count in _most(templates, _TEMPLATES))),
    ]


def _most(counts: Mapping[str, int], shown: int) -> list[tuple[str, int]]:
    """The most common names, with their counts, and "others"."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    rest = sum(count for _, count in ordered[shown:])
    return [*ordered[:shown], *([("others", rest)] if rest else [])]


def _quantiles(quantiles: Sequence[tuple[float, int]]) -> str:
    """ "10% ≤ 12, 50% ≤ 36, 100% ≤ 160"."""
    return ", ".join(f"{share:.0%} ≤ {length:,}" for share, length in quantiles)


def _training_rows(facts: CardFacts) -> list[Row]:
    speed = f"{facts.tokens_per_second:,.0f}" if facts.tokens_per_second is not None else ""
    rows = [("steps done", f"{facts.steps:,}"), ("hardware", facts.hardware or ""), ("tokens of text per second", speed)]
    return [
        *((name, value) for name, value in rows if value),
        *((code(name), code(value)) for name, value in settings(facts.config, imported=facts.imported)),
    ]


def settings(config: RunConfig, *, imported: bool = False) -> list[Row]:
    """The settings that determine a model, as dotted names and values of a run file, without the paths of texts.

    Settings for making rows are left out if the rows were `imported`.
    """
    path, own = config.tokenizer.path, config.tokenizer.model_dump(mode="json", exclude={"path", "allow_unknown"})
    of_texts = {
        "corpus": config.corpus.model_dump(mode="json", exclude={"sources"}),
        "tokenizer": own if path is None else {"path": Path(path).name},
    }
    of_rows = {"sequence_length", "rows", "next_sentence"} if imported else None
    phases = {str(number): phase.model_dump(mode="json", exclude_none=True) for number, phase in enumerate(config.phases, 1)}
    train = config.train.model_dump(mode="json", include={"steps", "batch_size", "seed", "optimizer", "objective"})
    if config.train.checkpoint.average_last is not None:  # of checkpoints at multiples of every_steps
        train["checkpoint"] = config.train.checkpoint.model_dump(mode="json", include={"average_last", "every_steps"})
    groups = {
        **({} if imported else of_texts),
        "data": config.data.model_dump(mode="json", include=of_rows, exclude={"part_bytes", "block_rows"}),
        "model": config.model.model_dump(mode="json"),
        "train": train,
        "phases": phases,
    }
    return [(name, json.dumps(value, ensure_ascii=False)) for name, value in flatten(groups) if value is not None]


def _losses(facts: CardFacts) -> _Table | None:
    curves = {"Training loss": facts.training_curve, "Held-out loss": facts.holdout_curve}
    curves = {name: {step: f"{loss:.3f}" for step, loss in curve if math.isfinite(loss)} for name, curve in curves.items()}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return None
    rows = [(f"{step:,}", *(curve.get(step, "") for curve in curves.values())) for step in _steps_shown([*curves.values()])]
    return ("Step", *curves), rows


def _steps_shown(curves: Sequence[Mapping[int, str]]) -> list[int]:
    """About `CURVE_ROWS` steps, including the first and the last, and where possible those that every curve has."""
    steps = [set(curve) for curve in curves]
    every, shared = sorted(set.union(*steps)), sorted(set.intersection(*steps))
    chosen = shared if len(shared) > 1 else every
    if len(chosen) > CURVE_ROWS:
        chosen = [chosen[round(i * (len(chosen) - 1) / (CURVE_ROWS - 1))] for i in range(CURVE_ROWS)]
    return sorted({every[0], *chosen, every[-1]})


def score_rows(facts: CardFacts) -> list[tuple[str, str, str]]:
    """(score, value, meaning) of each score on held-out text."""
    objective, scores = facts.config.train.objective, {name: value for name, value in facts.scores.items() if value is not None}
    is_electra = facts.config.model.architecture == "electra"
    loss = "mean cross-entropy of the predicted tokens, in nats"
    if is_electra:
        loss = f"{objective.generator_weight:g} × the generator's + {objective.discriminator_weight:g} × the discriminator's"
    elif facts.head == "next_sentence":
        loss += ", plus that of the next-sentence head"
    bits = "masked-token loss / ln 2 × tokens / characters: comparable between vocabularies at one mask fraction"
    if facts.head == "causal":
        bits = "loss / ln 2 × tokens / characters, ends of texts included: the length of the text in the model's code"
    of = {"loss": loss, "bits": bits, "whose": "the generator's " * is_electra}
    of["replaced"] = percent(scores.get("replaced_fraction", 0.0), 2)
    return [
        (name, percent(scores[key], 2) if form == "%" else format(scores[key], form), meaning.format(**of))
        for key, (name, form, meaning) in _SCORES.items()
        if key in scores
    ] + [
        (
            f"minimal pairs of {plain(name)}",
            percent(score["accuracy"], 1),
            f"{of['whose']}share of {score['pairs']:,} pairs whose acceptable sentence is likelier ({score['method']}), "
            "mean over paradigms",
        )
        for name, score in sorted(facts.pairs.items())
    ]
