"""A corpus and a run that take a second."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path
from typing import Any

from tpulm.config import RunConfig

WORDS = re.findall(
    r"\w+",
    "the cat sat on a mat while dogs ran home to eat their red food and birds sang over old trees by still water",
)


def write_corpus(path: Path, documents: int = 400) -> Path:
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(4, 30))) + "." for _ in range(documents)]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return path


def run_file(sources: str) -> str:
    """A run of four steps as a file."""
    return f"""
extends = "bert-tiny"
name = "toy"
[corpus]
sources = ["{sources}"]
holdout_fraction = 0.1
[tokenizer]
vocab_size = 60
[data]
sequence_length = 32
rows = "packed"
next_sentence = false
part_bytes = 10_000
[model]
num_layers = 1
hidden_size = 32
num_heads = 2
intermediate_size = 64
[train]
steps = 4
batch_size = 8
log_every_steps = 2
"""


def toy_config(corpus: Path, **changes: Any) -> RunConfig:
    base: dict[str, Any] = {
        "name": "toy",
        "corpus": {"sources": [str(corpus)], "holdout_fraction": 0.1},
        "tokenizer": {"vocab_size": 60},
        "data": {"sequence_length": 32, "rows": "packed", "part_bytes": 10_000},
        "model": {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 32},
        "train": {"steps": 6, "batch_size": 8, "log_every_steps": 2, "checkpoint": {"every_steps": 3}},
        "hardware": {"data": 2},
    }
    return RunConfig.model_validate({**base, **changes})
