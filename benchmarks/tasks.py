"""What small models of our recipes can do after pretraining: entities, inference, similarity, answers, choices, embeddings.

    python benchmarks/tasks.py --data DATA --workdir W [--seeds 3] [--languages ko ja]

For each language a model by the recipe laptop-bert, with rows of 128 (about ten minutes on two cores), then `tpulm bench`,
beside the same model with random weights. DATA has ko/ and ja/: nsmc_reviews.txt.gz and aozora.txt.gz to pretrain on, and
files of KLUE and JGLUE, not all of them. Of KLUE-NER, KLUE-NLI, JNLI and JSQuAD four fifths of what is published as dev train
here and one fifth is scored, so no score compares with published ones. JSTS and JCommonsenseQA are as published.

JNLI and JSTS are fine-tuned once more by transformers' classes and a loop in torch on the exported folder
(benchmarks/learning_torch.py), the same settings and number of seeds. The table is W/tasks.md; everything is resumed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from pathlib import Path
from typing import Any

from learning import answer, torch_command, write_json

import tpulm
from tpulm.cli.terminal import drawn_progress
from tpulm.convert.markdown import table

CORPORA = {"ko": "nsmc_reviews.txt.gz", "ja": "aozora.txt.gz"}
TASKS = {"ko": ("klue", ("ner", "nli")), "ja": ("jglue", ("jsts", "jnli", "jsquad", "jcommonsenseqa"))}
# KLUE and JGLUE publish rates of 5e-5 for base models; one of two layers of 128 wants more.
LEARNING_RATE, DROPOUT, EPOCHS = 1e-3, 0.1, 4
REPEATED = {"jnli": "accuracy", "jsts": "spearman"}
CLASSES = ("contradiction", "entailment", "neutral")

Scores = dict[str, list[float]]  # by task and metric, of each seed


def write_files(data: Path, language: str, folder: Path) -> None:
    """The tasks' files, under names that `tpulm bench` knows; of those with a dev part alone every fifth record is dev."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((data / language).glob("*.gz")):
        name = path.name.removesuffix(".gz")
        if not name.startswith(("klue", "j")):
            continue
        text = gzip.decompress(path.read_bytes()).decode()
        if name.startswith(("jsts", "jcommonsenseqa")):
            (folder / name).write_text(text)
        elif name.startswith("klue_ner"):
            comments, _, rest = text.partition("## klue-ner-v1")
            _write_parts(folder, "klue_ner", "tsv", ("## klue-ner-v1" + rest).strip("\n").split("\n\n"), "\n\n", comments)
        elif name.startswith("klue_nli"):
            _write_parts(folder, "klue_nli", "json", json.loads(text))
        elif name.startswith("jnli"):
            _write_parts(folder, "jnli", "json", text.splitlines(), "\n")
        elif name.startswith("jsquad"):
            _write_parts(folder, "jsquad", "json", json.loads(text)["data"])


def _write_parts(folder: Path, name: str, suffix: str, records: list[Any], between: str = "", lead: str = "") -> None:
    dev = "valid" if name.startswith("j") else "dev"
    for part, chosen in (("train", [r for n, r in enumerate(records) if n % 5]), (dev, records[::5])):
        if between:
            text = lead + between.join(chosen) + "\n"
        else:
            text = json.dumps({"data": chosen} if name == "jsquad" else chosen, ensure_ascii=False)
        (folder / f"{name}_{part}.{suffix}").write_text(text)


def pretrain(options: argparse.Namespace, language: str) -> Path:
    """By laptop-bert, with half as many rows of twice the length: answers stand in long texts."""
    workdir = options.workdir / language
    settings = {
        "language": language,
        "corpus.sources": [str((options.data / language / CORPORA[language]).resolve())],
        "data.sequence_length": 128,
        "model.max_positions": 128,
        "train.batch_size": 16,
    }
    with drawn_progress() as progress:
        tpulm.run(tpulm.load_config("laptop-bert", settings), workdir, progress=progress)
    return workdir / "export"


def score(options: argparse.Namespace, language: str, model: Path, *, pretrained: bool) -> Scores:
    """By `tpulm bench`, and for Japanese by embeddings whose cosine is to say how alike two sentences are."""
    suite, tasks = TASKS[language]
    place, files = (
        options.workdir / f"{language}-{'pretrained' if pretrained else 'random'}",
        options.workdir / "files" / language,
    )
    settings = {"from_scratch": not pretrained, "dropout": DROPOUT}
    with drawn_progress() as progress:
        shared: dict[str, Any] = {"seeds": options.seeds, "progress": progress}
        rates = [LEARNING_RATE]
        report = tpulm.bench(suite, files, model, place, tasks=tasks, learning_rates=rates, settings=settings, **shared)
        found = {f"{one.name} {metric}": scores for one in report.results for metric, scores in one.scores.items()}
        if language == "ja":
            settings |= {"task": "embed", "learning_rate": LEARNING_RATE, "epochs": EPOCHS}
            columns = tpulm.Columns(text="sentence1", pair="sentence2")
            train, test = files / "jsts_train.json", files / "jsts_valid.json"
            done = tpulm.finetune(model, train, place / "embed", test=test, columns=columns, **settings, **shared)
            found["jsts, embeddings spearman"] = [one.test["spearman"] for one in done.seeds if one.test is not None]
    return found


def repeat(options: argparse.Namespace, model: Path) -> Scores:
    """JNLI and JSTS by torch: the exported folder in transformers' classes, a tenth of train as dev."""
    found: Scores = {}
    for name, metric in REPEATED.items():
        data = options.workdir / "files" / name
        parts = {part: _records(options.workdir / "files" / "ja" / f"{name}_{part}.json") for part in ("train", "valid")}
        for part, records in (
            ("train", [one for number, one in enumerate(parts["train"]) if number % 10]),
            ("dev", parts["train"][::10]),
            ("test", parts["valid"]),
        ):
            data.mkdir(exist_ok=True)
            (data / f"{part}.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records))
        scores = list[float]()
        for seed in range(options.seeds):
            file = options.workdir / "repeated" / f"{name}-{seed}.json"
            if not file.is_file():
                job = {"job": "finetune", "folder": str(model), "tokenizer": str(model), "data": str(data), "seed": seed}
                job |= {
                    "labels": 1 << 30,
                    "learning_rate": LEARNING_RATE,
                    "epochs": EPOCHS,
                    "length": 128,
                    "from_scratch": False,
                }
                write_json(file, answer(torch_command(job)))
            scores.append(json.loads(file.read_text())["test"])
        found[f"{name} {metric}"] = scores
    return found


def _records(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    labels = [CLASSES.index(one["label"]) if isinstance(one["label"], str) else float(one["label"]) for one in found]
    return [
        {"text": one["sentence1"], "pair": one["sentence2"], "label": label} for one, label in zip(found, labels, strict=True)
    ]


def shown(scores: list[float]) -> str:
    deviation = f" ± {100 * statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{100 * statistics.mean(scores):.2f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--languages", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for language in options.languages:
        write_files(options.data, language, options.workdir / "files" / language)
        model = pretrain(options, language)
        pretrained, drawn = (score(options, language, model, pretrained=trained) for trained in (True, False))
        repeated = repeat(options, model) if language == "ja" else {}
        rows += [
            [task, shown(scores), shown(drawn[task]), shown(repeated[task]) if task in repeated else ""]
            for task, scores in pretrained.items()
        ]
    made = table(["", "laptop-bert", "random weights", "laptop-bert by torch"], rows, right=range(1, 4))
    (options.workdir / "tasks.md").write_text(made + "\n")
    print(made)


if __name__ == "__main__":
    main()
