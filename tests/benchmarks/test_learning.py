"""The experiment on learning: nothing that is scored is pretrained on."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def learning_data():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import learning_data  # pyright: ignore[reportMissingImports]

        yield learning_data
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_no_text_of_dev_test_or_the_holdout_is_in_the_corpus(learning_data, tmp_path):
    labelled = [f"영화 {number} 번은 좋다" for number in range(7_000)]
    reviews = [
        *labelled,
        *(text.replace(" ", "  ") + "!!" for text in labelled),
        *(f"다른 글 {n}, 아주 긴 글이다" for n in range(3_000)),
    ]
    (tmp_path / "ko").mkdir()
    rows = [f"{number}\t{text}\t{number % 2}\n" for number, text in enumerate(labelled)]
    for name, lines in {
        "nsmc_train_50k.tsv.gz": ["id\tdocument\tlabel\n", *rows],
        "nsmc_reviews.txt.gz": [f"{text}\n" for text in reviews],
    }.items():
        with gzip.open(tmp_path / "ko" / name, "wt", encoding="utf-8") as file:
            file.writelines(lines)
    counts = learning_data.write(tmp_path / "texts", "ko", tmp_path)
    corpus = (tmp_path / "texts" / "corpus.txt").read_text(encoding="utf-8").splitlines()
    secret = {
        learning_data.normalized(one.text)
        for name in ("dev", "test")
        for one in learning_data.read(tmp_path / "texts" / f"{name}.jsonl")
    }
    secret |= {
        learning_data.normalized(line) for line in (tmp_path / "texts" / "heldout.txt").read_text(encoding="utf-8").splitlines()
    }
    assert len(secret) > 6_000
    assert not secret & {learning_data.normalized(line) for line in corpus}
    assert counts["train"] == 1_000
    # each review stands there twice, with other marks
    assert counts["corpus"] + counts["left out"] + counts["held out"] == len(reviews)


def test_texts_that_differ_in_marks_alone_are_one(learning_data):
    assert learning_data.normalized("Ｇood, 영화!!") == learning_data.normalized("good 영화 ㅡ".replace("ㅡ", "…"))
