"""Embeddings of texts, learnt from pairs with similarity scores, or from texts that belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from tpulm.convert.config_json import HeadConfig
from tpulm.convert.heads import Head
from tpulm.corpus.documents import Fault
from tpulm.errors import DataError
from tpulm.finetuning.tasks import Mistake, Task, ordered_mistakes
from tpulm.labelled import (
    Columns,
    Examples,
    LabelSet,
    examples_of,
    is_table_of_columns,
    number_fault,
    numbers,
    read_examples,
    regression_scores,
    retrieval_scores,
)
from tpulm.labelled.examples import text_fault
from tpulm.labelled.rows import Rows, encode_rows, joined
from tpulm.objectives.classification import RankedTexts, ScoredPairs
from tpulm.tokenization import Tokenization
from tpulm.train.finetuning_program import Labelled

_THE_SAME = 0.99  # the mean cosine of two texts from which on all vectors count as one
_AT_ONCE = 256  # queries


class _Embedding(Task):
    has_classes = False
    columns = Columns(pair="pair")
    head: Head = "embedding"
    pipeline = "sentence-similarity"
    library = "sentence-transformers"
    usage = (
        "from sentence_transformers import SentenceTransformer",
        "",
        'embed = SentenceTransformer("this folder").encode  # AutoModel of transformers loads the encoder alone',
    )

    def rows(self, tokenization: Tokenization, examples: Examples, *, max_length: int) -> Rows:
        """The texts of an example one after another, each with special tokens of its own, and before them the default prompt of
        an embedding model, as it is put before every text that the saved one embeds."""
        before = dict(self.embedder.prompts).get(self.embedder.prompt_name or "", "")
        parts = (examples.texts, examples.pairs, examples.labels)[: self.objective.texts]
        prompted = [[before + text for text in part] for part in parts if part is not None]
        return joined([encode_rows(tokenization, texts, None, max_length=max_length) for texts in prompted])

    def head_config(self, classes: LabelSet) -> HeadConfig:
        return self.embedder._replace(pooling=self.config.pooling or "mean")

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[Any]:
        """A vector of length 1 for each text; for pairs of texts their cosine."""
        return list(outputs[:, 0]) if examples.pairs is None else _cosines(outputs).tolist()

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        alike = float(np.square(outputs[:, 0].mean(axis=0, dtype=np.float64)).sum())
        return [f"all texts get nearly the same vector: the mean cosine of two is {alike:.4f}"] if alike >= _THE_SAME else []


class ScoredSimilarity(_Embedding):
    """Labels are numbers, higher for pairs that are more alike; cosines should rank pairs in the same order."""

    kind = "Embeddings, learnt from pairs with scores"
    mistakes_are = ("Farthest off", "ranks off")
    objective = ScoredPairs

    def label_fault(self, label: Any) -> Fault:
        return number_fault(label, "embed")

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        if examples.pairs is None:
            raise DataError("embed takes pairs of texts with a score: (text, pair, score), or --pair-column for a file's.")
        labels = numbers(examples)
        if learn and np.all(labels == labels[0]):
            raise DataError(f"all {len(examples):,} pairs have the score {labels[0]:g}; there is no order to learn")
        return labels

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        result = regression_scores(data.labels, _cosines(outputs))
        return {"spearman": result.spearman, "pearson": result.pearson}

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        """All pairs, those first whose ranks by score and by cosine differ most; the difference is a fraction of all pairs."""
        cosines = _cosines(outputs)
        places = [np.argsort(np.argsort(values, kind="stable")) for values in (data.labels, cosines)]
        distance = np.abs(places[0] - places[1]) / len(cosines)
        return ordered_mistakes(examples, np.arange(len(distance)), data.labels.tolist(), cosines.tolist(), distance)


class Retrieval(_Embedding):
    """Pairs of an anchor and a text that belongs to it; optionally, as the label, a third text that does not."""

    kind = "Embeddings, learnt from texts that belong together"
    mistakes_are = ("Nearer than what belongs", "nearer by")
    objective = RankedTexts

    def read(self, path: str | PurePath, columns: Columns, **reading: Any) -> Examples:
        columns = columns.over(self.columns)
        return read_examples(path, columns, labelled=False, fault=self.fault, adapt=self.adapt, **reading)

    def take(self, data: Any) -> Examples:
        """From (anchor, text), (anchor, text, other), or columns text, pair and, optionally, negative."""
        if is_table_of_columns(data):
            columns = Columns(pair="pair", negative="negative" if "negative" in data else None)
            return examples_of(data, labelled=False, columns=columns, fault=self.fault)
        return examples_of(data, labelled=False, negatives=True, fault=self.fault)

    def fault(self, values: Mapping[str, Any]) -> Fault:
        roles = {"text": "text", "pair": "second text", "negative": "negative text", "label": "text beside it"}
        return next((fault for role in values if (fault := text_fault(values[role], roles[role])) is not None), None)

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        """int32 [N, 3]: the ids of the texts, -1 for none."""
        if examples.pairs is None:
            raise DataError("retrieve takes pairs of texts that belong together; name the second one with --pair-column.")
        parts = [examples.texts, examples.pairs, *([] if examples.labels is None else [examples.labels])]
        _, ids = np.unique(np.array([text for part in parts for text in part], object), return_inverse=True)
        result = np.full((len(examples), 3), -1, np.int32)
        result[:, : len(parts)] = ids.reshape(len(parts), -1).T
        if learn and len(np.unique(result[:, 1])) < 2:
            raise DataError(f"one text belongs to all {len(examples):,} anchors; to tell texts apart takes at least two")
        return result

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        ranked = _ranked(outputs, data.labels)
        return retrieval_scores(ranked.query, ranked.rank)._asdict()

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        """Anchors with another text nearer than their own."""
        ranked, texts = _ranked(outputs, data.labels), dict[int, str]()
        for part, column in zip((examples.pairs, examples.labels), data.labels.T[1:], strict=True):
            texts |= dict(zip(column.tolist(), part or [], strict=False))
        rows = ranked.row[ranked.gap >= 0.0]
        nearest = {row: texts[int(one)] for row, one in zip(ranked.row.tolist(), ranked.nearest, strict=True)}
        gap = np.zeros(len(examples))
        gap[ranked.row] = ranked.gap
        predicted = [nearest.get(row, "") for row in range(len(examples))]
        return ordered_mistakes(examples, rows, list(examples.pairs or []), predicted, gap)


def _cosines(outputs: np.ndarray) -> np.ndarray:
    return (outputs[:, 0].astype(np.float64) * outputs[:, 1]).sum(axis=1)


class _Ranked(NamedTuple):
    """The distinct pairs that belong together [R]."""

    row: np.ndarray  # its row among the examples
    query: np.ndarray  # the anchor's number
    rank: np.ndarray  # of its text among all of the part's, except the anchor itself; equally near ones come first
    nearest: np.ndarray  # the number of the nearest text that does not belong to the anchor
    gap: np.ndarray  # how much nearer that is


def _ranked(outputs: np.ndarray, labels: np.ndarray) -> _Ranked:
    numbers_of, where = np.unique(labels[:, 1:].T, return_index=True)
    candidates = outputs[:, 1:].swapaxes(0, 1).reshape(-1, outputs.shape[2])[where][numbers_of >= 0]
    numbers_of = numbers_of[numbers_of >= 0]
    _, row = np.unique(labels[:, :2], axis=0, return_index=True)
    parts = list[Sequence[np.ndarray]]()
    for some in np.split(row, range(_AT_ONCE, len(row), _AT_ONCE)):
        near = outputs[some, 0] @ candidates.T
        anchor, own = labels[some, 0], np.searchsorted(numbers_of, labels[some, 1])
        mine = near[np.arange(len(some)), own]
        near[(numbers_of[None, :] == anchor[:, None]) & (numbers_of[None, :] != labels[some, 1][:, None])] = -np.inf
        rank = (near >= mine[:, None]).sum(axis=1)
        anchors, which = np.unique(anchor, return_inverse=True)
        same = labels[np.isin(labels[:, 0], anchors)]
        known = np.zeros((len(anchors), len(numbers_of)), bool)
        known[np.searchsorted(anchors, same[:, 0]), np.searchsorted(numbers_of, same[:, 1])] = True
        near[known[which]] = -np.inf
        parts.append((anchor, rank, numbers_of[near.argmax(axis=1)], near.max(axis=1) - mine))
    return _Ranked(row, *(np.concatenate(part) for part in zip(*parts, strict=True)))
