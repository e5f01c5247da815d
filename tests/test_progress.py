"""Progress as lines: what a log, a script or a notebook sees."""

from __future__ import annotations

import pytest

import tpulm
from tpulm.progress import DocumentRate, format_amount, format_clock, format_pace


def test_a_line_at_each_beginning_and_whenever_the_time_has_come():
    lines: list[str] = []
    progress = tpulm.PrintedProgress(lines.append, every_seconds=0.0)
    progress.start("Training", 3, "step")
    progress.advance(1)
    progress.advance(1)
    progress.status("loss 3.1")
    progress.note("a checkpoint was damaged")
    progress.start("Exporting")
    assert lines == [
        "Training  0/3 steps",
        "Training  1/3 steps",
        "Training  2/3 steps  0:00:00 left",
        "Training  2/3 steps  0:00:00 left  loss 3.1",
        "note: a checkpoint was damaged",
        "Exporting",
    ]


def test_amounts_and_clocks_are_readable():
    clocks = [format_clock(seconds) for seconds in (None, 0.4, 80, 3600, 360_000)]
    assert clocks == ["-:--:--", "0:00:00", "0:01:20", "1:00:00", "4.2 days"]
    assert format_amount(1200, 3000, "step") == "1,200/3,000 steps"
    assert format_amount(1_500_000, None, "byte") == "1.5 MB"
    assert format_amount(0, None, "") == ""


def test_the_pace_tells_the_rate_and_what_is_left():
    assert format_pace(30e6, 90e6, "B", 10.0) == "3.0 MB/s, 0:00:20 left"
    assert format_pace(0.5e6, 1e6, "B", 100.0) == "5.0 kB/s, 0:01:40 left"
    assert format_pace(1, 2, "step", 3600.0) == "1:00:00 left"
    assert format_pace(0, 2, "B", 5.0) == format_pace(2, 2, "B", 5.0) == format_pace(2, None, "B", 5.0) == ""


def test_what_an_earlier_attempt_did_does_not_hurry_the_time_left(monkeypatch: pytest.MonkeyPatch):
    now, lines = [0.0], list[str]()
    monkeypatch.setattr("tpulm.progress.time.monotonic", lambda: now[0])
    progress = tpulm.PrintedProgress(lines.append, every_seconds=0.0)
    progress.start("Training", 5_500, "step")
    progress.advance(1_500)  # restored
    now[0] = 10.0
    progress.advance(10)
    assert lines[-1] == "Training  1,510/5,500 steps  1:06:30 left"


def test_documents_a_second_stand_beside_the_bar():
    lines: list[str] = []
    progress = tpulm.PrintedProgress(lines.append, every_seconds=0.0)
    rate = DocumentRate(progress)
    rate.add(0)
    assert not lines
    rate.add(5)
    assert lines[-1].endswith(" documents/s")
