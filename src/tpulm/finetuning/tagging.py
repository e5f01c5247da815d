"""Tagging: the entities in a text, as spans of characters with a type."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from tpulm.corpus.documents import Fault
from tpulm.corpus.readers.lines import suffixes
from tpulm.errors import DataError, suggest
from tpulm.finetuning.tasks import Mistake, Task, ordered_mistakes
from tpulm.labelled import Columns, Examples, LabelSet, example_fault
from tpulm.labelled.entities import (
    NO_CLASS,
    OUTSIDE,
    Span,
    TagScheme,
    as_span,
    bare_span,
    character_scores,
    entity_counts,
    entity_scores,
    joined,
    read_columns,
    span_fault,
    words_fault,
)
from tpulm.labelled.labels import labels_of
from tpulm.labelled.rows import Rows, encode_rows
from tpulm.objectives.classification import TokenClassification
from tpulm.predict.classify import log_probabilities
from tpulm.tokenization import Tokenization
from tpulm.train.finetuning_program import Labelled

_NAMES = (("tokens", "words"), ("ner_tags", "tags", "labels"), ("labels", "entities", "spans"))  # of words, tags, spans
_RECORDS = (".jsonl", ".ndjson", ".json", ".parquet")  # other files have columns


class EntityTagging(Task):
    """Labels are [[begin, end, type], …], in characters; so are predictions."""

    kind = "A tagger"
    objective = TokenClassification
    head = "tokens"
    pipeline = "token-classification"

    def read(self, path: str | PurePath, columns: Columns, **reading: Any) -> Examples:
        form = reading.get("format", "auto")
        if form in ("jsonl", "parquet") or (form == "auto" and suffixes(os.fspath(path))[0] in _RECORDS):
            return joined(super().read(path, columns, **reading))
        return read_columns(path, columns, **{name: value for name, value in reading.items() if name != "format"})

    def take(self, data: Any) -> Examples:
        return joined(super().take(data))

    def adapt(self, values: dict[str, Any]) -> dict[str, Any]:
        """The columns "text" and "label", from the Hub's words and their tags, and from doccano's and spaCy's spans."""
        words, tags, spans = (next((values[one] for one in names if one in values), None) for names in _NAMES)
        both = words is not None and tags is not None
        columns = {"text": words, "label": tags if both else spans}
        columns = {name: value for name, value in columns.items() if value is not None}
        return {**columns, **values, **(columns if both and "label" not in values else {})}

    def fault(self, values: Mapping[str, Any]) -> Fault:
        if "label" in values and isinstance(values["text"], list | tuple):
            return words_fault(values["text"], values["label"])
        return example_fault(values, lambda label: span_fault(label, values["text"]))

    def learn(self, examples: Examples) -> LabelSet:
        types = {span.type for spans in _spans(examples) for span in spans}
        if not types:
            raise DataError(
                f"none of the {len(examples):,} examples has an entity; to learn any takes some", location=examples.places[0]
            )
        return LabelSet.from_names(TagScheme.of(types).names)

    def classes_of(self, examples: Examples) -> Iterable[Iterable[str]]:
        return ([span.type for span in spans] for spans in _spans(examples))

    def rows(self, tokenization: Tokenization, examples: Examples, *, max_length: int) -> Rows:
        return encode_rows(tokenization, examples.texts, None, max_length=max_length, offsets=True)

    def encode(
        self, examples: Examples, classes: LabelSet, tokenization: Tokenization, *, max_length: int, learn: bool
    ) -> Labelled:
        scheme, rows = TagScheme(classes.names), self.rows(tokenization, examples, max_length=max_length)
        assert rows.spans is not None
        labels = np.full((len(examples), max_length + len(scheme.names)), NO_CLASS, np.int32)
        for number, spans in enumerate(_spans(examples)):
            _check_types(spans, scheme.types, examples.places[number])
            own, labels[number, max_length:] = scheme.encode(spans, rows.spans[rows.starts[number] : rows.starts[number + 1]])
            labels[number, : len(own)] = own
        return Labelled(rows, labels, examples)

    def notes(self, data: Labelled, classes: LabelSet) -> list[str]:
        empty = np.full(self._of_tokens(data.labels, classes.names).shape, classes.names.index(OUTSIDE))
        share = entity_scores(TagScheme(classes.names), data.labels, empty).unaligned
        why = "they were cut off, or begin or end inside of a token"
        return [f"{share:.2%} of the entities have no tokens of their own ({why}), and count as missed"] if share else []

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        """F1 of whole entities, KLUE's two, and the loss in nats per token; `entity_unaligned` is the fraction out of reach."""
        labels = data.labels
        scheme, best, rows = TagScheme(names), outputs.argmax(axis=-1), data.rows
        assert rows.spans is not None
        result = entity_scores(scheme, labels, best)
        of_characters = character_scores(scheme, data.examples.texts, _spans(data.examples), best, rows.starts, rows.spans)
        of_tokens = self._of_tokens(labels, names)
        inside = of_tokens != NO_CLASS
        chosen = log_probabilities(outputs[inside])[np.arange(inside.sum()), of_tokens[inside] % len(names)]
        of_entities = {f"entity_{name}": value for name, value in result._asdict().items()}
        return {**of_entities, **of_characters._asdict(), "loss": float(-chosen.mean())}

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[list[list[Any]]]:
        assert rows.spans is not None
        scheme, best = TagScheme(classes.names), outputs.argmax(axis=-1)
        places = zip(best, rows.starts[:-1], rows.starts[1:], strict=True)
        return [scheme.decode(row[: end - begin], rows.spans[begin:end]) for row, begin, end in places]

    def by_class(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, list[int]]:
        """Counts by type of entity."""
        scheme = TagScheme(names)
        counts, _ = entity_counts(scheme, data.labels, outputs.argmax(axis=-1))
        return dict(zip(scheme.types, counts.tolist(), strict=True))

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        """Texts with anything missed or wrong; the confidence is the mean probability of the tokens' classes."""
        true = [[list(span) for span in spans] for spans in _spans(examples)]
        predicted = self.predictions(outputs, data.rows, examples, LabelSet.from_names(names))
        chosen, inside = log_probabilities(outputs).max(axis=-1), self._of_tokens(data.labels, names) != NO_CLASS
        confidence = (np.exp(chosen) * inside).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
        wrong = np.array([number for number in range(len(true)) if true[number] != predicted[number]], np.int64)
        return ordered_mistakes(examples, wrong, true, predicted, confidence)

    @staticmethod
    def _of_tokens(labels: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
        return labels[:, : -len(names)]

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        predicted = outputs.argmax(axis=-1)[self._of_tokens(data.labels, names) != NO_CLASS]
        return [] if np.any(predicted != names.index(OUTSIDE)) else ["it finds no entity on dev"]


def _spans(examples: Examples) -> list[list[Span]]:
    """The spans of each example, each once, in text order and without blanks at their ends."""
    both = zip(examples.texts, labels_of(examples), strict=True)
    return [sorted({bare_span(as_span(one), text) for one in spans}) for text, spans in both]


def _check_types(spans: list[Span], types: Sequence[str], place: str) -> None:
    unknown = next((span.type for span in spans if span.type not in types), None)
    if unknown is not None:
        known = ", ".join(types)
        raise DataError(f"its type '{unknown}' is none of those learnt: {known}.{suggest(unknown, types)}", location=place)
