"""Progress as lines: what a log, a script or a notebook sees."""

from __future__ import annotations

import tpulm
from tpulm.progress import format_amount


def test_a_line_at_each_beginning_and_whenever_the_time_has_come():
    lines: list[str] = []
    progress = tpulm.PrintedProgress(lines.append, every_seconds=0.0)
    progress.start("Training", 2, "step")
    progress.advance(1)
    progress.status("loss 3.1")
    progress.note("a checkpoint was damaged")
    progress.start("Exporting")
    assert lines == [
        "Training  0/2 steps",
        "Training  1/2 steps",
        "Training  1/2 steps  loss 3.1",
        "note: a checkpoint was damaged",
        "Exporting",
    ]


def test_nothing_between_beginnings_before_the_time_has_come():
    lines: list[str] = []
    progress = tpulm.PrintedProgress(lines.append, every_seconds=3600.0)
    progress.start("Training", 2, "step")
    progress.advance(1)
    progress.status("loss 3.1")
    assert lines == ["Training  0/2 steps"]


def test_amounts_are_readable():
    assert format_amount(1200, 3000, "step") == "1,200/3,000 steps"
    assert format_amount(1_500_000, None, "byte") == "1.5 MB"
    assert format_amount(0, None, "") == ""


def test_every_public_name_exists():
    for name in tpulm.__all__:
        assert getattr(tpulm, name) is not None
