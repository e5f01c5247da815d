from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tpulm.errors import ConfigError, DataError
from tpulm.labelled import Examples, Split, examples_of, hold_out

Row = tuple[str, int]
ROWS = st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.integers(0, 3)), min_size=2, max_size=60)


def split(rows: Sequence[Row], fraction: float = 0.2) -> Split:
    return hold_out(examples_of(list(rows)), np.array([label for _, label in rows], np.int32), fraction=fraction)


def held(rows: Sequence[Row], fraction: float = 0.2) -> set[str]:
    return {rows[index][0] for index in split(rows, fraction).held_out}


def own_texts(rows: Sequence[Row], label: int) -> set[str]:
    """The texts that have this label and no other."""
    return {text for text, one in rows if one == label} - {text for text, one in rows if one != label}


@given(ROWS, st.sampled_from([0.01, 0.1, 0.3, 0.5]), st.randoms(use_true_random=False))
def test_the_laws_of_a_split(rows: list[Row], fraction: float, chance: random.Random):
    try:
        found = split(rows, fraction)
    except DataError:
        assert all(len(own_texts(rows, label)) < 2 for label in range(4))
        return
    train, held_out = ({rows[index][0] for index in side} for side in found)
    assert found.train.dtype == found.held_out.dtype == np.int64
    assert (np.diff(found.train) > 0).all() and (np.diff(found.held_out) > 0).all()
    assert sorted([*found.train, *found.held_out]) == list(range(len(rows)))
    assert not train & held_out
    for label in range(4):
        if len(own_texts(rows, label)) > 1:
            of_class = {text for text, one in rows if one == label}
            assert of_class & train and of_class & held_out
    shuffled = chance.sample(rows, len(rows))
    assert held(shuffled, fraction) == held_out


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.5])
def test_each_class_gives_its_part(fraction: float):
    rows = [(f"text {number}", number % 10 // 7) for number in range(2000)]
    labels = np.array([label for _, label in rows])
    chosen = labels[split(rows, fraction).held_out]
    assert np.bincount(chosen).tolist() == [round(1400 * fraction), round(600 * fraction)]


def test_a_row_more_moves_at_most_one_other():
    rows = [(f"text {number}", number % 3) for number in range(300)]
    before = held(rows)
    for number in range(300, 340):
        rows.append((f"text {number}", number % 3))
        after = held(rows)
        assert len((before ^ after) - {f"text {number}"}) <= 1
        before = after


def test_the_same_texts_on_every_machine():
    rows = [(f"text {number}", number % 2) for number in range(20)]
    assert sorted(held(rows)) == ["text 14", "text 19", "text 8", "text 9"]


def test_the_pair_counts():
    rows, classes = [("same", f"second {number}", number % 2) for number in range(40)], np.arange(40) % 2
    swapped = [(second, first, label) for first, second, label in rows]
    one, other = (hold_out(examples_of(pairs), classes, fraction=0.25).held_out.tolist() for pairs in (rows, swapped))
    assert len(one) == 10 and one != other


def test_pairs_that_share_a_text_stay_together():
    """As in NLI: a premise with three hypotheses of different labels, and in part another premise's hypothesis."""
    rows = [(f"premise {n // 3}", f"hypothesis {n // 4}", n % 3) for n in range(120)]
    rows += [(f"alone {n}", f"too {n}", n % 3) for n in range(360)]
    pairs, classes = examples_of(rows), np.array([label for *_, label in rows])
    found = hold_out(pairs, classes, fraction=0.5)
    sides = [{text for index in side for text in rows[index][:2]} for side in found]
    assert not sides[0] & sides[1] and {len(found.train), len(found.held_out)} != {0}
    assert found.held_out.tolist() == hold_out(pairs, classes, fraction=0.5).held_out.tolist()


def test_a_text_that_most_pairs_share_does_not_tie_them():
    rows = [(f"question {number}", "yes" if number % 3 else f"answer {number}", number % 2) for number in range(300)]
    found = hold_out(examples_of(rows), None, fraction=0.1)
    assert len(found.held_out) == 30


def test_large_groups_are_held_out_as_often_as_small_ones():
    rows = [(f"group {number // 10}", f"member {number}") for number in range(1000)]
    rows += [(f"alone {number}", f"other {number}") for number in range(1000)]
    chosen = hold_out(Examples([a for a, _ in rows], [b for _, b in rows], None, [""] * 2000), None, fraction=0.2).held_out
    groups = {index // 10 for index in chosen if index < 1000}
    assert 10 <= len(groups) <= 32  # of 100; 20 expected, deviation 4
    assert len(groups) * 10 == sum(index < 1000 for index in chosen.tolist())


@pytest.mark.parametrize("fraction", [0.0, -0.1, 0.51, 1.0, float("nan")])
def test_fractions_that_cannot_be_held_out(fraction: float):
    with pytest.raises(ConfigError, match=r"up to 0\.5"):
        split([("a", 0), ("b", 1)], fraction)


@pytest.mark.parametrize("rows", [[("a", 0)], [("a", 0), ("b", 1)], [("a", 0), ("a", 0), ("a", 1)]])
def test_too_few_texts(rows: list[Row]):
    with pytest.raises(DataError, match=f"of {len(rows)} examples none"):
        split(rows)


def test_copies_of_a_question_with_the_same_choices_stay_together():
    choices = [["yes", "no"], ["no", "yes"]]
    questions = [f"question {number % 10}" for number in range(40)]
    examples = Examples(questions, [choices[n // 20] for n in range(40)], None, [""] * 40)
    found = set(hold_out(examples, None, fraction=0.25).held_out.tolist())
    assert len(found) == 10 and all((number in found) == (number + 10 in found) for number in (*range(10), *range(20, 30)))
