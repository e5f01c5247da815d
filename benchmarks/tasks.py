"""What small models of our recipes can do after pretraining: entities, inference, similarity, answers, choices, embeddings.

    python benchmarks/tasks.py --data DATA --workdir W [--languages ko ja] [--tasks ner jsts] [--seeds 3] [--steps 2600]

For each language a model by the recipe laptop-modern, with rows of 128, then `tpulm bench`, beside the same
model with random weights. DATA has ko/ and ja/: nsmc_reviews.txt.gz and aozora.txt.gz to pretrain on, and files of KLUE and
JGLUE. Where only a task's dev file is there, as of KLUE-NER, KLUE-NLI, JNLI and JSQuAD, `bench` trains on four fifths of it and
scores the rest, which compares with no published score.

JNLI and JSTS are fine-tuned once more by transformers' classes and the loop of benchmarks/learning_torch.py on the exported
folder, with the same learning rate, epochs, dropout, weight decay and number of seeds; that loop chooses the epoch of JSTS by
Spearman, `bench` by Pearson. The table is W/tasks.md; everything is resumed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from learning import kept_answer
from learning_data import Example, Labelled, write_labelled

import tpulm
from tpulm import storage
from tpulm.cli.terminal import drawn_progress
from tpulm.config import FinetuneConfig
from tpulm.convert.markdown import table
from tpulm.finetuning.benchmark import percent
from tpulm.finetuning.suites import find_files, find_suite, read_parts
from tpulm.finetuning.tasks import find_task
from tpulm.labelled import Examples
from tpulm.labelled.split import hold_out

CORPORA = {"ko": "nsmc_reviews.txt.gz", "ja": "aozora.txt.gz"}
TASKS = {"ko": ("klue", ("ner", "nli")), "ja": ("jglue", ("jsts", "jnli", "jsquad", "jcommonsenseqa"))}
# KLUE and JGLUE publish rates of 5e-5 for base models; narrow ones want more.
LEARNING_RATE, DROPOUT = 5e-4, 0.1
EPOCHS = {"jsts": 2, "jsquad": 1, "jcommonsenseqa": 1}  # of the large ones, fewer than published, for want of time
EPOCHS_OF_EMBEDDINGS = 1
REPEATED = {"jnli accuracy": "jnli", "jsts spearman": "jsts"}
CLASSES = ("contradiction", "entailment", "neutral")

Scores = dict[str, list[float]]  # by task and metric, of each seed


def pretrain(options: argparse.Namespace, language: str) -> Path:
    """By laptop-modern, with half as many rows of twice the length: answers stand in long texts."""
    workdir = options.workdir / language
    settings = {
        "language": language,
        "corpus.sources": [str((options.data / language / CORPORA[language]).resolve())],
        "data.sequence_length": 128,
        "model.max_positions": 128,
        "train.batch_size": 16,
        "train.steps": options.steps,
    }
    with drawn_progress() as progress:
        tpulm.run(tpulm.load_config("laptop-modern", settings), workdir, progress=progress)
    return workdir / "export"


def score(options: argparse.Namespace, language: str, model: Path, *, pretrained: bool) -> Scores:
    """By `tpulm bench`, and for JSTS also by embeddings whose cosine is to say how alike two sentences are."""
    suite, tasks = TASKS[language]
    place = options.workdir / f"{language}-{'pretrained' if pretrained else 'random'}"
    settings: dict[str, Any] = {"dropout": DROPOUT, **({} if pretrained else {"from_scratch": True})}
    folder, found = options.data / language, Scores()
    with drawn_progress() as progress:
        shared: dict[str, Any] = {"seeds": options.seeds, "progress": progress}
        for name in (name for name in tasks if name in (options.tasks or tasks)):
            given = settings | {"epochs": epochs_of(suite, name)}
            report = tpulm.bench(
                suite, folder, model, place / name, tasks=[name], learning_rates=[LEARNING_RATE], settings=given, **shared
            )
            found |= {f"{name} {metric}": scores for metric, scores in report.results[0].scores.items()}
            if name == "jsts":
                given = settings | {"task": "embed", "learning_rate": LEARNING_RATE, "epochs": EPOCHS_OF_EMBEDDINGS}
                parts = parts_of(name, folder)
                done = tpulm.finetune(model, parts["train"], place / "embed", test=parts["dev"], **given, **shared)
                found["jsts, embeddings spearman"] = [one.test["spearman"] for one in done.seeds if one.test is not None]
    return found


def epochs_of(suite: str, name: str) -> int:
    return EPOCHS.get(name) or find_suite(suite).tasks[name].settings["epochs"]


def parts_of(name: str, folder: Path) -> dict[str, Examples]:
    """A task of JGLUE as `bench` reads it: "train", and "dev" to be scored."""
    task = find_suite("jglue").tasks[name]
    files = find_files(task, storage.as_path(folder), list(storage.walk(folder))).files
    return read_parts(task, find_task(FinetuneConfig(task=task.task)), files)


def repeat(options: argparse.Namespace, name: str, model: Path) -> list[float]:
    """A task by torch: the exported folder in transformers' class. The score of each seed; dev is held out as `bench` does."""
    parts, data = parts_of(name, options.data / "ja"), options.workdir / "repeated" / name
    data.mkdir(parents=True, exist_ok=True)
    train = pairs(parts["train"])
    classes = np.array([one.label for one in train]) if name == "jnli" else None
    split = hold_out(parts["train"], classes, fraction=FinetuneConfig().dev_fraction)
    kept, dev = ([train[index] for index in part] for part in split)
    write_labelled(data, Labelled(train=kept, dev=dev, test=pairs(parts["dev"])))
    job = {"job": "finetune", "folder": str(model), "tokenizer": str(model), "data": str(data), "labels": len(kept)}
    job |= {"learning_rate": LEARNING_RATE, "epochs": epochs_of("jglue", name), "length": 128, "from_scratch": False}
    job["weight_decay"] = find_suite("jglue").tasks[name].settings["weight_decay"]
    return [kept_answer(data / f"{seed}.json", {**job, "seed": seed})["test"] for seed in range(options.seeds)]


def pairs(examples: Examples) -> list[Example]:
    """With a class, by its place in CLASSES, or with a number."""
    assert examples.pairs is not None and examples.labels is not None
    labels = [CLASSES.index(label) if label in CLASSES else float(label) for label in examples.labels]
    return [Example(*one) for one in zip(examples.texts, examples.pairs, labels, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--languages", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--tasks", nargs="+", choices=[name for _, names in TASKS.values() for name in names])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2_600, help="of pretraining")
    options = parser.parse_args()
    rows: list[list[str]] = []
    for language in options.languages:
        model = pretrain(options, language)
        pretrained, drawn = (score(options, language, model, pretrained=trained) for trained in (True, False))
        for task, scores in pretrained.items():
            by_torch = percent(repeat(options, REPEATED[task], model)) if task in REPEATED else ""
            rows.append([task, percent(scores), percent(drawn[task]), by_torch])
    made = table(["", "laptop-modern", "random weights", "laptop-modern by torch"], rows, right=range(1, 4))
    (options.workdir / "tasks.md").write_text(made + "\n")
    print(made)


if __name__ == "__main__":
    main()
