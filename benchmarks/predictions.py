"""Does a run end as `tpulm plan --pilot` said? Three languages, a masked and a causal recipe, ten times as long as a pilot.

    python benchmarks/predictions.py forecast --workdir W [--data shared/data] --case ko-causal-second …
    git commit benchmarks/predictions.json      # before the runs
    python benchmarks/predictions.py run --workdir W --case …

Forecasts and outcomes are kept in benchmarks/predictions.json, held-out losses in nats a token; a forecast that is there is
never made again. Both commands print the table; both resume what was stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from corpora import CORPORA, data_folder

import tpulm
from tpulm.cli.terminal import drawn_progress
from tpulm.config import RunConfig, load
from tpulm.convert.markdown import table
from tpulm.errors import ConfigError
from tpulm.pipeline.pilots import forecast

KEPT = Path(__file__).with_name("predictions.json")
TEXTS = CORPORA | {"en": "en/words8m.txt.xz"}
RECIPES = {"masked": "laptop-modern", "causal": "laptop-lm"}
FIRST = {  # minutes of one core, as all of them
    "tokenizer.vocab_size": 2_000,
    "data.sequence_length": 64,
    "model.hidden_size": 64,
    "model.num_heads": 1,
    "model.intermediate_size": 192,
    "model.initializer_range": 0.1,
    "train.batch_size": 16,
    "train.steps": 8_000,
    "train.seed": 2,
}
SECOND = FIRST | {
    "tokenizer.vocab_size": 1_500,
    "model.num_layers": 6,
    "model.num_heads": 2,
    "model.intermediate_size": 128,
    "train.steps": 9_000,
    "train.seed": 3,
}
THIRD = FIRST | {
    "tokenizer.vocab_size": 2_500,
    "model.num_layers": 3,
    "model.hidden_size": 48,
    "model.intermediate_size": 160,
    "model.initializer_range": 0.11,
    "train.steps": 12_000,
    "train.seed": 4,
}
FOURTH = FIRST | {"train.steps": 36_000, "train.seed": 5}  # for masked models, which are on a plateau for the first 500 steps
FIFTH = FIRST | {"train.steps": 24_000, "train.seed": 6}
SIXTH = FIFTH | {"tokenizer.vocab_size": 4_000}  # WordPiece needs 2,438 for Japanese
SEVENTH = FIRST | {
    "tokenizer.vocab_size": 3_000,
    "model.num_layers": 3,
    "model.intermediate_size": 160,
    "train.steps": 30_000,
    "train.seed": 7,
}
SERIES = {
    "": FIRST,
    "-second": SECOND,
    "-third": THIRD,
    "-fourth": FOURTH,
    "-fifth": FIFTH,
    "-sixth": SIXTH,
    "-seventh": SEVENTH,
}
MINUTES, LONGEST = 30.0, 0.1  # of a case's pilots, at most (10 in the first three series), and the widest's share of the steps
CASES = {
    f"{language}-{kind}{series}": (language, kind, settings)
    for series, settings in SERIES.items()
    for kind in RECIPES
    for language in ("ko", "ja", "en")
}


def run_of(case: str, data: Path) -> RunConfig:
    language, kind, settings = CASES[case]
    sources = [str((data / TEXTS[language]).resolve())]
    return load(RECIPES[kind], {"language": language, "corpus.sources": sources} | settings)


def forecast_of(case: str, options: argparse.Namespace) -> dict[str, Any]:
    config = run_of(case, options.data)
    with drawn_progress() as progress:
        try:
            made = forecast(config, options.workdir / case, seconds=60 * MINUTES, longest=LONGEST, progress=progress)
        except ConfigError as refused:
            return {"refused": str(refused)}
    largest = max(made.pilots, key=lambda one: one.parameters * one.tokens)
    times = made.parameters * made.tokens / (largest.parameters * largest.tokens)
    pilots = [one._asdict() for one in made.pilots]
    return {"loss": made.loss, "low": made.low, "high": made.high, "times_as_long": times, "pilots": pilots}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["forecast", "run"])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--case", choices=CASES, nargs="+", required=True)
    options = parser.parse_args()
    for case in options.case:
        kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        if options.what == "forecast" and case not in kept:
            new = {"forecast": forecast_of(case, options)}
        elif options.what == "run" and case in kept and "outcome" not in kept[case]:
            with drawn_progress() as progress:
                new = {"outcome": tpulm.run(run_of(case, options.data), options.workdir / case, progress=progress).eval_loss}
        else:
            continue
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}  # another process may have added its case
        kept[case] = kept.get(case, {}) | new
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    rows: list[list[str]] = []
    for case, of in json.loads(KEPT.read_text()).items():
        said, outcome = of["forecast"], of.get("outcome")
        if "refused" in said:
            rows.append([case, "refused", "", "", f"{outcome:.3f}" if outcome else "", ""])
            continue
        interval, off = (
            f"{said['low']:.3f} to {said['high']:.3f}",
            f"{100 * (said['loss'] / outcome - 1):+.1f} %" if outcome else "",
        )
        rows.append(
            [case, f"{said['loss']:.3f}", interval, f"{said['times_as_long']:.0f}", f"{outcome:.3f}" if outcome else "", off]
        )
    print(table(["run", "forecast", "interval", "of its largest pilot", "outcome", "forecast off by"], rows))


if __name__ == "__main__":
    main()
