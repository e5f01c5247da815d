"""What must not change while the code does: bytes of tokenizers and rows, losses from fixed seeds, exported tensors, `--json`.

The values in golden/behaviour.json were recorded from an earlier version. Where one is to change, `TPULM_UPDATE_GOLDEN=1 pytest
tests/test_behaviour.py` writes them again, and the difference belongs into the CHANGELOG. Bytes of datasets depend on the
versions of zstd in the lock; floats are compared within one part in a thousand, since processors round differently.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from command_line import invoke
from encoders import build_encoder, reviews
from toy_runs import DATA, SIZES, VOLATILE, toy_config, write_corpus
from tpulm import dataset, pipeline
from tpulm.train.metrics import read_metrics

GOLDEN = Path(__file__).parent / "golden" / "behaviour.json"
RUNS: dict[str, dict[str, Any]] = {
    "bert-packed": {},
    "bert-segments": {"data": DATA | {"rows": "segments", "next_sentence": True, "dupe_factor": 2}},
    "bert-whole-words": {
        "train": {"steps": 4, "batch_size": 8, "log_every_steps": 1, "objective": {"whole_words": True}},
        "tokenizer": {"vocab_size": 300, "algorithm": "bpe"},
    },
    "electra": {"data": DATA | {"rows": "segments"}, "model": SIZES | {"architecture": "electra", "embedding_size": 16}},
    "decoder": {"data": DATA | {"rows": "causal"}, "model": SIZES | {"architecture": "decoder", "norm_position": "pre"}},
    "phases": {
        "phases": [{"share": 0.5}, {"share": 0.5, "sequence_length": 64, "batch_size": 16}],
        "model": SIZES | {"max_positions": 64},
        "train": {"steps": 4, "batch_size": 8, "log_every_steps": 1},
    },
}


def check(name: str, found: dict[str, Any]) -> None:
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("TPULM_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(in_lines({**known, name: found}))
        return
    expected = {
        place: pytest.approx(value, rel=1e-3, abs=1e-6) if isinstance(value, float) else value
        for place, value in flat(known[name], name).items()
    }
    assert flat(json.loads(json.dumps(found)), name) == expected


def in_lines(values: dict[str, Any]) -> str:
    """JSON with a line for each part of an entry."""
    entries = []
    for name, entry in sorted(values.items()):
        parts = ",\n".join(f"  {json.dumps(key)}: {json.dumps(part)}" for key, part in entry.items())
        entries.append(f"{json.dumps(name)}: {{\n{parts}}}")
    return "{" + ",\n".join(entries) + "}\n"


def flat(value: Any, place: str) -> dict[str, Any]:
    """What nested dictionaries and lists hold, by its place in them."""
    if not isinstance(value, dict | list):
        return {place: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    inner = {key: one for name, part in parts for key, one in flat(part, f"{place}.{name}").items()}
    return {place: f"{len(value)} parts"} | inner


def digests(folder: Path) -> dict[str, str]:
    """Digests of all files but manifests, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", "part.json"))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}


def tensors(folder: Path) -> dict[str, list[float]]:
    """Mean magnitude and shape of each exported tensor."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, value in safetensors.numpy.load_file(path).items():
            key = f"{path.parent.relative_to(folder).as_posix()}:{name}"
            found[key] = [rounded(np.abs(value.astype(np.float64)).mean()), *value.shape]
    return found


def rounded(value: float) -> float:
    return float(f"{value:.6g}")


def losses(workdir: Path) -> dict[str, dict[str, float]]:
    records = [record for record in read_metrics(workdir) if record.kind in ("train", "eval")]
    return {
        f"{record.kind} {record.step}": {
            name: rounded(value) for name, value in record.values.items() if name not in VOLATILE and isinstance(value, float)
        }
        for record in records
    }


@pytest.mark.parametrize("name", RUNS)
def test_a_run(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"train": {"steps": 4, "batch_size": 8, "log_every_steps": 1}} | RUNS[name]
    workdir = tmp_path / "w"
    summary = pipeline.run(toy_config(write_corpus(tmp_path / "corpus.txt.gz"), **settings), workdir)
    manifest = dataset.load_manifest(workdir)
    assert manifest is not None
    check(
        f"run {name}",
        {
            "tokenizer": digests(workdir / "tokenizer"),
            "dataset": digests(workdir / "dataset") | {"fingerprint": manifest.fingerprint},
            "losses": losses(workdir),
            "scores": {score: rounded(value) for score, value in summary.eval_scores.items()},
            "export": tensors(workdir / "export"),
        },
    )
    if name == "bert-packed":
        check("json", {command: shape_of(output) for command, output in outputs(tmp_path, workdir).items()})


def outputs(folder: Path, workdir: Path) -> dict[str, Any]:
    """What commands print with `--json`, of a finished run."""
    text = folder / "text.txt"
    text.write_text("the cat sat on a mat.\ndogs ran home.\n")
    commands: dict[str, list[object]] = {name: [workdir] for name in ("dataset inspect", "evaluate", "export")}
    commands |= {"tokenizer report": [workdir / "tokenizer", text], "fill-mask": [workdir, "the [MASK] sat on a mat"]}
    return {name: run_command(*name.split(), *arguments) for name, arguments in commands.items()}


def run_command(*arguments: object) -> Any:
    return json.loads(invoke(*arguments, "--json", code=0).stdout.splitlines()[-1])


def shape_of(value: Any) -> Any:
    """The names and types of an answer; of a list, its first entry's."""
    if isinstance(value, dict):
        return {name: shape_of(one) for name, one in value.items()}
    return [shape_of(value[0])] if isinstance(value, list) and value else type(value).__name__


FINETUNINGS: dict[str, tuple[Callable[[str, str], str], list[str]]] = {
    "classes": (lambda text, label: f"{text}\t{label}", []),
    "numbers": (lambda text, label: f"{text}\t{len(text) if label == 'pos' else 0}", ["--regression"]),
    "pairs": (lambda text, label: f"{text}\t{label}", ["--pair-column", "other"]),
}


@pytest.mark.parametrize("name", FINETUNINGS)
def test_a_finetuning(name: str, tmp_path: Path) -> None:
    line, options = FINETUNINGS[name]
    for file, seed in (("train.tsv", 0), ("test.tsv", 1)):
        rows = [f"{line(text, label)}\tthe plot" for text, label in reviews(96, seed=seed)]
        (tmp_path / file).write_text("\n".join(["text\tlabel\tother", *rows]) + "\n")
    encoder, output = build_encoder("bert", tmp_path), tmp_path / "out"
    schedule = ["--epochs", "2", "--batch-size", "16", "--learning-rate", "3e-3", "--max-length", "16"]
    files = ["--train", f"{tmp_path}/train.tsv", "--test", f"{tmp_path}/test.tsv", "--output", str(output)]
    answer = run_command("finetune", encoder, *files, *schedule, *options)
    scores = {key: rounded(value) for key, value in answer.items() if isinstance(value, float) and "second" not in key}
    check(f"finetune {name}", {"scores": scores, "json": shape_of(answer), "export": tensors(output)})
    if name == "classes":
        check("json classify", {"answer": shape_of(run_command("classify", output, "the film was good"))})
