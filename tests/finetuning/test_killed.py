"""kill -9 in the third epoch of each task: the same command goes on, and scores and weights are equal bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tpulm
from encoders import reviews
from tpulm.config.finetune import TASKS

SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 16, "learning_rate": 3e-3, "max_length": 16}
EVERY_STEP = {"checkpoint": {"every_steps": 1}}  # so that it goes on in the middle of an epoch
ROWS = 96
TESTED = ("classification", "regression", "multilabel", "tag", "qa", "choice", "embed", "retrieve")
KILLED = """
import json, os, signal, sys
import tpulm
from tpulm.progress import Silent

class KillAt(Silent):
    steps = 0
    def advance(self, amount):
        self.steps += amount == 1
        if self.steps == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

tpulm.finetune(progress=KillAt(), columns=tpulm.Columns(negative=sys.argv[3] or None), **json.loads(sys.argv[2]))
"""


def rows_of(task: str) -> list[dict[str, Any]]:
    """Labels that the words good, bad and very decide."""
    texts = [text for text, _ in reviews(ROWS)]
    good = ["good" in text for text in texts]
    words = ["good" if one else "bad" for one in good]
    begins = [text.index(word) for text, word in zip(texts, words, strict=True)]
    several = [[word for word in ("good", "bad", "very") if word in text] for text in texts]
    labels: dict[str, list[dict[str, Any]]] = {
        "classification": [{"label": str(one)} for one in good],
        "regression": [{"label": text.split().count("very")} for text in texts],
        "multilabel": [{"label": words} for words in several],
        "tag": [{"label": [[begin, begin + len(word), word]]} for begin, word in zip(begins, words, strict=True)],
        "qa": [
            {"question": "was the film", "context": text, "answers": [{"text": word, "answer_start": begin}]}
            for text, word, begin in zip(texts, words, begins, strict=True)
        ],
        "choice": [
            {"question": text, "choices": ["good", "bad"], "label": int(not one)} for text, one in zip(texts, good, strict=True)
        ],
        "embed": [{"pair": "the film was good", "label": float(one)} for one in good],
        "retrieve": [{"pair": " ".join(sorted(text.split())), "negative": "the film was bad"} for text in texts],
    }
    return [{"text": text, **more} for text, more in zip(texts, labels[task], strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("task", TESTED)
def test_a_killed_fine_tuning_ends_as_if_nothing_had_happened(task: str, encoder: Path, tmp_path: Path) -> None:
    rows = rows_of(task)
    for name, some in {"train": rows[:64], "dev": rows[64:]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))
    negative = "negative" if task == "retrieve" else None
    arguments: dict[str, Any] = {
        "model": str(encoder),
        "train": str(tmp_path / "train.jsonl"),
        "dev": str(tmp_path / "dev.jsonl"),
    }
    arguments |= {"output": str(tmp_path / "killed"), "task": task, **SETTINGS, **EVERY_STEP}
    command = [sys.executable, "-c", KILLED, "11", json.dumps(arguments), negative or ""]
    killed = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "finetune.json").exists()
    columns = tpulm.Columns(negative=negative)
    again = tpulm.finetune(**arguments, columns=columns)
    arguments["output"] = str(tmp_path / "whole")
    whole = tpulm.finetune(**arguments, columns=columns)
    assert not again.nothing_to_do and len(whole.seeds[0].history) == 4
    assert (again.seeds[0].dev, again.seeds[0].history) == (whole.seeds[0].dev, whole.seeds[0].history)
    left, right = (Path(one.output, "model.safetensors").read_bytes() for one in (again, whole))
    assert left == right


def test_every_task_is_killed() -> None:
    assert set(TESTED) == set(TASKS)
