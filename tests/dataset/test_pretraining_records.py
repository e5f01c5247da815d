"""Records become rows, and every way in which one can be wrong is told with its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tfrecords import CLS, LENGTH, MASK, PAD, SEP, UNK, VOCAB_SIZE, Features, Row, bert, electra, random_rows

from tfrecord_files import serialize
from tpulm.dataset.pretraining_records import Kind, read_rows, shape_of
from tpulm.dataset.tfrecord import Record
from tpulm.errors import DataError
from tpulm.objectives.rows import encoder_input
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Vocabulary

SPECIAL = SpecialTokens(pad=PAD, unknown=UNK, cls=CLS, sep=SEP, mask=MASK)
ROW = Row((5, 6, 7), (8, 9), 1)


def read(records: list[Features], kind: Kind = "bert") -> tuple[np.ndarray, np.ndarray]:
    found = [Record(number, 100 * number, serialize(features)) for number, features in enumerate(records, 1)]
    return read_rows(found, "a.tfrecord", shape_of(found[0], "a.tfrecord", kind), Vocabulary(VOCAB_SIZE, SPECIAL))


@pytest.mark.parametrize("new_names", [False, True])
def test_static_masks_are_undone(new_names: bool) -> None:
    rows = random_rows(200, single=0.2)
    tokens, random_next = read([bert(row, seed, new_names=new_names) for seed, row in enumerate(rows)])
    assert tokens.tolist() == [row.tokens for row in rows]
    assert random_next.tolist() == [row.random_next for row in rows]


def test_records_without_next_sentence() -> None:
    features = bert(ROW)
    del features["next_sentence_labels"]
    assert read([features])[0].tolist() == [ROW.tokens]
    with pytest.raises(DataError, match="next_sentence_labels"):
        read([features, bert(ROW)])


def test_a_prediction_without_weight_is_padding() -> None:
    unweighted = {"masked_lm_positions": [0] * 3, "masked_lm_weights": [0.0] * 3, "input_ids": ROW.tokens}
    assert read([bert(ROW) | unweighted])[0].tolist() == [ROW.tokens]


def test_other_features_than_those_of_the_first_record_are_not_a_matter_of_the_format() -> None:
    with pytest.raises(DataError, match=r"record 2 .*segment_ids .*missing.* first record, a\.tfrecord, record 1 \(byte 100\)"):
        read([electra(ROW), without("segment_ids")(electra(ROW))], "electra")
    with pytest.raises(DataError, match=r"next_sentence_labels is missing.* first record"):
        read([bert(ROW), electra(ROW)])
    with pytest.raises(DataError, match=r"there are: tokens\. .*cannot be imported: .*input_ids, input_mask and segment_ids"):
        read([{"tokens": ROW.tokens}])
    kinds: tuple[Kind, ...] = "bert", "electra"
    for kind in kinds:
        with pytest.raises(DataError, match=r"input_mask is missing.*cannot be imported: .*masked_lm_positions") as refused:
            read([{"input_ids": ROW.tokens}], kind)
        assert "--format" not in str(refused.value)


def test_mask_and_types_are_what_the_objective_derives() -> None:
    """What `read_rows` accepts is what `encoder_input` makes of the row."""
    records = [electra(row) for row in random_rows(50, single=0.3)]
    ids = jnp.asarray(read(records, "electra")[0].astype(np.int32))
    tokens = encoder_input(ids, row_kind="segments", special=SpecialTokens(PAD, UNK, CLS, SEP, MASK))
    np.testing.assert_array_equal(tokens.types, [features["segment_ids"] for features in records])
    np.testing.assert_array_equal(np.asarray(tokens.segments) == 0, [features["input_mask"] for features in records])


def changed(name: str, place: int, value: Any) -> Callable[[Features], Features]:
    def change(features: Features) -> Features:
        values = list(features[name])
        values[place] = value
        return features | {name: values}

    return change


def padded(text: list[int]) -> Features:
    ids = text + [PAD] * (LENGTH - len(text))
    return {"input_ids": ids, "input_mask": [int(token != PAD) for token in ids]}


def without(name: str) -> Callable[[Features], Features]:
    return lambda features: {key: values for key, values in features.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *((without(name), name) for name in ("input_ids", "segment_ids", "next_sentence_labels")),
        (without("masked_lm_weights"), "masked_lm_weights is missing"),
        (lambda f: f | {"input_ids": [0.5] * LENGTH}, "input_ids .*floats"),
        (lambda f: f | {"masked_lm_weights": [1, 0, 0]}, "masked_lm_weights .*int64s"),
        (lambda f: f | {"input_ids": f["input_ids"][:-1]}, "input_ids .*15 .*16"),
        (lambda f: f | {"input_mask": f["input_mask"] * 2}, "input_mask .*32"),
        (lambda f: f | {"masked_lm_ids": [5, 0]}, "3, 2 and 3 values"),
        (lambda f: f | {"next_sentence_labels": [2]}, r"next_sentence_labels .*\[2\]"),
        *((changed("input_ids", 3, id_), f"input_ids holds {id_} at position 3") for id_ in (VOCAB_SIZE, -1)),
        (changed("masked_lm_ids", 0, VOCAB_SIZE), f"masked_lm_ids holds {VOCAB_SIZE}"),
        *((changed("masked_lm_positions", 0, at), f"masked_lm_positions holds {at}") for at in (LENGTH, 1 << 40, -1, 0, 12)),
        (lambda f: f | {"masked_lm_positions": [1, 1, 0], "masked_lm_weights": [1.0, 1.0, 0.0]}, "holds 1 twice"),
        (lambda f: f | {"masked_lm_weights": [0.0] * 3}, "position 1 holds the mask"),
        (changed("input_ids", 0, 9), r"id 9, .*id 2.*--vocab"),
        *((changed("input_mask", at, one), f"input_mask is {one} at position {at}") for at, one in ((2, 0), (10, 1), (2, 2))),
        *((changed("segment_ids", at, one), f"segment_ids is {one} at position {at}") for at, one in ((6, 0), (15, 1))),
        (changed("input_ids", 7, 9), "id 9 at position 7"),
        (changed("input_ids", 6, SEP), r"it has 3 \[SEP\]"),
        (lambda f: f | padded([CLS, 5, 0, *ROW.tokens[3:8]]), "position 2 is padding"),
        (lambda f: f | padded([CLS, SEP]) | {"segment_ids": [0] * LENGTH}, "empty.* position 1"),
        (lambda f: f | padded([CLS, 5, SEP, SEP]), "empty.* position 3"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(change: Callable[[Features], Features], said: str) -> None:
    """The second record of three is the wrong one; position 1 (token 5) of the good ones is masked, and no other."""
    masks = {"masked_lm_positions": [1, 0, 0], "masked_lm_ids": [5, 0, 0], "masked_lm_weights": [1.0, 0.0, 0.0]}
    good = bert(ROW) | masks | {"input_ids": [CLS, MASK, *ROW.tokens[2:]]}
    wrong = change(good)
    if "empty" in said:  # nothing is masked there
        wrong |= {"masked_lm_weights": [0.0] * 3}
    with pytest.raises(DataError, match=rf"^a\.tfrecord, record 2 \(byte 200\): .*{said}"):
        read([good, wrong, good])


def test_the_wrong_format_is_told() -> None:
    with pytest.raises(DataError, match="--format bert"):
        read([bert(ROW)], "electra")
    with pytest.raises(DataError, match="--format electra"):
        read([electra(ROW)], "bert")
    with pytest.raises(DataError, match=r"tf\.train\.Example"):
        shape_of(Record(1, 0, b"\xff\xff"), "a", "bert")
