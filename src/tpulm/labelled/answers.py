"""Extractive question answering: true answers, the best ones by a model's logits, and the benchmarks' own scores."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

import numpy as np

from tpulm.corpus.documents import Fault
from tpulm.corpus.readers.jsonl import show
from tpulm.labelled.examples import example_fault
from tpulm.labelled.rows import Rows, touching

_EXPECTED: Final = 'expected are [{"text": …, "answer_start": …}, …], or [] where the text has none.'


class Answer(NamedTuple):
    """A span of characters of a context."""

    start: int
    text: str


def answers_of(label: Any) -> list[Answer]:
    """From [{"text": …, "answer_start": …}, …] as in SQuAD's files, a single one, or {"text": […], "answer_start": […]}."""
    if isinstance(label, Mapping):
        texts, starts = label["text"], label["answer_start"]
        return (
            [Answer(*one) for one in zip(starts, texts, strict=True)]
            if isinstance(texts, list | tuple)
            else [Answer(starts, texts)]
        )
    return [Answer(one["answer_start"], one["text"]) for one in label]


def question_fault(values: Mapping[str, Any]) -> Fault:
    """Why a question ("text") with its context ("pair") and answers ("label") cannot be used."""
    if "pair" not in values:
        return "no_field", "a question comes with the text that has its answer: (question, context)."
    if (fault := example_fault(values, lambda label: None)) is not None or "label" not in values:
        return fault
    try:
        answers = answers_of(values["label"])
    except (KeyError, TypeError):
        return "no_label", f"the answers are {show(values['label'])}; {_EXPECTED}"
    except ValueError:
        return "no_label", f"the answers are {show(values['label'])}, whose lists are not of one length."
    context: str = values["pair"]
    for start, text in answers:
        if type(start) is not int or not isinstance(text, str) or not text.strip():
            return "no_label", f"an answer is {show(text)} at {show(start)}; {_EXPECTED}"
        passage = context[start : start + len(text)] if start >= 0 else ""
        if passage != text:
            at = context.find(text)
            hint = f"it stands at {at}" if at >= 0 else "it stands nowhere in the context"
            return "no_label", f"the answer {show(text)} is not at {start}, where the context has {show(passage)}; {hint}."
    return None


# -- answers by logits --------------------------------------------------------------------------------------------------------


class AnswerSpan(NamedTuple):
    """An answer as in transformers' pipeline: `answer` is context[start:end], or "" if the text has none."""

    answer: str
    start: int
    end: int
    score: float  # its probability among the best answers


class Search(NamedTuple):
    """The limits of the search for answers; names and defaults are transformers'."""

    max_answer_length: int  # tokens
    null: bool  # a text may have no answer
    null_score_diff_threshold: float  # by how much "no answer" must outscore the best answer
    n_best_size: int = 20


def best_answers(logits: np.ndarray, rows: Rows, contexts: Sequence[str], search: Search) -> list[list[AnswerSpan]]:
    """Up to `n_best_size` answers for each context, best first.

    `logits` [R, L, 2] are of an answer's first and last token. An answer's score is their sum, and its probability that among
    the best ones; "no answer" has the lowest score of the windows' [CLS].
    """
    assert rows.of is not None and rows.spans is not None
    candidates: list[dict[tuple[int, int], float]] = [{} for _ in contexts]
    null = np.full(len(contexts), np.inf)
    for row, (number, begin, end) in enumerate(zip(rows.of, rows.starts[:-1], rows.starts[1:], strict=True)):
        spans, of_row = rows.spans[begin:end], logits[row, : end - begin].astype(np.float64)
        null[number] = min(null[number], of_row[0].sum())
        for first, last, score in _best_spans(of_row, spans[:, 1] > spans[:, 0], search):
            place = int(spans[first, 0]), int(spans[last, 1])
            candidates[number][place] = max(score, candidates[number].get(place, -np.inf))
    return [_ranked(some, context, float(none), search) for some, context, none in zip(candidates, contexts, null, strict=True)]


def _best_spans(logits: np.ndarray, visible: np.ndarray, search: Search) -> list[tuple[int, int, float]]:
    """(first token, last token, score) of the best spans, of tokens of the context."""
    starts, ends = np.where(visible[:, None], logits, -np.inf).T
    padded = np.concatenate([ends, np.full(search.max_answer_length - 1, -np.inf)])
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, search.max_answer_length)
    count = min(search.n_best_size, scores.size)
    best = np.argpartition(-scores, count - 1, axis=None)[:count]
    at = zip(*np.unravel_index(best, scores.shape), scores.ravel()[best], strict=True)
    return [(int(first), int(first + length), float(score)) for first, length, score in at if np.isfinite(score)]


def _ranked(candidates: dict[tuple[int, int], float], context: str, none: float, search: Search) -> list[AnswerSpan]:
    best = sorted(candidates.items(), key=lambda item: (-item[1], item[0]))[: search.n_best_size]
    places = [place for place, _ in best if place[1] > place[0]]
    scores = [score for place, score in best if place[1] > place[0]]
    if search.null or not places:
        wins = not places or none - scores[0] > search.null_score_diff_threshold
        at = 0 if wins else sum(score >= none for score in scores[1:]) + 1
        places.insert(at, (0, 0))
        scores.insert(at, none)
    shares = np.exp(np.array(scores) - max(scores))
    return [AnswerSpan(context[a:b], a, b, float(p)) for (a, b), p in zip(places, shares / shares.sum(), strict=True)]


def align(answers: Sequence[Answer | None], rows: Rows) -> np.ndarray:
    """int32 [R, 3]: the first and the last token in each row that touch the answer; 0, [CLS], if the row lacks part of it, or
    the example has none.

    The third number, in an example's first row, is 1 if the answer begins or ends inside a token, 2 if no row has all of it.
    """
    assert rows.of is not None and rows.spans is not None
    labels = np.zeros((len(rows), 3), np.int32)
    bounds = np.searchsorted(rows.of, np.arange(len(answers) + 1))
    for number, answer in enumerate(answers):
        if answer is None:
            continue
        begin = answer.start + len(answer.text) - len(answer.text.lstrip())
        end = answer.start + len(answer.text.rstrip())
        spans = [rows.spans[rows.starts[row] : rows.starts[row + 1]] for row in range(bounds[number], bounds[number + 1])]
        own = [touching(some, begin, end) for some in spans]
        ends = [
            (some[at, 0].min(), some[at, 1].max()) if len(at) else (end, begin) for some, at in zip(spans, own, strict=True)
        ]
        whole = min(first for first, _ in ends), max(last for _, last in ends)
        held = [(row, at) for row, at in enumerate(own) if len(at) and ends[row] == whole]
        for row, at in held:
            labels[bounds[number] + row, :2] = at[0], at[-1]
        labels[bounds[number], 2] = 2 if not held else whole != (begin, end)
    return labels


# -- scores -------------------------------------------------------------------------------------------------------------------


class _Metric(NamedTuple):
    normalize: Callable[[str], str]
    f1: Callable[[str, str], float]  # of two normalized answers
    keeps_empty: bool  # whether a true answer counts that normalizes to nothing


_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_KOREAN_MARKS: Final = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _shared(predicted: Sequence[str], true: Sequence[str]) -> float:
    if not predicted or not true:
        return float(predicted == true)
    return 2 * sum((Counter(predicted) & Counter(true)).values()) / (len(predicted) + len(true))


def _longest_run(predicted: str, true: str) -> float:
    if not predicted or not true:
        return float(predicted == true)
    return 2 * SequenceMatcher(None, predicted, true).find_longest_match().size / (len(predicted) + len(true))


# squad: SQuAD 2.0's evaluate-v2.0.py. jsquad: JGLUE's patch of it. korquad: KorQuAD 1.0's script. klue: KLUE-baseline's
# "ROUGE-W", whose F1 is that of the longest common run of characters.
METRICS_OF_ANSWERS: Final[Mapping[str, _Metric]] = {
    "squad": _Metric(
        lambda text: _spaced(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))),
        lambda predicted, true: _shared(predicted.split(), true.split()),
        keeps_empty=False,
    ),
    "jsquad": _Metric(lambda text: _spaced(text.lower().rstrip("。")), _shared, keeps_empty=False),
    "korquad": _Metric(
        lambda text: _spaced(text.translate(_KOREAN_MARKS).lower().translate(_NO_PUNCTUATION)),
        lambda predicted, true: _shared(predicted.replace(" ", ""), true.replace(" ", "")) if predicted and true else 0.0,
        keeps_empty=True,
    ),
    "klue": _Metric(lambda text: _spaced(text.lower().translate(_NO_PUNCTUATION)), _longest_run, keeps_empty=True),
}


def metric_for(texts: Sequence[str]) -> str:
    """The metric by the script of most letters: korquad for Hangul, jsquad for Chinese characters and kana, else squad."""
    kinds = Counter(unicodedata.name(letter, "").partition(" ")[0] for text in texts for letter in text if letter.isalpha())
    hangul, japanese = kinds["HANGUL"], kinds["CJK"] + kinds["HIRAGANA"] + kinds["KATAKANA"]
    others = kinds.total() - hangul - japanese
    return "korquad" if hangul > max(japanese, others) else "jsquad" if japanese > others else "squad"


def answer_scores(predicted: Sequence[str], true: Sequence[Sequence[str]], metric: str) -> np.ndarray:
    """float64 [N, 2]: F1 and exact match of each answer with the best-matching true one, "" if there is none."""
    normalize, f1, keeps_empty = METRICS_OF_ANSWERS[metric]
    scores = np.zeros((len(predicted), 2))
    for number, (one, several) in enumerate(zip(map(normalize, predicted), true, strict=True)):
        golds = [gold for gold in map(normalize, several) if gold or keeps_empty]
        scores[number] = max(f1(one, gold) for gold in golds) if golds else one == "", one in (golds or [""])
    return scores
