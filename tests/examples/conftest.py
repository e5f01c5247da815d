"""A tiny pretrained model and labelled texts, made once for all examples."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compiled
from toy_runs import WORDS

EXAMPLES = Path(__file__).parents[2] / "examples"
Script = Callable[..., str]


@pytest.fixture(scope="session")
def pretrained(toy_run: tuple[Any, Path, Any]) -> Path:
    return toy_run[1]


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.tsv and dev.tsv: texts with a cat, and without; now and then the label is wrong."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = random.Random(0)
    for name, count in (("train", 100), ("dev", 40)):
        rows = []
        for number in range(count):
            words = [word for word in rng.choices(WORDS, k=rng.randint(3, 20)) if word != "cat"]
            kind = number % 2
            words = [*words, "cat"] if kind else words
            rows.append(f"{number}\t{' '.join(words)}\t{'cat' if kind != (rng.random() < 0.1) else 'none'}\n")
        (folder / f"{name}.tsv").write_text("id\tdocument\tanimal\n" + "".join(rows))
    return folder


@pytest.fixture
def script(user_environment: dict[str, str], tmp_path: Path) -> Script:
    """Runs an example as a user would, on so many virtual devices, and gives back what it printed."""

    def run(name: str, *arguments: object, devices: int = 1) -> str:
        environment = {**user_environment, "XLA_FLAGS": compiled.flags(devices)}
        command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
