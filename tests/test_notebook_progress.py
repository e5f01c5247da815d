"""What a notebook shows while a stage goes on, as Jupyter's kernel sends it: one output that is redrawn; and a run's page."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from textwrap import indent

import pytest
from nbformat import v4, write

from notebooks import execute, printed, shown
from toy_runs import toy_config
from tpulm.workfolder import begin

STAGES = """
progress.start("Training", 500, "step")
for step in range(500):
    progress.advance(1)
    progress.status(f"loss {5 - step / 250:.1f}")
    time.sleep(0.008)
    if step == 300:
        progress.note("step [3] of <b>4</b> was skipped")
progress.note("loss fell")
progress.start("Exporting")
"""
SHOWN = ["note: step [3] of <b>4</b> was skipped", "Training", "note: loss fell", "Exporting"]  # the beginnings of what stays
IN_THE_KERNEL = f"""
import time
from tpulm.notebook import shown
with shown(None) as progress:
{indent(STAGES, "    ")}
"""
AS_A_COMMAND = f"""
import time
from tpulm.cli.terminal import drawn_progress
with drawn_progress() as progress:
{indent(STAGES, "    ")}
"""


@pytest.mark.slow
def test_progress_is_redrawn_in_place_and_a_page_shown_inline(tmp_path: Path, user_environment: dict[str, str]) -> None:
    (tmp_path / "stages.py").write_text(AS_A_COMMAND)
    begin(toy_config(tmp_path / "corpus.txt", description="<b>bold</b>"), tmp_path / "w")
    cells = {
        "kernel": IN_THE_KERNEL,
        "command": "import sys\n!{sys.executable} stages.py",
        "report": "import tpulm\ntpulm.Report('w')",
        "silent": "from tpulm.progress import SILENT\nwith shown(SILENT) as progress:\n    progress.start('Training')",
    }
    write(v4.new_notebook(cells=[v4.new_code_cell(text, id=name) for name, text in cells.items()]), tmp_path / "in.ipynb")
    done = execute(tmp_path / "in.ipynb", user_environment)

    [bars] = shown(done["kernel"], "text/html")
    places = [bars.index(escape(line)) for line in SHOWN]
    assert places == sorted(places)
    assert "500/500 steps" in bars and "loss 3.0" in bars and "&lt;b&gt;4" in bars
    assert bars.count("<progress") == 2 and bars.count('value="1.0"') == 2  # nothing goes on

    lines = printed(done["command"]).replace("\r\n", "\n").splitlines()  # nbclient has gone back to where a line begins
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in lines]
    assert [line.split("  ")[0] for line in lines if line] == SHOWN
    assert max(map(len, lines)) <= 80 and "500 steps" in lines[1] and "loss 3.0" in lines[1]

    [page] = shown(done["report"], "text/html")
    assert page.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;') and "&lt;b&gt;" not in page.replace("&amp;lt;", "")
    assert done["silent"]["outputs"] == []
