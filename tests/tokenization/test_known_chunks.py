"""Law: a chunk is found if and only if it was kept, with its own ids."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpulm.tokenization import known_chunks
from tpulm.tokenization.encoded import Encoded
from tpulm.tokenization.known_chunks import LONGEST_KNOWN, Fingerprints, KnownChunks, fingerprints

CHUNK = st.text(st.sampled_from("abあ山가\U0001f600"), min_size=1, max_size=LONGEST_KNOWN)


def prints_of(chunks: list[str], dropped: str = "") -> Fingerprints:
    points = np.array(list(map(ord, "".join(chunks))), np.uint32)
    sizes = np.array(list(map(len, chunks)), np.int64)
    return fingerprints(points, np.cumsum(sizes) - sizes, dropped)


def pairs(prints: Fingerprints) -> list[tuple[int, int]]:
    return list(zip(prints.first.tolist(), prints.second.tolist(), strict=True))


def encoded(chunks: list[str]) -> Encoded:
    """Some ids that tell a chunk."""
    data = [chunk.encode() for chunk in chunks]
    return Encoded(np.frombuffer(b"".join(data), np.uint8).astype(np.uint32), np.array(list(map(len, data)), np.int32))


@settings(max_examples=300)
@given(st.lists(CHUNK, max_size=30))
def test_two_chunks_have_the_same_fingerprint_if_they_are_equal(chunks: list[str]):
    found = dict(zip(chunks, pairs(prints_of(chunks)), strict=True))
    assert len(set(found.values())) == len(found)
    assert pairs(prints_of(chunks)) == [found[chunk] for chunk in chunks]


def test_where_a_chunk_stands_does_not_matter():
    expected = pairs(prints_of(["abc"]))[0]
    for many in (1, 10_923, 40_000):  # the second one ends at a block's edge
        assert set(pairs(prints_of(["abc"] * many))) == {expected}
    assert pairs(prints_of(["b" * 100_000, "abc"]))[1] == expected
    assert pairs(prints_of([])) == []


def test_what_is_dropped_does_not_count():
    assert pairs(prints_of(["ab \n", "cd"], " \n")) == pairs(prints_of(["ab", "cd"], " \n"))
    assert pairs(prints_of(["ab "])) != pairs(prints_of(["ab"]))


def test_permuted_and_repeated_characters_differ():
    rng = random.Random(0)
    chunks = {"".join(rng.choices("ab", k=rng.randint(1, LONGEST_KNOWN))) for _ in range(50_000)}
    prints = prints_of(sorted(chunks))
    assert len(np.unique(prints.first)) == len(np.unique(prints.second)) == len(chunks)


@settings(max_examples=100)
@given(st.lists(st.lists(CHUNK, max_size=12, unique=True), max_size=6), st.sets(st.integers(0, 5)))
def test_what_was_kept_is_found_and_nothing_else(batches: list[list[str]], forgotten: set[int]):
    known, kept = KnownChunks(), set[str]()
    for number, batch in enumerate(batches):
        found = known.find(prints_of(batch))
        assert [chunk in kept for chunk in batch] == (found > 0).tolist()
        new = [chunk for chunk in batch if chunk not in kept]
        begin = known.append(encoded([*new, "not kept"]))
        numbers = np.append(found[found > 0], begin + np.arange(len(new) + 1))
        ids = known.encoded(numbers)
        expected = encoded([*(chunk for chunk in batch if chunk in kept), *new, "not kept"])
        assert ids.ids.tolist() == expected.ids.tolist() and ids.lengths.tolist() == expected.lengths.tolist()
        known.keep(prints_of(new))
        kept |= set(new)
        if number in forgotten:
            known = known.without_rare()
            assert len(known) <= len(kept) // 2
            kept = {chunk for chunk in kept if known.find(prints_of([chunk]))[0]}
    assert len(known) == len(kept)


def test_it_grows_and_forgets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_chunks, "_AT_ONCE", 1 << 10)
    chunks = [f"w{number}" for number in range(20_000)]
    known = KnownChunks()
    for start in range(0, len(chunks), 3_000):
        some = chunks[start : start + 3_000]
        known.append(encoded(some))
        known.keep(prints_of(some))
    assert len(known) == 20_000
    found = known.find(prints_of(chunks[::4]))
    assert found.tolist() == list(range(1, 20_001, 4))
    known = known.without_rare()
    assert len(known) == 5_000
    again = known.find(prints_of(chunks))
    assert np.flatnonzero(again).tolist() == list(range(0, 20_000, 4))
    assert bytes(known.encoded(again[[4]]).ids.tolist()) == b"w4"
    assert not known.find(prints_of(["other"]))[0]
    assert len(known.without_rare()) == 2_500  # all were asked for: half of them
    assert len(known.without_rare().without_rare()) == 0
