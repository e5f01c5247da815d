"""The README.md of an exported model, with the front matter that the Hugging Face hub reads, and the picture of its loss.

Every figure comes from `CardFacts`; a section whose facts are absent is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

from tpulm import storage
from tpulm.config import ModelConfig, RunConfig, TokenizerConfig
from tpulm.convert.card_facts import CardFacts, CorpusFacts, DatasetFacts, Example, ImportFacts
from tpulm.convert.card_words import architecture, morphemes, origin, words_of
from tpulm.convert.curve import Line, Point, draw
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.markdown import code, quote, table
from tpulm.models.bert import padded_vocab_size
from tpulm.nn.params import named_leaves
from tpulm.readable import duration
from tpulm.tokenization import UNKNOWN_WARNING

CARD = "README.md"
CURVE = "curve.svg"
CURVE_ROWS = 12  # of the table
LONGEST_TITLE = 36  # letters of a name that fit above the picture, beside its legend
Row = tuple[str, str]


def write_card(folder: str | PurePath, facts: CardFacts) -> None:
    """Write README.md and, where a curve is known, curve.svg into the folder of a model."""
    target = storage.as_path(folder)
    lines = _lines(facts)
    if lines:
        name = facts.name if len(facts.name) <= LONGEST_TITLE else facts.name[: LONGEST_TITLE - 1] + "…"
        picture = draw(lines, title=f"Loss of {name}", x_label="step", y_label="loss (nats)")
        storage.write_atomic(target / CURVE, picture)
    storage.write_atomic(target / CARD, render(facts))


def render(facts: CardFacts) -> str:
    """The text of README.md."""
    sections = [
        _front_matter(facts),
        f"# {facts.name}",
        facts.description,
        _introduction(facts),
        _usage(facts),
        _examples(facts.examples, facts.mask_token),
        _training_data(facts),
        _training(facts),
        _curve(facts),
        _scores(facts),
        _limitations(facts),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(facts: CardFacts) -> str:
    """YAML; quoted strings are written as JSON, which YAML contains."""
    words = words_of(facts.head)
    mask_token = facts.mask_token if words.pipeline == "fill-mask" else None
    quoted = [("language", facts.language), ("license", facts.license), ("mask_token", mask_token)]
    lines = ["---", *(f"{key}: {quote(value)}" for key, value in quoted if value)]
    begun = "pretrained-from-scratch" if facts.config.train.start_from is None else "continued-pretraining"
    lines += ["library_name: transformers", f"pipeline_tag: {words.pipeline}"]
    lines += ["tags:", *(f"- {tag}" for tag in (facts.model.architecture, *words.tags, begun, "tpulm"))]
    if facts.examples:
        lines += ["widget:", *(f"- text: {quote(example.text)}" for example in facts.examples)]
    return "\n".join([*lines, "---"])


def _introduction(facts: CardFacts) -> str:
    model = facts.model
    size = num_parameters(model, facts.head, facts.vocab_size)
    made_with = "tpulm" + (f" {facts.version}" if facts.version else "")
    return (
        f"{architecture(facts)} with {_millions(size)} parameters: {_plural(model.num_layers, 'layer')}, "
        f"hidden size {model.hidden_size:,}, {_plural(model.num_heads, 'attention head')}, and a vocabulary of "
        f"{facts.vocab_size:,} tokens. It {origin(facts)} for "
        f"{_plural(facts.steps, 'step')} with {made_with}."
    )


def num_parameters(config: ModelConfig, head: Head, vocab_size: int) -> int:
    """How many numbers the exported tensors hold: those of the spec less the rows that pad its vocabulary."""
    padding = padded_vocab_size(vocab_size) - vocab_size
    leaves = named_leaves(spec_of(config, head, vocab_size=vocab_size)).values()
    per_token = sum(math.prod(leaf.shape[1:]) for leaf in leaves if leaf.axes[0] == "vocab")
    return sum(math.prod(leaf.shape) for leaf in leaves) - padding * per_token


def _usage(facts: CardFacts) -> str:
    words = words_of(facts.head)
    text = facts.examples[0].text if facts.examples else words.text.format(mask=facts.mask_token)
    usage = words.usage.format(name=quote(facts.name), text=quote(text))
    return f"## How to use\n\n```python\n{usage}\n```\n\n{words.classes}{morphemes(facts)}"


def _examples(examples: Sequence[Example], mask_token: str) -> str:
    if not examples:
        return ""
    width = max(len(example.answers) for example in examples)
    rows = [
        (
            code(example.text),
            *(f"{code(token)} {score:.3f}" for token, score in example.answers),
            *[""] * (width - len(example.answers)),
        )
        for example in examples
    ]
    head = ("Text", *(f"{_ordinal(i)} answer" for i in range(1, width + 1)))
    return f"What this model answers for {code(mask_token)}, with its probability:\n\n{table(head, rows)}"


def _training_data(facts: CardFacts) -> str:
    rows = [*_corpus_rows(facts.corpus), *_import_rows(facts.imported), *_dataset_rows(facts.dataset, facts)]
    return f"## Training data\n\n{table(('Count', 'Value'), rows, right=(1,))}" if rows else ""


def _corpus_rows(corpus: CorpusFacts | None) -> list[Row]:
    if corpus is None:
        return []
    rows = [("documents read", f"{corpus.documents:,}")]
    rows += [(f"left out: {reason}", f"{count:,}") for reason, count in sorted(corpus.skipped.items()) if count]
    counts = [
        ("exact duplicates left out", corpus.duplicates),
        ("documents trained on", corpus.training_documents),
        ("documents held out", corpus.holdout_documents),
        ("characters", corpus.characters),
    ]
    return rows + [(name, f"{count:,}") for name, count in counts if count is not None]


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
    rows = [("tokens", f"{dataset.tokens:,}"), (f"training rows of {length:,} tokens", f"{dataset.rows:,}")]
    if dataset.holdout_rows is not None:
        rows.append(("held-out rows", f"{dataset.holdout_rows:,}"))
    if dataset.padding_fraction is not None:
        rows.append(("padding", _percent(dataset.padding_fraction)))
    if dataset.unknown_fraction is not None:
        rows.append(("unknown tokens", _percent(dataset.unknown_fraction)))
    if dataset.tokens_per_character is not None:
        rows.append(("tokens per character", f"{dataset.tokens_per_character:.3f}"))
    if dataset.rows:
        rows.append(("passes over the rows", f"{facts.steps * facts.config.train.batch_size / dataset.rows:.2f}"))
    return rows


def _training(facts: CardFacts) -> str:
    done = [("steps done", f"{facts.steps:,}")]
    if facts.hardware:
        done.append(("hardware", facts.hardware))
    if facts.training_seconds is not None:
        done.append(("time", duration(facts.training_seconds)))
    if facts.tokens_per_second is not None:
        done.append(("tokens of text per second", f"{facts.tokens_per_second:,.0f}"))
    rows = [*done, *((code(name), code(value)) for name, value in settings(facts.config, imported=facts.imported is not None))]
    return f"## Training\n\n{table(('Setting', 'Value'), rows)}"


def settings(config: RunConfig, *, imported: bool = False) -> list[Row]:
    """What decides a model, as dotted names and values of a run file; where texts lie is nobody's business.

    What would have made the rows is left out if they were `imported`.
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
    return [(name, json.dumps(value, ensure_ascii=False)) for name, value in _flatten(groups) if value is not None]


def _tokenizer_settings(config: TokenizerConfig) -> dict[str, Any]:
    if config.path is not None:
        return {"path": Path(config.path).name}
    return config.model_dump(mode="json", exclude={"path", "allow_unknown"})


def _flatten(values: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            yield from _flatten(value, name)
        else:
            yield name, value


def _lines(facts: CardFacts) -> list[Line]:
    lines = [Line("training", facts.training_curve), Line("held-out", facts.holdout_curve, dots=len(facts.holdout_curve) <= 30)]
    finite = [line._replace(points=tuple(p for p in line.points if math.isfinite(p.value))) for line in lines]
    return [line for line in finite if line.points]


def _curve(facts: CardFacts) -> str:
    lines = _lines(facts)
    if not lines:
        return ""
    rows = [(f"{step:,}", *(_value_at(line.points, step) for line in lines)) for step in _steps_shown(lines)]
    head = ("Step", *(f"{line.label} loss".capitalize() for line in lines))
    losses = table(head, rows, right=range(len(head)))
    return f"## Loss\n\n![Loss over the steps of training]({CURVE})\n\n{losses}"


def _steps_shown(lines: Sequence[Line]) -> list[int]:
    """About `CURVE_ROWS` steps, the first and the last among them, and where possible those that every line has."""
    steps = [{point.step for point in line.points} for line in lines]
    every, shared = sorted(set.union(*steps)), sorted(set.intersection(*steps))
    chosen = shared if len(shared) > 1 else every
    if len(chosen) > CURVE_ROWS:
        chosen = [chosen[round(i * (len(chosen) - 1) / (CURVE_ROWS - 1))] for i in range(CURVE_ROWS)]
    return sorted({every[0], *chosen, every[-1]})


def _value_at(points: Sequence[Point], step: int) -> str:
    return next((f"{point.value:.3f}" for point in points if point.step == step), "")


def _scores(facts: CardFacts) -> str:
    scores = facts.scores
    if scores is None:
        return ""
    loss_is = "mean cross-entropy of the predicted tokens, in nats"
    if facts.half is not None:
        objective = facts.config.train.objective
        loss_is = f"{objective.generator_weight:g} × the generator's + {objective.discriminator_weight:g} × the discriminator's"
    elif facts.head == "next_sentence":
        loss_is += ", plus that of the next-sentence head"
    whose = "the generator's " if facts.half else ""
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
        rows.append(("bits per character", f"{scores.bits_per_character:.4f}", words_of(facts.head).bits))
    if scores.next_sentence_accuracy is not None:
        rows.append(("next-sentence accuracy", _percent(scores.next_sentence_accuracy), "share of the rows judged rightly"))
    held_out = f"{scores.rows:,} rows of held-out text" if scores.rows is not None else "held-out text"
    scored = table(("Score", "Value", "Meaning"), rows, right=(1,))
    return f"## Held-out scores\n\nOn {held_out}, after step {scores.step:,}:\n\n{scored}"


def _limitations(facts: CardFacts) -> str:
    config = facts.config
    points = [
        f"It reads at most {config.model.max_positions:,} tokens at once and was trained on rows of "
        f"{config.data.sequence_length:,}.",
        "It has learned from its training texts and repeats their errors, opinions and gaps; these have not been measured.",
        words_of(facts.head).use,
    ]
    if facts.scores is not None:
        points.append(
            "Only exact copies of held-out rows were kept out of training: other cuts of the same text flatter the scores."
            if facts.imported
            else "Only exact copies of held-out documents were kept out of training: near copies flatter the scores."
        )
    unknown = (facts.dataset and facts.dataset.unknown_fraction) or 0.0
    if unknown >= UNKNOWN_WARNING:
        points.append(f"Its vocabulary does not fit its training text, of whose tokens {_percent(unknown)} are unknown.")
    if not facts.imported and config.tokenizer.lowercase and not config.tokenizer.path:
        points.append("Its tokenizer lower-cases: it does not tell upper case from lower.")
    if not facts.license:
        points.append("No licence is stated: it depends on the training texts, of whose licences nothing is recorded here.")
    return "## Limitations\n\n" + "\n".join(f"- {point}" for point in points)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _ordinal(number: int) -> str:
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number, "th")


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} million" if count >= 1_000_000 else f"{count:,}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
