"""Read the spill: a part, which is a random share of the corpus, or a sample of the whole corpus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import numpy as np

from tpulm import storage
from tpulm.corpus.documents import Samples, SamplesByReason
from tpulm.corpus.identity import RANGE, HashPurpose, Keys, below, draw, joined, part_range, threshold_of
from tpulm.corpus.manifest import CorpusManifest, spill_path
from tpulm.corpus.near import contains, duplicates_path, keys_between
from tpulm.corpus.spill import SpillReader, SpillSlice
from tpulm.errors import DataError

_REQUESTS: Final = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


class Part(NamedTuple):
    """Documents in the order of their hashes, which is random but always the same."""

    train: list[str]  # with weights applied: all first copies, then all second copies, …
    holdout: list[str]
    duplicates: int  # exact copies of an earlier document
    near_duplicates: int  # near-duplicates of an earlier document
    left_out: int  # training documents dropped by a weight below one
    added: int  # copies added by weights above one
    removed: SamplesByReason  # samples of both kinds of duplicates


def read_part(workdir: str | os.PathLike[str], manifest: CorpusManifest, part: int) -> Part:
    """Read part number `part` of `manifest.num_parts`. Memory is bounded by `part_bytes` (plus one document).

    Of exact duplicates the first in source order is kept, with its source's weight. A weight of 2.3 gives two copies of each
    training document and a third copy of 30% of them, chosen by hash; held-out documents are never copied.
    """
    low, high = part_range(part, manifest.num_parts)
    slices, weights = _slices(workdir, manifest, low, high)
    documents = [document for batch in _each(SpillSlice.documents, slices, workdir) for document in batch]
    keys, order, repeat = _merged([item.keys for item in slices])
    duplicates, samples = 0, Samples()
    if manifest.config.deduplicate:
        first = repeat == 0
        samples.add("duplicates", (documents[index] for index in order[~first].tolist()))
        duplicates = len(order) - int(first.sum())
        keys, order, repeat = keys.take(first), order[first], repeat[first]
    near = _near(keys, workdir, manifest, low, high)
    samples.add("near_duplicates", (documents[index] for index in order[near].tolist()))
    keys, order, repeat = keys.take(~near), order[~near], repeat[~near]
    held = below(draw(keys, HashPurpose.HOLDOUT), manifest.holdout_below)
    holdout = [documents[index] for index in order[held].tolist()]
    keys, order, repeat = keys.take(~held), order[~held], repeat[~held]
    weight = np.repeat(np.array(weights, np.float64), np.array([len(item.ends) for item in slices], np.int64))[order]
    copies = _copies(keys, weight)
    # All first copies in key order, then all second ones, …: copies of a document are far apart.
    places = np.repeat(np.arange(len(order)), copies)
    number = np.arange(len(places)) - np.repeat(np.cumsum(copies) - copies, copies) + repeat[places]
    chosen = order[places[np.argsort(number, kind="stable")]]
    return Part(
        train=[documents[index] for index in chosen.tolist()],
        holdout=holdout,
        duplicates=duplicates,
        near_duplicates=int(near.sum()),
        left_out=int((copies == 0).sum()),
        added=int(np.maximum(copies - 1, 0).sum()),
        removed=samples.removed(),
    )


def some_texts(workdir: str | os.PathLike[str], manifest: CorpusManifest, about_bytes: int) -> list[str]:
    """Random documents of the corpus, of about `about_bytes` in all; nothing else is read."""
    high = min(RANGE, about_bytes * RANGE // max(1, manifest.counts.bytes))
    slices, _ = _slices(workdir, manifest, 0, high)
    return [document for item in slices for document in item.documents()]


def sample_texts(workdir: str | os.PathLike[str], manifest: CorpusManifest, max_bytes: int) -> Iterator[list[str]]:
    """Training documents, at most `max_bytes` of UTF-8, each once whatever its weight; one list per part.

    They are chosen by hash from the whole corpus, or are all of it if it is small enough. Raises DataError if no document fits.
    """
    threshold = _sample_threshold(workdir, manifest, max_bytes)
    for part in range(manifest.num_parts):
        low, high = part_range(part, manifest.num_parts)
        slices, _ = _slices(workdir, manifest, low, high)
        chosen = [np.flatnonzero(_in_sample(item.keys, manifest, threshold)) for item in slices]
        keys, order, repeat = _merged([item.keys.take(index) for item, index in zip(slices, chosen, strict=True)])
        documents = [text for item, index in zip(slices, chosen, strict=True) for text in item.some_documents(index)]
        keep = (repeat == 0) & ~_near(keys, workdir, manifest, low, high)
        if keep.any():
            yield [documents[index] for index in order[keep].tolist()]


def _near(keys: Keys, workdir: str | os.PathLike[str], manifest: CorpusManifest, low: int, high: int) -> np.ndarray:
    """Which of these keys, all in [low, high), belong to near-duplicates; bool [N]."""
    if manifest.config.near_duplicates is None:
        return np.zeros(len(keys.high), bool)
    return contains(keys_between(duplicates_path(workdir), low, high), keys)


def _slices(
    workdir: str | os.PathLike[str], manifest: CorpusManifest, low: int = 0, high: int = RANGE
) -> tuple[list[SpillSlice], list[float]]:
    """The slices of a range of keys, in source order, and the weight of each slice."""

    def slices_of(index: int) -> list[SpillSlice]:
        return list(SpillReader(spill_path(workdir, index), manifest.pieces[index].runs).slices(low, high))

    slices: list[SpillSlice] = []
    weights: list[float] = []
    for piece, of_piece in zip(manifest.pieces, _each(slices_of, range(len(manifest.pieces)), workdir), strict=True):
        slices.extend(of_piece)
        weights.extend([manifest.config.sources[piece.source].weight] * len(of_piece))
    return slices, weights


def _each(function: Callable[[Item], Result], items: Iterable[Item], workdir: str | os.PathLike[str]) -> Iterator[Result]:
    """The results in order; calls run concurrently for Cloud Storage."""
    if not storage.is_remote(workdir):
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield from pool.map(function, items)


def _merged(keys: list[Keys]) -> tuple[Keys, np.ndarray, np.ndarray]:
    """The sorted keys, the permutation that sorts them, and how many equal keys precede each; int64 [N]."""
    merged = joined(keys)
    order = merged.order()
    merged = merged.take(order)
    positions = np.arange(len(order))
    return merged, order, positions - np.maximum.accumulate(np.where(merged.are_new(), positions, 0))


def _copies(keys: Keys, weight: np.ndarray) -> np.ndarray:
    whole = np.floor(weight)
    uniform = (draw(keys, HashPurpose.WEIGHT) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (whole + (uniform < weight - whole)).astype(np.int64)


def _in_sample(keys: Keys, manifest: CorpusManifest, threshold: int) -> np.ndarray:
    held = below(draw(keys, HashPurpose.HOLDOUT), manifest.holdout_below)
    return below(draw(keys, HashPurpose.TOKENIZER_SAMPLE), threshold) & ~held


def _sample_threshold(workdir: str | os.PathLike[str], manifest: CorpusManifest, max_bytes: int) -> int:
    """The largest threshold of sample draws below which documents have at most `max_bytes` in all."""
    if manifest.counts.bytes <= max_bytes:
        return RANGE
    share = 1.25 * max_bytes / manifest.counts.bytes  # a little more, since held-out and repeated documents do not count
    while True:
        draws, ends = _smallest_draws(workdir, manifest, min(RANGE, threshold_of(share)))
        fitting = int(np.searchsorted(ends, max_bytes, "right"))
        if fitting < len(draws):
            if draws[fitting] == draws[0]:
                raise DataError(f"no document fits in a sample of {max_bytes:,} bytes; raise tokenizer.sample_bytes")
            return int(draws[fitting])
        if share >= 1.0:
            return RANGE
        share *= 2.0


def _smallest_draws(workdir: str | os.PathLike[str], manifest: CorpusManifest, threshold: int) -> tuple[np.ndarray, np.ndarray]:
    """The sorted sample draws below `threshold`, one per distinct document, and the cumulative bytes up to each.

    Reads the keys and lengths of the whole corpus, one run at a time, and no text.
    """
    all_keys, all_lengths = [], [np.zeros(0, np.int64)]
    for index, piece in enumerate(manifest.pieces):
        for item in SpillReader(spill_path(workdir, index), piece.runs).slices():
            chosen = _in_sample(item.keys, manifest, threshold)
            all_keys.append(item.keys.take(chosen))
            all_lengths.append(item.lengths()[chosen])
    keys, order, repeat = _merged(all_keys)
    draws, lengths = draw(keys, HashPurpose.TOKENIZER_SAMPLE)[repeat == 0], np.concatenate(all_lengths)[order[repeat == 0]]
    order = np.argsort(draws, kind="stable")
    return draws[order], np.cumsum(lengths[order])
