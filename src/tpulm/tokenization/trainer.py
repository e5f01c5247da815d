"""Running one of the library's trainers on counted words."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping

from tokenizers import Tokenizer, trainers

from tpulm import interrupt
from tpulm.progress import SILENT, Progress

_BATCH_WORDS = 20_000
_POLL_SECONDS = 0.2


def run_trainer(tokenizer: Tokenizer, trainer: trainers.Trainer, words: Mapping[str, int], progress: Progress = SILENT) -> None:
    """Train `tokenizer`'s model on `words`, each counted as often as it says.

    The library cannot be interrupted and holds no Python lock while it computes, so it runs in a thread: a requested stop
    raises Stopped at once, and the thread ends with the process.
    """
    failures: list[BaseException] = []
    taken = 0

    def batches() -> Iterator[list[str]]:
        nonlocal taken
        for batch in _repeated(words):
            taken += len(batch)
            yield batch

    def work() -> None:
        try:
            tokenizer.train_from_iterator(batches(), trainer)
        except BaseException as error:  # a panic of the library is no Exception
            failures.append(error)

    told, total, is_choosing = 0, sum(words.values()), False
    progress.start("Words for the tokenizer", total, "word")
    thread = threading.Thread(target=work, name="tokenizer-training", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        if told < taken:
            progress.advance(taken - told)
            told = taken
        elif told == total and not is_choosing:
            progress.start("Training the tokenizer")  # the library does not say how far it is
            is_choosing = True
        interrupt.check("no tokenizer was written yet")
    if failures:
        raise failures[0]


class Unreached(Exception):
    """Training ended with fewer tokens than were asked for."""

    def __init__(self, reached: int):
        super().__init__(reached)
        self.reached = reached


def check_reached(reached: int, vocab_size: int) -> None:
    if reached != vocab_size:
        raise Unreached(reached)


def _repeated(words: Mapping[str, int]) -> Iterator[list[str]]:
    """Every word as often as it occurred, in sorted order, in batches. The trainer has no other way to take counts."""
    repeated = itertools.chain.from_iterable(itertools.repeat(word, words[word]) for word in sorted(words))
    while batch := list(itertools.islice(repeated, _BATCH_WORDS)):
        yield batch
