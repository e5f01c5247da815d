"""The pictures of docs/images that show reports and a terminal: `python docs/screenshots.py` makes them, from three toy runs.

The text is the documentation that ships with Python; one run is killed in the middle and goes on. It needs Chromium on PATH and
takes about five minutes on two cores. What the runs write lies in a temporary folder.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import typer
from PIL import Image
from rich.console import Console

IMAGES = Path(__file__).parent / "images"
SETTINGS = {
    "train.steps": 600,
    "train.log_every_steps": 10,
    "train.evaluate_every_steps": 100,
    "train.checkpoint.every_steps": 200,
    "train.evaluation_rows": 256,
}
KILLED_AT = 330
RATES = {"default": 1e-3, "lower": 3e-4, "higher": 3e-3}  # run folder: learning rate
NARROWEST = 500  # window that Chromium opens; a narrower page is framed
COLOURS = 64


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no browser takes the pictures: install chromium (or google-chrome) and see that it is on PATH")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_and_kill("default")
        for name in ("default", "lower"):
            subprocess.run(command(name), check=True)
        print_as_svg("higher", IMAGES / "terminal-run.svg")
        subprocess.run([*TPULM, "report", *(f"w/{name}" for name in RATES), "--output", "comparison.html"], check=True)
        report = Path("w/default/report/index.html")
        take(chromium, report, "report-desktop", width=1280, height=650)
        take(chromium, report, "report-dark", width=1280, height=650, dark=True)
        take(chromium, report, "report-phone", width=390, height=1380)
        take(chromium, Path("comparison.html"), "report-comparison", width=1280, height=860)


# -- the runs -----------------------------------------------------------------------------------------------------------

TPULM = [sys.executable, "-m", "tpulm"]


def arguments(name: str) -> list[str]:
    settings = {**SETTINGS, "train.optimizer.learning_rate": RATES[name]}
    return [
        *("run", "quickstart", "--workdir", f"w/{name}"),
        *(word for setting, value in settings.items() for word in ("--set", f"{setting}={value}")),
    ]


def command(name: str) -> list[str]:
    return [*TPULM, *arguments(name)]


def run_and_kill(name: str) -> None:
    """Ends as a preempted VM does, after a step that is not saved."""
    log = Path(f"w/{name}/metrics/0001.jsonl")
    with subprocess.Popen(command(name)) as running:
        while running.poll() is None:
            if log.exists() and f'"step": {KILLED_AT},' in log.read_text():
                running.send_signal(signal.SIGKILL)
            time.sleep(0.05)
    if running.returncode != -signal.SIGKILL:
        sys.exit(f"the run ended with {running.returncode} before its step {KILLED_AT}")


def print_as_svg(name: str, picture: Path) -> None:
    """What stays on a terminal of 80 columns."""
    from tpulm.cli import terminal

    screen = Console(width=80, highlight=False, record=True, force_terminal=True, force_interactive=False, file=sys.stderr)
    terminal.console = terminal.results = screen  # before the commands take it from there
    terminal.begin = lambda *, as_json: None
    from tpulm.cli.app import app

    screen.print(f"$ tpulm run quickstart --workdir w/{name}", style="bold")
    typer.main.get_command(app)(arguments(name), standalone_mode=False)
    drawn = screen.export_svg(title="tpulm", unique_id="terminal")
    picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")  # fonts of a network


# -- the pictures -------------------------------------------------------------------------------------------------------


def take(chromium: str, page: Path, name: str, *, width: int, height: int, dark: bool = False) -> None:
    """The upper `height` pixels of a page, as a PNG of few colours."""
    address = page.resolve().as_uri()
    if width < NARROWEST:
        page = Path("frame.html")
        frame = f'<iframe src="{address}" width="{width}" height="{height}" style="border: 0" scrolling="no"></iframe>'
        page.write_text(f'<body style="margin: 0">{frame}</body>')
        address = page.resolve().as_uri()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={Path('profile').resolve()}"]
    flags += [f"--window-size={max(width, NARROWEST)},{height}", "--screenshot=taken.png"]
    flags += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = subprocess.run([chromium, *flags, address], capture_output=True, text=True, timeout=120)
    if done.returncode or not Path("taken.png").exists():
        sys.exit(f"{chromium} took no picture of {page}:\n{done.stderr[-2000:]}")
    picture = Image.open("taken.png").convert("RGB").crop((0, 0, width, height))
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    Path("taken.png").unlink()


if __name__ == "__main__":
    main()
