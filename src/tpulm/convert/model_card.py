"""The README.md of an exported model, with the front matter that the Hugging Face hub reads.

Every figure comes from `CardFacts`; the text is templates/model_card.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

from huggingface_hub import ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from tpulm import storage
from tpulm.config import ModelConfig, RunConfig, TokenizerConfig, flatten
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.markdown import code, quote, table
from tpulm.models.bert import padded_vocab_size
from tpulm.models.electra import generator_config
from tpulm.nn.params import named_leaves
from tpulm.readable import duration, percent
from tpulm.tokenization import UNKNOWN_WARNING

CARD = "README.md"
CURVE_ROWS = 12  # of the table of losses
_LANGUAGES = 5  # named on the card
_TEMPLATES = 20  # of those that were taken out of sentences
Row = tuple[str, str]
_Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # the head, the rows

# What a card states. None or empty means not measured or not known; the card then leaves it out.


@dataclass(frozen=True)
class CorpusFacts:
    """Counts of documents as they were read; characters are those of the documents kept, after cleaning."""

    documents: int  # read
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason: documents
    duplicates: int | None = None
    training_documents: int | None = None
    holdout_documents: int | None = None
    characters: int | None = None
    languages: Mapping[str, int] = field(default_factory=dict)  # language: documents, including those left out
    removed_templates: Mapping[str, int] = field(default_factory=dict)  # missing from sentences of wikis


@dataclass(frozen=True)
class ImportFacts:
    """A dataset made from existing TFRecords instead of text."""

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
    tokens_per_row: float | None = None
    character_quantiles: tuple[tuple[float, int], ...] = ()  # (fraction of the documents, their maximum length)
    token_quantiles: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True)
class Scores:
    """Scores on held-out text, as `train.evaluate` defines them; loss in nats."""

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
    """A text with a mask token, and the model's answers: tokens with probabilities, best first."""

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
    training_curve: Sequence[tuple[int, float]] = ()  # step, and the loss of its batch or the mean since the previous point
    holdout_curve: Sequence[tuple[int, float]] = ()
    scores: Scores | None = None
    examples: tuple[Example, ...] = ()
    hardware: str | None = None  # such as "8 TPU v3 cores" or "CPU, 2 cores"
    tokens_per_second: float | None = None
    training_seconds: float | None = None
    version: str | None = None  # of tpulm
    half: Literal["generator", "discriminator"] | None = None  # of ELECTRA

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


class CardTexts(NamedTuple):
    pipeline: str  # transformers' name of the task
    tags: tuple[str, ...]
    task: str  # the training task
    usage: str  # Python; {name} and {text} are filled in, quoted
    text: str  # the example, with {mask}, if the facts have none
    classes: str
    bits: str  # what bits per character mean
    use: str


_MASKED = CardTexts(
    pipeline="fill-mask",
    tags=("masked-language-model",),
    task="masked-language modelling",
    usage="""from transformers import pipeline

fill = pipeline("fill-mask", model={name})  # the name or path of the folder that holds this file
for answer in fill({text}):
    print(f"{{answer['score']:.3f}}  {{answer['sequence']}}")""",
    text="… {mask} …",
    classes="`AutoModelForMaskedLM` and `AutoModel` load the weights, `AutoTokenizer` the tokenizer.",
    bits="masked-token loss / ln 2 × tokens / characters: comparable between vocabularies at one mask fraction",
    use="It fills gaps and represents text. For a task such as classification it must be fine-tuned; none has been evaluated.",
)
_CAUSAL = CardTexts(
    pipeline="text-generation",
    tags=("causal-language-model",),
    task="causal language modelling",
    usage="""from transformers import pipeline

write = pipeline("text-generation", model={name})  # the name or path of the folder that holds this file
print(write({text}, max_new_tokens=50)[0]["generated_text"])""",
    text="…",
    classes="`AutoModelForCausalLM` loads the weights, `AutoTokenizer` the tokenizer.",
    bits="loss / ln 2 × tokens / characters, ends of texts included: the length of the text in the model's code",
    use="It continues text, and invents what it says. It follows no instructions and has not been tuned on any task.",
)
_DETECTION = CardTexts(
    pipeline="feature-extraction",
    tags=("replaced-token-detection",),
    task="replaced-token detection",
    usage="""from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSequenceClassification

encoder = AutoModel.from_pretrained({name})  # hidden states; the name or path of the folder that holds this file
judge = AutoModelForPreTraining.from_pretrained({name})  # a logit for each token: above 0, it looks replaced
classifier = AutoModelForSequenceClassification.from_pretrained({name}, num_labels=2)  # to be fine-tuned""",
    text="…",
    classes="`AutoTokenizer` loads the tokenizer.",
    bits=_MASKED.bits,
    use="It tells replaced tokens and represents text. For a task such as classification it must be fine-tuned; none has been "
    "evaluated.",
)
_BY_HEAD: dict[Head, CardTexts] = {
    "masked": _MASKED,
    "next_sentence": _MASKED._replace(task="masked-language modelling and next-sentence prediction"),
    "detection": _DETECTION,
    "causal": _CAUSAL,
}


def write_card(folder: str | PurePath, facts: CardFacts) -> None:
    """Write README.md into a model's folder."""
    storage.write_atomic(storage.as_path(folder) / CARD, render(facts))


def render(facts: CardFacts) -> str:
    """The text of README.md."""
    words = _BY_HEAD[facts.head]
    text = facts.examples[0].text if facts.examples else words.text.format(mask=facts.mask_token)
    environment = Environment(
        loader=PackageLoader("tpulm"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": code, "plural": _plural, "percent": _percent, "number": "{:,}".format}
    environment.globals["table"] = table
    return environment.get_template("model_card.md").render(
        facts=facts,
        metadata=_metadata(facts, words),
        words=words,
        architecture=_architecture(facts),
        parameters=_millions(num_parameters(facts.model, facts.head, facts.vocab_size)),
        origin=_origin(facts),
        usage=words.usage.format(name=quote(facts.name), text=quote(text)),
        examples=_examples(facts.examples),
        data=data_rows(facts),
        training=_training_rows(facts),
        losses=_losses(facts),
        scores=score_rows(facts),
        unknown=(facts.dataset and facts.dataset.unknown_fraction) or 0.0,
        unknown_warning=UNKNOWN_WARNING,
    )


def _metadata(facts: CardFacts, words: CardTexts) -> str:
    """The front matter, in YAML."""
    begun = "pretrained-from-scratch" if facts.config.train.start_from is None else "continued-pretraining"
    return ModelCardData(
        language=facts.language,
        license=facts.license,
        mask_token=facts.mask_token if words.pipeline == "fill-mask" else None,
        library_name="transformers",
        pipeline_tag=words.pipeline,
        tags=[facts.model.architecture, *words.tags, begun, "tpulm"],
        widget=[{"text": example.text} for example in facts.examples] or None,
    ).to_yaml()


def num_parameters(config: ModelConfig, head: Head, vocab_size: int) -> int:
    """How many parameters are exported: those of the spec less the rows that pad its vocabulary."""
    padding = padded_vocab_size(vocab_size) - vocab_size
    leaves = named_leaves(spec_of(config, head, vocab_size=vocab_size)).values()
    per_token = sum(math.prod(leaf.shape[1:]) for leaf in leaves if leaf.axes[0] == "vocab")
    return sum(math.prod(leaf.shape) for leaf in leaves) - padding * per_token


def _origin(facts: CardFacts) -> str:
    """Where the weights started from, and the task they were trained on."""
    task, start = _BY_HEAD[facts.head].task, facts.config.train.start_from
    if facts.config.train.objective.whole_words and facts.head != "causal":
        task += ", with whole words masked,"
    if start is None:
        return f"was pretrained from scratch by {task}"
    names = [name for name in PurePath(start).parts if name not in ("export", "/")]
    return f"was trained further, from the weights of {code(names[-1] if names else start)}, by {task}"


def _architecture(facts: CardFacts) -> str:
    """The kind of model, and its class in transformers."""
    model = facts.model
    if model.architecture == "decoder":
        return "A causal Transformer (Hugging Face's " + ("GPT-2)" if model.positions == "learned" else "Llama)")
    if model.architecture == "electra":
        what = "discriminator of an ELECTRA, the half to fine-tune," if facts.half == "discriminator" else ""
        return "The " + (what or "generator of an ELECTRA, the small half that fills masks,")
    if model.positions == "rotary":
        return "A pre-norm BERT with rotary positions (Hugging Face's EuroBERT)"
    return "A BERT" if model.norm_position == "post" else "A pre-norm BERT (Hugging Face's Megatron-BERT)"


def _examples(examples: Sequence[Example]) -> _Table | None:
    if not examples:
        return None
    width = max(len(example.answers) for example in examples)
    rows = [
        (
            code(example.text),
            *(f"{code(token)} {score:.3f}" for token, score in example.answers),
            *[""] * (width - len(example.answers)),
        )
        for example in examples
    ]
    return ("Text", *(f"{_ordinal(i)} answer" for i in range(1, width + 1))), rows


def _row(name: str, value: Any, written: Callable[[Any], str] = "{:,}".format) -> list[Row]:
    """One row, or none if the value is unknown."""
    return [] if value is None else [(name, written(value))]


def data_rows(facts: CardFacts) -> list[Row]:
    """Counts of what was read and what was trained on."""
    return [*_corpus_rows(facts.corpus), *_import_rows(facts.imported), *_dataset_rows(facts.dataset, facts)]


def _corpus_rows(corpus: CorpusFacts | None) -> list[Row]:
    if corpus is None:
        return []
    return [
        ("documents read", f"{corpus.documents:,}"),
        *((f"left out: {reason.replace('_', ' ')}", f"{count:,}") for reason, count in sorted(corpus.skipped.items()) if count),
        *_row("exact duplicates left out", corpus.duplicates),
        *_row("documents trained on", corpus.training_documents),
        *_row("documents held out", corpus.holdout_documents),
        *_row("characters", corpus.characters),
        *_row("languages recognized", corpus.languages or None, _languages),
        *_row("taken out of sentences", corpus.removed_templates or None, _templates),
    ]


def _import_rows(imported: ImportFacts | None) -> list[Row]:
    if imported is None:
        return []
    script = {"bert": "BERT's create_pretraining_data.py", "electra": "ELECTRA's build_pretraining_dataset.py"}[imported.origin]
    return [
        (f"records of {script} read", f"{imported.records:,}"),
        ("exact duplicate rows left out", f"{imported.duplicates:,}"),
    ]


def _dataset_rows(dataset: DatasetFacts | None, facts: CardFacts) -> list[Row]:
    if dataset is None:
        return []
    length = facts.config.data.sequence_length
    passes = facts.steps * facts.config.train.batch_size / dataset.rows if dataset.rows else None
    return [
        ("tokens", f"{dataset.tokens:,}"),
        (f"training rows of {length:,} tokens", f"{dataset.rows:,}"),
        *_row("held-out rows", dataset.holdout_rows),
        *_row("characters of a document", dataset.character_quantiles or None, _quantiles),
        *_row("tokens of a document", dataset.token_quantiles or None, _quantiles),
        *_row("tokens of text in a row", dataset.tokens_per_row, "{:,.1f}".format),
        *_row("padding", dataset.padding_fraction, _percent),
        *_row("unknown characters", dataset.unknown_fraction, _percent),
        *_row("tokens per character", dataset.tokens_per_character, "{:.3f}".format),
        *_row("passes over the rows", passes, "{:.2f}".format),
    ]


def _languages(documents: Mapping[str, int]) -> str:
    """The most common languages with their shares: "ko 98.2%, uncertain 1.5%, others 0.3%"."""
    whole, ordered = sum(documents.values()), sorted(documents.items(), key=lambda one: -one[1])
    shown, rest = ordered[:_LANGUAGES], sum(count for _, count in ordered[_LANGUAGES:])
    named = [*shown, ("others", rest)] if rest else shown
    return ", ".join(f"{name} {percent(count / whole, 1)}" for name, count in named)


def _templates(counts: Mapping[str, int]) -> str:
    """The commonest templates: "{{rp}} 101, {{sfn}} 96, others 230"."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    rest = sum(count for _, count in ordered[_TEMPLATES:])
    return ", ".join(f"{code(name)} {count:,}" for name, count in ordered[:_TEMPLATES]) + (f", others {rest:,}" if rest else "")


def _quantiles(found: Sequence[tuple[float, int]]) -> str:
    """ "10% ≤ 12, 50% ≤ 36, 100% ≤ 160"."""
    return ", ".join(f"{share:.0%} ≤ {length:,}" for share, length in found)


def _training_rows(facts: CardFacts) -> list[Row]:
    return [
        ("steps done", f"{facts.steps:,}"),
        *_row("hardware", facts.hardware or None, str),
        *_row("time", facts.training_seconds, duration),
        *_row("tokens of text per second", facts.tokens_per_second, "{:,.0f}".format),
        *((code(name), code(value)) for name, value in settings(facts.config, imported=facts.imported is not None)),
    ]


def settings(config: RunConfig, *, imported: bool = False) -> list[Row]:
    """The settings that determine a model, as dotted names and values of a run file, without the paths of texts.

    Settings for making rows are left out if the rows were `imported`.
    """
    groups = {
        "corpus": config.corpus.model_dump(mode="json", exclude={"sources"}),
        "tokenizer": _tokenizer_settings(config.tokenizer),
        "data": config.data.model_dump(mode="json", exclude={"part_bytes", "block_rows"}),
        "model": config.model.model_dump(mode="json"),
        "train": config.train.model_dump(mode="json", include={"steps", "batch_size", "seed", "optimizer", "objective"}),
    }
    if imported:
        made = {"sequence_length", "rows", "next_sentence"}
        groups = {"data": config.data.model_dump(mode="json", include=made), "model": groups["model"], "train": groups["train"]}
    groups["phases"] = {
        str(number): phase.model_dump(mode="json", exclude_none=True) for number, phase in enumerate(config.phases, start=1)
    }
    return [(name, json.dumps(value, ensure_ascii=False)) for name, value in flatten(groups) if value is not None]


def _tokenizer_settings(config: TokenizerConfig) -> dict[str, Any]:
    if config.path is not None:
        return {"path": Path(config.path).name}
    return config.model_dump(mode="json", exclude={"path", "allow_unknown"})


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
    scores = facts.scores
    if scores is None:
        return []
    loss_is = "mean cross-entropy of the predicted tokens, in nats"
    electra = facts.config.model.architecture == "electra"
    if electra:
        objective = facts.config.train.objective
        loss_is = f"{objective.generator_weight:g} × the generator's + {objective.discriminator_weight:g} × the discriminator's"
    elif facts.head == "next_sentence":
        loss_is += ", plus that of the next-sentence head"
    whose = "the generator's " if electra else ""
    rows = [
        ("loss", f"{scores.loss:.4f}", loss_is),
        ("accuracy", _percent(scores.accuracy), f"{whose}share of the predicted tokens whose likeliest answer is right"),
        (
            "baseline accuracy",
            _percent(scores.baseline_accuracy),
            "the share that always answering the commonest token of the training text would get right",
        ),
    ]
    if scores.detection_accuracy is not None and scores.detection_auc is not None:
        rows.append(("detection accuracy", _percent(scores.detection_accuracy), "share of all tokens judged rightly"))
        meaning = "chance that a replaced token is rated above an original one"
        rows.append(("detection AUC", f"{scores.detection_auc:.4f}", f"{meaning}; 0.5 is chance"))
    if scores.detection_recall is not None and scores.replaced_fraction is not None:
        meaning = f"share of the replaced tokens that were found; {_percent(scores.replaced_fraction)} of all were replaced"
        rows.append(("detection recall", _percent(scores.detection_recall), meaning))
    if scores.unigram_entropy is not None:
        meaning = "the loss, in nats, of knowing how frequent each token is in the training text (add-one smoothed)"
        rows.append(("unigram cross-entropy", f"{scores.unigram_entropy:.4f}", meaning))
    if scores.perplexity is not None:
        rows.append(("perplexity", f"{scores.perplexity:.2f}", "e to the loss: for each token of this vocabulary"))
    if scores.bits_per_character is not None:
        rows.append(("bits per character", f"{scores.bits_per_character:.4f}", _BY_HEAD[facts.head].bits))
    if scores.next_sentence_accuracy is not None:
        rows.append(("next-sentence accuracy", _percent(scores.next_sentence_accuracy), "share of the rows judged rightly"))
    return rows


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _ordinal(number: int) -> str:
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number, "th")


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} million" if count >= 1_000_000 else f"{count:,}"


def _percent(fraction: float) -> str:
    return percent(fraction, 2)
