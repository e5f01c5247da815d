"""How fast tokenizers encode, in megabytes of UTF-8 a second on all cores, all of them measured in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from tpulm.progress import SILENT, Progress
from tpulm.runtime import interrupt
from tpulm.tokenization.tokenization import Tokenization


@dataclass(frozen=True)
class Speed:
    """Megabytes of UTF-8 a second, each the median of all repetitions.

    `bulk` is `Tokenization.encode` that has seen no text yet, `library` the tokenizers library's `encode_batch_fast`, new, too.
    """

    bulk: float
    library: float


def measure_speed(
    tokenizations: Sequence[Tokenization], texts: list[str], *, repetitions: int = 5, progress: Progress = SILENT
) -> list[Speed]:
    """In turns, so that what else the machine does meets all alike; building a tokenizer is not counted."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    seconds: list[tuple[list[float], list[float]]] = [([], []) for _ in tokenizations]
    progress.start("tokenizer: speed", total=repetitions * len(tokenizations), unit="measurements")
    for repetition in range(repetitions):
        for number in range(len(tokenizations)):
            interrupt.check()
            chosen = (number + repetition) % len(tokenizations)
            made = tokenizations[chosen]
            bulk, library = seconds[chosen]
            bulk.append(_seconds(_new_bulk(made), texts))
            library.append(_seconds(_new_library(made), texts))
            progress.advance(1)
    return [Speed(megabytes / statistics.median(bulk), megabytes / statistics.median(library)) for bulk, library in seconds]


def _new_bulk(made: Tokenization) -> Callable[[list[str]], object]:
    new = Tokenization(Tokenizer.from_str(made.canonical_json), made.special)
    new.encode([])  # builds what encodes, which takes longer than a short text
    return new.encode


def _new_library(made: Tokenization) -> Callable[[list[str]], object]:
    new = made.plain()
    return lambda texts: new.encode_batch_fast(texts, add_special_tokens=False)


def _seconds(encode: Callable[[list[str]], object], texts: list[str]) -> float:
    began = time.perf_counter()
    encode(texts)
    return max(time.perf_counter() - began, 1e-9)
