"""The settings of a run. Every model is frozen and rejects unknown keys; a function takes only the one it needs.

Counts are integers, fractions lie in [0, 1], and names include units. "none" unsets a setting that may be None.
Whole numbers are at most `MOST`, and numbers of bytes and documents `MOST_TEXT`, unless a bound is stated.

The comments in the models are the users' documentation (`config.reference`): `tpulm settings` and docs/settings.md show them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeGuard, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from tpulm.config.stock_classes import stock_class_of
from tpulm.errors import suggest
from tpulm.storage.paths import absolute


class Names:
    """The allowed values of a setting. Code that registers another one adds its name."""

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
    """Whether a value from a run file is a table."""
    return isinstance(value, dict)


def settings_class(annotation: Any) -> type[BaseModel] | None:
    """The settings class in a field's annotation, alone or inside a list or a union; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := settings_class(item))), None)


class RemovedSetting(NamedTuple):
    """A setting of older versions, its default, and what to do in place of it."""

    default: Any
    instead: str


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )
    removed: ClassVar[Mapping[str, RemovedSetting]] = {}

    @model_validator(mode="before")
    @classmethod
    def _none_by_name(cls, values: Any) -> Any:
        """TOML has no null: "none" stands for it where a setting may be None. Removed settings may have their defaults."""
        if not is_table(values):
            return values
        for name, (default, instead) in cls.removed.items():
            if name in values and values[name] not in (default, "none" if default is None else default):
                raise ValueError(f"{name} was removed after version 0.2, and is {values[name]!r} here: {instead}")
        may_be_unset = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        kept = {name: value for name, value in values.items() if name not in cls.removed}
        return {name: None if value == "none" and name in may_be_unset else value for name, value in kept.items()}

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        for message in self.contradictions():
            raise ValueError(message)
        return self

    def contradictions(self) -> Iterator[str]:
        """What is wrong with settings each of which is valid, the most important first."""
        yield from ()

    def fingerprinted(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """As JSON, for fingerprints: with removed settings at their defaults, as older versions have them."""
        dumped = self.model_dump(mode="json", exclude=exclude)
        return {**{name: gone.default for name, gone in self.removed.items()}, **dumped}

    @field_validator("*", mode="before")
    @classmethod
    def _no_odd_values(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic would accept true as 1, and NUL, which ends names elsewhere."""
        if isinstance(value, str) and "\0" in value:
            raise ValueError("it holds a NUL character")
        if isinstance(value, bool):
            kinds = str(cls.model_fields[info.field_name or ""].annotation)
            if "bool" not in kinds and ("int" in kinds or "float" in kinds):
                raise ValueError("a number is expected, not true or false")
        return value


DATASETS: Final = ("tfds", "hub")  # prefixes of dataset paths, before a colon
# tpulm.corpus.readers.register adds others
CORPUS_FORMATS: Final = Names("auto", "text", "jsonl", "csv", "tsv", "parquet", "wikipedia", "python", *DATASETS)
_OF_DATASETS: Final[dict[str, tuple[str, ...]]] = {
    "split": DATASETS,
    "data_dir": ("tfds",),
    "config": ("hub",),
    "revision": ("hub",),
    "streaming": ("hub",),
}


# One name of a file: a run resumes although its run.json, of an older version too, has `..` in a path.
FilePath = Annotated[str, AfterValidator(lambda path: str(absolute(path)) if path.startswith("/") else path)]


class SourceConfig(Settings):
    """A source of text: a file, a folder, a glob (`**` matches subfolders), or a dataset, "tfds:NAME" or "hub:NAME"."""

    path: FilePath = ""  # relative to the run file; required unless format is "python"
    # auto: from the file name, or the "tfds:" or "hub:" of a dataset's path
    format: Annotated[str, AfterValidator(CORPUS_FORMATS.check), CORPUS_FORMATS] = "auto"
    # text only: one document per line, per paragraph (paragraphs are separated by blank lines) or per file
    documents: Literal["line", "paragraph", "file"] = "line"
    text_field: str = "text"  # the jsonl key (nested: "a.b"), csv, tsv or Parquet column, or dataset feature of the text
    encoding: str = "utf-8"  # of the text; latin-1 is read as Windows' cp1252, as browsers read it
    on_error: Literal["stop", "skip"] = "stop"  # at bad bytes or records: raise an error, or skip and count them
    weight: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # copies of each training document; 0.5: a random half of them
    split: str | None = None  # datasets only; None: "train". tfds also takes "train[:10%]" and "train+test"
    data_dir: FilePath | None = None  # tfds only: the folder of prepared datasets; None: ~/tensorflow_datasets
    config: str | None = None  # hub only: the configuration (subset); None: the default one
    revision: str | None = None  # hub only: a branch, tag or commit; None: main
    # wikipedia only: what templates show, in addition to those that are known; {仮リンク = "1", "my link" = "{label} ({2})"}
    templates: dict[str, str] = {}
    streaming: bool = True  # hub only; false: download all to the cache of huggingface_hub first

    @model_validator(mode="before")
    @classmethod
    def _kind_of_dataset(cls, values: Any) -> Any:
        """Set a dataset's format from its path, and its default split, so that equivalent sources compare equal."""
        if not is_table(values) or not isinstance(path := values.get("path"), str):
            return values
        kind, colon, _ = path.partition(":")
        if kind not in DATASETS or not colon:
            return values
        if values.get("format", "auto") not in ("auto", kind):
            raise ValueError(f"path '{path}' is a dataset, which has no format '{values['format']}'; leave format out")
        split = values.get("split")
        return {**values, "format": kind, "split": "train" if split in (None, "none") else split}

    def contradictions(self) -> Iterator[str]:
        if not self.path and self.format != "python":
            yield "path is missing: name a file, a folder or a glob such as 'reviews/*.txt.gz'"
        wrong = [name for name, kinds in _OF_DATASETS.items() if self.format not in kinds and self.is_set(name)]
        if wrong:
            owners = " and ".join(f"{kind}:NAME" for kind in _OF_DATASETS[wrong[0]])
            yield f"{wrong[0]} is for datasets ({owners}), and '{self.path or self.format}' is none; leave it out"
        wrong = [name for name in ("documents", "encoding") if self.format in DATASETS and self.is_set(name)]
        if wrong:
            yield f"{wrong[0]} is for files, and '{self.path}' is a dataset; leave it out"
        if self.templates and self.format not in ("auto", "wikipedia"):
            yield f"templates is for dumps of wikis, and '{self.path}' is read as {self.format}; leave it out"
        for name, form in self.templates.items():
            if re.search(r"[{}\x00-\x1f]", re.sub(r"\{[^{}]+\}", "", form)):
                yield (
                    f'templates.{name}: write an argument ("1", "label|1") or text with arguments in braces '
                    f"(\"{{1}} {{2}}\"), not '{form}'"
                )

    def is_set(self, name: str) -> bool:
        """Whether a setting differs from its default."""
        return getattr(self, name) != type(self).model_fields[name].default


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
MOST: Final = 2**31 - 1  # of a whole number without another bound
MOST_TEXT: Final = 2**50
Positive = Annotated[int, Field(ge=1, le=MOST)]
NonNegative = Annotated[int, Field(ge=0, le=MOST)]
Amount = Annotated[int, Field(ge=1, le=MOST_TEXT)]  # of bytes or documents
BatchSize = Annotated[int, Field(ge=1, le=1_048_576)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
OBJECTIVES = Names("mlm", "rtd", "clm")  # tpulm.objectives.register adds others
DEFAULT_OBJECTIVES: Final = {"bert": "mlm", "modernbert": "mlm", "electra": "rtd", "decoder": "clm"}  # by model.architecture
SCHEDULES = Names("linear", "cosine", "rsqrt", "constant", "wsd")  # tpulm.train.optimizer.register_schedule adds others
# Those whose rates, up to wsd's decay, do not depend on the number of steps, so that a run may end later than planned.
OPEN_ENDED: Final = ("rsqrt", "constant", "wsd")


PATTERNS: Final = {  # of corpus.cleaning.remove, by name
    "aozora": (r"(?s)-{20,}.*?-{20,}\s*", r"(?s)\n\s*底本：.*", "《[^》]*》", "｜", "［＃[^］]*］"),
}


class CleaningConfig(Settings):
    """How each document is cleaned before anything else sees it. Dropped documents are counted by reason."""

    unicode_form: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "NFC"
    whitespace: Literal["keep", "collapse"] = "collapse"  # collapse: runs of spaces, tabs etc. become one space; line ends stay
    min_characters: NonNegative = 1  # shorter documents are dropped
    max_characters: Positive | None = None  # longer documents are dropped
    # cut longer runs of one character, except digits: with 3, "ㅋㅋㅋㅋㅋ" becomes "ㅋㅋㅋ"
    max_repeats: Annotated[int, Field(ge=2, le=MOST)] | None = None
    languages: tuple[str, ...] = ()  # ["ko", "en"]: drop documents recognized as another language; []: keep all
    replace: tuple[Literal["email", "phone"], ...] = ()  # anything that looks like one becomes "<email>" or "<phone>"
    # regular expressions whose matches are deleted first; ["《[^》]*》"] deletes Aozora Bunko's ruby. "aozora" stands for those
    # of its ruby, notes, header and footer, which a source with documents = "file" has in one document
    remove: tuple[str, ...] = ()

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
    removed: ClassVar = {
        "sample_fraction": RemovedSetting(1.0, "leave it out; weight = 0.5 of a source takes a random half of it")
    }
    sources: tuple[SourceConfig, ...] = ()  # or a list of paths, if the other defaults suit
    cleaning: CleaningConfig = CleaningConfig()
    deduplicate: bool = True  # drop documents whose cleaned text is an exact duplicate
    # of documents at least this similar, keep one, of the earliest source: Jaccard similarity of 5-word shingles; 0.8 is usual
    near_duplicates: Annotated[float, Field(ge=0.3, le=0.95)] | None = None
    max_documents: Amount | None = None  # demo mode: read only this many documents
    max_bytes: Amount | None = None  # demo mode: read only this many bytes of text (as UTF-8)
    # fraction of the documents held out from training, for validation, chosen by hash
    holdout_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01

    def contradictions(self) -> Iterator[str]:
        if self.near_duplicates is not None and not self.deduplicate:
            yield "near_duplicates removes exact duplicates, too: leave deduplicate = true with it"

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
    """Trained on a random sample of the corpus, or loaded from `path`."""

    removed: ClassVar = {
        "min_frequency": RemovedSetting(2, "leave it out, a word or merge must occur twice"),
        "unused_slots": RemovedSetting(0, "leave it out; a vocabulary with slots is loaded by tokenizer.path"),
    }
    path: FilePath | None = None  # vocab.txt, tokenizer.json or SentencePiece's .model; None: train one
    algorithm: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"  # bpe: byte-level; unigram: with byte fallback
    vocab_size: Annotated[int, Field(ge=1, le=2_000_000)] = 32_000  # including special tokens
    lowercase: bool = False  # the vocabulary is uncased; Google's do_lower_case strips accents, too
    strip_accents: bool = False  # its text has no accents
    split_cjk: bool = True  # wordpiece without morphemes only: each Chinese character is a word of its own
    # wordpiece only: split text into morphemes first (mecab: Japanese, kiwi: Korean); all users of the model need the analyser
    morphemes: Literal["none", "mecab", "kiwi"] = "none"
    sample_bytes: Annotated[int, Field(ge=1_000, le=MOST_TEXT)] = 200_000_000  # text that the tokenizer is trained on, at most
    # continue even if the vocabulary does not fit the text: 30 % or more of its characters are unknown
    allow_unknown: bool = False

    def contradictions(self) -> Iterator[str]:
        if self.morphemes != "none" and (self.algorithm != "wordpiece" or self.strip_accents):
            yield "morphemes go with algorithm = 'wordpiece' and strip_accents = false; set these, or leave it out"


class DataConfig(Settings):
    """How documents become rows of `sequence_length` token ids, the examples of a batch."""

    sequence_length: Annotated[int, Field(ge=8, le=65_536)] = 128
    # segments: one or two segments of text, [CLS] A [SEP] B [SEP], as in BERT; packed: several documents per row; causal: for a
    # decoder, documents joined by [SEP]
    rows: Literal["segments", "packed", "causal"] = "segments"
    next_sentence: bool = False  # segments only: half of the rows get a random segment B, as in BERT
    # packed and causal: every sentence is a document of its own, for models that judge single sentences: of longer texts they
    # learn nothing
    split_sentences: bool = False
    short_fraction: Fraction = 0.1  # segments only: fraction of rows with a random, shorter target length
    single_segment_fraction: Fraction = 0.1  # segments only, without next_sentence: fraction with one segment
    # for train.objective.whole_words: mask an analyser's morphemes (mecab: Japanese, kiwi: Korean), not the tokenizer's words
    word_boundaries: Literal["none", "mecab", "kiwi"] = "none"
    # text in one part of the dataset, the unit in which preparation resumes and holds text in memory
    part_bytes: Annotated[int, Field(ge=10_000, le=MOST_TEXT)] = 16_000_000
    block_rows: Annotated[int, Field(ge=1, le=4096)] = 64  # rows compressed as one block
    # versions of the text, with pairs, short lengths and packing drawn anew; epochs take turns. Each further version takes as
    # much disk space as the first, and a tenth of the time
    dupe_factor: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: NonNegative = 0

    def contradictions(self) -> Iterator[str]:
        if self.next_sentence and self.rows != "segments":
            yield f"next_sentence needs rows = 'segments', not '{self.rows}'"
        if self.split_sentences and self.rows == "segments":
            yield "split_sentences needs rows = 'packed' or 'causal': segments hold several sentences"


class GeneratorConfig(Settings):
    """ELECTRA's generator, its size relative to the discriminator's (Clark et al. 2020, sections 3.2 and 3.3)."""

    # its hidden size, as a fraction of hidden_size; its heads have size 64, its feed-forward is 4 times as wide
    width: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    depth: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # its layers, as a fraction of num_layers
    # set by import. true: the generator has its own (google-research/electra: untied_generator_embeddings)
    own_embeddings: bool = False
    # set by import. true: the generator has its own (untied_generator); false: it shares the discriminator's
    own_layers: bool = True
    # the discriminator's embeddings are the generator's, which its loss does not update, plus a learned difference
    # (gradient-disentangled embedding sharing, He et al. 2021, "DeBERTaV3", section 3.3); exported as one table
    disentangled_embeddings: bool = False

    def contradictions(self) -> Iterator[str]:
        if self.disentangled_embeddings and (self.own_embeddings or not self.own_layers):
            yield "disentangled_embeddings need own_embeddings = false and own_layers = true"


class RotaryScaling(Settings):
    """RoPE for texts longer than those of the first training, as in Llama 3.1; the names are those of transformers."""

    # linear: all frequencies are divided by factor; llama3: those that turn at most low_freq_factor times in the original
    # positions are, those that turn high_freq_factor times or more stay, and between the two less and less is divided
    rope_type: Literal["linear", "llama3"] = "llama3"
    factor: Annotated[float, Field(ge=1.0)] = 8.0
    low_freq_factor: PositiveFloat = 1.0  # llama3 only
    high_freq_factor: PositiveFloat = 4.0  # llama3 only, more than low_freq_factor
    original_max_position_embeddings: Positive = 8192  # llama3 only

    def contradictions(self) -> Iterator[str]:
        if self.low_freq_factor >= self.high_freq_factor:
            yield f"low_freq_factor {self.low_freq_factor} is not below high_freq_factor {self.high_freq_factor}"


# Warner et al. 2024 (arXiv 2412.13663), and the defaults of transformers' ModernBertConfig.
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
    # bert and modernbert are trained to predict masked tokens, electra to detect replaced ones, decoder to predict the next.
    # modernbert has defaults of its own: pre-norm, RoPE, gated, GELU, no biases, no token types, no dropout, global_every 3
    architecture: Literal["bert", "modernbert", "electra", "decoder"] = "bert"
    num_layers: Annotated[int, Field(ge=1, le=10_000)] = 12
    hidden_size: Positive = 768
    num_heads: Positive = 12
    intermediate_size: Positive = 3072  # width of the feed-forward
    embedding_size: Positive | None = None  # electra only; projected to hidden_size if it differs; None: hidden_size
    max_positions: Positive = 512
    token_types: NonNegative = 2  # bert, electra; 0 (EuroBERT's layout): no such embedding; packed rows need none
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1  # after embeddings, attention and feed-forward
    attention_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1  # of attention weights
    norm_position: Literal["post", "pre"] = "post"  # post: as in BERT; pre: more stable for deep models
    norm_epsilon: PositiveFloat = 1e-12
    activation: Literal["gelu_tanh", "gelu", "relu", "silu"] = "gelu_tanh"  # gelu_tanh: Google's BERT; gelu: exact (erf)
    norm: Literal["layer", "rms"] = "layer"  # layer: LayerNorm; rms: RMSNorm, no mean, no bias (Zhang and Sennrich 2019)
    biases: bool = True  # of all linear layers and LayerNorms
    feed_forward: Literal["plain", "gated"] = "plain"  # gated: activation(gate) * up, as in SwiGLU (Shazeer 2020)
    positions: Literal["learned", "rotary"] = "learned"  # rotary: RoPE on queries and keys (Su et al. 2021)
    # set by import. RoPE base: the longest wavelength / 2 pi
    rotary_theta: Annotated[float, Field(gt=1.0)] = 10_000.0
    rotary_scaling: RotaryScaling | None = None  # set by import. Of global layers; None: RoPE as it is
    global_every: Positive = 1  # modernbert only: attention is global in every n-th layer, from the first on, else local
    local_window: Annotated[int, Field(ge=2, le=MOST, multiple_of=2)] = 128  # set by import. Tokens that local attention spans
    local_theta: Annotated[float, Field(gt=1.0)] = 10_000.0  # set by import. RoPE base of local layers
    tied_output: bool = True  # output weights are the token embeddings; false: separate weights
    # set by import. bert only; plain: logits directly from the last layer
    masked_head: Literal["transform", "plain"] = "transform"
    initializer_range: PositiveFloat = 0.02  # standard deviation of initial weights
    # divide the initial weights of what is added to the residual stream by sqrt(2 num_layers) (Shoeybi et al. 2019)
    depth_scaled_init: bool = False
    generator: GeneratorConfig | None = None  # electra only, and always set there

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_architecture(cls, values: Any) -> Any:
        architecture = values.get("architecture") if is_table(values) else None
        if architecture == "modernbert":
            return {**_MODERNBERT, **values}
        if architecture == "electra" and values.get("generator") in (None, "none"):
            return {**values, "generator": {}}
        return values

    def contradictions(self) -> Iterator[str]:
        if self.hidden_size % self.num_heads:
            yield f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
        if self.architecture != "electra" and self.embedding_size not in (None, self.hidden_size):
            yield f"{self.architecture} has embedding_size = hidden_size ({self.hidden_size}), not {self.embedding_size}"
        if self.architecture != "modernbert" and self.global_every > 1:
            yield "windows of attention (global_every) are modernbert's: set architecture = 'modernbert'"
        if self.architecture == "modernbert" and self.attention_dropout:
            yield "modernbert drops no attention weights: set attention_dropout = 0.0 (dropout is of the branches)"
        if self.architecture != "electra" and self.generator is not None:
            yield f"{self.architecture} has no generator: leave model.generator out, or set architecture = 'electra'"
        if (generator := self.generator) is not None:
            if not generator.own_layers and (generator.width, generator.depth) != (1.0, 1.0):
                yield "generator.own_layers = false needs generator.width = 1.0 and generator.depth = 1.0"
            width, heads, _ = self.generator_sizes
            if width % heads:
                yield (
                    f"generator.width {generator.width} of hidden_size {self.hidden_size} is {width}, which does not divide "
                    f"into {heads} heads; choose a width that makes it a multiple of 64"
                )
        if self.positions == "learned" and self.rotary_scaling is not None:
            yield "rotary_scaling scales rotary positions: leave it out, or set positions = 'rotary' (here they are 'learned')"
        if self.positions == "rotary" and self.hidden_size // self.num_heads % 2:
            yield (
                f"rotary positions turn pairs: hidden_size / num_heads is {self.hidden_size // self.num_heads}, an odd number"
            )

    def identity(self) -> dict[str, Any]:
        """As JSON, to identify a checkpoint's model: settings added after version 0.2 are omitted at their defaults."""
        dumped = self.model_dump(mode="json")
        for name in ("rotary_scaling", "global_every", "local_window", "local_theta", "depth_scaled_init"):
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
    """What is predicted. BERT: 15 % of the tokens, of which 80 % become [MASK], 10 % a random token, 10 % stay (section 3.1).

    ELECTRA: the generator predicts 15 %, of which 85 % become [MASK] and 15 % stay; the discriminator detects replaced tokens.
    """

    removed: ClassVar = dict.fromkeys(
        ("mask_token_fraction", "random_token_fraction"),
        RemovedSetting(None, "leave it out, the shares are BERT's and ELECTRA's"),
    ) | {"max_predictions": RemovedSetting(None, "leave it out, mask_fraction says how many")}
    # mlm: masked, clm: causal language modeling, rtd: replaced-token detection. None: mlm for bert and modernbert, rtd for
    # electra, clm for a decoder
    name: Annotated[str, AfterValidator(OBJECTIVES.check), OBJECTIVES] | None = None
    mask_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # of the tokens
    evaluation_mask_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # in evaluation, so that runs are comparable
    whole_words: bool = False  # encoders: mask whole words in training, like Google's later BERTs
    generator_weight: PositiveFloat = 1.0  # electra: weight of the generator's loss in the sum
    discriminator_weight: PositiveFloat = 50.0  # electra: weight of the discriminator's loss
    temperature: PositiveFloat = 1.0  # electra: sampling temperature of the generator


class OptimizerConfig(Settings):
    """By default AdamW like BERT's (epsilon 1e-6, no weight decay on norms and biases), but with Adam's bias correction."""

    removed: ClassVar = {"end_fraction": RemovedSetting(0.0, "leave it out, schedules end at 0")}
    # muon: orthogonalized updates for the layers' matrices (Jordan et al. 2024; scaled as in arXiv 2502.16982, so that AdamW's
    # learning rates apply), AdamW for all other parameters
    name: Literal["adamw", "lamb", "muon"] = "adamw"
    learning_rate: PositiveFloat = 1e-4  # the peak, after warmup
    # wsd: warmup, stable, decay; rsqrt: inverse sqrt
    schedule: Annotated[str, AfterValidator(SCHEDULES.check), SCHEDULES] = "linear"
    warmup_steps: NonNegative | None = None  # None: 10,000 as in BERT, but at most a tenth of train.steps
    warmup_kind: Literal["replace", "multiply"] = "replace"  # warmup replaces (BERT) or multiplies (ELECTRA) the decay
    decay_steps: NonNegative | None = None  # wsd: length of the final decay; None: a tenth of train.steps
    decay_type: Literal["linear", "1-sqrt"] = "linear"  # wsd: 1-sqrt decays faster at first (ModernBERT)
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    epsilon: PositiveFloat = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    bias_correction: bool = True  # false: as in the original BERT and ELECTRA; early updates are up to 6 times as large
    clip_norm: PositiveFloat | None = 1.0  # of the global gradient norm; None: no clipping
    # of an exponential moving average of the weights, (1 + step) / (10 + step) at first, which is what evaluations score and
    # export writes; None: the weights themselves
    average_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    # layer-wise learning-rate decay: each layer has this fraction of the rate of the layer above; None: the same for all
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    def warmup(self, total_steps: int) -> int:
        return self.warmup_steps if self.warmup_steps is not None else min(10_000, total_steps // 10)

    def decay(self, total_steps: int) -> int:
        return max(1, self.decay_steps if self.decay_steps is not None else total_steps // 10)


class CheckpointConfig(Settings):
    """When checkpoints are saved and which are kept. A requested stop always saves one."""

    every_minutes: PositiveFloat | None = 10.0
    every_steps: Positive | None = None
    keep: Annotated[int, Field(ge=2, le=MOST)] = 3  # the latest; at least two, in case one is damaged
    keep_every_steps: Positive | None = None  # at multiples of this one is saved, and kept forever
    # saved and kept forever when this many words of text were read, and exported by 'tpulm export --revisions' (BabyLM)
    keep_at_words: tuple[Positive, ...] = ()
    # the model is the mean of so many checkpoints, those of the last multiples of every_steps and of the end (Izmailov et al.
    # 2018, arXiv 1803.05407); None: the last one
    average_last: Annotated[int, Field(ge=2, le=MOST)] | None = None

    def contradictions(self) -> Iterator[str]:
        if self.average_last is not None and self.every_steps is None:
            yield "average_last needs every_steps: which checkpoints the clock makes differs from run to run"

    def averaged_steps(self, steps: int) -> tuple[int, ...]:
        """The steps whose checkpoints make up the model of a run of `steps` steps, ascending; one: no mean is taken."""
        if self.average_last is None or self.every_steps is None:
            return (steps,)
        before = range((steps - 1) // self.every_steps * self.every_steps, 0, -self.every_steps)
        return (*sorted(before[: self.average_last - 1]), steps)


class TrainConfig(Settings):
    steps: Positive = 1_000_000  # optimizer updates
    batch_size: BatchSize = 256  # rows per step, over all devices
    seed: NonNegative = 0
    start_from: FilePath | None = None  # a model folder or work folder to load initial weights from
    start_optimizer: bool = False  # also load the optimizer's moments from there; false: a fresh optimizer
    optimizer: OptimizerConfig = OptimizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    # auto: bfloat16, or float32 on a CPU without bfloat16 instructions; decided when a run starts, kept when it resumes
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    checkpoint: CheckpointConfig = CheckpointConfig()
    log_every_steps: Positive = 100
    evaluate_every_steps: Positive | None = None  # None: a tenth of train.steps; always at the end
    evaluation_rows: Positive = 4096  # held-out rows, at most, during training; all at the end
    on_nan: Literal["stop", "skip"] = "stop"  # skip: resume from the last checkpoint without those rows, and count them
    # a logged loss above this many times the lowest so far is treated like NaN; None: never
    spike_factor: Annotated[float, Field(gt=1.0)] | None = 3.0

    def contradictions(self) -> Iterator[str]:
        if self.start_optimizer and self.start_from is None:
            yield "start_optimizer needs start_from: the model whose optimizer is meant"
        if (number := self.checkpoint.average_last) and len(self.checkpoint.averaged_steps(self.steps)) < number:
            every = self.checkpoint.every_steps
            yield (
                f"checkpoint.average_last = {number} needs more than {number - 1} x every_steps = {(number - 1) * (every or 1)}"
                f" steps; this run has {self.steps}"
            )
        if self.start_optimizer and self.optimizer.name == "muon":
            yield "start_optimizer takes Adam's moments, which optimizer.name = 'muon' does not have for matrices"


class HardwareConfig(Settings):
    """How a run is distributed over devices. Not part of its identity: a resumed run may have other values."""

    # auto: a TPU if the machine has one; any: whatever JAX finds; a named platform must be found, or the run stops
    platform: Literal["auto", "any", "cpu", "gpu", "tpu"] = "auto"
    data: Positive | Literal["auto"] = "auto"  # devices along the mesh axis that shards the batch
    fsdp: Positive = 1  # devices along the mesh axis that shards the batch and the parameters
    tensor: Positive = 1  # tensor parallelism: devices along the mesh axis that shards heads, feed-forward and vocabulary
    microbatch_size: BatchSize | None = None  # rows that a device computes at once, accumulating gradients; None: all its rows
    # what a layer saves for its backward pass: everything (none), matrix products (dots) or its input (full); the rest is
    # rematerialized.
    remat: Literal["auto", "none", "dots", "full"] = "auto"  # auto: dots on a TPU, else none; on a GPU, less if it does not fit
    # true: unrolled layers, which run faster; false: a loop over them (scan), which compiles several times as fast.
    unroll: bool | Literal["auto"] = "auto"  # auto: true on a CPU, and on a TPU from 50,000 steps on
    flash_attention: bool = True  # use our own attention kernels: for rows of 512 and more on TPUs from v4 on, of 128 on GPUs


class TrackConfig(Settings):
    """Trackers that metrics are also sent to. Keys come from the environment (WANDB_API_KEY, MLFLOW_TRACKING_URI, …)."""

    to: tuple[Literal["trackio", "wandb", "mlflow"], ...] = ()  # TensorBoard files are always written, to W/tensorboard
    project: Annotated[str, Field(min_length=1)] = "tpulm"  # the tracker's project or experiment


class PhaseConfig(Settings):
    """Consecutive steps with settings of their own. Weights and optimizer state carry over; each phase has its own rows."""

    removed: ClassVar = {"max_predictions": RemovedSetting(None, "leave it out, and set mask_fraction")}
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of train.steps; the shares of all phases add up to 1
    sequence_length: Annotated[int, Field(ge=8, le=65_536)] | None = None  # None: as in [data]
    batch_size: BatchSize | None = None  # None: as in [train]
    mask_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # None: as in [train.objective]
    # clm: an encoder learns to predict the next token, before a phase of mlm (arXiv 2507.00994). None: as in [train.objective]
    objective: Annotated[str, AfterValidator(OBJECTIVES.check), OBJECTIVES] | None = None


class RunConfig(Settings):
    """A run, as saved in W/run.json (W: the work folder)."""

    name: str = "run"
    description: str = ""
    language: str | None = None  # BCP 47 tag for the model card, such as "ko"
    recipe: str | None = None  # the recipe that the run extends; changes nothing, reports compare with it
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    hardware: HardwareConfig = HardwareConfig()
    track: TrackConfig = TrackConfig()
    phases: tuple[PhaseConfig, ...] = ()  # []: a single phase; short rows first and long rows last cost least

    def contradictions(self) -> Iterator[str]:
        total = sum(phase.share for phase in self.phases)
        if self.phases and abs(total - 1.0) > 1e-6:
            yield f"the shares of the phases add up to {total:g}; they must make 1"
        for number, phase in enumerate(self.phases, start=1):
            if (phase.sequence_length or 0) > self.model.max_positions:
                yield (
                    f"phase {number} has sequence_length {phase.sequence_length}, which exceeds model.max_positions "
                    f"{self.model.max_positions}; raise the latter"
                )
        fitting = {"decoder": ("clm",), "electra": ("rtd",)}.get(self.model.architecture, ("mlm", "clm"))
        named = {f"phase {number} has objective": phase.objective for number, phase in enumerate(self.phases, start=1)}
        for where, objective in {**named, "train.objective.name is": self.train.objective.name}.items():
            if objective in ("mlm", "rtd", "clm") and objective not in fitting:  # registered ones check this themselves
                yield (
                    f"{where} '{objective}', which cannot train model.architecture = '{self.model.architecture}'; "
                    f"use {' or '.join(fitting)}, or leave it out"
                )
        length, positions = self.data.sequence_length, self.model.max_positions
        if length > positions:
            yield f"data.sequence_length {length} exceeds model.max_positions {positions}; raise the latter"
        if self.data.rows == "segments" and self.model.token_types < 2:
            yield "rows = 'segments' need model.token_types = 2"
        if (self.data.rows == "causal") != (self.model.architecture == "decoder"):
            yield (
                f"data.rows = '{self.data.rows}' does not go with model.architecture = '{self.model.architecture}': a decoder "
                "needs rows = 'causal', which nothing else can use"
            )
        if self.data.next_sentence and not self.has_next_sentence_head:
            yield (
                "data.next_sentence trains a head that neither an ELECTRA nor an encoder that predicts the next token (clm) "
                "has: set it to false"
            )
        # Raises if the model could not be exported.
        stock_class_of({**self.model.model_dump(), "next_sentence": self.data.next_sentence})
        done = since = 0.0  # the step until which another objective than the last is learned
        for phase, objective in zip(self.phases, self.objectives, strict=False):
            done += phase.share * self.train.steps
            since = done if objective != self.objectives[-1] else since
        if since and self.train.checkpoint.average_last is not None:
            first = self.train.checkpoint.averaged_steps(self.train.steps)[0]
            if first <= since:
                yield (
                    f"train.checkpoint.average_last averages from step {first} on, and another objective is learned until "
                    f"step {since:.0f}: lower average_last or every_steps"
                )
        if since and (decay := self.train.optimizer.average_decay) is not None:
            updates = range(round(since) + 1, self.train.steps + 1)  # those of `train.step._averaged`
            if (kept := math.prod(min(decay, (1 + n) / (10 + n)) for n in updates)) > 0.01:
                yield (
                    f"train.optimizer.average_decay {decay} leaves {kept:.0%} of the average to weights from before step "
                    f"{since:.0f}, until which another objective is learned: lower it"
                )
        warmup_steps = self.train.optimizer.warmup(self.train.steps)
        if warmup_steps > self.train.steps:
            yield (
                f"train.optimizer.warmup_steps {warmup_steps} exceeds train.steps {self.train.steps}; lower it, or leave it out"
            )
        decay_steps = self.train.optimizer.decay(self.train.steps)
        if self.train.optimizer.schedule == "wsd" and warmup_steps + decay_steps > self.train.steps:
            yield (
                f"train.optimizer.decay_steps {decay_steps} and warmup_steps {warmup_steps} together exceed train.steps "
                f"{self.train.steps}; lower one of them"
            )
        # Whole-word masking and morphemes need one source of word boundaries, and no decoder.
        decoder, morphemes = self.model.architecture == "decoder", self.tokenizer.morphemes != "none"
        if self.train.objective.whole_words and decoder:
            yield "train.objective.whole_words is for masked models; a decoder predicts every token: leave it out"
        if self.data.word_boundaries != "none":
            if self.data.rows == "causal":
                yield "data.word_boundaries are for masking whole words, which causal rows do not; leave it out"
            if not self.train.objective.whole_words:
                yield (
                    f"data.word_boundaries = '{self.data.word_boundaries}' is read only where whole words are masked: set "
                    "train.objective.whole_words = true, or leave it out"
                )
            if morphemes:
                yield "with tokenizer.morphemes the tokenizer's words are morphemes already; leave data.word_boundaries out"
        if morphemes and decoder:
            yield "tokenizer.morphemes is for encoders: a decoder would write a space between morphemes"

    @property
    def has_next_sentence_head(self) -> bool:
        """Whether all that the run trains can have one: ELECTRAs and next-token prediction have none."""
        return self.model.architecture != "electra" and "clm" not in self.objectives

    @property
    def objectives(self) -> tuple[str, ...]:
        """Of each phase, also where it is the default."""
        default = self.train.objective.name or DEFAULT_OBJECTIVES[self.model.architecture]
        return tuple(phase.objective or default for phase in self.phases or (PhaseConfig(),))


class Phase(NamedTuple):
    """Steps `first_step` + 1 to `last_step`; `config` is the run's, with the phase's own data, batch and objective.

    `config.train.steps` stays the whole run's, since learning-rate schedules span all phases. `folder` is its dataset's, under
    the work folder; phases with the same data settings share a dataset, and each continues where the last one ended.
    """

    number: int  # from 1
    first_step: int
    last_step: int
    config: RunConfig
    folder: str
    first_cursor: int  # rows of other datasets visited before; the rest of the cursor counts this one's rows


def phases_of(config: RunConfig) -> tuple[Phase, ...]:
    """The phases with at least one step, in order; a run that sets none has one."""
    steps = config.train.steps
    phases: list[Phase] = []
    rows: dict[str, int] = {}  # rows visited, by dataset
    reached, every = 0, config.phases or (PhaseConfig(share=1.0),)
    ends = [min(steps, round(share * steps)) for share in accumulate(settings.share for settings in every)]
    ends[-1] = steps  # the shares may add up to a little less than 1
    for settings, end in zip(every, ends, strict=True):
        begins, reached = reached, end
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
    """The phase that continues after `step` steps, or the last one if all are done."""
    return next((phase for phase in phases if step < phase.last_step), phases[-1])


def _with(config: RunConfig, settings: PhaseConfig) -> RunConfig:
    data, train = config.data, config.train
    if settings.sequence_length is not None:
        data = data.model_copy(update={"sequence_length": settings.sequence_length})
    if settings.batch_size is not None:
        train = train.model_copy(update={"batch_size": settings.batch_size})
    objective = {"mask_fraction": settings.mask_fraction, "name": settings.objective}
    if changed := {name: value for name, value in objective.items() if value is not None}:
        train = train.model_copy(update={"objective": train.objective.model_copy(update=changed)})
    return config.model_copy(update={"data": data, "train": train, "phases": ()})
