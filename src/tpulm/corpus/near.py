"""Near-duplicates: of documents that share a MinHash band, only one is kept: of the earlier source, and within it by hash.

MinHash with banding (Broder 1997; Leskovec et al., chapter 3): a document is the set of its shingles, each `SHINGLE_WORDS`
consecutive words, ignoring case and punctuation. In scripts without spaces (Chinese, kana) each character counts as a word.
The smallest shingle hash of two documents is the same with a probability equal to their Jaccard similarity s. A band is `rows`
such minima, and at least one of `bands` bands is the same with probability 1 - (1 - s^rows)^bands.

Libraries were measured on the same shingles (benchmarks/near.py). rensa 0.5 is 1.4 to 1.9 times as fast for long texts and
0.3 to 0.8 times as fast for short ones, since it returns signatures as Python lists. They changed with its last version, and
the shingles would still be our code. datasketch is a tenth to a fifth as fast. gaoya keeps its signatures private, in memory.

Two passes over the spill consist of independent, restartable tasks. The first writes the band hashes of each piece:

    W/corpus/pieces/near/000000.….bands    for each run of the spill, one row of hashes per band; uint64

The second sorts one band of the whole corpus, a range of hashes at a time, and writes the keys of documents that are not the
first with their hash. `keys_between` reads the union:

    W/corpus/pieces/near/003.….keys        of one band
    W/corpus/pieces/near/duplicates.keys   of all bands; ascending keys, uint64 pairs

Exact copies share a key and are removed together, so keys suffice. The rule needs no clusters: if A resembles B and B
resembles C, B is removed because of A, and C because of B, although B is removed itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.corpus.identity import RANGE, Keys, is_letter, joined, mix
from tpulm.corpus.manifest import PieceRecord, hash_json, pieces_folder, spill_path
from tpulm.corpus.spill import SortedRun, SpillReader, place_of
from tpulm.errors import StorageError
from tpulm.progress import Progress
from tpulm.runtime import interrupt, stage
from tpulm.runtime.hosts import Hosts
from tpulm.runtime.workers import Runner, report

_DOCUMENT_BYTES: Final = 1 << 20  # of text, hashed at a time
_MOST_ENTRIES: Final = 8 << 20  # of a band, sorted at a time: 24 bytes each, and as much for sorting
_RANGES_WRITTEN: Final = 64  # in which the union of all bands is written


class _SpilledPiece(NamedTuple):
    """A unit of the first pass."""

    files: tuple[PurePath]  # of its bands
    spill: PurePath
    runs: tuple[SortedRun, ...]
    bands: Banding
    amount: int  # documents

    def finished(self) -> bool:
        return stage.has_size(self.files[0], 8 * self.bands.bands * self.amount)

    def build(self) -> bool:
        with storage.stream_aside(self.files[0]) as stream:
            for run in SpillReader(self.spill, self.runs).slices():
                hashes = np.empty((self.bands.bands, len(run.ends)), np.uint64)
                done = 0
                for documents in run.blocks(_DOCUMENT_BYTES):
                    interrupt.check("finished parts are kept")
                    hashes[:, done : done + len(documents)] = band_hashes(documents, self.bands)
                    done += len(documents)
                    report(len(documents))
                stream.write(hashes.astype("<u8").tobytes())
        return True


class _Band(NamedTuple):
    """A unit of the second pass: the keys of documents that are not the first with their hash."""

    files: tuple[PurePath]
    number: int
    pieces: Sequence[_SpilledPiece]
    amount: int = 1

    def finished(self) -> bool:
        return storage.exists(self.files[0])

    def build(self) -> bool:
        ranges = max(1, -(-sum(piece.amount for piece in self.pieces) // _MOST_ENTRIES))
        parts = []
        for number in range(ranges):
            first, last = number * RANGE // ranges, (number + 1) * RANGE // ranges
            entries = [entry for piece in self.pieces for entry in _entries(piece, self.number, first, last)]
            hashes = np.concatenate([np.zeros(0, np.uint64), *(some for some, _ in entries)])
            keys = joined(some for _, some in entries)
            _, firsts, numbers = np.unique(hashes, return_index=True, return_inverse=True)
            leader = keys.take(firsts[numbers])
            parts.append(_distinct(keys.take((keys.high != leader.high) | (keys.low != leader.low))))
            report(1 / ranges)
        storage.write_atomic(self.files[0], _to_bytes(_distinct(joined(parts))))
        return True


def near_folder(workdir: str | os.PathLike[str]) -> PurePath:
    return pieces_folder(workdir) / "near"


def duplicates_path(workdir: str | os.PathLike[str]) -> PurePath:
    """The keys of all near-duplicates, for `keys_between`."""
    return near_folder(workdir) / "duplicates.keys"


def mark_near_duplicates(
    records: Sequence[PieceRecord],
    workdir: str | os.PathLike[str],
    threshold: float,
    *,
    runner: Runner,
    hosts: Hosts,
    progress: Progress,
) -> None:
    """Find all near-duplicates in the pieces. Killed and run again, it repeats at most one task per worker."""
    folder, banded, pieces, digests = near_folder(workdir), banding(threshold), list[_SpilledPiece](), list[str]()
    name = f"{banded.bands}x{banded.rows}"
    for number, record in enumerate(records):
        digests.append(hash_json(record.model_dump(mode="json"))[:16])  # identifies its documents
        path, documents = folder / f"{number:06d}.{name}.{digests[-1]}.bands", sum(run.documents for run in record.runs)
        pieces.append(_SpilledPiece((path,), spill_path(workdir, number), record.runs, banded, documents))
    whole = hash_json(digests)[:16]
    bands = [_Band((folder / f"{band:03d}.{name}.{whole}.keys",), band, pieces) for band in range(banded.bands)]
    stage.sweep([*pieces, *bands], hosts)
    stage.run(pieces, "Hashing for near-duplicates", "document", runner=runner, hosts=hosts, progress=progress)
    stage.run(bands, "Comparing for near-duplicates", "band", runner=runner, hosts=hosts, progress=progress)
    if hosts.is_first:
        _unite([band.files[0] for band in bands], duplicates_path(workdir))
    hosts.barrier("near-duplicates")


def contains(known: Keys, keys: Keys) -> np.ndarray:
    """Which of `keys` are among `known`; bool [N]."""
    both = joined([known, keys])
    order = both.order()  # stable: of equal keys a known one comes first
    new = both.take(order).are_new()
    first = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    result = np.empty(len(order), bool)
    result[order] = first < len(known.high)
    return result[len(known.high) :]


def _entries(piece: _SpilledPiece, band: int, first: int, last: int) -> Iterator[tuple[np.ndarray, Keys]]:
    """For each run: the hashes of one band in [first, last), uint64 [N], and the keys of their documents."""
    ranges, before = storage.Ranges(piece.files[0]), 0
    for run, item in zip(piece.runs, SpillReader(piece.spill, piece.runs).slices(), strict=True):
        start = 8 * (piece.bands.bands * before + band * run.documents)
        hashes = np.frombuffer(ranges.read(start, start + 8 * run.documents), "<u8")
        chosen = (hashes >= np.uint64(first)) & (hashes <= np.uint64(last - 1))
        yield hashes[chosen], item.keys.take(chosen)
        before += run.documents


def _unite(band_files: Sequence[PurePath], path: PurePath) -> None:
    with storage.stream_aside(path) as stream:
        for number in range(_RANGES_WRITTEN):
            low, high = number * RANGE // _RANGES_WRITTEN, (number + 1) * RANGE // _RANGES_WRITTEN
            stream.write(_to_bytes(_distinct(joined([keys_between(band, low, high) for band in band_files]))))


_PAIR: Final = np.dtype([("high", "<u8"), ("low", "<u8")])  # one key in a file


def _to_bytes(keys: Keys) -> bytes:
    pairs = np.empty(len(keys.high), _PAIR)
    pairs["high"], pairs["low"] = keys
    return pairs.tobytes()


def _distinct(keys: Keys) -> Keys:
    """The distinct keys, ascending."""
    keys = keys.take(keys.order())
    return keys.take(keys.are_new())


def keys_between(path: PurePath, low: int, high: int) -> Keys:
    """The keys with low <= first half < high in a file of ascending keys. Raises StorageError if it is gone."""
    if (info := storage.info(path)) is None:
        manifest = path.parents[2] / "manifest.json"
        raise StorageError(f"{path} is gone, which has the near-duplicates; delete {manifest} and run the same command again")
    size, ranges = info.size // _PAIR.itemsize, storage.Ranges(path)

    def read(first: int, last: int) -> Keys:
        pairs = np.frombuffer(ranges.read(first * _PAIR.itemsize, last * _PAIR.itemsize), _PAIR)
        return Keys(np.ascontiguousarray(pairs["high"]), np.ascontiguousarray(pairs["low"]))

    first, last = (place_of(key, size, lambda first, last: read(first, last).high) for key in (low, high))
    return read(first, last)


SHINGLE_WORDS: Final = 5  # as in FineWeb (Penedo et al. 2024, section 3.4)
MOST_HASHES: Final = 128
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters.
_SINGLE: Final = (
    *((0x0E01, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),
    *((0x3041, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
)
_BASE: Final = 0x9E3779B97F4A7C15  # odd, hence with an inverse modulo 2^64

_APART, _WORD, _ALONE = range(3)


class Banding(NamedTuple):
    bands: int
    rows: int

    def probability(self, similarity: np.ndarray) -> np.ndarray:
        """The probability that documents of this Jaccard similarity share a band."""
        return 1.0 - (1.0 - similarity**self.rows) ** self.bands


@lru_cache
def banding(threshold: float) -> Banding:
    """The banding whose probability is closest to a step at the threshold, by the area between the two."""
    similarity = (np.arange(2000) + 0.5) / 2000
    is_similar = similarity >= threshold
    choices = [Banding(bands, rows) for rows in range(1, MOST_HASHES + 1) for bands in range(1, MOST_HASHES // rows + 1)]
    return min(choices, key=lambda choice: float(np.abs(choice.probability(similarity) - is_similar).sum()))


def band_hashes(documents: Sequence[str], banding: Banding) -> np.ndarray:
    """Hashes, uint64 [bands, N]. A document without letters and digits resembles only its exact copies."""
    shingles, ends = _shingles(documents)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    result = np.zeros((banding.bands, len(documents)), np.uint64)
    full = ends > starts
    if full.any():
        factors, offsets = _hash_family()
        hashes, starts = np.empty_like(shingles), starts[full]
        for band in range(banding.bands):
            mixed = np.zeros(len(starts), np.uint64)
            for row in range(band * banding.rows, (band + 1) * banding.rows):
                np.multiply(shingles, factors[row], out=hashes)
                hashes += offsets[row]
                mixed = mix(mixed * np.uint64(_BASE) + (np.minimum.reduceat(hashes, starts) >> np.uint64(32)))
            result[band, full] = mixed
    for index in np.flatnonzero(~full).tolist():
        result[:, index] = int.from_bytes(hashlib.blake2b(documents[index].encode(), digest_size=8).digest(), "big")
    return result


def _shingles(documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The hashes of all shingles, and their number up to and including each document."""
    lowered = [document.lower() for document in documents]
    points = np.frombuffer("".join(lowered).encode("utf-32-le"), "<u4")
    sizes = np.fromiter(map(len, lowered), np.int64, len(lowered))
    kinds = _kinds()[points]
    begins = np.ones(len(points), bool)
    np.not_equal(kinds[1:], kinds[:-1], out=begins[1:])
    begins[(np.cumsum(sizes) - sizes)[sizes > 0]] = True
    begins |= kinds == _ALONE
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(points))
    is_word = kinds[first] != _APART
    word_hashes = _hash_words(points, first[is_word], last[is_word])
    ends = np.searchsorted(first[is_word], np.cumsum(sizes))
    counts = np.diff(ends, prepend=0)

    # Sums run on into the next document. Those are dropped, except a short document's only one, less the words of the next.
    hashes, is_last = np.zeros(len(word_hashes), np.uint64), np.ones(len(word_hashes), bool)
    for place in range(SHINGLE_WORDS):
        mixed = mix(word_hashes[place:] + np.uint64(place + 1))
        hashes[: len(mixed)] += mixed
        short = (ends - counts)[(counts > 0) & (counts <= place)]
        short = short[short < len(mixed)]
        hashes[short] -= mixed[short]
        if place:
            is_last[(ends - place)[counts > place]] = False
    return mix(hashes[is_last]), np.cumsum(np.where(counts > 0, np.maximum(1, counts - SHINGLE_WORDS + 1), 0))


def _hash_words(points: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """A hash of points[first:last] for each pair: differences of a running polynomial modulo 2^64, shifted to one degree."""
    powers, inverses = _powers(1 << max(10, (len(points) + 1).bit_length()))
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix(points.astype(np.uint64)) * powers[: len(points)])])
    return mix((running[last] - running[first]) * inverses[first])


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(
        np.cumprod(np.full(count, base, np.uint64)) * np.uint64(pow(base, -1, 1 << 64))
        for base in (_BASE, pow(_BASE, -1, 1 << 64))
    )  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=1)
def _hash_family() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(1, 2 * MOST_HASHES + 1, dtype=np.uint64)
    drawn = mix(numbers * np.uint64(_BASE))
    return drawn[:MOST_HASHES] | np.uint64(1), drawn[MOST_HASHES:]


@lru_cache(maxsize=1)
def _kinds() -> np.ndarray:
    kinds = np.fromiter((_WORD if is_letter(point) else _APART for point in range(0x110000)), np.uint8, 0x110000)
    for first, last in _SINGLE:
        kinds[first : last + 1][kinds[first : last + 1] == _WORD] = _ALONE
    return kinds
