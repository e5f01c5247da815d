"""Text and tokenizers that benchmarks share: real corpora, tokenizers trained on them once, cuts, and corpora of 1 GB."""

from __future__ import annotations

import functools
import gzip
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tpulm import tokenization
from tpulm.config import TokenizerConfig

CORPORA = {"ko": "ko/nsmc_reviews.txt.gz", "en": "en/wikitext2_train.txt.gz", "ja": "ja/aozora.txt.gz"}
VOCAB_SIZES = {"ko": 32_000, "en": 16_000, "ja": 16_000}
ALGORITHMS = ("wordpiece", "bpe", "unigram")
BATCH = 10_000
COPIES = 16  # of the reviews: 1 GB


def data_folder() -> Path:
    return Path(os.environ.get("TPULM_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def read(path: Path) -> list[str]:
    if not path.is_file():
        sys.exit(f"{path} is not there: name the folder of real data with --data or TPULM_TEST_DATA")
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().removesuffix("\n").split("\n")


def trained(cache: Path, data: Path, language: str, algorithm: str) -> Path:
    """The folder of a tokenizer that was trained on all of the text, now or by an earlier run."""
    folder = cache / f"{language}-{algorithm}"
    if tokenization.load_manifest(folder) is None:
        texts = read(data / CORPORA[language])
        before, os.environ["TOKENIZERS_PARALLELISM"] = os.environ.get("TOKENIZERS_PARALLELISM", "true"), "true"
        config = TokenizerConfig.model_validate({"algorithm": algorithm, "vocab_size": VOCAB_SIZES[language]})
        started_at, used = time.perf_counter(), time.process_time()
        tokenization.save(tokenization.train(in_batches(texts), config), folder)
        seconds, cpu_seconds = time.perf_counter() - started_at, time.process_time() - used
        print(f"{folder.name}: trained in {seconds:.0f} s, {cpu_seconds:.0f} s of processor time", file=sys.stderr)
        os.environ["TOKENIZERS_PARALLELISM"] = before
    return folder


def in_batches(texts: list[str]) -> Iterator[list[str]]:
    return (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))


def cut(files: Sequence[Path], num_bytes: float, folder: Path) -> list[Path]:
    """The first so many bytes of text: whole files as long as they fit, then one in `folder` that ends with a whole line."""
    taken: list[Path] = []
    for path in files:
        size = uncompressed_bytes(path)
        if size > num_bytes:
            return [*taken, _head(path, num_bytes, folder / path.name)] if num_bytes > 0 else taken
        taken.append(path)
        num_bytes -= size
    return taken


def _head(path: Path, num_bytes: float, out: Path) -> Path:
    with gzip.open(path) as lines, gzip.open(out, "wb", compresslevel=1) as stream:
        for line in lines:
            num_bytes -= len(line)
            if num_bytes < 0:
                break
            stream.write(line)
    return out


@functools.cache
def uncompressed_bytes(path: Path) -> int:
    with gzip.open(path) as stream:
        return sum(map(len, iter(lambda: stream.read(1 << 20), b"")))


def repeated_reviews(reviews: Path, folder: Path, num_bytes: float = math.inf) -> list[Path]:
    """The reviews again and again with changes, up to 1 GB in 16 files, of which only those are made that `num_bytes` need.

    Copy 0 is unchanged. In each other one, every review loses a random word, if it has two, and gets one at a random place that
    is drawn from the text, so that hardly any is found twice and words are as frequent as before; and one review in ten has
    a character replaced by one drawn from the text, which makes a few words that are new.
    """
    files = [folder / f"reviews-{number:02}.txt.gz" for number in range(COPIES)]
    files = files[: math.ceil(min(COPIES, num_bytes / uncompressed_bytes(reviews)))]

    @functools.cache
    def text() -> tuple[list[str], list[str], str]:
        texts = read(reviews)
        drawn_from = "\n".join(texts)
        return texts, drawn_from.split(), drawn_from

    return _written(files, lambda number: _changed(*text(), random.Random(number)) if number else text()[0])


def stitched(texts: Sequence[str], folder: Path, copies: int) -> list[Path]:
    """The texts, and `copies` - 1 as long as they are, put together of stretches of them of ten characters on average.

    For languages without spaces: characters and their neighbours are as frequent as before, and about as many phrases are new
    as in more text of the same kind. (Aozora Bunko has 1.9 times as many in 50 MB as in 25; 1 GB would have 16 million at that
    rate, and this has 15 million.)
    """
    text = "\n".join(texts)
    files = [folder / f"stitched-{number:02}.txt.gz" for number in range(copies)]
    return _written(files, lambda number: (_stitched(text, random.Random(number)) if number else text).split("\n"))


def _stitched(text: str, chance: random.Random) -> str:
    stretches, left = [], len(text)
    while left > 0:
        size = 1 + int(chance.expovariate(1 / 9.5))  # 10 on average
        place = chance.randrange(len(text) - size)
        stretches.append(text[place : place + size])
        left -= size
    return "".join(stretches)


def _written(files: Sequence[Path], lines: Callable[[int], Iterable[str]]) -> list[Path]:
    """The files, of which those that are not there yet are written: `lines` gives the lines of the file of a number."""
    for number, path in enumerate(files):
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".unfinished")
            content = "".join(f"{line}\n" for line in lines(number)).encode()
            unfinished.write_bytes(gzip.compress(content, compresslevel=1, mtime=0))
            unfinished.replace(path)
            print(f"{path.parent.name}: {path.name} written", file=sys.stderr)
    return list(files)


def _changed(texts: Sequence[str], words: Sequence[str], characters: str, chance: random.Random) -> Iterator[str]:
    draw = chance.random
    for text in texts:
        own = text.split()
        if len(own) > 1:
            del own[int(draw() * len(own))]
        own.insert(int(draw() * (len(own) + 1)), words[int(draw() * len(words))])
        changed = " ".join(own)
        if draw() < 0.1:
            place, other = int(draw() * len(changed)), " "
            while other.isspace() or other == changed[place]:
                other = characters[int(draw() * len(characters))]
            changed = changed[:place] + other + changed[place + 1 :]
        yield changed
