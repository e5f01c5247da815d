"""A corpus and a run that take a second."""

from __future__ import annotations

import gzip
import hashlib
import random
import re
from pathlib import Path, PurePath
from typing import Any

from tfrecord_files import frame, serialize
from tpulm.config import RunConfig
from tpulm.progress import Silent
from tpulm.runtime import interrupt
from tpulm.train.metrics import read_metrics

VOLATILE = ("time", "tokens_per_second", "texts_per_second", "mfu", "seconds")  # metrics that differ between attempts
WORDS = re.findall(
    r"\w+",
    "the cat sat on a mat while dogs ran home to eat their red food and birds sang over old trees by still water",
)


def write_corpus(path: Path, documents: int = 400) -> Path:
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(4, 30))) + "." for _ in range(documents)]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return path


def run_file(sources: str, *, steps: int = 4) -> str:
    """A run of these steps as a file."""
    return f"""
extends = "bert-tiny"
name = "toy"
corpus = {{sources = ["{sources}"], holdout_fraction = 0.1}}
tokenizer.vocab_size = 60
data = {{sequence_length = 32, rows = "packed", next_sentence = false, part_bytes = 10_000}}
model = {{num_layers = 1, hidden_size = 32, num_heads = 2, intermediate_size = 64}}
train.steps = {steps}
train.batch_size = 8
train.log_every_steps = 2
"""


SIZES = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 32}
DATA = {"sequence_length": 32, "rows": "packed", "part_bytes": 10_000}

# The same as single settings, as `--set` and notebooks take them.
SMALL = {"model.num_layers": 1, "model.hidden_size": 32, "model.intermediate_size": 64, "model.max_positions": 32}
SMALL |= {"tokenizer.vocab_size": 60, "data.sequence_length": 32, "corpus.holdout_fraction": 0.1}
SMALL |= {"train.batch_size": 8, "train.log_every_steps": 2, "train.optimizer.warmup_steps": 2}


def toy_config(corpus: Path, /, **changes: Any) -> RunConfig:
    base: dict[str, Any] = {
        "name": "toy",
        "corpus": {"sources": [str(corpus)], "holdout_fraction": 0.1},
        "tokenizer": {"vocab_size": 60},
        "data": DATA,
        "model": SIZES,
        "train": {"steps": 6, "batch_size": 8, "log_every_steps": 2, "checkpoint": {"every_steps": 3}},
        "hardware": {"data": 2},
    }
    return RunConfig.model_validate({**base, **changes})


class Notes(Silent):
    """Keeps what is noted; asks for a stop when so many steps of training are done."""

    def __init__(self, stop: int = 0):
        self.notes: list[str] = []
        self._stop, self._training, self._done = stop, False, 0.0

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self._training, self._done = description.startswith("Training"), 0.0

    def advance(self, amount: float) -> None:
        self._done += amount
        if self._stop and self._training and self._done == self._stop:
            interrupt.request("SIGTERM")

    def note(self, message: str) -> None:
        self.notes.append(message)


def logged(workdir: PurePath) -> list[Any]:
    """The metrics without what says when and how fast."""
    return [(r.kind, r.step, {k: v for k, v in r.values.items() if k not in VOLATILE}) for r in read_metrics(workdir)]


def outcome(workdir: Path) -> Any:
    """What a run logged, and the hashes of its scores and of what it exported."""
    kept = ("model.safetensors", "tokenizer.json", "config.json")
    files = [workdir / "results" / "evaluation.json", *(f for f in (workdir / "export").rglob("*") if f.name in kept)]
    return logged(workdir), {str(f.relative_to(workdir)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


PAD, CLS, SEP, MASK = 0, 2, 3, 4
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def write_records(folder: Path) -> None:
    """vocab.txt, and rows of 32 tokens as the scripts of BERT and ELECTRA write them: bert.tfrecord-*, electra.tfrecord-*."""
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    for name, bert in (("bert", True), ("electra", False)):
        for part in range(3):
            records = b"".join(_record(100 * part + number, bert=bert) for number in range(100))
            (folder / f"{name}.tfrecord-{part}-of-3").write_bytes(records)


def _record(number: int, *, bert: bool) -> bytes:
    draw = random.Random(number)
    first, second = (draw.choices(range(5, len(TOKENS)), k=draw.randint(3, 14)) for _ in range(2))
    tokens = [CLS, *first, SEP, *second, SEP]
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    padding = [0] * (32 - len(tokens))
    features: dict[str, Any] = {"input_mask": [1] * len(tokens) + padding, "segment_ids": types + padding}
    if bert:
        features |= {"masked_lm_positions": [2, 0], "masked_lm_ids": [tokens[2], 0], "masked_lm_weights": [1.0, 0.0]}
        features |= {"next_sentence_labels": [number % 2]}
        tokens[2] = MASK
    return frame(serialize(features | {"input_ids": tokens + padding}))
