"""`tpulm finetune --task qa` and `--task choice`, and `tpulm classify` with what they make, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import invoke
from encoders import build_encoder, reviews

STRICT = ("XLA_FLAGS", "JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION")  # a user's machine has them not
SETTINGS = ["--epochs", "2", "--batch-size", "16", "--learning-rate", "1e-2", "--max-length", "24", "--set", "dropout=0.0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and files."""
    folder = tmp_path_factory.mktemp("place")
    build_encoder("bert", folder)
    for name, seed in (("train", 0), ("dev", 1)):
        found = [
            (text, text.index(word := "good" if label == "pos" else "bad"), word) for text, label in reviews(160, seed=seed)
        ]
        asked = [
            {
                "context": text,
                "qas": [{"id": f"{name}-{n}", "question": "was it", "answers": [{"text": word, "answer_start": at}]}],
            }
            for n, (text, at, word) in enumerate(found)
        ]
        (folder / f"qa_{name}.json").write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": asked}]}))
        rows = [{"question": "was it", "choices": ["the plot", text], "label": 1} for text, _, _ in found]
        for row in rows[::2]:
            row["choices"], row["label"] = row["choices"][::-1], 0
        (folder / f"choice_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in STRICT}


def command(task: str, output: str) -> list[str]:
    suffix = {"qa": "json", "choice": "jsonl"}[task]
    files = ["--train", f"{task}_train.{suffix}", "--dev", f"{task}_dev.{suffix}", "--output", output]
    return [sys.executable, "-m", "tpulm", "finetune", "bert", "--task", task, *files, *SETTINGS]


@pytest.fixture(scope="module", params=["qa", "choice"])
def made(request: pytest.FixtureRequest, folder: Path, environment: dict[str, str]) -> str:
    """The task, whose model is in the folder of its name."""
    given: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([*command(request.param, request.param), "--json"], **given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[{"qa": "dev_f1", "choice": "dev_accuracy"}[request.param]] > 0.9
    return request.param


@pytest.mark.slow
def test_it_answers(made: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    text, word = reviews(1)[0][0], "bad"
    if made == "qa":
        done = invoke("classify", "qa", "was it", "--context", text, "--json")
        (found,) = json.loads(done.stdout)
        assert (found["predicted"], text[found["start"] : found["end"]]) == (word, word)
        done = invoke("classify", "qa", "--input", "qa_dev.json")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["id"] for row in rows] == [f"dev-{n}" for n in range(160)]
        assert all(row["predicted"] == row["context"][row["start"] : row["end"]] for row in rows)
        assert sum(row["predicted"] == row["answers"][0]["text"] for row in rows) > 144
    else:
        done = invoke("classify", "choice", "was it", "--choice", "the plot", "--choice", text, "--json")
        (found,) = json.loads(done.stdout)
        assert (found["predicted"], found["choice"]) == (1, text)
        done = invoke("classify", "choice", "--input", "choice_dev.jsonl")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert sum(row["predicted"] == row["label"] for row in rows) > 144
    done = invoke("classify", made, "was it")
    assert done.returncode == 2 and f"a model of --task {made} needs --" in " ".join(done.stderr.split())
