"""Labelled examples: texts, perhaps in pairs, and what each is said to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpulm.corpus.documents import MAX_DOCUMENT_BYTES, Reason, find_fault
from tpulm.corpus.readers.jsonl import show
from tpulm.errors import DataError
from tpulm.labelled.records import OnError, new_faults


@dataclass(frozen=True)
class Examples:
    """Lists of one length. Nothing in them is missing, and no text is blank."""

    texts: list[str]
    pairs: list[str] | None  # the second text of each; None: examples are single texts
    labels: list[Any] | None  # str (without blanks around it), int, float or bool; None: read without labels
    places: list[str]  # "reviews.tsv.gz, line 7", for messages
    skipped: Counter[str] = field(default_factory=Counter)  # rows left out, by reason

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Iterable[int]) -> Examples:
        """The examples at these indices, in their order. What was skipped stays with the whole."""
        chosen = [int(index) for index in indices]
        pairs = None if self.pairs is None else [self.pairs[index] for index in chosen]
        labels = None if self.labels is None else [self.labels[index] for index in chosen]
        return Examples([self.texts[index] for index in chosen], pairs, labels, [self.places[index] for index in chosen])


class Gathering:
    """Examples in the making, one at a time."""

    def __init__(self, *, paired: bool, labelled: bool, on_error: OnError):
        self.faults = new_faults(on_error)
        self._texts: list[str] = []
        self._pairs: list[str] | None = [] if paired else None
        self._labels: list[Any] | None = [] if labelled else None
        self._places: list[str] = []

    def add(self, text: Any, pair: Any, label: Any, place: str) -> None:
        """Takes an example whose parts are all there. `pair` and `label` do not matter where none are gathered."""
        label = label.item() if isinstance(label, np.generic) else label
        fault = text_fault(text, "text")
        if fault is None and self._pairs is not None:
            fault = text_fault(pair, "second text")
        if fault is None and self._labels is not None:
            fault = _label_fault(label)
        if fault is not None:
            self.faults.add(*fault, place)
            return
        self._texts.append(text)
        self._places.append(place)
        if self._pairs is not None:
            self._pairs.append(pair)
        if self._labels is not None:
            self._labels.append(label.strip() if isinstance(label, str) else label)

    def finish(self, name: str) -> Examples:
        """The examples. Raises DataError where there are none; `name` says of what."""
        if not self._texts:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self.faults.skipped.most_common())
            message = "it has no examples: the file is empty, or a header without rows."
            if reasons:
                message = (
                    f"no example is left; left out were: {reasons}. Read it with --on-error stop "
                    '(on_error="stop" in Python) to see the first.'
                )
            raise DataError(message, location=name)
        return Examples(self._texts, self._pairs, self._labels, self._places, self.faults.skipped)


def is_missing(value: Any) -> bool:
    """None, NaN, and strings of blanks."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, float) and value != value)


def text_fault(text: Any, role: str) -> tuple[Reason, str] | None:
    if is_missing(text):
        return "empty", f"the {role} is empty."
    if not isinstance(text, str):
        return "not_text", f"the {role} is {show(text)}, not a string; correct it, or name another column."
    if len(text) * 4 > MAX_DOCUMENT_BYTES and len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        return "too_large", f"the {role} is longer than {MAX_DOCUMENT_BYTES >> 20} MiB; is the file read in the right format?"
    return find_fault(text)


def _label_fault(label: Any) -> tuple[Reason, str] | None:
    if isinstance(label, float) and label != label:
        return "no_label", "the label is NaN: missing, or not a number."
    if is_missing(label):
        return "no_label", "the label is missing."
    if not isinstance(label, (str, int, float)):
        return "no_label", f"the label is {show(label)}; an example has one label, a string or a number."
    return find_fault(label) if isinstance(label, str) else None
