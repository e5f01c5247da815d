"""Which learning rate fine-tunes a small model best: three models and three languages, five rates.

    python benchmarks/finetuning_rates.py --workdir W [--data shared/data] [--model NAME …] [--language ko …]

The models are pretrained for a few minutes first, by the laptop recipes and by a BERT of two layers of 384. Korean film reviews
(two classes), pairs of JSICK (three) and English sentences (CoLA, two): 2,000, 3,500 and 7,000 examples to train on and 1,500
to score, three epochs, texts cut at 64 or 32 tokens, all else by default. Everything is resumed; the table is W/rates.md, in
accuracy.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
from pathlib import Path
from typing import Any

from corpora import CORPORA, data_folder

import tpulm
from tpulm.cli.terminal import drawn_progress
from tpulm.config import load
from tpulm.convert.markdown import table

RATES = (5e-5, 2e-4, 5e-4, 1e-3, 2e-3)
# Recipes, shortened to a few minutes of one core.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT 2 x 128": ("laptop-bert", {"train.steps": 1_500}),
    "ModernBERT 4 x 128": ("laptop-modern", {"train.steps": 700}),
    "BERT 2 x 384": (
        "laptop-bert",
        {
            "train.steps": 400,
            "model.hidden_size": 384,
            "model.num_heads": 6,
            "model.intermediate_size": 1_536,
            "model.initializer_range": 0.05,
            "train.optimizer.learning_rate": 5e-3,
        },
    ),
}
LABELLED = {  # file, its columns of texts and label, whether the first line names columns
    "ko": ("ko/nsmc_train_50k.tsv.gz", ("document",), "label", None),
    "ja": ("ja/jsick_train.tsv.gz", ("sentence_A_Ja", "sentence_B_Ja"), "entailment_label_Ja", None),
    "en": ("en/cola_train.tsv.gz", ("sentence",), "label", ("source", "label", "mark", "sentence")),
}
TRAIN, SCORED = {"ko": 2_000, "ja": 3_500, "en": 7_000}, 1_500  # at most


def labelled(data: Path, language: str, folder: Path) -> tuple[Path, Path]:
    """Two tab-separated files with headings: what is trained on, and what is scored."""
    name, texts, label, header = LABELLED[language]
    with gzip.open(data / name, "rt", encoding="utf-8", newline="") as stream:
        rows = [
            row
            for row in csv.DictReader(stream, header, delimiter="\t", quoting=csv.QUOTE_NONE)
            if row[label] and all(map(row.get, texts))
        ]
    random.Random(0).shuffle(rows)
    paths = folder / f"{language}-train.tsv", folder / f"{language}-scored.tsv"
    for path, part in zip(paths, (rows[SCORED:][: TRAIN[language]], rows[:SCORED]), strict=True):
        lines = ["\t".join([*texts, label]), *("\t".join(row[key] for key in (*texts, label)) for row in part)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def scores(options: argparse.Namespace, name: str, language: str) -> dict[float, float]:
    recipe, settings = MODELS[name]
    corpus = {"corpus.sources": [str((options.data / CORPORA[language]).resolve())], "corpus.max_bytes": 30_000_000}
    workdir = options.workdir / f"{language}-{name.replace(' ', '')}"
    train, scored = labelled(options.data, language, options.workdir)
    _, texts, label, _ = LABELLED[language]
    with drawn_progress() as progress:
        tpulm.run(load(recipe, {"language": language, **corpus, **settings}), workdir, progress=progress)
        columns = tpulm.Columns(text=texts[0], pair=texts[1] if len(texts) > 1 else None, label=label)
        settings = {"seeds": options.seeds, "max_length": 64 if name == "BERT 2 x 128" else 32}
        summary = tpulm.finetune(
            workdir, train, workdir / "rates", dev=scored, columns=columns, learning_rates=RATES, progress=progress, **settings
        )
    return {float(rate): score for rate, score in summary.learning_rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--model", choices=list(MODELS), nargs="+", default=list(MODELS))
    parser.add_argument("--language", choices=list(LABELLED), nargs="+", default=list(LABELLED))
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    options.workdir.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    for name in options.model:
        for language in options.language:
            found = scores(options, name, language)
            rows.append([name, language, *(f"{100 * found[rate]:.1f}" for rate in RATES)])
            text = table(["model", "language", *(f"{rate:g}" for rate in RATES)], rows)
            (options.workdir / "rates.md").write_text(text, encoding="utf-8")
            print(text, flush=True)


if __name__ == "__main__":
    main()
