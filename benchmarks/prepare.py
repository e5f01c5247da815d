"""Preparing a dataset against bare encoding: speed, memory and size, by language, algorithm and size of the corpus.

    python benchmarks/prepare.py [CACHE_FOLDER] [--case ko --case scaling] [--repeats 3] [--data FOLDER] [--megabytes 10]

Cases: ko (Korean reviews, WordPiece), ko-1gb (the same again and again with changes, 1 GB), ko-bpe, ko-unigram, en-*, ja-*,
`datasets` (against Hugging Face's `load_dataset` and two `map`, with a process for each core, in place of bare encoding), and
scaling (a hundredth, a tenth and all of the 1 GB). All of them take half an hour or more; --megabytes cuts corpora, to try.
Tokenizers are trained once and kept in CACHE_FOLDER, as is the corpus of 1 GB (0.5 GB compressed); that is not counted.

The contenders of a case take turns, each in a process of its own; the ratio is the median over turns of ours to the reference,
which is bare `encode_batch_fast` of all texts over all cores, texts in memory, reading not counted. Preparation (packed,
segments) is everything from the compressed files to the finished dataset: scatter and build. MB are of uncompressed text; peak
MB are of the memory of all processes; looking at it slows them, so where there are several turns, one before them does that.
Tokens are those of the text: ours are fewer by those of duplicates, which are left out, and of spaces at ends of lines, which
are cleaned away; `datasets` drops the end of each batch.
The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contenders import Job, missing_libraries
from corpora import CORPORA, cut, data_folder, repeated_reviews, trained, uncompressed_bytes
from memory import PeakMemory

from tpulm.runtime.workers import count_cores

REQUIRED_MEMORY_BYTES, REQUIRED_BYTES_PER_TOKEN, REQUIRED_COST = 1e9, 2.2, 1.2
SCALES = (0.01, 0.1, 1.0)
Runs = dict[str, list[dict[str, Any]]]  # by contender, a run a turn


@dataclass(frozen=True)
class Case:
    tokenizer: str
    required: dict[str, float]  # by contender: the least ratio to the reference; a cost ratio for scaling
    reference: str = "bare"
    corpus: str = ""  # what the tokenizer was trained on, if empty
    repeats: int = 3
    bytes_per_token: float = math.inf

    @property
    def contenders(self) -> tuple[str, ...]:
        return (self.reference, *self.required)


CASES = {
    "ko": Case("ko-wordpiece", {"packed": 1.3, "segments": 1.0}, bytes_per_token=REQUIRED_BYTES_PER_TOKEN),
    "ko-1gb": Case("ko-wordpiece", {"packed": 3.0}, corpus="ko-1gb", repeats=1),
    "ko-bpe": Case("ko-bpe", {"packed": 1.5}),
    "ko-unigram": Case("ko-unigram", {"packed": 1.0}),
    "en-wordpiece": Case("en-wordpiece", {"packed": 1.5}),
    "en-bpe": Case("en-bpe", {"packed": 1.5}),
    "en-unigram": Case("en-unigram", {"packed": 1.0}),
    "ja-wordpiece": Case("ja-wordpiece", {"packed": 1.5}),
    "ja-bpe": Case("ja-bpe", {"packed": 1.5}),
    "ja-unigram": Case("ja-unigram", {"packed": 1.0}),
    "datasets": Case("ko-wordpiece", {"packed": 2.5}, reference="datasets"),
    "scaling": Case("ko-wordpiece", {}, reference="packed", corpus="ko-1gb", repeats=1),
}


def main() -> None:
    arguments = parse()
    report: dict[str, Any] = {"cores": count_cores()}
    print_heading()
    for name in arguments.case or CASES:
        case = CASES[name]
        missing = [library for contender in case.contenders for library in missing_libraries(contender)]
        if missing:
            print(f"{name}: left out; it needs: pip install {' '.join(missing)}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="tpulm-cut-") as folder:
            measure = measure_scaling if name == "scaling" else measure_case
            rows = measure(case, arguments, Path(folder))
        for contender, row in rows.items():
            print_row(name, contender, row)
        report[name] = {contender: rounded(row) for contender, row in rows.items()}
    print(json.dumps(report))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cache", nargs="?", type=Path, default=Path("build/benchmarks"), help="folder for tokenizers and 1 GB of text, kept"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="one of the cases; may be repeated (default: all)")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder that holds " + ", ".join(CORPORA.values()))
    parser.add_argument("--repeats", type=int, help="turns of each; medians count (default: 3, and 1 for 1 GB)")
    parser.add_argument("--megabytes", type=float, default=math.inf, help="cut each corpus to so much of its beginning")
    parser.add_argument("--workers", type=int, default=count_cores(), help="processes that prepare (default: the cores)")
    parser.add_argument("--sequence-length", type=int, default=128)
    return parser.parse_args()


def measure_case(case: Case, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    files = files_of(case, arguments, arguments.megabytes * 1e6, folder)
    runs = measure(case, arguments, {contender: (contender, files) for contender in case.contenders})
    reference = [run["megabytes_per_second"] for run in runs[case.reference]]
    report = {case.reference: medians(runs[case.reference])}
    for contender, required in case.required.items():
        speeds = [run["megabytes_per_second"] for run in runs[contender]]
        row = medians(runs[contender])
        row["ratio"] = statistics.median(ours / theirs for ours, theirs in zip(speeds, reference, strict=True))
        row["required"] = f">= {required}"
        row["passed"] = (
            row["ratio"] >= required
            and row["peak_memory_bytes"] < REQUIRED_MEMORY_BYTES
            and row["bytes_per_token"] <= case.bytes_per_token
        )
        report[contender] = row
    return report


def measure_scaling(case: Case, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The ratio is of costs per MB, of all of the text to a tenth of it: at most 1.2."""
    files = files_of(case, arguments, arguments.megabytes * 1e6, folder)
    total = sum(map(uncompressed_bytes, files))
    cuts = {}
    for scale in SCALES:
        (part := folder / str(scale)).mkdir()
        cuts[f"{total * scale / 1e6:.4g} MB"] = ("packed", cut(files, total * scale, part))
    runs = measure(case, arguments, cuts)
    report = {name: medians(runs[name]) for name in cuts}
    for row in report.values():
        row["passed"] = row["peak_memory_bytes"] < REQUIRED_MEMORY_BYTES
    *_, tenth, whole = report.values()
    whole["ratio"] = tenth["megabytes_per_second"] / whole["megabytes_per_second"]
    whole["required"] = f"<= {REQUIRED_COST}"
    whole["passed"] = whole["passed"] and whole["ratio"] <= REQUIRED_COST
    return report


def files_of(case: Case, arguments: argparse.Namespace, num_bytes: float, folder: Path) -> list[Path]:
    files = [arguments.data / CORPORA[case.tokenizer.partition("-")[0]]]
    if not files[0].is_file():
        sys.exit(f"{files[0]} is not there: name the folder of real data with --data or TPULM_TEST_DATA")
    if case.corpus:
        files = repeated_reviews(files[0], arguments.cache / case.corpus, num_bytes)
    return cut(files, num_bytes, folder) if math.isfinite(num_bytes) else files


def measure(case: Case, arguments: argparse.Namespace, contenders: dict[str, tuple[str, Sequence[Path]]]) -> Runs:
    language, _, algorithm = case.tokenizer.partition("-")
    tokenizer = trained(arguments.cache, arguments.data, language, algorithm)
    megabytes = {name: sum(map(uncompressed_bytes, files)) / 1e6 for name, (_, files) in contenders.items()}
    jobs = {
        name: Job(contender, tuple(map(str, files)), str(tokenizer), arguments.workers, arguments.sequence_length)
        for name, (contender, files) in contenders.items()
    }
    runs: Runs = {name: [] for name in contenders}
    repeats = arguments.repeats or case.repeats
    watched = {name: run_watched(job) for name, job in jobs.items()}
    for _ in range(repeats):
        for name, job in jobs.items():
            run = watched[name] if repeats == 1 else watched[name] | run_alone(job)
            run["megabytes"] = megabytes[name]
            run["megabytes_per_second"] = megabytes[name] / run["seconds"]
            run["seconds_per_100_megabytes"] = 100 * run["seconds"] / megabytes[name]
            runs[name].append(run)
            print(f"{name:10}{json.dumps(run)}", file=sys.stderr)
    return runs


def run_watched(job: Job) -> dict[str, Any]:
    """Measure in a fresh process, and the most memory of it and its children, which takes time from them."""
    with start(job) as process:
        peak = PeakMemory(process.pid)
        try:
            run = result(job, process)
        finally:
            memory = peak.stop()
        return {**run, "peak_memory_bytes": memory}


def run_alone(job: Job) -> dict[str, Any]:
    with start(job) as process:
        return result(job, process)


def start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("contenders.py")), json.dumps(asdict(job))]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as installed
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def result(job: Job, process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{job.contender} failed with exit code {process.returncode}")
    return json.loads(output.splitlines()[-1])


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure over the turns."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}


COLUMNS = {  # heading: key, factor, decimals
    "MB": ("megabytes", 1, 1),
    "MB/s": ("megabytes_per_second", 1, 2),
    "ratio": ("ratio", 1, 2),
    "required": ("required", 1, 0),
    "seconds": ("seconds", 1, 2),
    "s/100 MB": ("seconds_per_100_megabytes", 1, 2),
    "read s": ("scatter_seconds", 1, 2),
    "peak MB": ("peak_memory_bytes", 1e-6, 0),
    "tokens": ("tokens", 1, 0),
    "bytes/token": ("bytes_per_token", 1, 3),
    "padding": ("padding_fraction", 1, 3),
    "passed": ("passed", 1, 0),
}


def print_heading() -> None:
    print(f"{'':24}" + "".join(f"{heading:>12}" for heading in COLUMNS), flush=True)


def print_row(case: str, contender: str, row: dict[str, Any]) -> None:
    cells = [cell(row.get(key), factor, decimals) for key, factor, decimals in COLUMNS.values()]
    print(f"{case:14}{contender:10}{''.join(f'{text:>12}' for text in cells)}", flush=True)


def cell(value: Any, factor: float, decimals: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value * factor:.{decimals}f}" if isinstance(value, int | float) else value or ""


if __name__ == "__main__":
    main()
