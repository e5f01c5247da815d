"""Questions with their texts: files, windows, answers by logits, and scores equal to those of the benchmarks' scripts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from encoders import WORDS
from tpulm.errors import DataError
from tpulm.labelled import Columns, read_examples
from tpulm.labelled.answers import Answer, Search, align, answer_scores, best_answers, metric_for, question_fault
from tpulm.labelled.rows import window_rows
from tpulm.tokenization import Tokenization

COLUMNS = Columns("question", "answers", "context")


def squad(path: Path, questions: list[dict[str, Any]], context: str = "It rains in Seoul.") -> Path:
    document = {"version": "1.1", "data": [{"title": "Rain", "paragraphs": [{"context": context, "qas": questions}]}]}
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False, indent=1)
    return path


def read(path: Path, **reading: Any) -> Any:
    return read_examples(path, COLUMNS, fault=question_fault, **reading)


@pytest.mark.parametrize("before", ['"meta": {"x": 1}', '"version": null', '"version": true, "n": 1.5'])
def test_what_may_stand_before_squads_data(tmp_path: Path, before: str) -> None:
    path = squad(tmp_path / "a.json", [{"id": "1", "question": "When?", "answers": [{"text": "rains", "answer_start": 3}]}])
    path.write_text(path.read_text().replace('"version": "1.1"', before))
    assert read(path).texts == ["When?"]


# -- scores -------------------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_squad_on_random_answers(torch: ModuleType) -> None:
    """torchmetrics has SQuAD 1.1's script; it differs for answers of which nothing is left, and has none that are missing."""
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    rng = np.random.default_rng(0)
    words = np.array(["the", "a", "cat", "Cat", "cat's", "sat,", "on", "mat.", "An", "1976", "u.s."])
    said = [" ".join(rng.choice(words, rng.integers(1, 6))) for _ in range(200)]
    true = [[" ".join(["dog", *rng.choice(words, rng.integers(0, 5))]) for _ in range(rng.integers(1, 4))] for _ in said]
    for index in range(0, 200, 3):
        said[index] = true[index][-1].replace("dog", "the dog.")
    found = answer_scores(said, true, "squad")
    for one, several, scores in zip(said, true, found, strict=True):
        target = {"answers": {"answer_start": [0] * len(several), "text": several}, "id": "1"}
        expected = squad({"prediction_text": one, "id": "1"}, target)
        np.testing.assert_allclose(scores * 100, [float(expected["f1"]), float(expected["exact_match"])], rtol=1e-6)


@pytest.mark.parametrize(
    ("metric", "said", "true", "f1", "exact"),
    [
        ("squad", "The cat sat.", ["a cat"], 2 / 3, 0),
        ("squad", "U.S.", ["the US", "America"], 1, 1),
        ("squad", "", [], 1, 1),
        ("squad", "rain", [], 0, 0),
        ("jsquad", "梅雨。", ["梅雨"], 1, 1),  # JGLUE removes the full stop at the end, and counts characters
        ("jsquad", "小笠原諸島", ["小笠原諸島を除く日本"], 10 / 15, 0),
        ("jsquad", "the 梅雨", ["梅雨"], 4 / 8, 0),  # neither articles nor blanks
        ("korquad", "《서울》 특별시", ["서울 특별시"], 1, 1),
        ("korquad", "서울 특별시", ["서울특별시"], 1, 0),  # characters without blanks
        ("klue", "5500명", ["5500", "5500명"], 1, 1),
        ("klue", "서울특별시 강남구", ["서울특별시"], 10 / 14, 0),  # the longest run of characters
        ("klue", "시 서울", ["서울시"], 4 / 7, 0),
        ("klue", "!", ["?", "시"], 1, 1),  # nothing is left of either
        ("korquad", "!", ["?", "시"], 0, 1),
        ("squad", "!", ["the", "rain"], 0, 0),
    ],
)
def test_known_scores(metric: str, said: str, true: list[str], f1: float, exact: int) -> None:
    """By hand, from the definitions in SQuAD's evaluate-v2.0.py, JGLUE's patch, KorQuAD's script and KLUE-baseline."""
    np.testing.assert_allclose(answer_scores([said], [true], metric), [[f1, exact]])


def test_the_script_of_the_answers_chooses_the_metric() -> None:
    assert metric_for(["Seoul", "1976"]) == "squad" == metric_for([])
    assert metric_for(["小笠原諸島", "カエル", "NHK"]) == "jsquad"
    assert metric_for(["서울특별시", "5월"]) == "korquad"


# -- files --------------------------------------------------------------------------------------------------------------------


def test_squad_and_its_kin(tmp_path: Path) -> None:
    questions = [
        {"id": "a", "question": "Where?", "answers": [{"text": "Seoul", "answer_start": 12}]},
        {"guid": "b", "question": "Why?", "is_impossible": True, "answers": [], "plausible_answers": [{"text": "It"}]},
    ]
    found = read(squad(tmp_path / "a.json.gz", questions))
    assert found.texts == ["Where?", "Why?"] and found.pairs == ["It rains in Seoul."] * 2
    assert found.labels == [[{"text": "Seoul", "answer_start": 12}], []]
    assert found.places[0].endswith("a.json.gz, id a") and found.places[1].endswith("id b")
    second = {"context": "It rains.", "qas": [{"id": "c", "question": "What?", "answer": {"text": "It", "answer_start": 0}}]}
    (tmp_path / "korquad2.json").write_text(json.dumps({"version": "KorQuAD_2.0", "data": [second]}))
    assert read(tmp_path / "korquad2.json").labels == [{"text": "It", "answer_start": 0}]
    row = {"question": "What?", "context": "It rains.", "answers": {"text": ["It", "rains"], "answer_start": [0, 3]}}
    (tmp_path / "rows.json").write_text(json.dumps(row) + "\n")  # JSON lines by another name
    assert read(tmp_path / "rows.json").texts == ["What?"]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"answers": [{"text": "Soul", "answer_start": 12}]}, r"id a: .*\"Soul\" .* 12.*\"Seou\""),
        ({"answers": [{"text": "Seoul", "answer_start": 11}]}, "11, .* 12"),
        *(({"answers": [{"text": "Seoul"}]}, "id a: "), ({"answers": "Seoul"}, 'id a: .*"Seoul"'), ({}, "'answers'")),
        ({"question": " ", "answers": []}, "id a: .*empty"),
        *(({"answers": {"text": ["Seoul"] * many, "answer_start": [12]}}, "not of one length") for many in (0, 2)),
    ],
)
def test_answers_that_are_not_in_the_text(tmp_path: Path, question: dict[str, Any], message: str) -> None:
    good = {"id": "b", "question": "Where?", "answers": [{"text": "Seoul", "answer_start": 12}]}
    path = squad(tmp_path / "a.json", [{"id": "a", "question": "Where?", **question}, good])
    with pytest.raises(DataError, match=message):
        read(path)
    found = read(path, on_error="skip")
    assert len(found) == 1 and found.skipped.total() == 1


def test_jsquad(real_data: Path) -> None:
    assert len(read(real_data / "ja" / "jsquad_valid.json.gz")) == 4_442  # JGLUE's README


# -- windows and answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_length", "stride"), [(20, 4), (16, 0), (12, 3), (64, 8)])
def test_windows_are_those_of_the_tokenizers_library(tokenizer: Tokenization, max_length: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    contexts = [" ".join(rng.choice(WORDS[5:14], length)) for length in (1, 9, 13, 14, 40)]
    rows = window_rows(tokenizer, ["was the film"] * 5, contexts, max_length=max_length, stride=stride)
    library = Tokenizer.from_str(tokenizer.canonical_json)
    library.enable_truncation(max_length, stride=stride, strategy="only_second")
    encodings = [library.encode("was the film", context) for context in contexts]
    expected = [one.ids for encoding in encodings for one in (encoding, *encoding.overflowing)]
    found = [rows.ids[a:b].tolist() for a, b in zip(rows.starts[:-1], rows.starts[1:], strict=True)]
    assert found == expected and rows.cut == 0


def test_an_answer_is_made_of_whole_tokens(tokenizer: Tokenization) -> None:
    context = "the film was very good and the plot was bad"
    answers = [
        Answer(18, "good"),
        Answer(19, "ood and"),
        None,
        Answer(0, context),
        Answer(27, "the plot"),
        Answer(31, "plot was bad"),
    ]
    rows = window_rows(tokenizer, ["film"] * 6, [context] * 6, max_length=12, stride=3)
    found = align(answers, rows)
    assert rows.of is not None and rows.of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]  # 8 tokens, and from the sixth on
    # in the first window good is token 3 + 4; in the second it is not, since that begins with "and"
    assert found[:8].tolist() == [[7, 7, 0], [0, 0, 0], [7, 8, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 2], [0, 0, 0]]
    assert found[8:].tolist() == [[9, 10, 0], [4, 5, 0], [0, 0, 0], [5, 7, 0]]  # in both, and in the second alone


def test_the_best_answers_are_those_of_all_pairs(tokenizer: Tokenization) -> None:
    rng = np.random.default_rng(0)
    context = " ".join(rng.choice(WORDS[5:14], 30))
    rows = window_rows(tokenizer, ["film", "was the film"], [context] * 2, max_length=16, stride=4)
    assert rows.of is not None and rows.spans is not None
    logits = rng.normal(size=(len(rows), 16, 2)).astype(np.float32)
    search = Search(max_answer_length=4, null=False, null_score_diff_threshold=0.0, n_best_size=5)
    for number, found in enumerate(best_answers(logits, rows, [context] * 2, search)):
        scores = dict[tuple[int, int], float]()
        for row in np.flatnonzero(rows.of == number):
            spans = rows.spans[rows.starts[row] : rows.starts[row + 1]]
            for first in range(len(spans)):
                for last in range(first, min(first + 4, len(spans))):
                    if spans[first, 1] > spans[first, 0] and spans[last, 1] > spans[last, 0]:
                        place = int(spans[first, 0]), int(spans[last, 1])
                        score = float(logits[row, first, 0]) + float(logits[row, last, 1])
                        scores[place] = max(score, scores.get(place, -np.inf))
        expected = sorted(scores, key=lambda place: -scores[place])[:5]
        assert [(one.start, one.end) for one in found] == expected
        assert all(one.answer == context[one.start : one.end] for one in found)
        chances = np.exp([scores[place] for place in expected])
        np.testing.assert_allclose([one.score for one in found], chances / chances.sum(), rtol=1e-5)
