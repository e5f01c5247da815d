"""A stage's line fits the terminal, and the count, the time left and the loss are always on it."""

from __future__ import annotations

import io
import re

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress as Bars, Task

from tpulm.cli.bars import drawn, task_line

TRAINING = [
    ("Training", 300, 60, "loss 5.812  12,345 tokens/s  MFU 12%"),
    ("Training, phase 2 of 3", 1_000_000, 999_999, "loss 5.812  1,234,567,890 tokens/s  MFU 12%"),
    ("Training, phase 2 of 3", 1_000_000, 1_000_000, "loss 15.812  1,234,567,890 tokens of text/s  MFU 12%"),
    ("Training, phase 2 of 3", 1_000_000, 1_000, "loss 5.812  9,876,543,210 tokens/s"),
    ("Fine-tuning, seed 10 of 100", 12_345, 1_234, "loss 0.512  123 texts/s  dev accuracy 0.8123  epoch 2/3"),
]


def task(description: str, total: float | None, done: float, status: str = "", unit: str = "step") -> Task:
    """Begun 100 seconds ago, and at this pace since."""
    clock = [1000.0]
    bars = Bars(console=Console(file=io.StringIO()), get_time=lambda: clock[-1], speed_estimate_period=1e6)
    number = bars.add_task(description, total=total, unit=unit, status=status)
    for seconds in (0, 1, 100):
        clock.append(1000.0 + seconds)
        bars.update(number, completed=done * seconds / 100)
    bars.tasks[0].finished_time = None
    return bars.tasks[0]


OTHERS = [
    ("Building the dataset", 160e9, 80e9, "1,234 documents/s", "B"),
    ("Comparing for near-duplicates", 19, 3.25, "", "band"),
    ("Counting words", None, 123_456, "", "characters"),
    ("Exporting", None, 0, "", ""),
    ("deleting gs://桶/フォルダ" * 9, 1234, 12, "", "object"),
]


def test_a_stage_is_one_line():
    for width in (60, 80, 120, 200):
        for description, total, done, status in TRAINING:
            line = task_line(task(description, total, done, status), width).plain
            loss, speed = status.split("  ")[:2]
            assert cell_len(line) <= width and f"{done:,}/{total:,}" in line and loss in line
            assert re.search(r"\d+:\d\d:\d\d left", line) and (speed in line or width < 80)
    for width in (20, 40, 60, 80, 120):
        for stage in OTHERS:
            line = task_line(task(*stage), width).plain
            assert cell_len(line) <= width and ("left" in line or "elapsed" in line or width < 40)


def test_what_is_left_out_on_a_narrower_and_narrower_terminal():
    lines = [task_line(task(*TRAINING[0]), width).plain for width in range(130, 40, -1)]
    kept = [[word in line for word in ("━", "elapsed", "MFU", "tokens/s")] for line in lines]
    assert kept == sorted(kept, reverse=True)  # once gone it stays gone, the bar first
    assert kept[0] == [True] * 4 and kept[-1] == [False] * 4
    assert all("60/300" in line and "0:06:40 left" in line and "loss 5.812" in line for line in lines)
    assert lines[0].startswith("Training  ")


def test_the_screen_of_a_run():
    """No line is longer than the terminal is wide, so that none wraps; the bars of what is over stay above."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    with drawn(screen) as progress:
        progress.start("Building the dataset", 3e6, "B")
        progress.advance(3e6)
        progress.note("1,234 documents kept; left out: 56 [longer] than 64 characters and some more for other reasons")
        progress.start("Training", 300, "step")
        progress.advance(60)
        progress.status("loss 5.812  12,345 tokens/s  MFU 12%")
        progress.start("Exporting")
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", screen.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", written) if line.strip()]
    assert max(map(cell_len, lines)) <= 60
    over = [line.split("  ")[0] for line in lines if "elapsed" in line and "─" not in line]
    assert list(dict.fromkeys(over)) == ["Building the dataset", "Training", "Exporting"]
    assert any(line.startswith("Training  60") and "loss 5.812" in line and "left" not in line for line in lines)
    note = next(number for number, line in enumerate(lines) if "[longer]" in line)
    assert any("Building the dataset" in line and "elapsed" in line for line in lines[:note])  # a note follows what is over
