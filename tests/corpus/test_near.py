"""Near-duplicates from files to parts: which go, however the work is divided, interrupted or bounded."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tpulm import corpus
from tpulm.config import CorpusConfig
from tpulm.corpus import CorpusManifest, near
from tpulm.corpus.near import band_hashes, banding
from tpulm.errors import Stopped

WORDS = [f"word{number}" for number in range(3_000)]
PART_BYTES = 20_000


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


def scatter(folder: Path, documents: list[str], files: int = 3, **settings: Any) -> CorpusManifest:
    """The documents over several sources, a piece each."""
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    step = -(-len(documents) // files)
    for number in range(files):
        text = "".join(f"{document}\n" for document in documents[number * step : (number + 1) * step])
        (folder / "texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    sources = [str(folder / "texts" / f"{number}.txt") for number in range(files)]
    given = {"sources": sources, "near_duplicates": 0.8, "holdout_fraction": 0.1, **settings}
    config = CorpusConfig.model_validate(given)
    return corpus.scatter(config, folder / "w", part_bytes=PART_BYTES, workers=1)


def all_parts(folder: Path, manifest: CorpusManifest) -> list[corpus.Part]:
    return [corpus.read_part(folder / "w", manifest, part) for part in range(manifest.num_parts)]


def test_the_first_of_each_stays_and_the_rest_is_counted(tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["tpulm.corpus.scatter"], "_PIECE_BYTES", 1)
    manifest = scatter(tmp_path, documents, files=1)
    assert manifest.num_parts > 4 and len(manifest.pieces) == 1
    parts = all_parts(tmp_path, manifest)
    found = [text for part in parts for text in (*part.train, *part.holdout)]
    assert len(found) == len(set(found))
    # Within a run the order is that of the keys: compare sizes, and that nothing kept is like anything else kept.
    assert abs(len(found) - len(expected(documents, 0.8))) <= 3
    assert expected(found, 0.8) == set(found)
    assert any(part.holdout for part in parts)
    assert sum(part.near_duplicates + part.duplicates for part in parts) == len(documents) - len(found)
    assert sum(part.duplicates for part in parts) == len(documents) - len(set(documents))
    sampled = [text for texts in corpus.sample_texts(tmp_path / "w", manifest, 10**9) for text in texts]
    assert sorted(sampled) == sorted(text for part in parts for text in part.train)


def test_of_twins_in_two_sources_the_first_sources_stays(tmp_path: Path):
    draw = random.Random(2)
    originals = [draw.choices(WORDS, k=80) for _ in range(40)]
    twins = [changed(words, draw, 1) for words in originals]
    texts = [" ".join(words) for words in (*originals, *twins)]
    like_theirs = (band_hashes(texts[:40], banding(0.5)) == band_hashes(texts[40:], banding(0.5))).any(axis=0)
    manifest = scatter(tmp_path, texts, files=2, near_duplicates=0.5)
    kept = {text for part in all_parts(tmp_path, manifest) for text in (*part.train, *part.holdout)}
    assert kept == {*texts[:40], *(text for text, like in zip(texts[40:], like_theirs, strict=True) if not like)}
    assert like_theirs.sum() > 35


def test_however_the_work_is_divided(tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch):
    whole = scatter(tmp_path / "a", documents)
    monkeypatch.setattr(near, "_MOST_ENTRIES", 50)
    monkeypatch.setattr(near, "_DOCUMENT_BYTES", 2_000)
    monkeypatch.setattr(near, "_RANGES_WRITTEN", 3)
    divided = scatter(tmp_path / "b", documents)
    assert divided.fingerprint == whole.fingerprint
    assert all_parts(tmp_path / "b", divided) == all_parts(tmp_path / "a", whole)


def test_interrupted_it_goes_on_where_it_was(tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch):
    whole = scatter(tmp_path / "a", documents)
    compare, calls = near._Band.build, list[int]()

    def stopped(band: Any) -> bool:
        calls.append(band.number)
        if len(calls) == 3:
            raise Stopped("stopped")
        return compare(band)

    monkeypatch.setattr(near._Band, "build", stopped)
    with pytest.raises(Stopped):
        scatter(tmp_path / "b", documents)
    again = scatter(tmp_path / "b", documents)
    bands = banding(0.8).bands
    assert calls == [0, 1, 2, *range(2, bands)]
    assert again.fingerprint == whole.fingerprint
    assert all_parts(tmp_path / "b", again) == all_parts(tmp_path / "a", whole)


def test_exact_ones_go_with_them(tmp_path: Path):
    with pytest.raises(ValueError, match="leave deduplicate = true"):
        CorpusConfig(near_duplicates=0.8, deduplicate=False)
