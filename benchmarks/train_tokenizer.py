"""Training tokenizers on 1 GB of Japanese: time, memory, and characters per token of text that was not trained on.

    python benchmarks/train_tokenizer.py [CACHE_FOLDER] [--algorithm bpe --algorithm unigram] [--copies 21] [--data FOLDER]

As `tpulm tokenizer train` does it, on all that `corpora.stitched` makes of the text but for its last twentieth. The text and
the corpus read from it are kept in CACHE_FOLDER; each algorithm is trained in a process of its own, whose largest resident set
is its memory. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from corpora import ALGORITHMS, CORPORA, data_folder, read, stitched

from tpulm.config import RunConfig
from tpulm.pipeline import preparation
from tpulm.progress import PrintedProgress


def main() -> None:
    arguments = parse()
    texts = read(arguments.data / CORPORA["ja"])
    place = len(texts) * 19 // 20
    folder = arguments.cache / "ja-stitched"
    workdir = folder / f"w{arguments.copies}"
    files = [str(path) for path in stitched(texts[:place], folder, arguments.copies)]
    results: dict[str, dict[str, float]] = {}
    for algorithm in arguments.algorithm or ALGORITHMS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            results[algorithm] = pool.submit(measure, algorithm, files, workdir, texts[place:]).result()
        print(f"{algorithm:10}" + "".join(f"  {key} {value:.3g}" for key, value in results[algorithm].items()), file=sys.stderr)
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", nargs="?", type=Path, default=Path("build/benchmarks"), help="folder for the text, kept")
    parser.add_argument("--algorithm", action="append", choices=ALGORITHMS, help="may be repeated (default: all)")
    parser.add_argument("--copies", type=int, default=21, help="how often the 48 MB are taken")
    parser.add_argument("--data", type=Path, default=data_folder(), help=f"folder that holds {CORPORA['ja']}")
    return parser.parse_args()


def measure(algorithm: str, files: list[str], workdir: Path, unseen: list[str]) -> dict[str, float]:
    tokenizer: dict[str, Any] = {"algorithm": algorithm, "vocab_size": 32_000, "sample_bytes": 1 << 40}
    config = RunConfig.model_validate({"corpus": {"sources": files}, "tokenizer": tokenizer})
    text = preparation.prepare_corpus(config, workdir, progress=PrintedProgress())
    shutil.rmtree(workdir / "tokenizer", ignore_errors=True)
    before, started_at = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    made = preparation.prepare_tokenizer(config, workdir, text, progress=PrintedProgress())
    seconds, used = time.perf_counter() - started_at, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "peak_gb": used.ru_maxrss * 1024 / 1e9,
        "characters_per_token": sum(map(len, unseen)) / len(made.encode(unseen).ids),
    }


if __name__ == "__main__":
    main()
