"""The settings of fine-tuning: how a pretrained encoder is trained on labelled texts."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tpulm.config.schema import (
    CheckpointConfig,
    Fraction,
    HardwareConfig,
    Names,
    OptimizerConfig,
    Positive,
    PositiveFloat,
    Seed,
    Settings,
    TrackConfig,
    TrainConfig,
)
from tpulm.errors import ConfigError

# By task: the metrics that may choose the best epoch, the default first, and which of their values is best.
# tpulm.finetuning.register_task adds others.
METRICS: Final[dict[str, dict[str, Literal["highest", "lowest"]]]] = {
    "classification": {"accuracy": "highest", "macro_f1": "highest", "matthews": "highest"},
    "tag": {"entity_f1": "highest"},
    "qa": {"f1": "highest", "exact_match": "highest"},
    "choice": {"accuracy": "highest"},
    "regression": {"pearson": "highest", "spearman": "highest", "mean_squared_error": "lowest"},
    "multilabel": {"micro_f1": "highest", "macro_f1": "highest", "subset_accuracy": "highest"},
    "embed": {"spearman": "highest", "pearson": "highest"},
    "retrieve": {"mrr_at_10": "highest", "recall_at_1": "highest", "recall_at_10": "highest"},
}
TASKS: Final = Names(*METRICS)
METRIC_NAMES: Final = Names(*(name for metrics in METRICS.values() for name in metrics))
LEAST_LENGTH: Final = 8  # tokens of a row


class FinetuneConfig(Settings):
    """What is not set follows the encoder's architecture (`for_architecture`) and the task."""

    task: Annotated[str, AfterValidator(TASKS.check), TASKS] = "classification"
    from_scratch: bool = False  # random weights in place of the pretrained ones: what tells how much these are worth
    # tokens of a row (of embed and retrieve, of a text); None: a classifier's own, else 128, of questions with their texts 384
    max_length: Annotated[int, Field(ge=LEAST_LENGTH)] | None = None
    pooling: Literal["mean", "cls"] | None = (
        None  # of embed and retrieve: the mean of a text's tokens, or the first; None: mean
    )
    doc_stride: Annotated[int, Field(ge=0)] | None = None  # tokens that a window of a long text shares with the last; None: 128
    max_answer_length: Positive | None = None  # tokens of an answer in a text; None: 30
    # by how much "no answer" must be better than the best one, where texts may have none; None: 0
    null_score_diff_threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    # whose script compares answers; None: korquad for Hangul, jsquad for Chinese characters and kana, else squad
    answer_metric: Literal["squad", "jsquad", "korquad", "klue"] | None = None
    epochs: Positive = 3
    batch_size: Positive = 32  # rows, over all devices
    learning_rate: PositiveFloat | None = None  # None: bert 5e-5, electra 1e-4
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] | None = None  # None: bert 1.0 (none), electra 0.8
    warmup_fraction: Fraction = 0.1  # of all steps
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.01
    clip_norm: PositiveFloat | None = 1.0
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None  # of layers and attention; None: as the model says
    group_by_length: bool = True  # batches of rows of like length: less padding
    dev_fraction: Annotated[float, Field(gt=0.0, le=0.5)] = 0.1  # of the training file, where no dev file is given
    # chooses the best epoch, on dev; None: accuracy or pearson
    metric: Annotated[str, AfterValidator(METRIC_NAMES.check), METRIC_NAMES] | None = None
    patience: Positive | None = 3  # epochs without a better dev metric after which training ends; None: never
    seed: Seed = 0  # of the head's first values, the order of rows and dropout; several runs count up from it
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: as in pretraining; scores in float32 on a CPU
    log_every_steps: Positive = 50
    checkpoint: CheckpointConfig = CheckpointConfig()
    hardware: HardwareConfig = HardwareConfig()
    track: TrackConfig = TrackConfig()

    @model_validator(mode="after")
    def _metric_fits(self) -> Self:
        if self.metric is not None and self.metric not in METRICS[self.task]:
            raise ValueError(f"metric = '{self.metric}' is not one of a {self.task}: {', '.join(METRICS[self.task])}")
        if self.pooling is not None and self.task not in ("embed", "retrieve"):
            raise ValueError(f"pooling is of embed and retrieve, and the task is {self.task}; leave it out")
        return self

    @property
    def chosen_by(self) -> str:
        """The metric that chooses the best epoch."""
        return self.metric or next(iter(METRICS[self.task]))

    def is_better(self, value: float, than: float) -> bool:
        return value < than if METRICS[self.task][self.chosen_by] == "lowest" else value > than

    def for_architecture(self, architecture: str, max_positions: int, classifier_length: int | None = None) -> FinetuneConfig:
        """With what depends on the model filled in. ELECTRA's values are its authors', BERT's from the published range.

        A classifier's rows stay as long as they were (`classifier_length`), so that its scores do.

        Raises ConfigError for rows longer than the model reads.
        """
        if (self.max_length or 0) > max_positions:
            raise ConfigError(f"max_length {self.max_length} exceeds the {max_positions} positions that the model reads")
        electra = architecture == "electra"
        filled = {
            "learning_rate": self.learning_rate or (1e-4 if electra else 5e-5),
            "layer_decay": self.layer_decay or (0.8 if electra else 1.0),
            "max_length": self.max_length or classifier_length or min(384 if self.task == "qa" else 128, max_positions),
        }
        return self.model_copy(update=filled)

    def training(self, steps: int, *, batch_size: int, steps_per_epoch: int) -> TrainConfig:
        """What the training loop is told: `batch_size` rows of `steps` steps are computed, and each epoch is scored.

        AdamW with its default of bias correction: small sets train unsteadily without (Mosbach et al. 2021, section 5.1).
        """
        assert self.learning_rate is not None
        optimizer = OptimizerConfig(
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            warmup_steps=round(self.warmup_fraction * steps),
            warmup_kind="multiply",
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            layer_decay=None if self.layer_decay in (None, 1.0) else self.layer_decay,
        )
        return TrainConfig(
            steps=steps,
            batch_size=batch_size,
            optimizer=optimizer,
            compute_dtype=self.compute_dtype,
            checkpoint=self.checkpoint,
            log_every_steps=self.log_every_steps,
            evaluate_every_steps=steps_per_epoch,
            spike_factor=None,
        )
