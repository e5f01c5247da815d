"""What `tpulm dataset inspect` shows, as data."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import Literal, NamedTuple

import numpy as np

from tpulm import corpus, storage
from tpulm.dataset.blocks import BlockReader
from tpulm.dataset.manifest import READ_ROWS, WORD_START, Counts, SplitManifest, load_manifest, load_split
from tpulm.dataset.random_streams import RandomStream, StreamPurpose
from tpulm.errors import DataError


class SampledRow(NamedTuple):
    number: int  # counted through the split's parts
    part: str
    tokens: np.ndarray  # [L]
    random_next: bool | None  # None where the dataset has no next_sentence
    word_start: np.ndarray | None = None  # [L], where the dataset has it


class Summary(NamedTuple):
    """One table row per field; fractions are of all token slots, the unknown share of visible characters."""

    counts: Counts
    parts: int
    disk_bytes: int
    bytes_per_token: float
    tokens_per_row: float
    padding_fraction: float
    unknown_share: float
    tokens_per_character: float


def summarize(workdir: str | PurePath, split: Literal["train", "holdout"]) -> Summary:
    """The counts of a split and figures derived from them, from its manifest alone."""
    manifest = _split(workdir, split)
    counts = manifest.counts
    disk_bytes = sum(file.bytes for part in manifest.parts for file in part.objects.values())
    return Summary(
        counts=counts,
        parts=len(manifest.parts),
        disk_bytes=disk_bytes,
        bytes_per_token=disk_bytes / max(1, counts.tokens * manifest.num_versions),
        tokens_per_row=counts.tokens / max(1, counts.rows),
        padding_fraction=manifest.padding_fraction,
        unknown_share=counts.unknown_fraction,
        tokens_per_character=manifest.tokens_per_character,
    )


def sample_rows(workdir: str | PurePath, split: Literal["train", "holdout"], *, count: int, seed: int = 0) -> list[SampledRow]:
    """`count` different rows (all, if there are fewer), drawn uniformly with the seed, in dataset order."""
    manifest = _split(workdir, split)
    reader = BlockReader(manifest, keep_rows=READ_ROWS)
    total = manifest.counts.rows
    places = RandomStream(seed, StreamPurpose.INSPECTION).uniform(4 * count + 16) * total
    chosen = np.arange(total) if total <= 2 * count else np.unique(places.astype(np.int64))
    order = RandomStream(seed, StreamPurpose.INSPECTION, 1).permutation(chosen.size)
    rows = []
    for number in np.sort(chosen[order[:count]]).tolist():
        place = reader.locations(number, number + 1)
        row = reader.rows(place)
        random_next = bool(row["next_sentence"][0]) if "next_sentence" in row else None
        word_start = row[WORD_START][0] if WORD_START in row else None
        rows.append(SampledRow(number, reader.part_of(int(place.block[0])).name, row["tokens"][0], random_next, word_start))
    return rows


class Removed(NamedTuple):
    """Text left out of the rows, or replaced by a placeholder, for one reason."""

    reason: str
    times: int
    samples: tuple[str, ...]  # the beginnings of a few texts


def removed(workdir: str | PurePath) -> list[Removed]:
    """Everything left out or replaced between the files and the rows, the most frequent first."""
    train = _split(workdir, "train")
    whole = load_manifest(workdir)
    assert whole is not None, "its splits are written before it"
    counts = {**whole.corpus.get("skipped", {}), **whole.corpus.get("replaced", {})}
    counts |= {f"/{pattern}/": times for pattern, times in whole.corpus.get("removed_matches", {}).items()}
    counts |= Counter(whole.corpus.get("removed_templates", {})).most_common(20)
    counts |= {name: getattr(train.counts, name) for name in ("duplicates", "near_duplicates", "left_out_by_weight")}
    samples = corpus.load_removed(workdir) | corpus.merge_samples(part.removed for part in train.parts)
    result = [Removed(reason, count, samples.get(reason, ())) for reason, count in counts.items() if count]
    return sorted(result, key=lambda item: (-item.times, item.reason))


def _split(workdir: str | PurePath, split: str) -> SplitManifest:
    folder = storage.as_path(workdir) / "dataset" / split
    if not storage.exists(folder / "manifest.json"):
        raise DataError("no dataset has been prepared here; run `tpulm dataset prepare` first", location=str(folder))
    return load_split(folder)
