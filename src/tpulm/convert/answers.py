"""What the outputs of a classifier mean, as config.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tpulm.errors import DataError, brief


class Answers(NamedTuple):
    """The names of the classes in the order of the outputs; none of a regression, whose one output is the number itself."""

    names: tuple[str, ...]

    @property
    def is_regression(self) -> bool:
        return not self.names

    @property
    def num_classes(self) -> int | None:
        """C, or None of a regression."""
        return len(self.names) or None

    @property
    def num_outputs(self) -> int:
        return len(self.names) or 1


def to_json(answers: Answers, model_type: str) -> dict[str, Any]:
    """What config.json of a classifier has beside the encoder's own keys."""
    names = answers.names or ("LABEL_0",)
    values: dict[str, Any] = {
        "problem_type": "regression" if answers.is_regression else "single_label_classification",
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if model_type == "eurobert":
        values |= {"architectures": ["EuroBertForSequenceClassification"], "classifier_pooling": "bos"}
    return values


def from_json(values: Mapping[str, Any], *, origin: str) -> Answers:
    """Raises DataError for labels that are no names of 0 to C - 1, and for a task or a pooling that is not ours."""
    problem = values.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise DataError(
            f"problem_type {brief(problem)} is not supported; a text has one label or one number here",
            location=origin,
        )
    if values.get("model_type") == "eurobert" and values.get("classifier_pooling", "late") != "bos":
        raise DataError("classifier_pooling must be 'bos'; others are not supported", location=origin)
    named = values.get("id2label")
    if named is None:  # transformers leaves two unnamed labels out
        named = {"0": "LABEL_0", "1": "LABEL_1"} if problem != "regression" else {"0": "LABEL_0"}
    try:
        by_number = {int(number): str(name) for number, name in named.items()}
    except (AttributeError, ValueError, TypeError) as error:
        raise DataError(f"id2label must map numbers to names, not {brief(named)}", location=origin) from error
    if sorted(by_number) != list(range(len(by_number))) or not by_number:
        raise DataError(f"id2label must number its labels 0, 1, 2, …, not {brief(sorted(by_number))}", location=origin)
    if len(by_number) == 1 or problem == "regression":
        if len(by_number) > 1:
            raise DataError(f"a regression has one output, not {len(by_number)}", location=origin)
        return Answers(())
    return Answers(tuple(by_number[number] for number in range(len(by_number))))
