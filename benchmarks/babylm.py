"""What a recipe learns from ten million English words: the table of docs/learning.md, from nothing.

    python benchmarks/babylm.py --workdir W [--data shared/data] [--recipe babylm-10m …] [--seeds 0 1 2] [--steps N] [--cola]
    python benchmarks/babylm.py --workdir W --lever decay-0 … --seeds 0 1   # five or ten minutes each

Trains each recipe with each seed on words8m.txt.xz, scores it on the parts of BLiMP and Zorro that are there, and writes
W/babylm.md: held-out loss, bits a character, accuracy in percent (the mean of the paradigms), minutes of training, and
the processor. Models are in W/RECIPE-SEED/export. What was stopped goes on. With --cola each is fine-tuned on CoLA, too (five
epochs at 3e-4, causal models at 1.5e-4): the Matthews correlation in percent of the best epoch on dev, by which it is chosen.

Levers differ in one setting, those of a causal model (540 steps of 2,048 tokens) from as-it-is, those of a ModernBERT (1,500)
from masked. Their steps are equally many, not equally long: vocabularies of 4,000 and 16,000 take 0.7 and 1.5 times the
operations. Losses compare only within one vocabulary, one length of rows (not rows-of-64-then-128) and one share of masks at
the end (not masked-30-then-15).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tarfile
from pathlib import Path
from typing import Any

from corpora import data_folder
from turns import processor

import tpulm
from tpulm.cli.terminal import drawn_progress
from tpulm.config import RunConfig, load, phases_of
from tpulm.convert.markdown import table
from tpulm.labelled import Columns
from tpulm.predict.minimal_pairs import read_pairs, score_pairs
from tpulm.progress import Progress
from tpulm.train.metrics import read_attempts
from tpulm.workfolder import begin

TEXT: dict[str, Any] = {"tokenizer.lowercase": True, "data.split_sentences": True}
CAUSAL: dict[str, Any] = TEXT | {
    "data.sequence_length": 64,
    "train.batch_size": 32,
    "train.steps": 540,
    "train.evaluate_every_steps": 540,
}
MASKED: dict[str, Any] = TEXT | {"train.steps": 1_500, "train.evaluate_every_steps": 1_500}
NEXT_TOKENS: dict[str, Any] = {"objective": "clm"}
CAUSAL_LEVERS: dict[str, dict[str, Any]] = {  # over laptop-lm
    "as-it-is": {},
    "decay-0": {"train.optimizer.weight_decay": 0.0},
    "decay-0.3": {"train.optimizer.weight_decay": 0.3},
    "average": {"train.optimizer.average_decay": 0.98},
    "constant-rate-average": {"train.optimizer.schedule": "constant", "train.optimizer.average_decay": 0.98},
    "untied": {"model.tied_output": False},
    "deep-and-narrow": {"model.num_layers": 8, "model.hidden_size": 96, "model.num_heads": 2, "model.intermediate_size": 256},
    "small-batches-first": {"phases": [{"share": 0.5, "batch_size": 16}, {"share": 0.5, "batch_size": 48}]},
    "rows-of-64-then-128": {"phases": [{"share": 0.8}, {"share": 0.2, "sequence_length": 128, "batch_size": 16}]},
    "vocabulary-4000": {"tokenizer.vocab_size": 4_000},
    "vocabulary-16000": {"tokenizer.vocab_size": 16_000},
}
MASKED_LEVERS: dict[str, dict[str, Any]] = {  # over laptop-modern
    "masked": {},
    "masked-30-then-15": {"phases": [{"share": 0.33} | NEXT_TOKENS, {"share": 0.33}, {"share": 0.34, "mask_fraction": 0.15}]},
    "masked-alternating": {
        "phases": [{"share": 0.11} | NEXT_TOKENS, {"share": 0.22}] * 2 + [{"share": 0.12} | NEXT_TOKENS, {"share": 0.22}]
    },
    "masked-constant-rate": {
        "train.optimizer.schedule": "wsd",
        "train.optimizer.decay_steps": 500,
        "train.optimizer.decay_type": "1-sqrt",
    },
}
LEVERS = {name: ("laptop-lm", CAUSAL | changes) for name, changes in CAUSAL_LEVERS.items()} | {
    name: ("laptop-modern", MASKED | changes) for name, changes in MASKED_LEVERS.items()
}
SUITES = {"BLiMP": "en/blimp_dev.tar.gz", "Zorro": "en/zorro_dev.tar.gz"}


def unpacked(archive: Path, folder: Path) -> Path:
    """The folder with the archive's files."""
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        with tarfile.open(archive) as stream:
            stream.extractall(unfinished, filter="data")
        unfinished.rename(folder)
    return folder


def cola(model: Path, output: Path, data: Path, seed: int, rate: float, progress: Progress) -> float:
    """100 times the Matthews correlation on CoLA's dev, in domain, after fine-tuning."""
    columns = Columns(text="4", label="2", header=False)
    chosen: dict[str, Any] = {"metric": "matthews", "epochs": 5, "patience": None, "learning_rate": rate, "seed": seed}
    train, dev = (data / f"en/cola_{part}.tsv.gz" for part in ("train", "dev"))
    summary = tpulm.finetune(model, train, output, dev=dev, columns=columns, progress=progress, **chosen)
    return 100 * summary.seeds[0].dev["matthews"]


def copy_data(first: Path, workdir: Path, config: RunConfig) -> None:
    unfinished = workdir.with_name(f"{workdir.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    begin(config, unfinished)
    for part in ("corpus", "tokenizer", *{f"{phase.folder}/dataset" for phase in phases_of(config)}):
        shutil.copytree(first / part, unfinished / part)
    unfinished.rename(workdir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--recipe", nargs="+", default=["babylm-10m"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, help="in place of the recipe's")
    parser.add_argument("--cola", action="store_true", help="fine-tune on CoLA, too: minutes for each model")
    parser.add_argument("--lever", nargs="+", choices=LEVERS, default=[], help="in place of recipes")
    options = parser.parse_args()
    text = [str((options.data / "en/words8m.txt.xz").resolve())]
    pairs = {
        name: read_pairs(unpacked(options.data / path, options.workdir / name) / "**" / "*.*") for name, path in SUITES.items()
    }
    rows: list[list[str]] = []
    prepared: dict[str, Path] = {}  # by settings: the first folder with this data
    for recipe in options.lever or options.recipe:
        scores: list[list[float]] = []
        extends, changes = LEVERS[recipe] if options.lever else (recipe, {})
        for seed in options.seeds:
            settings = {"language": "en", "corpus.sources": text, "train.seed": seed} | changes
            if options.steps:
                settings["train.steps"] = options.steps
            workdir, config = options.workdir / f"{recipe}-{seed}", load(extends, settings)
            first = prepared.setdefault(config.model_dump_json(include={"corpus", "tokenizer", "data", "phases"}), workdir)
            if first.exists() and not workdir.exists():
                copy_data(first, workdir, config)
            with drawn_progress() as progress:
                summary = tpulm.run(config, workdir, progress=progress)
                model = tpulm.load_model(workdir)
                accuracies = [100 * score_pairs(model, some, progress=progress).accuracy for some in pairs.values()]
                if options.cola:
                    tuned = workdir.with_name(f"{workdir.name}-cola")
                    rate = 1.5e-4 if config.model.architecture == "decoder" else 3e-4
                    accuracies.append(cola(workdir, tuned, options.data, seed, rate, progress))
            begun = [one for one in read_attempts(workdir) if one.start and one.records]
            minutes = sum(one.records[-1].values["time"] - one.start["time"] for one in begun) / 60
            scores.append([summary.eval_loss, summary.bits_per_character, *accuracies])
            rows.append([recipe, str(seed), *(f"{score:.2f}" for score in scores[-1]), f"{minutes:.0f}"])
        if len(scores) > 1:
            means = (f"{statistics.mean(column):.2f} ± {statistics.stdev(column):.2f}" for column in zip(*scores, strict=True))
            rows.append([recipe, f"mean of {len(scores)}", *means, ""])
        suites = [*SUITES, *(["CoLA"] if options.cola else [])]
        result = f"{processor()}\n\n{table(['', 'seed', 'held-out loss', 'bits a character', *suites, 'minutes'], rows)}\n"
        (options.workdir / "babylm.md").write_text(result, encoding="utf-8")
        print(result, flush=True)


if __name__ == "__main__":
    main()
