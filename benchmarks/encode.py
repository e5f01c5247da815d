"""Encoding in bulk against the bare library, by language and algorithm.

    python benchmarks/encode.py [CACHE_FOLDER] [--repeats 5] [--data FOLDER] [--only ko-wordpiece]

Tokenizers are trained once on all of the text and kept in CACHE_FOLDER; the times of training are printed then. Each is
measured on one core: a bare `Tokenizer.encode_batch_fast` in lists of 10,000, without looking at its results, and
`Tokenization.encode` by an encoder that has seen no text, taking turns. MB are of UTF-8; the speeds are per second of processor
time, so that other work on the machine counts less; the ratio is the median over turns. The last line of the output is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import sys
import time
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

from corpora import ALGORITHMS, CORPORA, data_folder, in_batches, read, trained
from tokenizers import Tokenizer

from tpulm import tokenization


def main() -> None:
    arguments = parse()
    results: dict[str, dict[str, float]] = {}
    for language, name in CORPORA.items():
        texts = read(arguments.data / name)
        for algorithm in ALGORITHMS:
            case = f"{language}-{algorithm}"
            if arguments.only and arguments.only not in case:
                continue
            folder = trained(arguments.cache, arguments.data, language, algorithm)
            results[case] = measure(folder, texts[: arguments.texts], arguments.repeats)
            print(f"{case:14}" + "".join(f"  {key} {value:7.2f}" for key, value in results[case].items()), file=sys.stderr)
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cache", nargs="?", type=Path, default=Path("build/benchmarks"), help="folder for the tokenizers, kept between runs"
    )
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder that holds " + ", ".join(CORPORA.values()))
    parser.add_argument("--repeats", type=int, default=5, help="turns of each; medians count")
    parser.add_argument("--texts", type=int, default=None, help="encode only so many of each corpus")
    parser.add_argument("--only", help="cases whose name has this in it")
    return parser.parse_args()


def measure(folder: Path, texts: list[str], repeats: int) -> dict[str, float]:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    bare = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = tokenization.load(folder)
    speeds: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(repeats):
        used = time.process_time()
        for batch in in_batches(texts):
            bare.encode_batch_fast(batch, add_special_tokens=False)
        speeds["bare"].append(megabytes / (time.process_time() - used))
        fresh = pickle.loads(pickle.dumps(ours))
        used = time.process_time()
        for batch in in_batches(texts):
            fresh.encode(batch)
        speeds["ours"].append(megabytes / (time.process_time() - used))
    return {
        "bare": statistics.median(speeds["bare"]),
        "ours": statistics.median(speeds["ours"]),
        "ratio": statistics.median(ours / bare for ours, bare in zip(speeds["ours"], speeds["bare"], strict=True)),
    }


if __name__ == "__main__":
    main()
