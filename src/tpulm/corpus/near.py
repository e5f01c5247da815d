"""Near-duplicates: of documents that share a MinHash band, only the first in corpus order is kept.

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
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.corpus.identity import RANGE, Keys, joined, mix
from tpulm.corpus.manifest import PieceRecord, hash_json, pieces_folder, spill_path
from tpulm.corpus.spill import Run, SpillReader, place_of
from tpulm.progress import Progress
from tpulm.runtime import interrupt
from tpulm.runtime.hosts import Hosts
from tpulm.runtime.workers import Runner, TaskProgress, report, run_tasks

_DOCUMENT_BYTES: Final = 1 << 20  # of text, hashed at once
_MOST_ENTRIES: Final = 8 << 20  # of a band, sorted at once: 24 bytes each, and as much for sorting
_RANGES_WRITTEN: Final = 64  # in which the union of all bands is written


class _SpilledPiece(NamedTuple):
    number: int
    runs: tuple[Run, ...]
    digest: str  # identifies its documents

    def bands_path(self, workdir: str, bands: Banding) -> PurePath:
        return near_folder(workdir) / f"{self.number:06d}.{bands.bands}x{bands.rows}.{self.digest}.bands"

    @property
    def documents(self) -> int:
        return sum(run.documents for run in self.runs)


def near_folder(workdir: str | os.PathLike[str]) -> PurePath:
    return pieces_folder(workdir) / "near"


def mark_near_duplicates(
    records: Sequence[PieceRecord],
    workdir: str | os.PathLike[str],
    threshold: float,
    *,
    runner: Runner | None,
    workers: int | None,
    hosts: Hosts,
    progress: Progress,
) -> None:
    """Find all near-duplicates in the pieces. Killed and run again, it repeats at most one task per worker."""
    runner = runner or partial(run_tasks, workers=workers)
    bands, place = banding(threshold), os.fspath(workdir)
    pieces = [
        _SpilledPiece(number, record.runs, hash_json(record.model_dump(mode="json"))[:16])
        for number, record in enumerate(records)
    ]
    whole = hash_json([piece.digest for piece in pieces])[:16]
    band_files = [near_folder(place) / f"{band:03d}.{bands.bands}x{bands.rows}.{whole}.keys" for band in range(bands.bands)]
    if hosts.is_first:
        expected = {path.name for path in (*band_files, *(piece.bands_path(place, bands) for piece in pieces))}
        for path in storage.list_folder(storage.make_folder(near_folder(place))):
            if path.name not in expected:
                storage.remove(path)
    hosts.barrier("near-duplicates begun")
    mine = [piece for piece in hosts.share(pieces) if not _is_whole(piece, bands, place)]
    progress.start("Hashing for near-duplicates", sum(piece.documents for piece in mine), "document")
    with TaskProgress(progress) as done:
        for documents in runner(_hash_piece, [(piece, bands, place) for piece in mine]):
            done.add(over=documents)
    hosts.barrier("near-duplicates hashed")
    tasks = [(band, pieces, bands, place, str(path)) for band, path in enumerate(band_files) if not storage.exists(path)]
    progress.start("Comparing for near-duplicates", len(tasks), "band")
    with TaskProgress(progress) as done:
        for _ in runner(_compare_band, hosts.share(tasks)):
            done.add(over=1)
    hosts.barrier("near-duplicates compared")
    if hosts.is_first:
        _unite(band_files, _union_path(place))
    hosts.barrier("near-duplicates")


def keys_between(workdir: str | os.PathLike[str], low: int = 0, high: int = RANGE) -> Keys:
    """The keys of near-duplicates with low <= first half < high, ascending."""
    return _keys_between(_union_path(workdir), low, high)


def contains(known: Keys, keys: Keys) -> np.ndarray:
    """Which of `keys` are among `known`; bool [N]."""
    both = joined([known, keys])
    order = both.order()  # stable: of equal keys a known one comes first
    new = both.take(order).are_new()
    first = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    found = np.empty(len(order), bool)
    found[order] = first < len(known.high)
    return found[len(known.high) :]


def _union_path(workdir: str | os.PathLike[str]) -> PurePath:
    return near_folder(workdir) / "duplicates.keys"


def _is_whole(piece: _SpilledPiece, bands: Banding, workdir: str) -> bool:
    info = storage.info(piece.bands_path(workdir, bands))
    return info is not None and info.size == 8 * bands.bands * piece.documents


def _hash_piece(piece: _SpilledPiece, bands: Banding, workdir: str) -> int:
    path = piece.bands_path(workdir, bands)
    with storage.stream_aside(path) as stream:
        for run in SpillReader(spill_path(workdir, piece.number), piece.runs).slices():
            hashes = np.empty((bands.bands, len(run.ends)), np.uint64)
            done = 0
            for documents in run.blocks(_DOCUMENT_BYTES):
                interrupt.check("finished parts are kept")
                hashes[:, done : done + len(documents)] = band_hashes(documents, bands)
                done += len(documents)
                report(len(documents))
            stream.write(hashes.astype("<u8").tobytes())
    return piece.documents


def _compare_band(band: int, pieces: Sequence[_SpilledPiece], bands: Banding, workdir: str, path: str) -> int:
    """Write the keys of documents that are not the first with their hash; returns their number."""
    total = sum(piece.documents for piece in pieces)
    ranges = max(1, -(-total // _MOST_ENTRIES))
    found = []
    for number in range(ranges):
        first, last = number * RANGE // ranges, (number + 1) * RANGE // ranges
        entries = [_entries(piece, band, bands, workdir, first, last) for piece in pieces]
        hashes = np.concatenate([entry.hashes for entry in entries])
        keys = joined([entry.keys for entry in entries])
        order = np.argsort(hashes, kind="stable")
        hashes, keys = hashes[order], keys.take(order)
        new = np.ones(len(hashes), bool)
        new[1:] = hashes[1:] != hashes[:-1]
        leader = keys.take(np.maximum.accumulate(np.where(new, np.arange(len(hashes)), 0)))
        found.append(_distinct(keys.take((keys.high != leader.high) | (keys.low != leader.low))))
        report(1 / ranges)
    united = _distinct(joined(found))
    storage.write_atomic(storage.as_path(path), _to_bytes(united))
    return len(united.high)


class _Entries(NamedTuple):
    hashes: np.ndarray  # uint64 [N]
    keys: Keys


def _entries(piece: _SpilledPiece, band: int, bands: Banding, workdir: str, first: int, last: int) -> _Entries:
    """The hashes of one band in [first, last), and the keys of their documents, in the piece's order."""
    ranges = storage.open_ranges(piece.bands_path(workdir, bands))
    found, before = [_Entries(np.zeros(0, np.uint64), joined([]))], 0
    for run, item in zip(piece.runs, SpillReader(spill_path(workdir, piece.number), piece.runs).slices(), strict=True):
        start = 8 * (bands.bands * before + band * run.documents)
        hashes = np.frombuffer(ranges.read(start, start + 8 * run.documents), "<u8")
        chosen = (hashes >= np.uint64(first)) & (hashes <= np.uint64(last - 1))
        found.append(_Entries(hashes[chosen], item.keys.take(chosen)))
        before += run.documents
    return _Entries(np.concatenate([entry.hashes for entry in found]), joined([entry.keys for entry in found]))


def _unite(band_files: Sequence[PurePath], path: PurePath) -> None:
    with storage.stream_aside(path) as stream:
        for number in range(_RANGES_WRITTEN):
            low, high = number * RANGE // _RANGES_WRITTEN, (number + 1) * RANGE // _RANGES_WRITTEN
            stream.write(_to_bytes(_distinct(joined([_keys_between(band, low, high) for band in band_files]))))


_PAIR: Final = np.dtype([("high", "<u8"), ("low", "<u8")])  # one key in a file


def _to_bytes(keys: Keys) -> bytes:
    pairs = np.empty(len(keys.high), _PAIR)
    pairs["high"], pairs["low"] = keys
    return pairs.tobytes()


def _distinct(keys: Keys) -> Keys:
    """The distinct keys, ascending."""
    keys = keys.take(keys.order())
    return keys.take(keys.are_new())


def _keys_between(path: PurePath, low: int, high: int) -> Keys:
    """The keys with low <= first half < high in a file of ascending keys."""
    info = storage.info(path)
    size = 0 if info is None else info.size // _PAIR.itemsize
    ranges = storage.open_ranges(path)

    def highs(first: int, last: int) -> np.ndarray:
        pairs = ranges.read(first * _PAIR.itemsize, last * _PAIR.itemsize)
        return np.ascontiguousarray(np.frombuffer(pairs, _PAIR)["high"])

    first, last = place_of(low, size, highs), place_of(high, size, highs)
    pairs = np.frombuffer(ranges.read(first * _PAIR.itemsize, last * _PAIR.itemsize), _PAIR)
    return Keys(np.ascontiguousarray(pairs["high"]), np.ascontiguousarray(pairs["low"]))


SHINGLE_WORDS: Final = 5  # as in FineWeb (Penedo et al. 2024, section 3.4)
MOST_HASHES: Final = 128
_SINGLE: Final = ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
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
    wanted = similarity >= threshold
    choices = [Banding(bands, rows) for rows in range(1, 33) for bands in range(1, MOST_HASHES // rows + 1)]
    return min(choices, key=lambda choice: float(np.abs(choice.probability(similarity) - wanted).sum()))


def band_hashes(documents: Sequence[str], banding: Banding) -> np.ndarray:
    """Hashes, uint64 [bands, N]. A document without letters and digits resembles only its exact copies."""
    shingles, ends = _shingles(documents)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    found = np.zeros((banding.bands, len(documents)), np.uint64)
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
            found[band, full] = mixed
    for index in np.flatnonzero(~full).tolist():
        found[:, index] = int.from_bytes(hashlib.blake2b(documents[index].encode(), digest_size=8).digest(), "big")
    return found


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
    words = _hash_stretches(points, first[is_word], last[is_word])
    ends = np.searchsorted(first[is_word], np.cumsum(sizes))
    counts = np.diff(ends, prepend=0)

    # Sums run on into the next document. Those are dropped, except a short document's only one, less the words of the next.
    hashes, kept = np.zeros(len(words), np.uint64), np.ones(len(words), bool)
    for place in range(SHINGLE_WORDS):
        mixed = mix(words[place:] + np.uint64(place + 1))
        hashes[: len(mixed)] += mixed
        short = (ends - counts)[(counts > 0) & (counts <= place)]
        short = short[short < len(mixed)]
        hashes[short] -= mixed[short]
        if place:
            kept[(ends - place)[counts > place]] = False
    return mix(hashes[kept]), np.cumsum(np.where(counts > 0, np.maximum(1, counts - SHINGLE_WORDS + 1), 0))


def _hash_stretches(points: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
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
    kinds = np.fromiter((_WORD if chr(point).isalnum() else _APART for point in range(0x110000)), np.uint8, 0x110000)
    for first, last in _SINGLE:
        kinds[first : last + 1][kinds[first : last + 1] == _WORD] = _ALONE
    return kinds
