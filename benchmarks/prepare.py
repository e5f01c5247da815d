"""Preparing a dataset against bare encoding: speed, memory and size on the Korean reviews.

    python benchmarks/prepare.py [CACHE_FOLDER] [--repeats 3] [--data FOLDER]

The tokenizer (WordPiece, 32,000) is trained once and kept in CACHE_FOLDER; that is not counted. Then bare `encode_batch_fast`
of all reviews over all cores, preparation as packed rows, and preparation as segments take turns, each in a process of its own;
the ratio is the median over turns.
Preparation is everything from the compressed file to the finished dataset: scatter and build. MB are of uncompressed text.
The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tpulm import corpus, tokenization
from tpulm.config import CorpusConfig, DataConfig, SourceConfig, TokenizerConfig
from tpulm.dataset import prepare
from tpulm.workers import count_cores

REVIEWS = "ko/nsmc_reviews.txt.gz"
REQUIRED_RATIO, REQUIRED_MEMORY_BYTES, REQUIRED_BYTES_PER_TOKEN = 0.9, 1.5e9, 2.2
CONTENDERS = ("bare", "packed", "segments")


def main() -> None:
    arguments = parse()
    reviews = arguments.data / REVIEWS
    if not reviews.is_file():
        sys.exit(f"{reviews} is not there: name the folder of real data with --data or TPULM_TEST_DATA")
    tokenizer = arguments.cache / "tokenizer"
    if arguments.contender:
        measure = measure_bare if arguments.contender == "bare" else measure_preparation
        print(json.dumps({**measure(arguments.contender, reviews, tokenizer, arguments), "cpu_seconds": cpu_seconds()}))
        return
    if not (tokenizer / "manifest.json").is_file():
        train_tokenizer(reviews, tokenizer)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.repeats):
        for name in CONTENDERS:
            results[name].append(run_alone(name))
            print(f"{name:10}{json.dumps(results[name][-1])}", file=sys.stderr)
    report = summarize(results)
    print_table(report)
    print(json.dumps(report))


def parse() -> argparse.Namespace:
    data = os.environ.get("TPULM_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cache", nargs="?", type=Path, default=Path("build/benchmarks"), help="folder for the tokenizer, kept between runs"
    )
    parser.add_argument("--data", type=Path, default=Path(data), help="folder that holds " + REVIEWS)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each; medians count")
    parser.add_argument("--workers", type=int, default=count_cores(), help="processes that prepare (default: the cores)")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--contender", choices=CONTENDERS, help="measure one of them once, in this process")
    return parser.parse_args()


def train_tokenizer(reviews: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tpulm-prepare-") as workdir:
        manifest = corpus.scatter(corpus_config(reviews), workdir, part_bytes=DataConfig().part_bytes)
        config = TokenizerConfig(vocab_size=32_000)
        trained = tokenization.train(corpus.sample_texts(workdir, manifest, config.sample_bytes), config)
        tokenization.save(trained, folder)


def corpus_config(reviews: Path) -> CorpusConfig:
    return CorpusConfig(sources=(SourceConfig(path=str(reviews)),))


def run_alone(contender: str) -> dict[str, Any]:
    """Measure in a fresh process, and the memory of its tree from here."""
    command = [sys.executable, __file__, *sys.argv[1:], "--contender", contender]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = PeakMemory(process.pid)
        output, _ = process.communicate()
        memory = peak.stop()
    if process.returncode:
        sys.exit(f"{contender} failed with exit code {process.returncode}")
    return {**json.loads(output.splitlines()[-1]), "peak_memory_bytes": memory}


def measure_bare(contender: str, reviews: Path, tokenizer_folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the library does at its best: lists of 10,000, so that it need not hold 10 million tokens as objects."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    with gzip.open(reviews, "rt", encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    started_at = time.perf_counter()
    for first in range(0, len(lines), 10_000):
        tokenizer.encode_batch_fast(lines[first : first + 10_000], add_special_tokens=False)
    seconds = time.perf_counter() - started_at
    return {"seconds": seconds, "megabytes_per_second": uncompressed_bytes(reviews) / 1e6 / seconds}


def measure_preparation(contender: str, reviews: Path, tokenizer_folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    config = DataConfig.model_validate({"rows": contender, "sequence_length": arguments.sequence_length})
    with tempfile.TemporaryDirectory(prefix="tpulm-prepare-") as workdir:
        started_at = time.perf_counter()
        scattered = corpus.scatter(corpus_config(reviews), workdir, part_bytes=config.part_bytes, workers=arguments.workers)
        scattered_at = time.perf_counter()
        manifest = prepare(
            config, workdir, tokenization_path=tokenizer_folder, corpus_manifest=scattered, workers=arguments.workers
        )
        ended_at = time.perf_counter()
        tokens = manifest.train.counts.tokens + manifest.holdout.counts.tokens
        return {
            "seconds": ended_at - started_at,
            "scatter_seconds": scattered_at - started_at,
            "megabytes_per_second": uncompressed_bytes(reviews) / 1e6 / (ended_at - started_at),
            "bytes_per_token": disk_usage(Path(workdir) / "dataset") / tokens,
            "tokens": tokens,
            "rows": manifest.train.counts.rows + manifest.holdout.counts.rows,
            "padding_fraction": manifest.train.padding_fraction,
        }


def cpu_seconds() -> float:
    """Of this process and its workers, start and imports included: what to compare on a machine that others use too."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def uncompressed_bytes(reviews: Path) -> int:
    with gzip.open(reviews) as stream:
        return sum(map(len, iter(lambda: stream.read(1 << 20), b"")))


def disk_usage(folder: Path) -> int:
    """What `du` says, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


class PeakMemory:
    """The largest sum of proportional set sizes over a process and its descendants, sampled from /proc ten times a second."""

    def __init__(self, pid: int):
        self._pid = pid
        self._peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._stopped.wait(0.1):
            self._peak = max(self._peak, sum(map(_pss, _tree(self._pid))))


def _tree(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def summarize(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    median = {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in results.items()}
    bare = [run["megabytes_per_second"] for run in results["bare"]]
    report: dict[str, Any] = {"cores": count_cores(), "bare": round_values(median["bare"])}
    for name in CONTENDERS[1:]:
        found = median[name]
        found["peak_memory_bytes"] = max(run["peak_memory_bytes"] for run in results[name])
        speeds = [run["megabytes_per_second"] for run in results[name]]
        found["ratio"] = statistics.median(ours / theirs for ours, theirs in zip(speeds, bare, strict=True))
        passed = (
            found["ratio"] >= REQUIRED_RATIO
            and found["peak_memory_bytes"] < REQUIRED_MEMORY_BYTES
            and found["bytes_per_token"] <= REQUIRED_BYTES_PER_TOKEN
        )
        report[name] = {**round_values(found), "passed": passed}
    return report


def round_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


COLUMNS = {  # heading: key, factor, decimals
    "MB/s": ("megabytes_per_second", 1, 2),
    "ratio": ("ratio", 1, 2),
    "seconds": ("seconds", 1, 2),
    "scatter s": ("scatter_seconds", 1, 2),
    "CPU s": ("cpu_seconds", 1, 2),
    "peak MB": ("peak_memory_bytes", 1e-6, 0),
    "bytes/token": ("bytes_per_token", 1, 3),
    "padding": ("padding_fraction", 1, 3),
}


def print_table(report: dict[str, Any]) -> None:
    print(f"{'':12}" + "".join(f"{heading:>12}" for heading in COLUMNS) + "  passed")
    for name in CONTENDERS:
        row = report[name]
        cells = [
            f"{row[key] * factor:12.{decimals}f}" if key in row else 12 * " " for key, factor, decimals in COLUMNS.values()
        ]
        print(f"{name:12}{''.join(cells)}  {row.get('passed', '')}")


if __name__ == "__main__":
    main()
