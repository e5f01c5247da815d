"""Law: documents share a band as often as their similarity says; and what counts as the same shingle."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tpulm.corpus.near import Banding, band_hashes, banding

ANY_TEXT = st.text(max_size=60).filter(lambda text: not any("\ud800" <= character <= "\udfff" for character in text))


def shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + 5]) for start in range(max(1, len(words) - 4))}


def similarity(first: list[str], second: list[str]) -> float:
    ours, theirs = shingles(first), shingles(second)
    return len(ours & theirs) / len(ours | theirs)


def test_pairs_share_a_band_as_often_as_their_similarity_says():
    draw, bands = random.Random(0), banding(0.8)
    vocabulary = [f"w{number}" for number in range(5_000)]
    pairs = []
    for _ in range(1_500):
        first = draw.choices(vocabulary, k=150)
        second = list(first)
        for _ in range(draw.randint(0, 8)):
            second[draw.randrange(150)] = draw.choice(vocabulary)
        pairs.append((first, second))
    similar = np.array([similarity(first, second) for first, second in pairs])
    ours, theirs = (band_hashes([" ".join(pair[side]) for pair in pairs], bands) for side in (0, 1))
    shared = (ours == theirs).any(axis=0)
    expected = bands.probability(similar)
    for low in np.arange(0.5, 1.0, 0.1):
        some = (similar >= low) & (similar <= low + 0.1)
        error = np.sqrt((expected[some] * (1 - expected[some])).sum()) / some.sum()
        assert some.sum() > 50 and abs(shared[some].mean() - expected[some].mean()) < 4 * error + 0.002
    assert not (ours[:, 1:] == theirs[:, :-1]).any(), "strangers"


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
def test_the_step_is_where_it_should_be(threshold: float):
    found = banding(threshold)
    assert found.bands * found.rows <= 128
    below, above = found.probability(np.array([threshold - 0.15, min(1.0, threshold + 0.1)]))
    assert below < 0.2 and above > 0.8
    assert Banding(1, 1).probability(np.array([0.25])) == pytest.approx(0.25)


def test_case_marks_and_blanks_do_not_count():
    texts = ["The cat sat on the mat, and slept.", "the CAT sat   on the mat - and slept!", "The cat sat on a mat, and slept."]
    found = band_hashes(texts, banding(0.8))
    assert (found[:, 0] == found[:, 1]).all() and not (found[:, 0] == found[:, 2]).all()
    of_vowel_signs = band_hashes(["वह लड़का मेरा भाई है और अच्छा गाता है", "वह लड़की मेरी भाई है और अच्छी गाती है"], banding(0.8))
    assert not (of_vowel_signs[:, 0] == of_vowel_signs[:, 1]).any(), "vowel signs tell words apart"


def test_characters_of_languages_without_spaces_are_words():
    long = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
    long += "何でも薄暗いじめじめした所でニャーニャー泣いていた事だけは記憶している。"
    found = band_hashes([long * 3, long * 3 + "終", "全く別の文章がここにあります。"], banding(0.5))
    shared = (found[:, 0] == found[:, 1]).any(), (found[:, 0] == found[:, 2]).any()
    assert shared == (True, False)


@settings(max_examples=25)
@given(st.lists(ANY_TEXT, max_size=6))
def test_a_documents_hashes_do_not_depend_on_its_neighbours(texts: list[str]):
    bands = Banding(3, 2)
    together = band_hashes(texts, bands)
    assert together.shape == (3, len(texts))
    for number, text in enumerate(texts):
        assert (together[:, number] == band_hashes([text], bands)[:, 0]).all()


def test_documents_without_words_are_like_themselves_alone():
    found = band_hashes(["!!!", "???", "!!!", ""], banding(0.8))
    assert (found[:, 0] == found[:, 2]).all() and (found[:, 0] != found[:, 1]).all() and (found[:, 3] != found[:, 1]).all()
