"""The settings of fine-tuning a pretrained model on labelled text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field

from tpulm.config.schema import (
    MOST,
    BatchSize,
    CheckpointConfig,
    Fraction,
    HardwareConfig,
    ModelConfig,
    Names,
    NonNegative,
    OptimizerConfig,
    Positive,
    PositiveFloat,
    Settings,
    TrackConfig,
    TrainConfig,
)
from tpulm.errors import ConfigError

_Key = TypeVar("_Key")
# By task: the metrics that can select the best epoch, the default first, and whether their highest or lowest value is best.
# tpulm.finetuning.register_task adds tasks.
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
LEAST_LENGTH: Final = 8  # tokens per row
_BUILT_IN: Final = frozenset(METRICS)
_OF_TASKS: Final = {  # settings that other built-in tasks would ignore
    **dict.fromkeys(("doc_stride", "max_answer_length", "null_score_diff_threshold", "answer_metric"), ("qa",)),
    "f1_threshold": ("regression",),
    "pooling": ("classification", "choice", "regression", "multilabel", "embed", "retrieve"),
}
# Tasks of a causal model. Its head has no bias in transformers' classes, without which numbers are not learnt.
_OF_DECODERS: Final = ("classification", "multilabel")
_NARROW: Final = 384  # of the widths that were measured, the largest


class FinetuneConfig(Settings):
    """Defaults of None depend on the encoder (`for_model`) and the task."""

    # classification; regression; multilabel: any number of labels per text; tag: the entities in each text; qa: the part of a
    # text that answers a question; choice: one of several answers to a question; embed: vectors of texts, from pairs with
    # scores; retrieve: vectors, from texts that belong together
    task: Annotated[str, AfterValidator(TASKS.check), TASKS] = "classification"
    from_scratch: bool = False  # random instead of pretrained weights: a baseline that shows what pretraining is worth
    # tokens per row (embed, retrieve: per text); None: that of an existing classifier, or all that it reads if its tokenizer
    # names no length, else 128; 384 for qa
    max_length: Annotated[int, Field(ge=LEAST_LENGTH, le=MOST)] | None = None
    # embed, retrieve: a text's vector is the mean of its tokens' or the first token's; None: mean. For classes or choices by
    # a ModernBERT: what the head reads; None: that of an existing classifier, else cls
    pooling: Literal["mean", "cls"] | None = None
    doc_stride: NonNegative | None = None  # qa: tokens by which windows of a long text overlap; None: 128
    max_answer_length: Positive | None = None  # qa: tokens; None: 30
    # qa: how far "no answer" must outscore the best answer, if some questions have none; a number: also where none of those
    # that the model learnt had none; None: 0
    null_score_diff_threshold: float | None = None
    # qa: the benchmark whose scoring script to follow; None: korquad for Hangul, jsquad for Chinese characters and kana, else
    # squad
    answer_metric: Literal["squad", "jsquad", "korquad", "klue"] | None = None
    # regression: also reports the F1 of labels and predictions that are not below it
    f1_threshold: float | None = None
    # classification: balanced weighs the loss of each example by examples / (classes * examples of its class), as scikit-learn
    class_weights: Literal["balanced"] | None = None
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 3  # number of epochs, at most: see patience
    batch_size: BatchSize = 32  # rows per step, over all devices
    # the peak; None: 1e-3 (a causal model's 3e-4) for what tpulm pretrained and is at most 384 wide; else electra 1e-4, others
    # 5e-5
    learning_rate: PositiveFloat | None = None
    # layer-wise learning-rate decay: each layer has this fraction of the rate of the layer above; None: electra 0.8, others 1.0
    # (no decay)
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    warmup_fraction: Fraction = 0.1  # of all steps
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    clip_norm: PositiveFloat | None = 1.0  # of the global gradient norm; None: no clipping
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None  # in layers and attention; None: the model's
    group_by_length: bool = True  # batches have rows of similar length: less padding
    dev_fraction: Annotated[float, Field(gt=0.0, le=0.5)] = 0.1  # of the training file, if there is no dev file
    # selects the best epoch, on dev; None: the task's default, such as accuracy, pearson or entity_f1
    metric: Annotated[str, AfterValidator(METRIC_NAMES.check), METRIC_NAMES] | None = None
    patience: Positive | None = 3  # early stopping: epochs without a better dev metric; None: never stop early
    seed: NonNegative = 0  # of the head's initial weights, row order and dropout; of several seeds, the first
    seeds: Annotated[int, Field(ge=1, le=100)] = 1  # number of runs: seed, seed + 1, …
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: as in pretraining; on a CPU, scores are in float32
    log_every_steps: Positive = 50
    checkpoint: CheckpointConfig = CheckpointConfig()
    hardware: HardwareConfig = HardwareConfig()
    track: TrackConfig = TrackConfig()

    def contradictions(self) -> Iterator[str]:
        if self.metric is not None and self.metric not in METRICS[self.task]:
            yield f"metric = '{self.metric}' is not one of a {self.task}: {', '.join(METRICS[self.task])}"
        for name, tasks in _OF_TASKS.items():
            if getattr(self, name) is not None and self.task in _BUILT_IN.difference(tasks):
                yield f"{name} is of {', '.join(tasks)}, and the task is {self.task}; leave it out"
        if self.class_weights is not None and self.task != "classification":
            yield f"class_weights are of classification, and the task is {self.task}; leave them out"
        if self.checkpoint.average_last is not None or self.checkpoint.keep_at_words:
            yield "checkpoint.average_last and keep_at_words are of pretraining; leave them out"

    @property
    def chosen_by(self) -> str:
        """The metric that selects the best epoch."""
        return self.metric or next(iter(METRICS[self.task]))

    def is_better(self, value: float, than: float) -> bool:
        return value < than if METRICS[self.task][self.chosen_by] == "lowest" else value > than

    def best_of(self, scores: Mapping[_Key, float]) -> _Key:
        """The key of the best score, of equal ones the first."""
        best = next(iter(scores))
        for key, score in scores.items():
            best = key if self.is_better(score, scores[best]) else best
        return best

    def for_model(
        self, model: ModelConfig, *, classifier_length: int | None = None, pretrained_here: bool = False
    ) -> FinetuneConfig:
        """Fill in what depends on the model; `pretrained_here`: it is an export of a run, and no published model.

        An existing classifier keeps its row length (`classifier_length`), so that its scores stay the same.

        Raises ConfigError if rows are longer than the model's maximum, or the model cannot learn the task.
        """
        architecture, max_positions = model.architecture, model.max_positions
        if architecture == "decoder" and self.task in _BUILT_IN.difference(_OF_DECODERS):
            raise ConfigError(
                f"this is a causal language model, which can be fine-tuned for {' and '.join(_OF_DECODERS)}, and the task is "
                f"{self.task}; begin with an encoder (bert, modernbert or electra)"
            )
        if (self.max_length or 0) > max_positions:
            raise ConfigError(f"max_length {self.max_length} exceeds the {max_positions} positions that the model reads")
        if self.pooling is not None and self.task not in ("embed", "retrieve") and architecture != "modernbert":
            raise ConfigError(f"pooling is of embed, retrieve and ModernBERT, and the task is {self.task}; leave it out")
        filled = {
            "learning_rate": self.learning_rate
            or narrow_learning_rate(model, pretrained_here=pretrained_here)
            or (1e-4 if architecture == "electra" else 5e-5),  # ELECTRA's authors', and BERT's from its authors' range
            "layer_decay": self.layer_decay or (0.8 if architecture == "electra" else 1.0),
            "max_length": self.max_length or classifier_length or min(384 if self.task == "qa" else 128, max_positions),
        }
        return self.model_copy(update=filled)

    def training(self, steps: int, *, batch_size: int, steps_per_epoch: int) -> TrainConfig:
        """The training loop's settings: `steps` steps of `batch_size` rows, and an evaluation after each epoch.

        AdamW keeps its default, bias correction: without it, training on small data sets is unstable (Mosbach et al. 2021,
        section 5.1).
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


def narrow_learning_rate(model: ModelConfig, *, pretrained_here: bool) -> float | None:
    """The peak learning rate for a narrow model which was pretrained for minutes or hours (benchmarks/finetuning_rates.py,
    docs/experiments.md); None for others, which published rates suit."""
    if not pretrained_here or model.hidden_size > _NARROW:
        return None
    return 3e-4 if model.architecture == "decoder" else 1e-3
