from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tpulm.errors import ConfigError, DataError
from tpulm.labelled import Examples, LabelSet, examples_of, number_fault, numbers


def labelled(labels: Sequence[Any]) -> Examples:
    return examples_of([(f"text {index}", label) for index, label in enumerate(labels)])


@pytest.mark.parametrize(
    ("labels", "names", "values"),
    [
        (["pos", "neg", "pos"], ("neg", "pos"), ("neg", "pos")),
        ([10, 9, 1], ("1", "9", "10"), (1, 9, 10)),
        (["10", "9", "1"], ("1", "9", "10"), ("1", "9", "10")),
        (["1", 0, 1, "0"], ("0", "1"), (0, "1")),
        ([True, False], ("false", "true"), (False, True)),
        (
            ["20240100000000002", "20240100000000001"],
            ("20240100000000001", "20240100000000002"),
            ("20240100000000001", "20240100000000002"),
        ),
        ([2**60 + 1, 2**60], (str(2**60), str(2**60 + 1)), (2**60, 2**60 + 1)),
        (["-1", "0", "1e3"], ("-1", "0", "1e3"), ("-1", "0", "1e3")),
        (["é", "z", "Z"], ("Z", "z", "é"), ("Z", "z", "é")),
        # Canonically equivalent strings are one text (UAX #15, https://www.unicode.org/reports/tr15/).
        (["긍정", "부정", unicodedata.normalize("NFD", "긍정")], ("긍정", "부정"), ("긍정", "부정")),
        (["cafe\u0301", "caf\xe9", "b"], ("b", "caf\xe9"), ("b", "caf\xe9")),
        (["\u200bpos", "pos \u200b ", "\ufeffneg", "n\u200ceg"], ("neg", "n\u200ceg", "pos"), ("neg", "n\u200ceg", "pos")),
    ],
)
def test_classes_and_their_order(labels: list[Any], names: tuple[str, ...], values: tuple[Any, ...]):
    found = LabelSet.of(labelled(labels))
    assert (found.names, found.values) == (names, values)
    assert [type(value) for value in found.values] == [type(value) for value in values]
    assert len(found) == len(names)


LABELS = st.one_of(st.integers(-5, 5), st.sampled_from(["a", "b", "1", "true"]), st.booleans())


@given(st.lists(LABELS, min_size=2, max_size=20))
def test_every_label_is_its_class_whatever_the_order(labels: list[Any]):
    examples = labelled(labels)
    try:
        found = LabelSet.of(examples)
    except DataError as error:
        assert len({str(label).lower() for label in labels}) == 1, error
        return
    classes = found.encode(examples)
    assert classes.dtype == np.int32 and classes.shape == (len(labels),)
    assert [found.names[one] for one in classes] == [str(label).lower() for label in labels]
    assert LabelSet.of(labelled(labels[::-1])).names == found.names


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["pos"] * 3, "3 examples .*'pos'"),
        ([f"text {number}" for number in range(21)], r"21 different labels .*'text 0'.* named with --label-column\.$"),
        ([number % 1001 for number in range(4000)], "4000 examples .*1001 .*--label-column; .*--regression"),
        (["1", "1.0", "2"], "'1' and '1.0'"),
    ],
)
def test_labels_that_are_no_classes(labels: list[Any], message: str):
    with pytest.raises(DataError, match=message):
        LabelSet.of(labelled(labels))


@pytest.mark.parametrize(
    "labels",
    [
        list(range(20)),
        [number % 11 for number in range(22)],
        [n % 1000 for n in range(2000)],
        [f"product {n % 1500}" for n in range(3000)],
    ],
)
def test_many_classes_that_are_allowed(labels: list[Any]):
    assert len(LabelSet.of(labelled(labels))) == len(set(labels))


def test_numbers_may_be_the_labels_of_a_multi_label_set():
    """EUR-Lex has 4,000 of them, which are ids."""
    assert len(LabelSet.of(labelled([n % 1001 for n in range(4000)]), several=True)) == 1001


def test_a_label_unseen_in_training():
    found = LabelSet.of(labelled(["negative", "positive"]))
    for labels, unseen, message in (
        (found, ["negative", "postive", "neutral", "postive"], r"example 1: .*'postive'.*'positive'.* 2 more .* 1 other"),
        (found, [0, 1], "'0'"),
        (LabelSet.of(labelled(["5.0", "2.4"])), ["2.4", "2.6"], r"'2\.6' .*'5\.0'.*--regression"),
        (LabelSet.of(labelled([1, 2])), [7], r"'1', '2'\.$"),
    ):
        with pytest.raises(DataError, match=message):
            labels.encode(labelled(unseen))


def test_given_labels_keep_their_order_and_may_be_ids():
    found = LabelSet.from_names(("neg", "pos", "a mix"))
    assert found.names == found.values == ("neg", "pos", "a mix")
    assert found.encode(labelled(["pos", "neg"])).tolist() == [1, 0]
    assert found.encode(labelled([2, "0", 1])).tolist() == [2, 0, 1]
    for labels in ([0, 3], [0, "pos"], [-1, 0], [0.0, 1.0]):
        with pytest.raises(DataError, match="0 to 2"):
            found.encode(labelled(labels))
    assert LabelSet.from_names(("1", "0")).encode(labelled([0, 1])).tolist() == [1, 0]


def test_ids_are_not_taken_for_numbers_in_names():
    """Names as nlptown/bert-base-multilingual-uncased-sentiment has them; labels from 1, as in its data, and from 0."""
    stars = LabelSet.from_names(("1 star", "2 stars", "3 stars", "4 stars", "5 stars"))
    assert stars.encode(labelled(["4 stars", "1 star"])).tolist() == [3, 0]
    may_be = "1 may be '1 star' .* '2 stars'"
    for labels, message in (([1, 2, 4], may_be), ([4, 0, 1], may_be), ([0], may_be), ([1, 5], "'1' is none of the classes")):
        with pytest.raises(DataError, match=message):
            stars.encode(labelled(labels))
    with pytest.raises(DataError, match=r"'0' is none of the classes: '1', '2'\.$"):
        LabelSet.from_names((1, 2)).encode(labelled([0]))
    assert LabelSet.from_names(("LABEL_0", "LABEL_1")).encode(labelled([1, 0])).tolist() == [1, 0]


@pytest.mark.parametrize("given", [(0, 1), (1.5, 0.5), (True, False), np.array([0, 1]), ("b ", "cafe\u0301")])
def test_given_labels_are_answered_as_they_are_given(given: Sequence[Any]):
    found = LabelSet.from_names(given)
    expected = given.tolist() if isinstance(given, np.ndarray) else ["b", "caf\xe9"] if "b " in given else list(given)
    assert list(found.values) == expected and list(map(type, found.values)) == list(map(type, expected))
    assert found.encode(labelled(list(given))).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "message"), [((), "0 labels"), (("a",), "1 labels"), (("a", ""), "without a name"), (("a", "b", "a"), "2 times")]
)
def test_given_labels_that_are_none(names: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        LabelSet.from_names(names)


def test_numbers_of_a_regression():
    found = numbers(labelled([1, "2.5", -0.5, "1e3", True and 4]))
    assert found.dtype == np.float32 and found.tolist() == [1.0, 2.5, -0.5, 1000.0, 4.0]


@pytest.mark.parametrize("label", ["good", "inf", float("inf"), "nan", 1e39, True, "1_0"])
def test_what_is_no_number(label: Any):
    fault = number_fault(label)
    assert fault is not None and (fault[0] == "no_label") and ("is not a finite number" in fault[1] or label != label)


def test_examples_without_labels_have_no_classes():
    for use in (LabelSet.of, LabelSet.from_names(("a", "b")).encode, numbers):
        with pytest.raises(DataError, match="without labels"):
            use(examples_of(["x"], labelled=False))
