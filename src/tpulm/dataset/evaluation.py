"""What a model is scored on and against: held-out rows, each once and in order, and how frequent each token is in training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from tpulm import storage
from tpulm.dataset.blocks import READ_ROWS, BlockReader
from tpulm.dataset.manifest import WORD_START, load_split
from tpulm.errors import ConfigError, DataError


def evaluation_batches(
    folder: str | PurePath, *, batch_size: int, max_rows: int | None = None, host_index: int = 0, num_hosts: int = 1
) -> Iterator[dict[str, np.ndarray]]:
    """This host's slices of batches of `batch_size` rows over the first `max_rows` rows (all, if None).

    Parts and their rows are random samples already, so the first rows are one too. The last batch is filled up with rows of
    nothing but [PAD] (and next_sentence 0), which carry no weight; every host gets the same number of batches. Where words
    begin is left out: an evaluation masks single tokens.
    """
    if batch_size < 1 or batch_size % num_hosts:
        raise ConfigError(f"batch_size {batch_size} does not divide among {num_hosts} hosts; choose a multiple of {num_hosts}")
    manifest = load_split(folder)
    num_rows = manifest.counts.rows if max_rows is None else min(max_rows, manifest.counts.rows)
    if not num_rows:
        raise DataError("no rows", location=str(folder))
    share = batch_size // num_hosts
    reader = BlockReader(storage.as_path(folder), manifest, keep_rows=2 * READ_ROWS + share, without=(WORD_START,))
    for first in range(0, num_rows, batch_size):
        begin = min(first + host_index * share, num_rows)
        batch = reader.rows(reader.places(begin, min(begin + share, num_rows)))
        yield {name: _filled(rows, share, manifest.rows.special.pad if name == "tokens" else 0) for name, rows in batch.items()}


def token_counts(folder: str | PurePath, *, max_tokens: int) -> np.ndarray:
    """How often each token occurs where a model may have to predict it, int64 [V], in the split's first rows.

    Those are a random sample, of `max_tokens` tokens or a little more. Counted are the next tokens of causal rows, and of
    others every token but [CLS], [SEP] and [PAD], as masks are drawn.
    """
    rows = (manifest := load_split(folder)).rows
    max_rows = math.ceil(max_tokens / (rows.sequence_length * max(1e-3, manifest.text_fraction)))
    never = (rows.special.pad,) if rows.kind == "causal" else (rows.special.pad, rows.special.cls, rows.special.sep)
    counts = np.zeros(rows.vocab_size, np.int64)
    for batch in evaluation_batches(folder, batch_size=1024, max_rows=max_rows):
        tokens = batch["tokens"][:, 1:] if rows.kind == "causal" else batch["tokens"]
        counts += np.bincount(tokens.ravel(), minlength=rows.vocab_size)
    counts[list(never)] = 0
    return counts


def _filled(rows: np.ndarray, count: int, value: int) -> np.ndarray:
    if len(rows) == count:
        return rows
    filling = np.full((count - len(rows), *rows.shape[1:]), value, rows.dtype)
    return np.concatenate([rows, filling])
