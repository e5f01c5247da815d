"""Multiple choice: the best of several answers to a question."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpulm.corpus.documents import Fault
from tpulm.corpus.readers.jsonl import UnusableRecord, show
from tpulm.finetuning.tasks import NEARLY_ALL, Mistake, Task, ordered_mistakes, score_text
from tpulm.labelled import Columns, Examples, LabelSet
from tpulm.labelled.examples import text_fault
from tpulm.labelled.labels import labels_of
from tpulm.labelled.rows import Groups, Rows, encode_rows
from tpulm.objectives.classification import MultipleChoice
from tpulm.predict.classify import log_probabilities
from tpulm.tokenization import Tokenization
from tpulm.train.finetuning_program import Labelled

_NUMBERED = re.compile(r"((?:choice|ending|option)_?)(\d+)")


class ChoiceOfAnswers(Task):
    """Texts are questions, pairs their choices, lists of any length. Labels are the indices of the right ones, from 0; answers
    are {"label": …, "choice": …, "score": …, "scores": […]}.
    """

    kind = "A model that chooses one of several answers"
    has_classes = False
    cut_texts = "questions, with one of their choices,"
    columns = Columns("question", "label", "choices")
    objective = MultipleChoice
    head = "choice"
    pipeline = "multiple-choice"
    usage = ("import tpulm", "", 'tpulm.Classifier("this folder").predict([("a question", ["one answer", "another"])])')

    def adapt(self, values: dict[str, Any]) -> dict[str, Any]:
        """The columns "question" and "choices", from JCommonsenseQA's choice0, …; from SWAG's sent1, sent2 and ending0, …; and
        from HellaSwag's ctx_a, ctx_b and endings. Trailing empty columns are not choices. Raises UnusableRecord for
        numbered columns of two names, such as choice1 and ending1.
        """
        matches = [match for name in values if (match := _NUMBERED.fullmatch(name))]
        choices = values.get("choices", values.get("endings"))
        if choices is None and matches:
            if len({match[1] for match in matches}) > 1:
                names = ", ".join(match[0] for match in matches)
                raise UnusableRecord("no_field", f"which columns are the choices? {names}; rename those that are not.")
            choices = [values[match[0]] for match in sorted(matches, key=lambda match: int(match[2]))]
            while choices and choices[-1] in (None, ""):
                choices.pop()
        lead = values.get("sent2", values.get("ctx_b"))
        if lead and isinstance(choices, list):
            choices = [f"{lead} {choice}" if isinstance(choice, str) else choice for choice in choices]
        fields = {"question": values.get("sent1", values.get("ctx_a")), "choices": choices}
        return {**{name: value for name, value in fields.items() if value is not None}, **values}

    def fault(self, values: Mapping[str, Any]) -> Fault:
        if (fault := text_fault(values["text"], "question")) is not None:
            return fault
        choices = values.get("pair")
        if not isinstance(choices, list | tuple) or len(choices) < 2:
            return "no_field", f'the choices are {show(choices)}; expected are two or more, ["…", "…"].'
        for number, choice in enumerate(choices):
            if (fault := text_fault(choice, f"choice {number}")) is not None:
                return fault
        number = _number(values["label"]) if "label" in values else 0
        if number is None or not 0 <= number < len(choices):
            right = f"the number of the right choice, 0 to {len(choices) - 1}"
            return "no_label", f"the label is {show(values['label'])}; expected is {right}."
        return None

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        return np.array([_number(label) for label in labels_of(examples)], np.int32)

    def rows(self, tokenization: Tokenization, examples: Examples, *, max_length: int) -> Rows:
        """One row per choice: `[CLS] question [SEP] choice [SEP]`."""
        choices: list[Sequence[str]] = examples.pairs or []
        of = np.repeat(np.arange(len(choices)), [len(some) for some in choices])
        questions = [examples.texts[number] for number in of]
        flat = [choice for some in choices for choice in some]
        rows = encode_rows(tokenization, questions, flat, max_length=max_length)
        return Rows(rows.ids, rows.starts, rows.whole_lengths, of=of)

    def notes(self, data: Labelled, classes: LabelSet) -> list[str]:
        counts = np.unique(np.diff(Groups.from_rows(data.rows).starts), return_counts=True)
        return [f"{count:,} questions have {choices} choices" for choices, count in zip(*counts, strict=True)]

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        """The loss is in nats per question."""
        chances = _chances(outputs, data.rows)
        chosen = chances[np.arange(len(chances)), data.labels]
        return {"accuracy": float(np.mean(chances.argmax(axis=1) == data.labels)), "loss": float(-chosen.mean())}

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[dict[str, Any]]:
        result = list[dict[str, Any]]()
        for choices, row in zip(examples.pairs or [], np.exp(_chances(outputs, rows)), strict=True):
            scores, best = row[: len(choices)].tolist(), int(row.argmax())
            result.append({"label": best, "choice": choices[best], "score": scores[best], "scores": scores})
        return result

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        chances, choices = _chances(outputs, data.rows), examples.pairs or []
        predicted = chances.argmax(axis=1)
        true, wrong_ones = ([some[i] for some, i in zip(choices, places, strict=True)] for places in (data.labels, predicted))
        shown = dataclasses.replace(examples, pairs=[" / ".join(some) for some in choices])
        return ordered_mistakes(shown, np.flatnonzero(predicted != data.labels), true, wrong_ones, np.exp(chances.max(axis=1)))

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        warnings, count = list[str](), len(data.labels)
        counts = np.bincount(_chances(outputs, data.rows).argmax(axis=1))
        only, right = int(counts.argmax()), float(np.mean(data.labels == counts.argmax()))
        if counts[only] >= NEARLY_ALL * count and right < counts[only] / count:
            warnings.append(f"it takes choice {only} for {counts[only] / count:.0%} of dev, where it is right for {right:.0%}")
        accuracy = self.scores(outputs, data, names)["accuracy"]
        chance = float(np.mean(1 / np.diff(Groups.from_rows(data.rows).starts)))
        spread = float(np.sqrt(chance * (1 - chance) / count))
        if accuracy <= chance + 2 * spread:
            warnings.append(
                f"its {score_text('accuracy', accuracy)} is within two standard errors of chance ({chance:.4f} ± {spread:.4f})"
            )
        return warnings


def _number(label: Any) -> int | None:
    if isinstance(label, str) and label.strip().isdecimal():
        return int(label)
    return label if type(label) is int else None


def _chances(outputs: np.ndarray, rows: Rows) -> np.ndarray:
    """float64 [N, choices]: log-probabilities of each question's choices; -inf for missing choices."""
    if not len(rows):
        return np.zeros((0, 1))
    assert rows.of is not None
    groups = Groups.from_rows(rows)
    table = np.full((len(groups), groups.most), -np.inf)
    table[rows.of, np.arange(len(rows)) - groups.starts[rows.of]] = outputs[:, 0]
    return log_probabilities(table)
