"""MinHash for near-duplicates: speed against other libraries, and what it finds against the true similarity of all pairs.

    python benchmarks/near.py [--data FOLDER] [--repeats 5] [--threshold 0.8]

Speed is in MB of UTF-8 for a second of processor time on one core, from texts to signatures, for lines and for 50 lines
together; medians of turns. The others get the same shingles, hashed by us, and make as many hashes; `pip install rensa
datasketch` brings them. The pairs are of Korean reviews as they are, and of lines in English and Japanese with copies that
were changed in a few places. Expected is what the probability of sharing a band says of their similarities. The last line of
the output is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from corpora import CORPORA, data_folder, read

from tpulm.corpus.near import SHINGLE_WORDS, Banding, _shingles, band_hashes, banding  # pyright: ignore[reportPrivateUsage]

BLOCK_BYTES = 1 << 20  # as in tpulm.corpus.near
MEGABYTES = 5  # of each corpus, for speed
REVIEWS, LINES, COPIES = 50_000, 500, 6  # for pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder that holds " + ", ".join(CORPORA.values()))
    parser.add_argument("--repeats", type=int, default=5, help="turns of each; medians count")
    parser.add_argument("--threshold", type=float, default=0.8, help="as corpus.near_duplicates")
    arguments = parser.parse_args()
    bands = banding(arguments.threshold)
    results: dict[str, dict[str, float]] = {}
    for language, name in CORPORA.items():
        texts = [text for text in read(arguments.data / name) if text.strip()]
        lines = head(texts, MEGABYTES * 1e6)
        together = ["\n".join(lines[start : start + 50]) for start in range(0, len(lines), 50)]
        results[f"{language} lines"] = speeds(lines, bands, arguments.repeats)
        results[f"{language} 50 lines"] = speeds(together, bands, arguments.repeats)
        sample = sorted(set(texts[:REVIEWS])) if language == "ko" else with_copies(texts, language)
        results[f"{language} pairs"] = quality(sample, bands, arguments.threshold)
    for case, row in results.items():
        print(f"{case:12}" + "".join(f"  {key} {value:9.3f}" for key, value in row.items()), file=sys.stderr)
    print(json.dumps(results))


def head(texts: list[str], num_bytes: float) -> list[str]:
    sizes = itertools.accumulate(len(text.encode()) for text in texts)
    return [text for text, size in zip(texts, sizes, strict=True) if size <= num_bytes]


def blocks(texts: list[str]) -> Iterator[list[str]]:
    block, size = [], 0
    for text in texts:
        block.append(text)
        size += len(text.encode())
        if size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def speeds(texts: list[str], bands: Banding, repeats: int) -> dict[str, float]:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    contenders: dict[str, Callable[[list[str], Banding], object]] = {"ours": band_hashes}
    contenders |= {name: make for name, make in OTHERS.items() if importlib.util.find_spec(name) is not None}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, contender in contenders.items():
            used = time.process_time()
            for block in blocks(texts):
                contender(block, bands)
            if turn:  # the first one fills tables
                found[name].append(megabytes / (time.process_time() - used))
    return {name: statistics.median(values) for name, values in found.items()}


def rensa(texts: list[str], bands: Banding) -> object:
    """Full-set R-MinHash; the matrix gives its rows as lists, and nothing else."""
    from rensa import RMinHash  # pyright: ignore[reportMissingImports]

    shingles, ends = _shingles(texts)
    starts = np.concatenate([[0], ends]).astype(np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(shingles, starts, bands.bands * bands.rows, 1)
    return np.array(matrix.to_rows(), np.uint32)


def datasketch(texts: list[str], bands: Banding) -> object:
    from datasketch import MinHash  # pyright: ignore[reportMissingImports]

    shingles, ends = _shingles(texts)
    blank = MinHash(bands.bands * bands.rows, hashfunc=int)
    found = []
    for some in np.split(shingles >> np.uint64(32), ends[:-1]):
        made = blank.copy()
        made.update_batch(some)
        found.append(made.hashvalues)
    return np.stack(found)


OTHERS = {"rensa": rensa, "datasketch": datasketch}


def with_copies(texts: list[str], language: str) -> list[str]:
    """Long lines from all over the text, and of each some copies with characters or words replaced, more and more of them."""
    chance = random.Random(0)
    separator = "" if language == "ja" else " "
    found = []
    for text in chance.sample([text for text in texts if len(text) > 300], LINES):
        units = list(text) if language == "ja" else text.split()
        for copy in range(COPIES):
            changed = list(units)
            for _ in range(round(copy * len(units) * chance.random() / 100)):
                changed[chance.randrange(len(units))] = chance.choice(units)
            found.append(separator.join(changed))
    return sorted(set(found))


def quality(texts: list[str], bands: Banding, threshold: float) -> dict[str, float]:
    """Of the pairs that share a band, how many are as similar as `threshold`, and of those that are, how many share one."""
    similarity = similarities(texts)
    similar = {pair for pair, value in similarity.items() if value >= threshold}
    found: set[tuple[int, int]] = set()
    for band in band_hashes(texts, bands):
        order = np.argsort(band, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(band[order])) + 1):
            found.update(itertools.combinations(group.tolist(), 2))
    values = np.array(list(similarity.values()))
    probabilities = bands.probability(values)
    expected = probabilities[values >= threshold].sum()
    return {
        "texts": len(texts),
        "similar": len(similar),
        "found": len(found),
        "recall": len(found & similar) / len(similar),
        "expected_recall": expected / len(similar),
        "precision": len(found & similar) / len(found),
        "expected_precision": expected / probabilities.sum(),
        "found_below_half": sum(similarity.get(pair, 0.0) < 0.5 for pair in found),
    }


def similarities(texts: list[str]) -> dict[tuple[int, int], float]:
    """The Jaccard similarity of every pair that has a shingle in common."""
    sets = list(map(shingles, texts))
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, found in enumerate(sets):
        for shingle in found:
            holders[shingle].append(number)
    common: Counter[tuple[int, int]] = Counter()
    for numbers in holders.values():
        common.update(itertools.combinations(numbers, 2))
    return {pair: count / (len(sets[pair[0]]) + len(sets[pair[1]]) - count) for pair, count in common.items()}


def shingles(text: str) -> set[tuple[str, ...]]:
    """As near.py has them, without hashes: a character at a time. None of a text without a word, which is like no other."""
    words, before = [], None
    for character in text.lower():
        kind = None if not character.isalnum() else "alone" if is_alone(character) else "word"
        if kind == "word" == before:
            words[-1] += character
        elif kind:
            words.append(character)
        before = kind
    return {tuple(words[start : start + SHINGLE_WORDS]) for start in range(max(len(words) > 0, len(words) - SHINGLE_WORDS + 1))}


def is_alone(character: str) -> bool:
    return "\u3041" <= character <= "\u30ff" or "\u3400" <= character <= "\u9fff" or "\U00020000" <= character <= "\U000323af"


if __name__ == "__main__":
    main()
