"""Speed is measured cold and in turns."""

from __future__ import annotations

import pytest

from tpulm.tokenization import Tokenization, comparison


def test_the_median_of_what_the_clock_says(made: Tokenization, monkeypatch: pytest.MonkeyPatch):
    now, steps = 0.0, iter([1.0, 2.0, 5.0, 4.0, 3.0, 9.0])  # bulk and library in turns: 1, 5, 3 and 2, 4, 9 seconds
    reads = 0

    def clock() -> float:
        nonlocal now, reads
        reads += 1
        now += next(steps) if reads % 2 == 0 else 100.0
        return now

    monkeypatch.setattr(comparison.time, "perf_counter", clock)
    [found] = comparison.measure_speed([made], ["xyz" * 1_000], repetitions=3)
    assert (found.bulk, found.library) == pytest.approx((0.003 / 3.0, 0.003 / 4.0))


def test_every_repetition_is_cold_and_in_turns(trained: dict[str, Tokenization], monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[str, int]] = []
    kept: list[Tokenization] = []  # so that no id is given twice
    encode = Tokenization.encode

    def spy(self: Tokenization, texts: list[str]) -> object:
        if texts:
            seen.append((self.algorithm, id(self)))
            kept.append(self)
        return encode(self, texts)

    monkeypatch.setattr(Tokenization, "encode", spy)
    found = comparison.measure_speed([trained["wordpiece"], trained["bpe"]], ["some text"] * 10, repetitions=3)
    assert [name for name, _ in seen] == ["WordPiece", "BPE", "BPE", "WordPiece", "WordPiece", "BPE"]
    assert len({one for _, one in seen}) == 6
    assert all(one.bulk > 0 and one.library > 0 for one in found)
