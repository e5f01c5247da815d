"""TFRecords as Google's scripts write them, for the tests of importing: a small vocabulary, rows, and their records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfrecord_files import frame, serialize

LENGTH = 16
PREDICTIONS = 3
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdef")]
PAD, UNK, CLS, SEP, MASK = range(5)
FIRST_ID, VOCAB_SIZE = 5, len(TOKENS)

Features = dict[str, Any]


class Row(NamedTuple):
    first: tuple[int, ...]
    second: tuple[int, ...] = ()
    random_next: int = 0

    @property
    def tokens(self) -> list[int]:
        text = [CLS, *self.first, SEP, *([*self.second, SEP] if self.second else [])]
        return text + [PAD] * (LENGTH - len(text))


def write_vocabulary(path: Path) -> Path:
    path.write_text("".join(f"{token}\n" for token in TOKENS))
    return path


def random_rows(count: int, seed: int = 0, *, single: float = 0.0) -> list[Row]:
    draw = random.Random(seed)

    def text() -> tuple[int, ...]:
        return tuple(draw.choices(range(FIRST_ID, VOCAB_SIZE), k=draw.randint(1, 6)))

    return [Row(text(), () if draw.random() < single else text(), draw.randint(0, 1)) for _ in range(count)]


def electra(row: Row) -> Features:
    tokens = row.tokens
    first = len(row.first) + 2
    return {
        "input_ids": tokens,
        "input_mask": [int(token != PAD) for token in tokens],
        "segment_ids": [int(place >= first and token != PAD) for place, token in enumerate(tokens)],
    }


def bert(row: Row, seed: int = 0, *, new_names: bool = False) -> Features:
    """With static masks: 80 % [MASK], 10 % random, 10 % kept, as create_masked_lm_predictions has them."""
    draw = random.Random(seed)
    features = electra(row)
    ids = list(features["input_ids"])
    words = [place for place, token in enumerate(ids) if token not in (PAD, CLS, SEP)]
    places = sorted(draw.sample(words, min(PREDICTIONS, len(words), 1 + draw.randrange(PREDICTIONS))))
    originals = [ids[place] for place in places]
    for place in places:
        chance = draw.random()
        ids[place] = MASK if chance < 0.8 else draw.randrange(FIRST_ID, VOCAB_SIZE) if chance < 0.9 else ids[place]
    missing = PREDICTIONS - len(places)
    return {
        "input_word_ids" if new_names else "input_ids": ids,
        "input_mask": features["input_mask"],
        "input_type_ids" if new_names else "segment_ids": features["segment_ids"],
        "masked_lm_positions": places + [0] * missing,
        "masked_lm_ids": originals + [0] * missing,
        "masked_lm_weights": [1.0] * len(places) + [0.0] * missing,
        "next_sentence_labels": [row.random_next],
    }


def write_records(path: Path, records: Sequence[Features]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(frame(serialize(features)) for features in records))
    return path
