"""The records that Google's two scripts write, as rows: checked, and with their static masks removed.

BERT (google-research/bert, create_pretraining_data.py), L tokens, P predictions: input_ids, input_mask, segment_ids int64 [L];
masked_lm_positions, masked_lm_ids int64 [P] and masked_lm_weights float32 [P], padded with 0; next_sentence_labels int64 [1]
(1: the second segment is random), which forks may leave out. Newer code (tensorflow/models, nlp) writes input_word_ids and
input_type_ids. ELECTRA (google-research/electra, build_pretraining_dataset.py): input_ids, input_mask, segment_ids, not masked.

A row's attention mask and types are not stored, as they follow from its ids (`objectives.rows.describe`, kind "segments"). So
they are checked against the record's, as is everything else that would otherwise go wrong silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tpulm.dataset import example, tfrecord
from tpulm.dataset.layouts import RowLayout
from tpulm.dataset.tfrecord import Record
from tpulm.errors import DataError
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Vocabulary

Kind = Literal["bert", "electra"]
_IDS, _MASK, _TYPES = ("input_ids", "input_word_ids"), ("input_mask",), ("segment_ids", "input_type_ids")
_POSITIONS, _ORIGINALS, _WEIGHTS = ("masked_lm_positions",), ("masked_lm_ids",), ("masked_lm_weights",)
_LABEL = ("next_sentence_labels",)
_READ = (
    "of ELECTRA's records input_ids, input_mask and segment_ids (or input_word_ids, input_type_ids) are read, of BERT's "
    "masked_lm_positions, masked_lm_ids and masked_lm_weights too"
)


class Shape(NamedTuple):
    """What all records must have in common."""

    kind: Kind
    sequence_length: int
    next_sentence: bool
    first: str  # where the first record is


class _Example(NamedTuple):
    """The features of a record."""

    place: str  # of the record, for messages
    features: Mapping[str, Any]

    def error(self, message: str) -> DataError:
        return DataError(message, location=self.place)

    def values(self, names: Sequence[str], *, floats: bool = False, first: str | None = None) -> Any:
        """The values of the feature that has one of these names. `first`: where the record is that all others must be like."""
        features = self.features
        name = next((name for name in names if name in features), None)  # indexing a protobuf map would add the name to it
        if name is None:
            present = ", ".join(sorted(features)) or "none"
            missing = f"the feature {' or '.join(names)} is missing, and there are: {present}"
            if first in (None, self.place):
                raise self.error(f"{missing}. Such records cannot be imported: {_READ}")
            raise self.error(f"{missing}. The first record, {first}, has it; import those with other features apart")
        try:
            return example.values(features[name], "float_list" if floats else "int64_list")
        except example.NotAnExample as error:
            raise self.error(f"the feature {name} {error}; write it anew") from error


class _Batch(NamedTuple):
    """N records as arrays, with G predictions in all."""

    places: Sequence[str]  # of the records, for messages
    ids: np.ndarray  # int64 [N, L]
    mask: np.ndarray  # int64 [N, L]
    types: np.ndarray  # int64 [N, L]
    labels: np.ndarray  # int64 [N]
    row: np.ndarray  # int64 [G]: of each prediction
    position: np.ndarray  # int64 [G]
    original: np.ndarray  # int64 [G]

    def refuse(self, wrong: np.ndarray, what: Callable[[int, int], str]) -> None:
        """Raise DataError with the message `what(row, position)` at the first True of `wrong`, bool [N] or [N, L]."""
        if wrong.any():
            row, position = divmod(int(np.argmax(wrong)), wrong[0].size)
            raise DataError(what(row, position), location=self.places[row])


def shape_of(record: Record, path: str, kind: Kind) -> Shape:
    """The shape of this record. Raises DataError if it is not of this kind."""
    one = _example(record, path)
    ids = one.values(_IDS)
    masked = [name for name in (*_POSITIONS, *_ORIGINALS, *_WEIGHTS) if name in one.features]
    if kind == "electra" and masked:
        raise one.error(f"it has {', '.join(masked)}, so its ids are masked as BERT's are; give --format bert")
    for names in (_MASK, _TYPES):
        one.values(names)
    if kind == "bert" and not masked:
        raise one.error("it has no masked_lm_positions, so it is none of BERT's; if ELECTRA's, give --format electra")
    return Shape(kind, len(ids), kind == "bert" and _LABEL[0] in one.features, one.place)


def read_rows(records: Sequence[Record], path: str, shape: Shape, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The rows of records of one file, int64 [N, L] without masks, and int8 [N]: 1 where the second segment is random.

    Raises DataError naming file, record and byte, the value found, and the fix."""
    batch = _gather(records, path, shape)
    _check_values(batch, vocabulary)
    tokens = _unmask(batch, vocabulary)
    _check_rows(batch, tokens, vocabulary.special)
    return tokens, batch.labels.astype(np.int8)


def layout_of(tokens: np.ndarray, random_next: np.ndarray | None, special: SpecialTokens) -> RowLayout:
    """The layout that `layouts.fill` turns into these rows [N, L], each [CLS] A [SEP] or [CLS] A [SEP] B [SEP], and padding."""
    length = tokens.shape[1]
    row, end = np.nonzero(tokens == special.sep)
    opens = np.diff(row, prepend=-1) > 0
    column = np.where(opens, 1, np.concatenate([[0], end[:-1]]) + 1)
    closes = np.ones(row.size, bool)
    return RowLayout(len(tokens), row, column, row * length + column, end - column, opens, closes, random_next)


def _gather(records: Sequence[Record], path: str, shape: Shape) -> _Batch:
    places: list[str] = []
    columns: dict[str, list[int]] = {name: [] for name in _Batch._fields[1:]}
    for number, record in enumerate(records):
        one = _example(record, path)
        places.append(one.place)
        for names, column in ((_IDS, "ids"), (_MASK, "mask"), (_TYPES, "types")):
            ints = one.values(names, first=shape.first)
            if len(ints) != shape.sequence_length:
                raise one.error(
                    f"{names[0]} has {len(ints)} values, and the first record has rows of {shape.sequence_length}: all must "
                    "have one length; import those of another length into a work folder of their own",
                )
            columns[column].extend(ints)
        columns["labels"].append(_label(one, shape))
        if shape.kind == "electra":
            continue
        where, what = (one.values(names, first=shape.first) for names in (_POSITIONS, _ORIGINALS))
        weights = one.values(_WEIGHTS, floats=True, first=shape.first)
        if not len(where) == len(what) == len(weights):
            lengths = f"{len(where)}, {len(what)} and {len(weights)}"
            raise one.error(f"masked_lm_positions, _ids and _weights have {lengths} values, not equally many; write it anew")
        for place, token, weight in zip(where, what, weights, strict=True):
            if weight:
                columns["row"].append(number)
                columns["position"].append(place)
                columns["original"].append(token)
    ids, mask, types, *others = (np.array(column, np.int64) for column in columns.values())
    return _Batch(places, *(column.reshape(len(records), -1) for column in (ids, mask, types)), *others)


def _label(one: _Example, shape: Shape) -> int:
    """The next-sentence label, 0 if there is none."""
    if not shape.next_sentence:
        if shape.kind == "bert" and _LABEL[0] in one.features:
            raise one.error("it has next_sentence_labels, and the first record has none; import the two apart")
        return 0
    values = one.values(_LABEL, first=shape.first)
    if list(values) not in ([0], [1]):
        raise one.error(f"next_sentence_labels is {list(values)[:8]}, not [0] or [1]; write it anew")
    return values[0]


def _check_values(batch: _Batch, vocabulary: Vocabulary) -> None:
    """Check that ids are in the vocabulary and predictions in the text."""
    other = f"the vocabulary ends at {vocabulary.vocab_size - 1:,}: --vocab is not the one that the records were made with"
    batch.refuse(
        (batch.ids < 0) | (batch.ids >= vocabulary.vocab_size),
        lambda row, place: f"input_ids holds {batch.ids[row, place]} at position {place}, and {other}",
    )
    length = batch.ids.shape[1]
    inside = (batch.position > 0) & (batch.position < length)
    inside[inside] = batch.mask[batch.row[inside], batch.position[inside]] == 1
    key = batch.row * (1 << 32) + batch.position
    again = np.ones(key.size, bool)
    again[np.unique(key, return_index=True)[1]] = False
    for wrong, what in (
        (~inside, "masked_lm_positions holds {position}, which is no place of its text ([CLS] at 0 is none); write it anew"),
        (again, "masked_lm_positions holds {position} twice; write it anew"),
        ((batch.original < 0) | (batch.original >= vocabulary.vocab_size), "masked_lm_ids holds {original}, and " + other),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            text = what.format(position=batch.position[first], original=batch.original[first])
            raise DataError(text, location=batch.places[int(batch.row[first])])


def _unmask(batch: _Batch, vocabulary: Vocabulary) -> np.ndarray:
    tokens = batch.ids.copy()
    tokens[batch.row, batch.position] = batch.original
    mask = vocabulary.special.mask
    batch.refuse(
        tokens == mask,
        lambda row, place: (
            f"position {place} holds the mask token (id {mask}) and no masked_lm_positions restores it; "
            "--vocab is not the one that the records were made with, or they were masked twice"
        ),
    )
    return tokens


def _check_rows(batch: _Batch, tokens: np.ndarray, special: SpecialTokens) -> None:
    """Check that rows are `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`, then padding, and input_mask and segment_ids match."""
    wrong_vocabulary = "is --vocab the vocabulary that the records were made with?"
    batch.refuse(
        tokens[:, 0] != special.cls,
        lambda row, _: f"the row begins with id {tokens[row, 0]}, not with [CLS] (id {special.cls}); {wrong_vocabulary}",
    )
    real = tokens != special.pad
    batch.refuse(
        batch.mask != real,
        lambda row, place: (
            f"input_mask is {batch.mask[row, place]} at position {place}, where input_ids holds "
            f"{tokens[row, place]} ([PAD] is {special.pad}); {wrong_vocabulary}"
        ),
    )
    batch.refuse(
        np.diff(real.astype(np.int8), axis=1) > 0,
        lambda row, place: f"position {place} is padding, and text follows it; rows must be padded at their end: write it anew",
    )
    ends = tokens == special.sep
    last = real.sum(axis=1) - 1
    batch.refuse(
        ~ends[np.arange(len(tokens)), last],
        lambda row, _: (
            f"the text ends with id {tokens[row, last[row]]} at position {last[row]}, not with [SEP] (id "
            f"{special.sep}); {wrong_vocabulary}"
        ),
    )
    count = ends.sum(axis=1)
    batch.refuse(
        count > 2,
        lambda row, _: f"it has {count[row]} [SEP] (id {special.sep}), and rows have one or two segments; {wrong_vocabulary}",
    )
    after = np.zeros_like(ends)
    after[:, 1:] = ends[:, :-1]
    after[:, 1] |= ends[:, 1]  # right after [CLS]
    batch.refuse(ends & after, lambda row, place: f"a segment is empty: [SEP] stands at position {place}; write it anew")
    types = (np.cumsum(ends, axis=1) - ends == 1) & real
    batch.refuse(
        batch.types != types,
        lambda row, place: (
            f"segment_ids is {batch.types[row, place]} at position {place}, where the [SEP] before it make it "
            f"{int(types[row, place])}: BERT and ELECTRA count up after the first [SEP]; {wrong_vocabulary}"
        ),
    )


def _example(record: Record, path: str) -> _Example:
    place = tfrecord.place(path, record.number, record.offset)
    try:
        return _Example(place, example.parse(record.data))
    except example.NotAnExample as error:
        raise DataError(
            f"its {len(record.data):,} bytes are no tf.train.Example ({error}); only what BERT's create_pretraining_data.py "
            "and ELECTRA's build_pretraining_dataset.py write can be imported",
            location=place,
        ) from error
