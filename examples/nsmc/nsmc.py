"""What pretraining is worth: BERT, ELECTRA and a model that was never pretrained, fine-tuned on Korean film reviews.

    python examples/nsmc/nsmc.py --reviews ko/nsmc_reviews.txt.gz --labelled ko/nsmc_train_50k.tsv.gz --workdir w/nsmc

Pretrains a BERT and an ELECTRA of one size on the reviews, each for the same number of floating-point operations; fine-tunes
both, and the control (the same encoder with random weights), on 1,000, on 5,000 and on all labelled reviews, three seeds each;
scores all on one test part that nothing was chosen by; writes W/results.json, W/results.md and W/*.svg. --settings names the
folder of settings: `small` takes about an hour on two CPU cores, `full` is for a TPU or a GPU. Everything goes on where it was
stopped.

The reviews are e9t/nsmc's: raw text, and labelled text with the columns id, document, label. The texts of the labelled reviews
are among the raw ones; their labels are not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import tpulm
from tpulm.cli.terminal import drawn_progress
from tpulm.config import FinetuneConfig, RunConfig, load_finetune
from tpulm.labelled import Columns, Examples, LabelSet, hold_out, read_examples
from tpulm.tokenization.special import TRAINED
from tpulm.train.metrics import read_metrics
from tpulm.train.program import Program

HERE = Path(__file__).resolve().parent
COLUMNS = Columns("document", "label")
NAMES = {"bert": "BERT", "electra": "ELECTRA", "control": "never pretrained"}


class Experiment(NamedTuple):
    """experiment.toml of a folder of settings."""

    pretraining_teraflops: float  # of matrix products, for each of the two
    sizes: tuple[int, ...]  # of labelled training sets; 0: all there is
    test_rows: int
    finetuning: FinetuneConfig


class Cell(NamedTuple):
    """One model fine-tuned on one size: means over the seeds, and sample deviations."""

    model: str
    examples: int  # training and dev
    test_accuracy: float
    deviation: float
    dev_accuracy: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", required=True, help="raw reviews, one a line (text, compressed or not)")
    parser.add_argument("--labelled", required=True, help="labelled reviews: tsv with id, document, label")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--settings", type=Path, default=HERE / "small")
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES), help="some of them first, the others later")
    options = parser.parse_args()
    experiment = read_experiment(options.settings / "experiment.toml")
    for name in ("bert", "electra"):
        if name in options.models or (name == "bert" and "control" in options.models):  # the control has BERT's vocabulary
            pretrain(name, options, experiment)
    files = write_parts(read_examples(options.labelled, COLUMNS, format="tsv"), experiment, options.workdir / "labelled")
    cells = [finetune(model, size, files, options.workdir, experiment) for size in experiment.sizes for model in options.models]
    report(cells, options.workdir)


def read_experiment(path: Path) -> Experiment:
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    return Experiment(
        values["pretraining_teraflops"], tuple(values["sizes"]), values["test_rows"], load_finetune(values["finetuning"])
    )


def pretrain(name: str, options: argparse.Namespace, experiment: Experiment) -> None:
    """A run of as many steps as the budget of operations pays for."""
    given = {"corpus.sources": [{"path": str(Path(options.reviews).resolve()), "format": "text"}]}
    config = tpulm.load_config(str(options.settings / f"{name}.toml"), given)
    steps = max(1, round(experiment.pretraining_teraflops * 1e12 / flops_per_step(config)))
    config = tpulm.load_config(str(options.settings / f"{name}.toml"), {**given, "train.steps": steps})
    with drawn_progress() as progress:
        progress.note(f"{NAMES[name]}: {steps:,} steps")
        summary = tpulm.run(config, options.workdir / name, progress=progress)
        progress.note(f"{NAMES[name]}: held-out loss {summary.eval_loss:.3f}, {summary.health}")


def flops_per_step(config: RunConfig) -> float:
    program = Program(config, vocab_size=config.tokenizer.vocab_size, special=TRAINED)
    return program.objective.flops_per_row * config.train.batch_size


def write_parts(examples: Examples, experiment: Experiment, folder: Path) -> dict[int, Path]:
    """test.tsv, and for each size a training file; all chosen by the hash of the text, so that a text is in test or not."""
    folder.mkdir(parents=True, exist_ok=True)
    split = hold_out(examples, classes_of(examples), fraction=experiment.test_rows / len(examples))
    write_tsv(folder / "test.tsv", examples.take(split.held_out))
    rest = examples.take(split.train)
    files: dict[int, Path] = {}
    for size in experiment.sizes:
        chosen = rest if size == 0 else rest.take(hold_out(rest, classes_of(rest), fraction=size / len(rest)).held_out)
        files[size] = folder / f"train-{size or 'all'}.tsv"
        write_tsv(files[size], chosen)
    return files


def classes_of(examples: Examples) -> Any:
    return LabelSet.of(examples).encode(examples)


def write_tsv(path: Path, examples: Examples) -> None:
    assert examples.labels is not None
    lines = [f"{text}\t{label}\n" for text, label in zip(examples.texts, examples.labels, strict=True)]
    path.write_text("document\tlabel\n" + "".join(lines), encoding="utf-8")


def finetune(model: str, size: int, files: dict[int, Path], workdir: Path, experiment: Experiment) -> Cell:
    """The control has BERT's shape, settings and vocabulary, and random weights."""
    config = experiment.finetuning.model_copy(update={"from_scratch": model == "control"})
    source = {"bert": "bert", "electra": "electra/export/discriminator", "control": "bert"}[model]
    with drawn_progress() as progress:
        progress.note(f"{NAMES[model]} on {size or 'all'} labelled reviews")
        summary = tpulm.finetune(
            workdir / source,
            files[size],
            workdir / "finetuned" / f"{model}-{size or 'all'}",
            test=workdir / "labelled" / "test.tsv",
            columns=COLUMNS,
            config=config,
            progress=progress,
        )
    values = summary.values()
    count = values["examples"]["train"] + values["examples"]["dev"]
    return Cell(model, count, values["test_accuracy"], values["test_accuracy_deviation"], values["dev_accuracy"])


def report(cells: list[Cell], workdir: Path) -> None:
    (workdir / "results.json").write_text(json.dumps([cell._asdict() for cell in cells], indent=2) + "\n", encoding="utf-8")
    sizes = sorted({cell.examples for cell in cells})
    lines = ["| model | " + " | ".join(f"{size:,} labels" for size in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for model, name in models_of(cells).items():
        found = {cell.examples: cell for cell in cells if cell.model == model}
        scores = (f"{found[size].test_accuracy:.4f} ± {found[size].deviation:.4f}" for size in sizes)
        lines.append(f"| {name} | " + " | ".join(scores) + " |")
    table = "\n".join(lines) + "\n"
    (workdir / "results.md").write_text(table, encoding="utf-8")
    draw(cells, workdir)
    print(table, file=sys.stderr)


def models_of(cells: list[Cell]) -> dict[str, str]:
    """Those that were asked for, with their names."""
    return {model: name for model, name in NAMES.items() if any(cell.model == model for cell in cells)}


def draw(cells: list[Cell], workdir: Path) -> None:
    """accuracy.svg: by the number of labels; pretraining.svg: the masked-word loss of both runs on held-out reviews."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tpulm"  # the same results give the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for model, name in models_of(cells).items():
        found = sorted((cell for cell in cells if cell.model == model), key=lambda cell: cell.examples)
        counts, scores = [cell.examples for cell in found], [cell.test_accuracy for cell in found]
        axes.errorbar(counts, scores, yerr=[cell.deviation for cell in found], marker="o", capsize=3, label=name)
    axes.set(xscale="log", xlabel="labelled reviews", ylabel="test accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(workdir / "accuracy.svg", metadata={"Date": None})

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    entropy = 0.0
    for name in (model for model in models_of(cells) if model != "control"):
        records = [record for record in read_metrics(workdir / name) if record.kind == "evaluation"]
        last = json.loads((workdir / name / "results" / "evaluation.json").read_text(encoding="utf-8"))
        points = [(record.step, record.values["mlm_loss"]) for record in records] + [(last["step"], last["mlm_loss"])]
        entropy = last["unigram_entropy"]
        shares = [step / last["step"] for step, _ in points]
        axes.plot(
            shares,
            [loss for _, loss in points],
            marker="o",
            label=f"{NAMES[name]}{' (its generator)' if name == 'electra' else ''}",
        )
    axes.axhline(entropy, color="grey", linestyle=":", label="word frequencies alone")
    axes.set(xlabel="share of the same compute", ylabel="masked-word loss, nats")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(workdir / "pretraining.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
