"""What a model card states. What is None or empty was not measured or is not known, and the card does not speak of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tpulm.config import ModelConfig, RunConfig
from tpulm.convert.curve import Point
from tpulm.convert.heads import Head
from tpulm.models.electra import generator_config


@dataclass(frozen=True)
class CorpusFacts:
    """Counts of documents as they were read; characters are those of the documents kept, after cleaning."""

    documents: int  # read
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason: documents
    duplicates: int | None = None
    training_documents: int | None = None
    holdout_documents: int | None = None
    characters: int | None = None


@dataclass(frozen=True)
class ImportFacts:
    """Of a dataset that was not made from text here, but from somebody's records."""

    records: int  # read
    duplicates: int  # rows left out
    origin: str  # "bert" or "electra": whose script wrote them


@dataclass(frozen=True)
class DatasetFacts:
    """Counts of the prepared training rows; tokens are without padding."""

    rows: int
    tokens: int
    holdout_rows: int | None = None
    padding_fraction: float | None = None
    unknown_fraction: float | None = None
    tokens_per_character: float | None = None


@dataclass(frozen=True)
class Scores:
    """Of held-out text, as `train.evaluate` defines them; loss in nats."""

    step: int
    loss: float
    accuracy: float
    baseline_accuracy: float
    bits_per_character: float | None = None
    unigram_entropy: float | None = None
    perplexity: float | None = None
    next_sentence_accuracy: float | None = None
    detection_accuracy: float | None = None
    detection_auc: float | None = None
    detection_recall: float | None = None
    replaced_fraction: float | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Example:
    """A text with the mask token in it, and what the model answered: tokens with probabilities, best first."""

    text: str
    answers: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class CardFacts:
    name: str
    config: RunConfig
    vocab_size: int
    mask_token: str
    steps: int  # done, not planned
    description: str = ""
    language: str | None = None
    license: str | None = None
    corpus: CorpusFacts | None = None
    imported: ImportFacts | None = None
    dataset: DatasetFacts | None = None
    training_curve: tuple[Point, ...] = ()  # step, loss of that step's batch or of the steps since the point before
    holdout_curve: tuple[Point, ...] = ()
    scores: Scores | None = None
    examples: tuple[Example, ...] = ()
    hardware: str | None = None  # such as "8 TPU v3 cores" or "CPU, 2 cores"
    tokens_per_second: float | None = None
    training_seconds: float | None = None
    version: str | None = None  # of tpulm
    half: Literal["generator", "discriminator"] | None = None  # of ELECTRA

    @property
    def model(self) -> ModelConfig:
        """Of the model that the card is about."""
        return generator_config(self.config.model) if self.half == "generator" else self.config.model

    @property
    def head(self) -> Head:
        if self.half is not None:
            return "detection" if self.half == "discriminator" else "masked"
        if self.config.model.architecture == "decoder":
            return "causal"
        return "next_sentence" if self.config.data.next_sentence else "masked"
