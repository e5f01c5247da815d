"""One part of an imported dataset: the rows that all pieces have for it, each once, divided between the splits and written."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from tpulm import storage, tokenization
from tpulm.corpus.identity import Purpose, below, draw
from tpulm.dataset.manifest import FORMAT_VERSION, SPLITS, Counts, PartRecord, Record, RowFormat
from tpulm.dataset.part import Version, write_part
from tpulm.dataset.pretraining_records import layout_of
from tpulm.dataset.rows import EMPTY, Layout
from tpulm.dataset.stretch import StretchRecord, keys_in, row_dtype, rows_of_part
from tpulm.tokenization import Tokenization

INDEX = "pieces.json"


class ImportedPartTask(NamedTuple):
    folder: str  # W/dataset
    pieces: str  # the folder of the stretches, with its index
    number: int
    tokenization_path: str
    inputs: str  # digest of inputs.json
    rows: RowFormat
    holdout_below: int  # the threshold of holdout draws


class PieceIndex(Record):
    """All stretches in one file, so that each part need not open all of theirs."""

    format_version: int = FORMAT_VERSION
    pieces: tuple[tuple[str, StretchRecord], ...]  # with the names of their rows' files


def write_index(folder: PurePath, pieces: list[tuple[str, StretchRecord]]) -> None:
    storage.write_json(folder / INDEX, PieceIndex(pieces=tuple(pieces)).model_dump(mode="json"))


def import_part(task: ImportedPartTask) -> dict[str, PartRecord]:
    """Build part `task.number` of both splits; the records by split. Memory: the part's rows, twice.

    Rows that are equal in ids and label are written once; equal ids always fall to the same split.
    """
    pieces = storage.as_path(task.pieces)
    index = _index(task.pieces, task.inputs)
    rows, of_held_file = rows_of_part(
        ((pieces / name, record) for name, record in index.pieces), task.number, row_dtype(task.rows)
    )
    key = rows[["high", "low", "random_next"]]
    first = np.ones(len(rows), bool)
    first[1:] = key[1:] != key[:-1]
    duplicates = len(rows) - int(first.sum())
    held_out = below(draw(keys_in(rows), Purpose.HOLDOUT), task.holdout_below) | of_held_file
    if len(rows):  # equal ids go together: a row that another file has too is trained on
        starts = np.flatnonzero(keys_in(rows).are_new())
        held_out = np.repeat(np.logical_and.reduceat(held_out, starts), np.diff(starts, append=len(rows)))
    rows, held_out = rows[first], held_out[first]
    records = {}
    for split, chosen, left_out in zip(SPLITS, (~held_out, held_out), (duplicates, 0), strict=True):
        some = rows[chosen]
        tokens = np.ascontiguousarray(some["tokens"])
        layout = _layout(tokens, some["random_next"], task.rows)
        counts = _count(tokens.reshape(-1), layout, _tokenization(task.tokenization_path, task.inputs))
        records[split] = write_part(
            storage.as_path(task.folder) / split,
            number=task.number,
            inputs=task.inputs,
            versions=[Version(layout, tokens.reshape(-1))],
            counts=counts.model_copy(update={"duplicates": left_out}),
            rows=task.rows,
        )
    return records


def _layout(tokens: np.ndarray, random_next: np.ndarray, rows: RowFormat) -> Layout:
    if not len(tokens):
        return EMPTY
    return layout_of(tokens, random_next.astype(bool) if "next_sentence" in rows.columns else None, rows.special)


def _count(tokens: np.ndarray, layout: Layout, tokenizer: Tokenization) -> Counts:
    """Counts of the text: that of each segment as the vocabulary decodes it. An unknown word has left no character behind."""
    ends = layout.start + layout.length
    texts = [tokenizer.decode(tokens[first:end]) for first, end in zip(layout.start.tolist(), ends.tolist(), strict=True)]
    return Counts(
        bytes=sum(len(text.encode()) for text in texts),
        characters=sum(map(len, texts)),
        tokens=int(layout.length.sum()),
        unknown_tokens=int(np.count_nonzero(tokens == tokenizer.special.unknown)),
    )


@lru_cache(maxsize=1)
def _tokenization(path: str, inputs: str) -> Tokenization:
    return tokenization.load(path)


@lru_cache(maxsize=1)
def _index(folder: str, inputs: str) -> PieceIndex:
    return PieceIndex.model_validate(storage.read_json(storage.as_path(folder) / INDEX))
