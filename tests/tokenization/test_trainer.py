from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import pytest
from tokenizers import Tokenizer, models, trainers

from tpulm.errors import Stopped
from tpulm.runtime import interrupt
from tpulm.tokenization.training import Unreached, check_reached, run_trainer


def test_words_count_as_often_as_said():
    tokenizer = Tokenizer(models.BPE())
    run_trainer(tokenizer, trainers.BpeTrainer(vocab_size=4, show_progress=False), {"ab": 3, "bc": 5})
    assert tokenizer.get_vocab() == {"a": 0, "b": 1, "c": 2, "bc": 3}


def test_no_batch_is_large_however_frequent_a_word():
    class Recording:
        def train_from_iterator(self, batches: Iterable[list[str]], _: object) -> None:
            for batch in batches:
                sizes.append(len(batch))
                seen.update(batch)

    sizes: list[int] = []
    seen: Counter[str] = Counter()
    words = {"b": 100_001, "a": 2, "c": 1}
    run_trainer(Recording(), trainers.BpeTrainer(), words)  # pyright: ignore[reportArgumentType]
    assert seen == words and max(sizes) <= 20_000


def test_the_librarys_failure_is_raised_here():
    with pytest.raises(TypeError):
        run_trainer(Tokenizer(models.BPE()), trainers.BpeTrainer(show_progress=False), {5: 1})  # pyright: ignore[reportArgumentType]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]):
    run_trainer(Tokenizer(models.BPE()), trainers.BpeTrainer(vocab_size=4, show_progress=False), {"ab": 3})
    assert capfd.readouterr() == ("", "")


def test_a_requested_stop_does_not_wait_for_the_library(monkeypatch: pytest.MonkeyPatch):
    def stop(_: str) -> None:
        raise Stopped("stopped")

    class Slow:
        def train_from_iterator(self, *_: object) -> None:
            time.sleep(2)

    monkeypatch.setattr(interrupt, "check", stop)
    started = time.monotonic()
    with pytest.raises(Stopped):
        run_trainer(Slow(), trainers.BpeTrainer(), {"a": 1})  # pyright: ignore[reportArgumentType]
    assert time.monotonic() - started < 1.5


def test_sizes_must_be_exact():
    check_reached(300, 300)
    with pytest.raises(Unreached) as caught:
        check_reached(299, 300)
    assert caught.value.reached == 299
