"""Near-duplicates from files to parts: which go, however the work is divided, interrupted or bounded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpulm.config import CorpusConfig
from tpulm.corpus import near
from tpulm.corpus.near import band_hashes, banding
from tpulm.errors import Stopped

WORDS = [f"word{number}" for number in range(3_000)]


def changed(words: list[str], draw: random.Random, count: int) -> list[str]:
    words = list(words)
    for _ in range(count):
        words[draw.randrange(len(words))] = draw.choice(WORDS)
    return words


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """240 documents; every third has a near twin after it, every tenth an exact one."""
    draw, found = random.Random(1), []
    for number in range(240):
        words = draw.choices(WORDS, k=draw.randint(60, 120))
        found.append(" ".join(words))
        if number % 3 == 0:
            found.append(" ".join(changed(words, draw, 1)))
        if number % 10 == 0:
            found.append(found[-1])
    draw.shuffle(found)
    return found


def expected(documents: list[str], threshold: float) -> set[str]:
    """What stays, by the rule as it is written down: the first with each hash."""
    seen: set[tuple[int, int]] = set()
    kept = set()
    for document, hashes in zip(documents, band_hashes(documents, banding(threshold)).T.tolist(), strict=True):
        bands = set(enumerate(hashes))
        if not bands & seen:
            kept.add(document)
        seen |= bands
    return kept


@pytest.fixture
def near_scattered(scattered: Callable, write: Callable[[str, str], Path]) -> Callable:
    """near_scattered(documents, files=3) -> a corpus of as many sources, a piece each."""

    def scatter(documents: list[str], files: int = 3, **settings: Any) -> Any:
        step = -(-len(documents) // files)
        texts = ["\n".join(documents[first : first + step]) for first in range(0, len(documents), step)]
        sources = [str(write(f"texts/{number}.txt", text)) for number, text in enumerate(texts)]
        return scattered(sources, part_bytes=20_000, **{"near_duplicates": 0.8, "holdout_fraction": 0.1, **settings})

    return scatter


def test_the_first_of_each_stays_and_the_rest_is_counted(near_scattered: Callable, documents: list[str]):
    made = near_scattered(documents, files=1)
    assert made.manifest.num_parts > 4 and len(made.manifest.pieces) == 1
    parts, found = made.parts(), made.documents()
    assert len(found) == len(set(found))
    # Within a run the order is that of the keys: compare sizes, and that nothing kept is like anything else kept.
    assert abs(len(found) - len(expected(documents, 0.8))) <= 3
    assert expected(found, 0.8) == set(found) and made.holdout()
    assert sum(part.near_duplicates + part.duplicates for part in parts) == len(documents) - len(found)
    assert sum(part.duplicates for part in parts) == len(documents) - len(set(documents))
    assert sorted(made.sample(10**9)) == sorted(made.train())


def test_of_twins_in_two_sources_the_first_sources_stays(near_scattered: Callable):
    draw = random.Random(2)
    originals = [draw.choices(WORDS, k=80) for _ in range(40)]
    twins = [changed(words, draw, 1) for words in originals]
    texts = [" ".join(words) for words in (*originals, *twins)]
    like_theirs = (band_hashes(texts[:40], banding(0.5)) == band_hashes(texts[40:], banding(0.5))).any(axis=0)
    kept = set(near_scattered(texts, files=2, near_duplicates=0.5).documents())
    assert kept == {*texts[:40], *(text for text, like in zip(texts[40:], like_theirs, strict=True) if not like)}
    assert like_theirs.sum() > 35


def test_however_the_work_is_divided_or_interrupted(near_scattered: Callable, documents: list[str], tmp_path: Path):
    whole = near_scattered(documents)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_MOST_ENTRIES", 50), ("_DOCUMENT_BYTES", 2_000), ("_RANGES_WRITTEN", 3)):
            patch.setattr(near, name, value)
        divided = near_scattered(documents)
    compare, calls = near._Band.build, list[int]()

    def stopped(band: Any) -> bool:
        calls.append(band.number)
        if len(calls) == 3:
            raise Stopped("stopped")
        return compare(band)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near._Band, "build", stopped)
        with pytest.raises(Stopped):
            near_scattered(documents, workdir=tmp_path / "w")
        again = near_scattered(documents, workdir=tmp_path / "w")
    assert calls == [0, 1, 2, *range(2, banding(0.8).bands)]
    for other in (divided, again):
        assert other.manifest.fingerprint == whole.manifest.fingerprint and other.parts() == whole.parts()


def test_exact_ones_go_with_them():
    with pytest.raises(ValueError, match="deduplicate = true"):
        CorpusConfig(near_duplicates=0.8, deduplicate=False)
