"""The texts of benchmarks/learning.py: what is pretrained on, what is held out, and the labelled examples.

corpus.txt     one text a line, no two alike, none of which equals a held-out, dev or test text after `normalized`
heldout.txt    2,000 texts for the loss on masked tokens
train.jsonl, dev.jsonl, test.jsonl   {"text", "pair", "label"}, train in a fixed random order: its first N are N labels
"""

from __future__ import annotations

import gzip
import hashlib
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpulm.labelled import Examples, hold_out

HELD_OUT = 2_000


class Example(NamedTuple):
    text: str
    pair: str | None
    label: float  # a class, or a number to predict


class Labelled(NamedTuple):
    train: list[Example]
    dev: list[Example]
    test: list[Example]


def normalized(text: str) -> str:
    """Letters and digits alone, NFKC, without case: two texts that differ in marks and spaces only are one."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def write(folder: Path, language: str, source: Path) -> dict[str, int]:
    """All files, unless they are there; how many texts each has, and how many were left out of the corpus."""
    done = folder / "counts.json"
    if done.is_file():
        return json.loads(done.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    labelled = korean(source) if language == "ko" else japanese(source)
    files = {"ko": source / "ko/nsmc_reviews.txt.gz", "ja": source / "ja/aozora.txt.gz"}
    texts = dict.fromkeys(line.strip() for line in _lines(files[language]))
    texts.pop("", None)
    secret = {normalized(part) for one in (*labelled.dev, *labelled.test) for part in (one.text, one.pair or "")} - {""}
    usable = [text for text in texts if (key := normalized(text)) and key not in secret]
    held_out = [text for text in sorted(usable, key=_place) if len(text) >= 10][:HELD_OUT]
    taken = {normalized(text) for text in held_out}
    corpus = [text for text in usable if normalized(text) not in taken]
    _write(folder / "corpus.txt", corpus)
    _write(folder / "heldout.txt", held_out)
    write_labelled(folder, labelled)
    counts = {"corpus": len(corpus), "held out": len(held_out), "left out": len(texts) - len(corpus) - len(held_out)}
    counts |= {name: len(examples) for name, examples in labelled._asdict().items()}
    done.write_text(json.dumps(counts, indent=1))
    return counts


def write_labelled(folder: Path, labelled: Labelled) -> None:
    for name, examples in labelled._asdict().items():
        _write(folder / f"{name}.jsonl", (json.dumps(one._asdict(), ensure_ascii=False) for one in examples))


def read(path: Path) -> list[Example]:
    return [Example(**json.loads(line)) for line in lines_of(path)]


def lines_of(path: Path) -> list[str]:
    """Cut at line feeds alone: other characters that Python counts as line ends may stand in a text."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def labels_of(examples: list[Example]) -> np.ndarray:
    """int64 classes, or float64 numbers."""
    return np.asarray([one.label for one in examples])


def metric(found: np.ndarray, truth: np.ndarray) -> float:
    """Accuracy where the truth are integers, which are classes; Spearman's correlation of numbers."""
    if truth.dtype.kind == "i":
        return float((found == truth).mean())
    from scipy.stats import spearmanr

    correlation: Any = spearmanr(found, truth)
    return float(np.nan_to_num(correlation.statistic))


def korean(source: Path) -> Labelled:
    """Film reviews, good or bad (e9t/nsmc): 4,000 of test, 2,000 of dev, chosen by the hash of the normalized text."""
    rows = [line.rstrip("\n").split("\t") for line in _lines(source / "ko/nsmc_train_50k.tsv.gz")][1:]
    distinct: dict[str, Example] = {}
    for _, text, label in rows:
        if key := normalized(text):
            distinct.setdefault(key, Example(text, None, int(label)))
    ordered = [distinct[key] for key in sorted(distinct, key=_place)]
    return Labelled(train=ordered[6_000:], dev=ordered[4_000:6_000], test=ordered[:4_000])


def japanese(source: Path) -> Labelled:
    """Pairs of captions and how alike they are, 0 to 5 (JSTS of JGLUE): test is its valid file, dev 12 % of train."""

    def pairs(name: str) -> list[Example]:
        records = [json.loads(line) for line in _lines(source / f"ja/{name}.json.gz")]
        return [Example(one["sentence1"], one["sentence2"], float(one["label"])) for one in records]

    train = sorted(pairs("jsts_train"), key=lambda one: _place(one.text + "\t" + (one.pair or "")))
    texts, others = [one.text for one in train], [one.pair for one in train]
    # pairs that share a caption stay together
    split = hold_out(Examples(texts, others, None, [""] * len(train)), None, fraction=0.12)
    return Labelled(*([train[number] for number in part] for part in split), test=pairs("jsts_valid"))


def _place(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


def _write(path: Path, lines: Any) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
