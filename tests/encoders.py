"""Tiny encoders with random weights as folders, and texts whose label one word decides."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from huggingface_hub.utils import filter_repo_objects

from tpulm import storage, tokenization
from tpulm.config import ModelConfig
from tpulm.convert.heads import Head, spec_of
from tpulm.convert.huggingface import save_model
from tpulm.nn.params import initialize
from tpulm.progress import Silent
from tpulm.runtime import interrupt

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "was", "good", "bad", "very", "plot", "cast", "and", "."]
SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "max_positions": 32}
SIZES |= {"initializer_range": 0.1}
LLAMA_LIKE = {"norm": "rms", "biases": False, "feed_forward": "gated", "activation": "silu", "positions": "rotary"}
KINDS: dict[str, tuple[Head, dict[str, Any]]] = {
    "bert": ("masked", {}),
    "next_sentence": ("next_sentence", {}),
    "electra": ("detection", {"architecture": "electra", "embedding_size": 16, "activation": "gelu"}),
    "megatron": ("masked", {"norm_position": "pre"}),
    "eurobert": ("masked", {"norm_position": "pre", "masked_head": "plain", "token_types": 0, **LLAMA_LIKE}),
    "modernbert": ("masked", {"architecture": "modernbert", "num_layers": 4, "local_window": 8}),
    "decoder": ("causal", {"architecture": "decoder", "norm_position": "pre"}),
    "llama": ("causal", {"architecture": "decoder", "norm_position": "pre", **LLAMA_LIKE}),
}


def build_encoder(kind: str, folder: Path) -> Path:
    """A copy of `built`."""
    shutil.copytree(built(kind).parent, folder, dirs_exist_ok=True)
    return folder / kind


@cache
def built(kind: str) -> Path:
    """A folder as `save_model` writes it, with random weights, made once a process; it must not be changed."""
    folder = Path(tempfile.mkdtemp(prefix="encoder-"))
    words, tokenizer_folder = folder / "words.txt", folder / "tokenizer"
    storage.write_atomic(words, "\n".join(WORDS) + "\n")
    tokenizer = tokenization.load(words)
    tokenization.save(tokenizer, tokenizer_folder)
    head, settings = KINDS[kind]
    config, vocab_size = ModelConfig.model_validate(SIZES | settings), tokenizer.vocab_size
    params = jax.device_get(initialize(spec_of(config, head, vocab_size=vocab_size), jax.random.key(1)))
    given: dict[str, Any] = {"tokenization_folder": tokenizer_folder, "tokenizer": tokenizer}
    save_model(folder / kind, params, config, vocab_size=vocab_size, **given)
    return folder / kind


def hub_of(repository: Path, cache: Path) -> Callable[..., str]:
    """What the Hub's snapshot_download does of a repository with the files of a folder."""

    def snapshot_download(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        files = [path.relative_to(repository) for path in repository.rglob("*") if path.is_file()]
        for file in filter_repo_objects(files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            storage.write_atomic(storage.make_folder((cache / file).parent) / file.name, (repository / file).read_bytes())
        return str(cache)

    return snapshot_download


def reviews(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """(text, label): "pos" where the text has the word good, "neg" where it has bad; all texts are different or nearly so."""
    random = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        label = "pos" if number % 2 else "neg"
        words = random.choice(["the", "film", "was", "very", "plot", "cast", "and"], size=random.integers(6, 9)).tolist()
        words.insert(int(random.integers(len(words) + 1)), "good" if label == "pos" else "bad")
        examples.append((" ".join(words), label))
    return examples


def write_tsv(path: Path, examples: list[tuple[str, str]], header: str = "id\tdocument\tlabel") -> Path:
    lines = [header, *(f"{number}\t{text}\t{label}" for number, (text, label) in enumerate(examples))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class StopAt(Silent):
    """Asks for a stop when so many steps have been made in all."""

    def __init__(self, steps: int):
        self._left = steps

    def advance(self, amount: float) -> None:
        if amount == 1:
            self._left -= 1
            if self._left == 0:
                interrupt.request("SIGTERM")


def write_ynat(folder: Path) -> None:
    """Reviews as KLUE's YNAT: one JSON array a file."""
    for part, count in (("train", 160), ("dev", 40)):
        rows = [{"title": text, "label": "정치" if label == "pos" else "경제"} for text, label in reviews(count, seed=count)]
        storage.make_folder(folder / "ynat-v1.1")
        storage.write_json(folder / "ynat-v1.1" / f"ynat-v1.1_{part}.json", rows)
