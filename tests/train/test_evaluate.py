"""What a loss is compared with: unigrams of the training text, which a few held-out rows must not flatter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import toy

from tpulm.train.evaluate import Evaluation, evaluate

FIRST = 5  # of the ordinary tokens
SHARES = 1.0 / np.arange(1, toy.VOCAB_SIZE - FIRST + 1)
SHARES /= SHARES.sum()


def zipfian(rows: int, seed: int) -> np.ndarray:
    """Rows of tokens drawn independently, of shares that are known."""
    tokens = np.random.default_rng(seed).choice(np.arange(FIRST, toy.VOCAB_SIZE), (rows, toy.LENGTH), p=SHARES)
    tokens[:, 0], tokens[:, -1] = toy.SPECIAL.cls, toy.SPECIAL.sep
    return tokens.astype(np.uint16)


@pytest.fixture(scope="module")
def program() -> Any:
    return toy.program(toy.config(train={"objective": {"evaluation_mask_fraction": 0.5}}))


def score(program: Any, rows: int, advance: Callable[[float], None] = lambda rows: None) -> Evaluation:
    counts = np.bincount(zipfian(20_000, seed=1)[:, 1:-1].ravel(), minlength=toy.VOCAB_SIZE)
    size, held_out = program.evaluation_batch_size, zipfian(rows, seed=2)
    batches = []
    for first in range(0, rows, size):
        batch = np.full((size, toy.LENGTH), toy.SPECIAL.pad, np.uint16)
        batch[: rows - first] = held_out[first : first + size]
        batches.append({"tokens": batch})
    return scored(program, batches, rows=rows, training_counts=counts, advance=advance)


def scored(program: Any, batches: Any, **settings: Any) -> Evaluation:
    """By a model as it begins."""
    params, size = program.initial_state().params, program.evaluation_batch_size
    return evaluate(program, params, batches, batch_size=size, tokens_per_character=1.0, **settings)


def test_forty_held_out_rows_give_what_a_large_holdout_gives(program: Any):
    entropy = float(-(SHARES @ np.log(SHARES)))  # what knowing the shares and nothing else costs, by definition
    few, many = score(program, 40), score(program, 3_200)
    assert many.unigram_entropy == pytest.approx(entropy, rel=0.01)
    assert few.unigram_entropy == pytest.approx(entropy, rel=0.05)
    assert many.baseline_accuracy == pytest.approx(SHARES[0], rel=0.05)
    assert many.values()["at_unigrams"] == 1.0 and many.loss > many.unigram_entropy, "nothing has been learned"


def test_a_device_scores_no_more_rows_at_once_than_it_trains_on(program: Any):
    """Or the first evaluation would take more memory than training does; the scores are the same."""
    one = toy.program(toy.config(train={"objective": {"evaluation_mask_fraction": 0.5}}, hardware={"microbatch_size": 1}))
    assert one.evaluation_batch_size == one.layout.shards < program.evaluation_batch_size
    assert score(one, 40).loss == pytest.approx(score(program, 40).loss, abs=1e-5)


def test_progress_counts_the_rows_and_not_the_padding(program: Any):
    shown: list[float] = []
    score(program, program.evaluation_batch_size + 3, shown.append)
    assert shown == [program.evaluation_batch_size, 3]


def test_the_ends_of_texts_count_where_they_are_predicted():
    """Two texts in a row, [CLS] a … [SEP] each: a model of next tokens predicts both [SEP]s, a masked one none."""
    half = toy.LENGTH // 2
    rows = zipfian(64, seed=2)
    rows[:, half - 1], rows[:, half] = toy.SPECIAL.sep, toy.SPECIAL.cls
    counts = np.bincount(zipfian(20_000, seed=1)[:, 1:-1].ravel(), minlength=toy.VOCAB_SIZE)
    counts[toy.SPECIAL.sep] = counts.sum() // (half - 2)
    for name, share_of_ends in (("mlm", 0.0), ("clm", 1 / (half - 1))):
        made = toy.program(toy.config(train={"objective": {"name": name, "evaluation_mask_fraction": 0.5}}))
        size = made.evaluation_batch_size
        batches = [{"tokens": rows[first : first + size]} for first in range(0, len(rows), size)]
        found = scored(made, batches, rows=64, training_counts=counts)
        assert found.bits_per_character == pytest.approx(found.loss / np.log(2) / (1 - share_of_ends))
        shares = np.append(SHARES * (1 - share_of_ends), share_of_ends)
        entropy = float(-(shares[shares > 0] @ np.log(shares[shares > 0])))
        assert found.unigram_entropy == pytest.approx(entropy, rel=0.05)
