"""Labelled texts, made once for all examples, and the examples as programs."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import compiled
from encoders import write_tsv
from toy_runs import WORDS

EXAMPLES = Path(__file__).parents[2] / "examples"
Script = Callable[..., str]


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.tsv and dev.tsv: texts with a cat, and without; now and then the label is wrong."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = random.Random(0)
    for name, count in (("train", 100), ("dev", 40)):
        examples = []
        for number in range(count):
            words = [word for word in rng.choices(WORDS, k=rng.randint(3, 20)) if word != "cat"] + ["cat"] * (number % 2)
            examples.append((" ".join(words), "cat" if number % 2 != (rng.random() < 0.1) else "none"))
        write_tsv(folder / f"{name}.tsv", examples, "id\tdocument\tanimal")
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
