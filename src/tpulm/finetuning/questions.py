"""Extractive question answering: the part of a text that answers a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from tpulm.corpus.documents import Fault
from tpulm.errors import DataError
from tpulm.finetuning.tasks import NEARLY_ALL, Mistake, Task, no_better, ordered_mistakes
from tpulm.labelled import Columns, Examples, LabelSet, read_examples
from tpulm.labelled.answers import (
    AnswerSpan,
    Search,
    align,
    answer_scores,
    answers_of,
    best_answers,
    metric_for,
    question_fault,
)
from tpulm.labelled.labels import labels_of
from tpulm.labelled.rows import MOST_OF_A_QUESTION, Rows, length_of_question, window_rows
from tpulm.objectives.classification import SpanPrediction
from tpulm.predict.classify import log_probabilities
from tpulm.tokenization import SpecialTokens, Tokenization
from tpulm.train.finetuning_program import Labelled


class QuestionAnswering(Task):
    """Texts are questions, pairs the texts that answer them. Labels are the true answers, [{"text": …, "answer_start": …}, …],
    empty if there is none; predictions are {"answer": …, "start": …, "end": …, "score": …}, with "" for none.
    """

    kind = "A model that answers questions by a part of a text"
    has_classes = False
    cut_texts = "questions"
    columns = Columns("question", "answers", "context")
    objective = SpanPrediction
    head = "spans"
    pipeline = "question-answering"
    usage = ("import tpulm", "", 'tpulm.Classifier("this folder").predict([("a question", "a text with its answer")])')

    def read(self, path: str | PurePath, columns: Columns, **reading: Any) -> Examples:
        columns = columns.over(self.columns)

        def answerless(values: dict[str, Any]) -> dict[str, Any]:
            return {**values, columns.label: []} if values.get("is_impossible") is True else values

        return read_examples(path, columns, fault=self.fault, adapt=answerless, **reading)

    def fault(self, values: Mapping[str, Any]) -> Fault:
        return question_fault(values)

    def held_out_by(self, examples: Examples) -> Examples:
        """Questions about one text stay together."""
        return Examples(list(examples.pairs or []), None, None, examples.places)

    def rows(self, tokenization: Tokenization, examples: Examples, *, max_length: int) -> Rows:
        stride = 128 if self.config.doc_stride is None else self.config.doc_stride
        return window_rows(tokenization, examples.texts, examples.pairs or [], max_length=max_length, stride=stride)

    @property
    def longest(self) -> int:
        return length_of_question(self.config.max_length or 0)

    def whole_length(self, rows: Rows, special: SpecialTokens) -> int | None:
        _, first = np.unique(np.array(rows.of), return_index=True)
        whole = self.longest + int(np.quantile((rows.whole_lengths - rows.lengths)[first], 0.95, method="higher"))
        return 2 * whole + 3 if whole <= MOST_OF_A_QUESTION else None

    def encode(
        self, examples: Examples, classes: LabelSet, tokenization: Tokenization, *, max_length: int, learn: bool
    ) -> Labelled:
        first = [next(iter(answers_of(label)), None) for label in labels_of(examples)]
        if learn and not any(first):
            raise DataError(f"none of the {len(first):,} questions has an answer; to learn to find them takes some")
        self.null = self.null or (learn and not all(first))
        rows = self.rows(tokenization, examples, max_length=max_length)
        return Labelled(rows, align(first, rows), examples)

    def notes(self, data: Labelled, classes: LabelSet) -> list[str]:
        none, state = sum(not answers_of(label) for label in labels_of(data.examples)), Counter(data.labels[:, 2].tolist())
        count = max(1, len(data.examples) - none)
        messages = [
            f"{len(data.examples):,} questions are {len(data.rows):,} rows" + (f"; {none:,} have no answer" if none else "")
        ]
        if none and not self.null:
            messages.append('scored as SQuAD 2.0 does: "no answer" is one, though the model learnt from none')
        if unaligned := state[1]:
            messages.append(
                f"{unaligned:,} answers ({unaligned / count:.2%}) begin or end inside of a token, and are learnt as whole ones"
            )
        if lost := state[2]:
            messages.append(f"{lost:,} answers ({lost / count:.2%}) are whole in no row, and are not learnt; raise max_length")
        return messages

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        """As `answer_metric` says; loss in nats per position; `unaligned`: fraction of answers that tokens cannot express."""
        each, true = self._scored(self._answers(outputs, data.rows, data.examples), data), self._true(data)
        past = np.arange(outputs.shape[1]) >= data.rows.lengths[:, None]
        chances = log_probabilities(np.where(past[:, None], -np.inf, outputs.transpose(0, 2, 1)))
        chosen = np.take_along_axis(chances, data.labels[:, :2, None].astype(np.int64), axis=2)
        answered = np.array([bool(texts) for texts in true])
        parts = {"has_answer_f1": answered, "no_answer_f1": ~answered} if self._may_be_none(data.examples) else {}
        return {
            **dict(zip(("f1", "exact_match"), each.mean(axis=0).tolist(), strict=True)),
            **{name: float(each[chosen, 0].mean()) if chosen.any() else 0.0 for name, chosen in parts.items()},
            "unaligned": float(np.count_nonzero(data.labels[:, 2]) / max(1, answered.sum())),
            "loss": float(-chosen.mean()),
        }

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[dict[str, Any]]:
        return [answer._asdict() for answer in self._answers(outputs, rows, examples)]

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        """Questions without an exact match; the confidence is the answer's probability."""
        answers, true = self._answers(outputs, data.rows, examples), self._true(data)
        wrong = np.flatnonzero(self._scored(answers, data)[:, 1] == 0)
        expected = [" / ".join(dict.fromkeys(texts)) or "(none)" for texts in true]
        predicted = [one.answer or "(none)" for one in answers]
        return ordered_mistakes(examples, wrong, expected, predicted, np.array([one.score for one in answers]))

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        true, warnings = self._true(data), list[str]()
        answers = self._answers(outputs, data.rows, data.examples)
        only, count = Counter(one.answer for one in answers).most_common(1)[0]
        shown, right = f"'{only}'" if only else "that there is no answer", np.mean([only in (texts or [""]) for texts in true])
        if count >= NEARLY_ALL * len(true) and right < count / len(true):
            warnings.append(f"it says {shown} to {count / len(true):.0%} of dev, where {right:.0%} have that answer")
        if self._may_be_none(data.examples):
            name, column = self.config.chosen_by, ("f1", "exact_match").index(self.config.chosen_by)
            none = [AnswerSpan("", 0, 0, 0.0)] * len(true)
            value, of_none = (float(self._scored(predicted, data)[:, column].mean()) for predicted in (answers, none))
            if value <= of_none:
                warnings.append(no_better(name, value, "never finding an answer", of_none))
        return warnings

    def _answers(self, outputs: np.ndarray, rows: Rows, examples: Examples) -> list[AnswerSpan]:
        config = self.config
        null = self._may_be_none(examples)
        search = Search(config.max_answer_length or 30, null, config.null_score_diff_threshold or 0.0)
        return [best[0] for best in best_answers(outputs, rows, examples.pairs or [], search)]

    def _may_be_none(self, examples: Examples) -> bool:
        """Whether "no answer" is one: where the model learnt it, which only tpulm's config.json tells, where a threshold is
        given, and where some of the true answers are none, as SQuAD 2.0 scores."""
        if self.null or self.config.null_score_diff_threshold is not None:
            return True
        return examples.labels is not None and not all(answers_of(label) for label in examples.labels)

    def _scored(self, predicted: list[AnswerSpan], data: Labelled) -> np.ndarray:
        """float64 [N, 2], as `answer_scores`."""
        true = self._true(data)
        metric = self.config.answer_metric or metric_for([text for texts in true for text in texts])
        return answer_scores([one.answer for one in predicted], true, metric)

    @staticmethod
    def _true(data: Labelled) -> list[list[str]]:
        return [[answer.text for answer in answers_of(label)] for label in labels_of(data.examples)]
