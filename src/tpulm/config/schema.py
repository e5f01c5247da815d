"""The settings of a run. Every model is frozen and refuses unknown keys; a function takes the one it needs.

Counts are whole numbers, fractions lie in [0, 1], and units are in the names. "none" unsets a setting that may be None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeGuard, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from tpulm.config.layouts import layout_of
from tpulm.errors import suggest


class Names:
    """What a setting may be; code that registers another one adds its name."""

    def __init__(self, *names: str):
        self._names = dict.fromkeys(names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> None:
        self._names[name] = None

    def discard(self, name: str) -> None:
        self._names.pop(name, None)

    def check(self, name: str) -> str:
        if name not in self._names:
            raise ValueError(f"'{name}' is not one of {', '.join(self._names)}.{suggest(name, self._names)}")
        return name


def is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a value of a run file is a table of settings by name."""
    return isinstance(value, dict)


def settings_class(annotation: Any) -> type[BaseModel] | None:
    """The settings that a field's annotation names, itself or within a list or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := settings_class(item))), None)


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _none_by_name(cls, values: Any) -> Any:
        """TOML has no null: "none" unsets a setting that may be unset."""
        if not is_table(values):
            return values
        may_be_unset = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {name: None if value == "none" and name in may_be_unset else value for name, value in values.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true for 1."""
        if isinstance(value, bool):
            kinds = str(cls.model_fields[info.field_name or ""].annotation)
            if "bool" not in kinds and ("int" in kinds or "float" in kinds):
                raise ValueError("a number is expected, not true or false")
        return value


DATASETS: Final = ("tfds", "hub")  # what the path of a dataset begins with, before a colon
# tpulm.corpus.readers.register adds others
CORPUS_FORMATS: Final = Names("auto", "text", "jsonl", "csv", "tsv", "parquet", "wikipedia", "python", *DATASETS)
_OF_DATASETS: Final[dict[str, tuple[str, ...]]] = {
    "split": DATASETS,
    "data_dir": ("tfds",),
    "config": ("hub",),
    "revision": ("hub",),
    "streaming": ("hub",),
}


class SourceConfig(Settings):
    """One place text comes from: a file, a folder, a glob (`**` descends), or a dataset, "tfds:NAME" or "hub:NAME"."""

    path: str = ""  # relative to the run file; may stay empty only for format "python"
    # auto: by the file's name, or by what the path of a dataset begins with
    format: Annotated[str, AfterValidator(CORPUS_FORMATS.check), CORPUS_FORMATS] = "auto"
    documents: Literal["line", "paragraph", "file"] = "line"  # text only: a document a line, between blank lines, or a file
    text_field: str = "text"  # jsonl key (dots descend), csv/tsv/parquet column, or feature of a dataset
    encoding: str = "utf-8"
    on_error: Literal["stop", "skip"] = "stop"  # bad bytes or records: an error, or left out and counted
    weight: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # copies of each training document; 0.5 keeps half of them
    split: str | None = None  # datasets only; None: "train". Of tfds also slices and sums: "train[:10%]", "train+test"
    data_dir: str | None = None  # tfds only: where it is, or will be, prepared; None: ~/tensorflow_datasets
    config: str | None = None  # hub only: the subset; None: the default one
    revision: str | None = None  # hub only: branch, tag or commit; None: main
    streaming: bool = True  # hub only; false: into the cache of the library `datasets` first

    @model_validator(mode="before")
    @classmethod
    def _kind_of_dataset(cls, values: Any) -> Any:
        """The format of a dataset follows from its path, and its split is written out: equal sources are then equal."""
        if not is_table(values) or not isinstance(path := values.get("path"), str):
            return values
        kind, colon, _ = path.partition(":")
        if kind not in DATASETS or not colon:
            return values
        if values.get("format", "auto") not in ("auto", kind):
            raise ValueError(f"path '{path}' is a dataset, which has no format '{values['format']}'; leave format out")
        split = values.get("split")
        return {**values, "format": kind, "split": "train" if split in (None, "none") else split}

    @model_validator(mode="after")
    def _path_given(self) -> Self:
        if not self.path and self.format != "python":
            raise ValueError("path is missing: name a file, a folder or a glob such as 'reviews/*.txt.gz'")
        return self

    @model_validator(mode="after")
    def _settings_of_its_kind(self) -> Self:
        wrong = [name for name, kinds in _OF_DATASETS.items() if self.format not in kinds and self._is_set(name)]
        if wrong:
            owners = " and ".join(f"{kind}:NAME" for kind in _OF_DATASETS[wrong[0]])
            raise ValueError(f"{wrong[0]} is for datasets ({owners}), and '{self.path or self.format}' is none; leave it out")
        wrong = [name for name in ("documents", "encoding") if self.format in DATASETS and self._is_set(name)]
        if wrong:
            raise ValueError(f"{wrong[0]} is for files, and '{self.path}' is a dataset; leave it out")
        return self

    def _is_set(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
OBJECTIVES = Names("mlm", "rtd", "clm")  # tpulm.objectives.register adds others
SCHEDULES = Names("linear", "cosine", "rsqrt", "constant", "wsd")  # tpulm.train.optimizer.register_schedule adds others


class CleaningConfig(Settings):
    """What is done to each document before anything else sees it. What is left out is counted by reason."""

    unicode_form: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "NFC"
    whitespace: Literal["keep", "collapse"] = "collapse"  # collapse: runs of blanks become one space; line ends stay
    min_characters: NonNegative = 1
    max_characters: Positive | None = None  # longer documents are left out
    max_repeats: Annotated[int, Field(ge=2)] | None = None  # "ㅋㅋㅋㅋㅋ" becomes "ㅋㅋㅋ" with 3
    languages: tuple[str, ...] = ()  # ["ko", "en"]: documents that are recognized as another one are left out; (): all stay
    replace: tuple[Literal["email", "phone"], ...] = ()  # what looks like one becomes "<email>" or "<phone>"
    remove: tuple[str, ...] = ()  # regular expressions: each match is deleted before all else, as ruby: ["《[^》]*》"]

    @field_validator("remove")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                matches_nothing = re.compile(pattern).search("")
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"'{pattern}' is not a regular expression of Python: {error}") from error
            if matches_nothing:
                raise ValueError(f"'{pattern}' matches the empty string; write it so that it needs a character, with + for *")
        return patterns


class CorpusConfig(Settings):
    sources: tuple[SourceConfig, ...] = ()  # or a list of paths, where these say it all
    cleaning: CleaningConfig = CleaningConfig()
    deduplicate: bool = True  # exact duplicates of the cleaned text
    # of documents this alike only the first stays: the Jaccard similarity of their stretches of five words; 0.8 is usual
    near_duplicates: Annotated[float, Field(ge=0.3, le=0.95)] | None = None
    max_documents: Positive | None = None  # demo mode: the first documents, and no further reading
    max_bytes: Positive | None = None  # demo mode: the first bytes of text (UTF-8, after decoding)
    sample_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # a random share, chosen by hash
    holdout_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01  # kept from training, chosen by hash

    @model_validator(mode="after")
    def _near_needs_exact(self) -> Self:
        if self.near_duplicates is not None and not self.deduplicate:
            raise ValueError("near_duplicates removes exact duplicates, too: leave deduplicate = true with it")
        return self

    @field_validator("sources", mode="before")
    @classmethod
    def _plain_paths(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        if isinstance(value, (list, tuple)):
            items = cast("list[Any] | tuple[Any, ...]", value)
            return tuple({"path": item} if isinstance(item, str) else item for item in items)
        return value


class TokenizerConfig(Settings):
    """Trained on a random sample of the corpus, or taken from `path` (vocab.txt, tokenizer.json, SentencePiece's .model)."""

    path: str | None = None
    algorithm: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"  # bpe works on bytes; unigram falls back to bytes
    vocab_size: Annotated[int, Field(ge=1, le=2_000_000)] = 32_000
    lowercase: bool = False
    strip_accents: bool = False
    split_cjk: bool = True  # each Chinese character a word of its own (wordpiece without morphemes only)
    # wordpiece only: texts are cut into morphemes first (mecab: Japanese, kiwi: Korean), by all who use the model
    morphemes: Literal["none", "mecab", "kiwi"] = "none"
    min_frequency: Positive = 2  # of a word or a merge
    unused_slots: NonNegative = 0  # [unused0], [unused1], … for later use
    sample_bytes: Annotated[int, Field(ge=1_000)] = 200_000_000  # at most this much text is used for training
    allow_unknown: bool = False  # go on where the vocabulary does not fit: where 30 % or more of the text's tokens are unknown

    @model_validator(mode="after")
    def _morphemes_of_wordpiece(self) -> Self:
        if self.morphemes != "none" and (self.algorithm != "wordpiece" or self.strip_accents):
            raise ValueError("morphemes go with algorithm = 'wordpiece' and strip_accents = false; set these, or leave it out")
        return self


class DataConfig(Settings):
    """How documents become rows of `sequence_length` token ids."""

    sequence_length: Annotated[int, Field(ge=8, le=65_536)] = 128
    rows: Literal["segments", "packed", "causal"] = "segments"  # causal: for a decoder, documents joined by [SEP]
    next_sentence: bool = False  # segments only: half of the rows get a random second segment, as in BERT
    short_fraction: Fraction = 0.1  # segments only: rows that aim at a random shorter length
    single_segment_fraction: Fraction = 0.1  # segments only, without next_sentence: rows of one segment
    # for train.objective.whole_words: words are an analyser's morphemes (mecab: Japanese, kiwi: Korean), not the tokenizer's
    word_boundaries: Literal["none", "mecab", "kiwi"] = "none"
    # text of one part of the dataset: the unit of restart and of memory
    part_bytes: Annotated[int, Field(ge=10_000)] = 16_000_000
    block_rows: Annotated[int, Field(ge=1, le=4096)] = 64  # rows compressed together
    # as many versions of the text, with pairs, short lengths and packing drawn again, which epochs take in turn; each takes the
    # disk space of the first, and a tenth of its time
    dupe_factor: Positive = 1
    seed: NonNegative = 0

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.next_sentence and self.rows != "segments":
            raise ValueError(f"next_sentence needs rows = 'segments', not '{self.rows}'")
        return self


class GeneratorConfig(Settings):
    """ELECTRA's generator, as shares of the discriminator (Clark et al. 2020, sections 3.2 and 3.3)."""

    width: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25  # of hidden_size; heads of 64 and 4 times as wide feed-forward follow
    depth: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of num_layers
    own_embeddings: bool = False  # the source's untied_generator_embeddings
    own_layers: bool = True  # the source's untied_generator; false: the discriminator's layers serve both
    # the discriminator's embeddings are the generator's, which its loss does not reach, and a difference that it learns
    # (gradient-disentangled embedding sharing, He et al. 2021, "DeBERTaV3", section 3.3); exported as one table
    disentangled_embeddings: bool = False

    @model_validator(mode="after")
    def _disentangled_from_its_own(self) -> Self:
        if self.disentangled_embeddings and (self.own_embeddings or not self.own_layers):
            raise ValueError("disentangled_embeddings need own_embeddings = false and own_layers = true")
        return self


_MODERNBERT: dict[str, Any] = {
    "token_types": 0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "norm_position": "pre",
    "norm_epsilon": 1e-5,
    "activation": "gelu",
    "biases": False,
    "feed_forward": "gated",
    "positions": "rotary",
    "rotary_theta": 160_000.0,
    "global_every": 3,
    "depth_scaled_init": True,
}


class ModelConfig(Settings):
    # what it is, and with it what it is trained to do: masked tokens, replaced tokens, the next token
    # modernbert has defaults of its own: pre-norm, rotary, gated, GELU, no biases, no token types, no dropout, global_every 3
    architecture: Literal["bert", "modernbert", "electra", "decoder"] = "bert"
    num_layers: Positive = 12
    hidden_size: Positive = 768
    num_heads: Positive = 12
    intermediate_size: Positive = 3072
    embedding_size: Positive | None = None  # electra: a projection follows where it differs; None: hidden_size
    max_positions: Positive = 512
    token_types: NonNegative = 2  # bert only; 0: no embedding of them, which packed rows do not need
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    attention_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    norm_position: Literal["post", "pre"] = "post"  # post: as published; pre: steadier for deep models
    norm_epsilon: PositiveFloat = 1e-12
    activation: Literal["gelu_tanh", "gelu", "relu", "silu"] = "gelu_tanh"  # gelu_tanh: Google's BERT; gelu: exact erf
    norm: Literal["layer", "rms"] = "layer"  # rms: no mean, no bias (Zhang and Sennrich 2019)
    biases: bool = True  # of all linear maps and layer norms
    feed_forward: Literal["plain", "gated"] = "plain"  # gated: activation(gate) * up (Shazeer 2020)
    positions: Literal["learned", "rotary"] = "learned"  # rotary: queries and keys are turned (Su et al. 2021)
    rotary_theta: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] = 10_000.0  # the longest wavelength, over 2 pi
    global_every: Positive = 1  # modernbert only: of so many layers the first sees all of a text, the others a window
    local_window: Annotated[int, Field(ge=2, multiple_of=2)] = 128  # tokens in it, half of them on each side
    local_theta: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] = 10_000.0  # rotary_theta of the layers with a window
    tied_output: bool = True  # logits are products with the token embeddings; false: with a table of their own
    masked_head: Literal["transform", "plain"] = "transform"  # bert only; plain: logits straight from the last layer
    initializer_range: PositiveFloat = 0.02
    # what is added to the residual stream begins smaller, by sqrt(2 num_layers) (Shoeybi et al. 2019)
    depth_scaled_init: bool = False
    generator: GeneratorConfig | None = None  # electra only, which always has one

    @model_validator(mode="before")
    @classmethod
    def _modernbert_as_published(cls, values: Any) -> Any:
        """Warner et al. 2024 (arXiv 2412.13663), and the defaults of transformers' ModernBertConfig."""
        return {**_MODERNBERT, **values} if is_table(values) and values.get("architecture") == "modernbert" else values

    @model_validator(mode="before")
    @classmethod
    def _electra_has_a_generator(cls, values: Any) -> Any:
        if is_table(values) and values.get("architecture") == "electra" and values.get("generator") in (None, "none"):
            return {**values, "generator": {}}
        return values

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.architecture in ("bert", "modernbert") and self.embedding_size not in (None, self.hidden_size):
            raise ValueError(
                f"{self.architecture} has embedding_size = hidden_size ({self.hidden_size}), not {self.embedding_size}"
            )
        if self.architecture != "modernbert" and self.global_every > 1:
            raise ValueError("windows of attention (global_every) are modernbert's: set architecture = 'modernbert'")
        if self.architecture == "modernbert" and self.attention_dropout:
            raise ValueError("modernbert drops no attention weights: set attention_dropout = 0.0 (dropout is of the branches)")
        if self.architecture != "electra" and self.generator is not None:
            raise ValueError(
                f"{self.architecture} has no generator: leave model.generator out, or set architecture = 'electra'"
            )
        if self.generator is not None:
            self._check_electra(self.generator)
        if self.architecture == "decoder" and self.embedding_size not in (None, self.hidden_size):
            raise ValueError(f"a decoder has embedding_size = hidden_size ({self.hidden_size}), not {self.embedding_size}")
        if self.architecture == "decoder" and self.norm_position != "pre":
            raise ValueError("a decoder has norm_position = 'pre': a norm before each branch and one after the last layer")
        if self.positions == "rotary" and self.hidden_size // self.num_heads % 2:
            raise ValueError(
                f"rotary positions turn pairs: hidden_size / num_heads is {self.hidden_size // self.num_heads}, an odd number"
            )
        return self

    def _check_electra(self, generator: GeneratorConfig) -> None:
        if not generator.own_layers and (generator.width, generator.depth) != (1.0, 1.0):
            raise ValueError("generator.own_layers = false needs generator.width = 1.0 and generator.depth = 1.0")
        width, heads, _ = self.generator_sizes
        if width % heads:
            raise ValueError(
                f"generator.width {generator.width} of hidden_size {self.hidden_size} is {width}, which does not divide into "
                f"{heads} heads; choose a width that makes it a multiple of 64"
            )

    def identity(self) -> dict[str, Any]:
        """JSON of what a checkpoint is of: without settings that came after version 0.2 where they are at their defaults."""
        dumped = self.model_dump(mode="json")
        for name in ("global_every", "local_window", "local_theta", "depth_scaled_init"):
            if dumped[name] == type(self).model_fields[name].default:
                del dumped[name]
        if dumped["generator"] and not dumped["generator"]["disentangled_embeddings"]:
            del dumped["generator"]["disentangled_embeddings"]
        return dumped

    @property
    def generator_sizes(self) -> tuple[int, int, int]:
        """(hidden size, heads, layers) of the generator: heads = max(1, hidden size / 64), as in the authors' code."""
        generator = self.generator or GeneratorConfig()
        if not generator.own_layers:
            return self.hidden_size, self.num_heads, self.num_layers
        width = max(1, round(self.hidden_size * generator.width))
        return width, max(1, width // 64), max(1, round(self.num_layers * generator.depth))


class ObjectiveConfig(Settings):
    """What is predicted. BERT: 15 % of the tokens, of these 80 % [MASK], 10 % random, 10 % unchanged (section 3.1).

    ELECTRA: the generator predicts 15 %, 85 % [MASK] and 15 % unchanged; the discriminator tells which tokens were replaced.
    """

    # None: mlm for bert, rtd (replaced-token detection) for electra, clm for a decoder
    name: Annotated[str, AfterValidator(OBJECTIVES.check), OBJECTIVES] | None = None
    mask_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    evaluation_mask_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # so that runs compare
    max_predictions: Positive | None = None  # a row; None: what mask_fraction needs of a full row
    whole_words: bool = False  # bert, electra: in training whole words are drawn, as Google's later BERTs, not tokens
    mask_token_fraction: Fraction | None = None  # None: bert 0.8, electra 0.85
    random_token_fraction: Fraction | None = None  # None: bert 0.1, electra 0
    generator_weight: PositiveFloat = 1.0  # electra: of the generator's loss in the sum
    discriminator_weight: PositiveFloat = 50.0  # electra: of the discriminator's
    temperature: PositiveFloat = 1.0  # electra: of the generator's samples

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if (self.mask_token_fraction or 0.0) + (self.random_token_fraction or 0.0) > 1.0 + 1e-9:
            raise ValueError("mask_token_fraction and random_token_fraction add up to more than 1")
        return self


class OptimizerConfig(Settings):
    """AdamW as BERT's, epsilon 1e-6 and no decay on norms and biases, but with Adam's bias correction."""

    # muon: orthogonalized updates of the layers' matrices (Jordan et al. 2024; scaled as in arXiv 2502.16982, so that AdamW's
    # learning rates serve), AdamW for the rest
    name: Literal["adamw", "lamb", "muon"] = "adamw"
    learning_rate: PositiveFloat = 1e-4
    schedule: Annotated[str, AfterValidator(SCHEDULES.check), SCHEDULES] = "linear"  # wsd: warmup, stable, decay
    warmup_steps: NonNegative | None = None  # None: 10,000 as in BERT, but at most a tenth of the steps
    warmup_kind: Literal["replace", "multiply"] = "replace"  # replace: Google's BERT; multiply: ELECTRA
    decay_steps: NonNegative | None = None  # wsd: length of the last phase; None: a tenth of the steps
    decay_type: Literal["linear", "1-sqrt"] = "linear"  # wsd: 1-sqrt falls faster at first (ModernBERT)
    end_fraction: Fraction = 0.0  # of learning_rate, at the last step (linear, cosine, wsd)
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    epsilon: PositiveFloat = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.01
    bias_correction: bool = True  # false: the original BERT and ELECTRA, whose early updates are up to 6 times as large
    clip_norm: PositiveFloat | None = 1.0  # of the global gradient
    # the rate of a layer is this share of the one's above it; None: the same for all
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    def warmup(self, total_steps: int) -> int:
        return self.warmup_steps if self.warmup_steps is not None else min(10_000, total_steps // 10)

    def decay(self, total_steps: int) -> int:
        return max(1, self.decay_steps if self.decay_steps is not None else total_steps // 10)


class CheckpointConfig(Settings):
    """When checkpoints are made and which are kept; a stop on request always makes one."""

    every_minutes: PositiveFloat | None = 10.0
    every_steps: Positive | None = None
    keep: Annotated[int, Field(ge=2)] = 3  # the last ones; never fewer than two, so that one may be damaged
    keep_every_steps: Positive | None = None  # these stay for good


class TrainConfig(Settings):
    steps: Positive = 1_000_000
    batch_size: Positive = 256  # rows, over all devices
    seed: Seed = 0
    start_from: str | None = None  # a model folder or work folder whose weights are taken
    start_optimizer: bool = False  # and the optimizer's moments that lie beside them; false: a fresh optimizer
    optimizer: OptimizerConfig = OptimizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    # auto: bfloat16, or float32 on a CPU without instructions for it; decided when a run begins, and kept where it goes on
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    checkpoint: CheckpointConfig = CheckpointConfig()
    log_every_steps: Positive = 100
    evaluate_every_steps: Positive | None = None  # None: a tenth of the steps; always at the end
    evaluation_rows: Positive = 4096  # of the holdout, at most, during training; all of it at the end
    on_nan: Literal["stop", "skip"] = "stop"  # skip: go back to the last checkpoint and leave the batch out, counted
    # a logged loss this many times the lowest so far counts as NaN does
    spike_factor: Annotated[float, Field(gt=1.0)] | None = 3.0

    @model_validator(mode="after")
    def _moments_of_a_model(self) -> Self:
        if self.start_optimizer and self.start_from is None:
            raise ValueError("start_optimizer needs start_from: the model whose optimizer is meant")
        if self.start_optimizer and self.optimizer.name == "muon":
            raise ValueError("start_optimizer takes Adam's moments, which optimizer.name = 'muon' does not have for matrices")
        return self


class HardwareConfig(Settings):
    """How the work is laid out on devices. Not part of a run's identity: it may differ between attempts."""

    # what to compute on: auto, a TPU where the machine has one; any, whatever JAX finds; a named one is found or the run stops
    platform: Literal["auto", "any", "cpu", "gpu", "tpu"] = "auto"
    data: Positive | Literal["auto"] = "auto"  # devices along the mesh axis that splits the batch
    fsdp: Positive = 1  # … that splits batch and parameters
    tensor: Positive = 1  # … that splits the layers' inner dimensions
    microbatch_size: Positive | None = None  # rows a device computes at once; None: all of its share
    # kept of a layer for its backward pass: everything, the results of products only, or its input; the rest is computed again
    remat: Literal["auto", "none", "dots", "full"] = "auto"  # auto: "dots" on a TPU, else "none"; less on a full GPU
    # layers as straight code, which is faster, or as a loop, which compiles several times as fast
    unroll: bool | Literal["auto"] = "auto"  # auto: as straight code on a CPU, and on a TPU from 50,000 steps on
    flash_attention: bool = True  # attention by our own kernels: of rows of 512 and more on TPUs from v4 on, of 128 on GPUs


class TrackConfig(Settings):
    """Where else what a run logs is sent. Keys come from the environment (WANDB_API_KEY, MLFLOW_TRACKING_URI, …)."""

    to: tuple[Literal["trackio", "wandb", "mlflow"], ...] = ()  # W/tensorboard is written anyway
    project: Annotated[str, Field(min_length=1)] = "tpulm"  # in the tracker: its project or experiment


class PhaseConfig(Settings):
    """A stretch of the steps, and what differs in it; weights and the optimizer's state go on, each has rows of its own."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of train.steps; those of all phases make 1
    sequence_length: Annotated[int, Field(ge=8, le=65_536)] | None = None  # None: as in [data], and so on
    batch_size: Positive | None = None
    max_predictions: Positive | None = None
    mask_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    # clm: an encoder predicts each token from those before it, before a phase of mlm (arXiv 2507.00994)
    objective: Annotated[str, AfterValidator(OBJECTIVES.check), OBJECTIVES] | None = None


class RunConfig(Settings):
    """A whole run, as written to W/run.json."""

    name: str = "run"
    description: str = ""
    language: str | None = None  # a BCP 47 tag for the model card, such as "ko"
    recipe: str | None = None  # that the settings began with, by its name; it changes nothing, a report compares with it
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    hardware: HardwareConfig = HardwareConfig()
    track: TrackConfig = TrackConfig()
    phases: tuple[PhaseConfig, ...] = ()  # none: one, of all steps; short rows first and long ones last cost least

    @model_validator(mode="after")
    def _phases_add_up(self) -> Self:
        total = sum(phase.share for phase in self.phases)
        if self.phases and abs(total - 1.0) > 1e-6:
            raise ValueError(f"the shares of the phases add up to {total:g}; they must make 1")
        for number, phase in enumerate(self.phases, start=1):
            if (phase.sequence_length or 0) > self.model.max_positions:
                raise ValueError(
                    f"phase {number} has sequence_length {phase.sequence_length}, which exceeds model.max_positions "
                    f"{self.model.max_positions}; raise the latter"
                )
            self._trainable(f"phase {number} has objective", phase.objective)
        self._trainable("train.objective.name is", self.train.objective.name)
        return self

    def _trainable(self, where: str, objective: str | None) -> None:
        """Whether a built-in objective can train the model's parameters; others say it themselves."""
        fitting = {"decoder": ("clm",), "electra": ("rtd",)}.get(self.model.architecture, ("mlm", "clm"))
        if objective in ("mlm", "rtd", "clm") and objective not in fitting:
            raise ValueError(
                f"{where} '{objective}', which cannot train model.architecture = '{self.model.architecture}'; "
                f"use {' or '.join(fitting)}, or leave it out"
            )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        length, positions = self.data.sequence_length, self.model.max_positions
        if length > positions:
            raise ValueError(f"data.sequence_length {length} exceeds model.max_positions {positions}; raise the latter")
        if self.data.rows == "segments" and self.model.token_types < 2:
            raise ValueError("rows = 'segments' need model.token_types = 2")
        if (self.data.rows == "causal") != (self.model.architecture == "decoder"):
            raise ValueError(
                f"data.rows = '{self.data.rows}' does not go with model.architecture = '{self.model.architecture}': a decoder "
                "needs rows = 'causal', which nothing else can use"
            )
        layout_of({**self.model.model_dump(), "next_sentence": self.data.next_sentence})  # or it could never be exported
        warmup_steps = self.train.optimizer.warmup_steps or 0
        if warmup_steps > self.train.steps:
            raise ValueError(f"train.optimizer.warmup_steps {warmup_steps} exceeds train.steps {self.train.steps}")
        return self

    @model_validator(mode="after")
    def _words(self) -> Self:
        """What whole-word masking needs, and who says where words begin."""
        decoder, morphemes = self.model.architecture == "decoder", self.tokenizer.morphemes != "none"
        if self.train.objective.whole_words and decoder:
            raise ValueError("train.objective.whole_words is for masked models; a decoder predicts every token: leave it out")
        if self.data.word_boundaries != "none":
            if self.data.rows == "causal":
                raise ValueError("data.word_boundaries are for masking whole words, which causal rows do not; leave it out")
            if not self.train.objective.whole_words:
                raise ValueError(
                    f"data.word_boundaries = '{self.data.word_boundaries}' is read only where whole words are masked: set "
                    "train.objective.whole_words = true, or leave it out"
                )
            if morphemes:
                raise ValueError(
                    "with tokenizer.morphemes the tokenizer's words are morphemes already; leave data.word_boundaries out"
                )
        if morphemes and decoder:
            raise ValueError("tokenizer.morphemes is for encoders: a decoder would write a space between morphemes")
        return self


class Phase(NamedTuple):
    """Steps `first_step` + 1 to `last_step`; `config` is the run's with the phase's own data and batch.

    `config.train.steps` stays the whole run's: learning-rate schedules go over all phases. `folder` is where its dataset lies
    under the work folder; phases with the same data settings share one, and each goes on where the one before it ended.
    """

    number: int  # from 1
    first_step: int
    last_step: int
    config: RunConfig
    folder: str
    first_cursor: int  # rows of other datasets that the run has visited before; the rest of the cursor counts this one's


def phases_of(config: RunConfig) -> tuple[Phase, ...]:
    """Those that have a step at least, in order: one in a run that names none."""
    steps = config.train.steps
    phases: list[Phase] = []
    rows: dict[str, int] = {}  # visited, by dataset
    reached, share = 0, 0.0
    for settings in config.phases or (PhaseConfig(share=1.0),):
        share += settings.share
        begins, reached = reached, min(steps, round(share * steps))
        if reached > begins:
            own = _with(config, settings)
            number = len(phases) + 1
            same = next((phase.folder for phase in phases if phase.config.data == own.data), None)
            folder = same or ("." if number == 1 else f"phase-{number}")
            others = sum(count for name, count in rows.items() if name != folder)
            phases.append(Phase(number, begins, reached, own, folder, others))
            rows[folder] = rows.get(folder, 0) + (reached - begins) * own.train.batch_size
    return tuple(phases)


def phase_at(phases: Sequence[Phase], step: int) -> Phase:
    """The one that goes on after `step` steps, or the last one when all are done."""
    return next((phase for phase in phases if step < phase.last_step), phases[-1])


def _with(config: RunConfig, settings: PhaseConfig) -> RunConfig:
    data, train = config.data, config.train
    if settings.sequence_length is not None:
        data = data.model_copy(update={"sequence_length": settings.sequence_length})
    if settings.batch_size is not None:
        train = train.model_copy(update={"batch_size": settings.batch_size})
    wanted = {
        "max_predictions": settings.max_predictions,
        "mask_fraction": settings.mask_fraction,
        "name": settings.objective,
    }
    if changed := {name: value for name, value in wanted.items() if value is not None}:
        train = train.model_copy(update={"objective": train.objective.model_copy(update=changed)})
    return config.model_copy(update={"data": data, "train": train, "phases": ()})
