"""A new vocabulary for an old model, against starting anew, and against the old vocabulary, on a little text of another kind.

    python benchmarks/vocabulary.py --model W/ko/export --corpus petitions.jsonl.gz --language ko --workdir V [--steps 300]

One of random weights begins with a vocabulary trained on the corpus; the model, which benchmarks/tasks.py made, goes on with
that vocabulary, and with its own. All are trained on the same texts for the same steps of 16 x 128, by the recipe
laptop-modern. Bits of a character compare vocabularies, the loss in nats only runs of one. The table is V/vocabulary.md;
everything is resumed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tpulm
from tpulm.cli.terminal import drawn_progress
from tpulm.config import load
from tpulm.convert.continuing import starting_point
from tpulm.convert.markdown import table
from tpulm.labelled import summarize

WAYS = {  # whether the model goes on, and whether with the new vocabulary; the first run trains that
    "anew": (False, True),
    "goes on, new vocabulary": (True, True),
    "goes on, its own vocabulary": (True, False),
}


def run(options: argparse.Namespace, way: str, seed: int) -> tpulm.Summary:
    goes_on, renewed = WAYS[way]
    first = options.workdir / "anew-0"
    settings: dict[str, Any] = {
        "language": options.language,
        "corpus.sources": [{"path": str(options.corpus.resolve()), "text_field": options.text_field}],
        "data.sequence_length": 128,
        "train.batch_size": 16,
        "train.steps": options.steps,
        "train.seed": seed,
        "phases": [],
        "train.evaluate_every_steps": options.steps,
        "train.optimizer.warmup_steps": round(0.06 * options.steps),
    }
    if not goes_on:
        settings["model.max_positions"] = 128
    workdir = options.workdir / f"{way.replace(',', '').replace(' ', '-')}-{seed}"
    if renewed and workdir != first:
        settings["tokenizer.path"] = str(first / "tokenizer" / "tokenizer.json")
    config = load("laptop-modern", settings, start=starting_point(options.model) if goes_on else None)
    with drawn_progress() as progress:
        return tpulm.run(config, workdir, progress=progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--text-field", default="content", help="of a JSON corpus")
    parser.add_argument("--language", default="ko")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for way in WAYS:
        runs = [run(options, way, seed) for seed in range(options.seeds)]
        rows.append([way, *(shown([getattr(one, name) for one in runs]) for name in ("eval_loss", "bits_per_character"))])
    made = table(["", "held-out loss, nats", "bits a character"], rows, right=range(1, 3))
    (options.workdir / "vocabulary.md").write_text(made + "\n")
    print(made)


def shown(values: list[float]) -> str:
    mean, deviation = summarize(values)
    return f"{mean:.3f} ± {deviation:.3f}" if len(values) > 1 else f"{mean:.3f}"


if __name__ == "__main__":
    main()
