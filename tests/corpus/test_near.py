"""Near-duplicates: when documents share a band, and which go, however the work is divided, interrupted or bounded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cloud_emulator import Emulator
from tpulm.config import CorpusConfig
from tpulm.corpus import near
from tpulm.corpus.near import Banding, band_hashes, banding
from tpulm.errors import Stopped, StorageError

WORDS = [f"word{number}" for number in range(3_000)]


def changed(words: list[str], draw: random.Random, count: int) -> list[str]:
    words = list(words)
    for _ in range(count):
        words[draw.randrange(len(words))] = draw.choice(WORDS)
    return words


def shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + 5]) for start in range(max(1, len(words) - 4))}


def similarity(first: list[str], second: list[str]) -> float:
    ours, theirs = shingles(first), shingles(second)
    return len(ours & theirs) / len(ours | theirs)


def test_pairs_share_a_band_as_often_as_their_similarity_says():
    draw, bands = random.Random(0), banding(0.8)
    pairs = []
    for _ in range(1_500):
        first = draw.choices(WORDS, k=150)
        pairs.append((first, changed(first, draw, draw.randint(0, 8))))
    similar = np.array([similarity(first, second) for first, second in pairs])
    ours, theirs = (band_hashes([" ".join(pair[side]) for pair in pairs], bands) for side in (0, 1))
    shared = (ours == theirs).any(axis=0)
    expected = bands.probability(similar)
    for low in np.arange(0.5, 1.0, 0.1):
        some = (similar >= low) & (similar <= low + 0.1)
        error = np.sqrt((expected[some] * (1 - expected[some])).sum()) / some.sum()
        assert some.sum() > 50 and abs(shared[some].mean() - expected[some].mean()) < 4 * error + 0.002
    assert not (ours[:, 1:] == theirs[:, :-1]).any(), "strangers"


@pytest.mark.parametrize(
    ("threshold", "bands", "rows"), [(0.3, 37, 3), (0.5, 25, 5), (0.7, 14, 9), (0.8, 9, 13), (0.9, 5, 25), (0.95, 3, 42)]
)
def test_the_step_is_where_datasketch_has_it(threshold: float, bands: int, rows: int):
    """datasketch 1.6.5's MinHashLSH of 128 permutations, which weighs both errors alike."""
    assert banding(threshold) == Banding(bands, rows)
    below, above = banding(threshold).probability(np.array([threshold - 0.15, min(1.0, threshold + 0.1)]))
    assert below < 0.2 and above > 0.8
    assert Banding(1, 1).probability(np.array([0.25])) == pytest.approx(0.25)


def test_case_marks_and_blanks_do_not_count():
    texts = ["The cat sat on the mat, and slept.", "the CAT sat   on the mat - and slept!", "The cat sat on a mat, and slept."]
    found = band_hashes(texts, banding(0.8))
    assert (found[:, 0] == found[:, 1]).all() and not (found[:, 0] == found[:, 2]).all()
    of_vowel_signs = band_hashes(["वह लड़का मेरा भाई है और अच्छा गाता है", "वह लड़की मेरी भाई है और अच्छी गाती है"], banding(0.8))
    assert not (of_vowel_signs[:, 0] == of_vowel_signs[:, 1]).any(), "vowel signs tell words apart"


def test_characters_of_languages_without_spaces_are_words():
    long = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
    long += "何でも薄暗いじめじめした所でニャーニャー泣いていた事だけは記憶している。"
    found = band_hashes([long * 3, long * 3 + "終", "全く別の文章がここにあります。"], banding(0.5))
    shared = (found[:, 0] == found[:, 1]).any(), (found[:, 0] == found[:, 2]).any()
    assert shared == (True, False)


@settings(max_examples=25)
@given(st.lists(st.text(max_size=60), max_size=6))
def test_a_documents_hashes_do_not_depend_on_its_neighbours(texts: list[str]):
    bands = Banding(3, 2)
    together = band_hashes(texts, bands)
    assert together.shape == (3, len(texts))
    for number, text in enumerate(texts):
        assert (together[:, number] == band_hashes([text], bands)[:, 0]).all()


def test_documents_without_words_are_like_themselves_alone():
    found = band_hashes(["!!!", "???", "!!!", ""], banding(0.8))
    assert (found[:, 0] == found[:, 2]).all() and (found[:, 0] != found[:, 1]).all() and (found[:, 3] != found[:, 1]).all()


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


def test_one_of_each_stays_and_the_rest_is_counted(near_scattered: Callable, documents: list[str]):
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


@pytest.mark.parametrize("seed", range(12))
def test_neither_split_of_a_tiny_corpus_is_empty(near_scattered: Callable, seed: int):
    draw = random.Random(seed)
    originals = [draw.choices(WORDS, k=60) for _ in range(3)]
    texts = [" ".join(words) for words in (*originals, *([*words, "more"] for words in originals))]
    made = near_scattered(texts, files=1)
    assert made.holdout() and made.train() and len(made.documents()) == 3


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


@pytest.mark.parametrize("where", ["here", "gs://runs/w"])
def test_a_file_of_them_that_is_gone_is_missed(gcs: Emulator, tmp_path: Path, where: str):
    path = near.duplicates_path(where if where.startswith("gs://") else tmp_path)
    with pytest.raises(StorageError, match=r"duplicates\.keys is gone.*corpus/manifest\.json"):
        near.keys_between(path, 0, 5)


def test_exact_ones_go_with_them():
    with pytest.raises(ValueError, match="deduplicate = true"):
        CorpusConfig(near_duplicates=0.8, deduplicate=False)
