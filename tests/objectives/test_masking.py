"""The law of masking, exactly where it is exact and by its statistics where it is random."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.objectives.masking import MaskedRows, MaskingConfig, mask_rows
from tpulm.special_tokens import SpecialTokens

VOCAB_SIZE = 60
PAD, UNK, CLS, SEP, MASK = SPECIAL = SpecialTokens(pad=0, unknown=30, cls=7, sep=8, mask=59)  # not in a block, as in vocab.txt
ORDINARY = [token for token in range(VOCAB_SIZE) if token not in SPECIAL]
FRACTIONS: dict[str, Any] = {"mask_fraction": 0.15, "mask_token_fraction": 0.8, "random_token_fraction": 0.1}
LAW = MaskingConfig(**FRACTIONS, max_predictions=6, vocab_size=VOCAB_SIZE, special=SPECIAL)
DRAWS = 20_000


def row(length: int, total: int = 40) -> np.ndarray:
    """`[CLS] … [SEP]` of `length` tokens and padding."""
    ids = np.full(total, PAD, np.int32)
    if length:
        ids[:length] = [ORDINARY[i % len(ORDINARY)] for i in range(length)]
        ids[0], ids[length - 1] = CLS, SEP
    return ids


@partial(jax.jit, static_argnames="law")
def mask(ids: jax.Array, keys: jax.Array, starts: jax.Array | None, law: MaskingConfig) -> MaskedRows:
    return mask_rows(ids, keys, law, word_start=starts)


def draw(ids: np.ndarray, starts: np.ndarray | None = None, *, law: MaskingConfig = LAW, seed: int = 0) -> MaskedRows:
    """One masking of each row of `ids`, of tokens or of the words that begin at `starts`."""
    keys = jax.random.split(jax.random.key(seed), len(ids))
    return jax.tree.map(np.asarray, mask(jnp.asarray(ids), keys, None if starts is None else jnp.asarray(starts), law))


def some_starts(ids: np.ndarray, whole_words: bool) -> np.ndarray | None:
    return np.random.default_rng(1).random(ids.shape) < 0.5 if whole_words else None


of_both = pytest.mark.parametrize("whole_words", [False, True], ids=["tokens", "words"])


def assert_shares(counts: np.ndarray, expected: np.ndarray) -> None:
    """Chi-square within five standard deviations of its mean (its degrees of freedom)."""
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom), chi_square


def test_the_number_of_predictions_is_googles():
    lengths = np.array([0, 2, 3, 4, 10, 16, 17, 20, 23, 24, 30, 36, 37, 40])
    masked = draw(np.stack([row(length) for length in lengths]))
    for length, count in zip(lengths, masked.weights.sum(axis=1), strict=True):
        law = min(6, max(1, round(length * 0.15)))  # create_pretraining_data.py, line for line: half to even, 1.5 and 4.5 too
        assert count == min(law, max(0, length - 2)), length


@of_both
def test_labels_positions_and_weights_belong_together(whole_words: bool):
    ids = np.stack([row(length) for length in (40, 20, 3, 2, 0)] * 20)
    masked = draw(ids, some_starts(ids, whole_words))
    used = masked.weights > 0
    rows = np.broadcast_to(np.arange(len(ids))[:, None], used.shape)
    np.testing.assert_array_equal(masked.labels[used], ids[rows[used], masked.positions[used]])
    assert not masked.labels[~used].any() and not masked.positions[~used].any()
    assert not np.isin(masked.labels[used], [PAD, CLS, SEP]).any()
    for before, after, positions, weights in zip(ids, masked.ids, masked.positions, masked.weights, strict=True):
        chosen = positions[weights > 0]
        assert len(set(chosen)) == len(chosen)
        untouched = np.ones(len(before), bool)
        untouched[chosen] = False
        np.testing.assert_array_equal(after[untouched], before[untouched])


def test_every_pair_of_candidates_is_equally_likely():
    """Without replacement: 2 of 5 candidates, 10 pairs."""
    masked = draw(np.broadcast_to(row(7), (DRAWS, 40)), law=LAW._replace(mask_fraction=0.3))
    pairs = np.sort(masked.positions[:, :2], axis=1)
    counts = np.bincount(pairs[:, 0] * 8 + pairs[:, 1])
    assert_shares(counts[counts > 0], np.full(10, DRAWS / 10))


def test_80_10_10():
    ids = np.broadcast_to(row(22), (DRAWS, 40))
    masked = draw(ids, seed=1)
    used = masked.weights > 0
    rows = np.broadcast_to(np.arange(DRAWS)[:, None], used.shape)[used]
    seen, labels = masked.ids[rows, masked.positions[used]], masked.labels[used]
    total, ordinary = used.sum(), len(ORDINARY)
    kept = 0.1 + 0.1 / ordinary  # the random token is the label itself now and then
    counts = np.array([(seen == MASK).sum(), (seen == labels).sum()])
    assert_shares(np.array([*counts, total - counts.sum()]), np.array([0.8, kept, 0.2 - kept]) * float(total))


def test_random_tokens_are_uniform_over_the_ordinary_vocabulary():
    law = LAW._replace(mask_token_fraction=0.0, random_token_fraction=1.0)
    masked = draw(np.broadcast_to(row(40), (DRAWS // 4, 40)), law=law)
    rows = np.broadcast_to(np.arange(DRAWS // 4)[:, None], masked.weights.shape)
    counts = np.bincount(masked.ids[rows, masked.positions].ravel(), minlength=VOCAB_SIZE)
    assert len(counts) == VOCAB_SIZE and not counts[list(SPECIAL)].any()
    assert_shares(counts[ORDINARY], np.full(len(ORDINARY), counts.sum() / len(ORDINARY)))


@of_both
def test_a_rows_mask_depends_on_its_key_alone(whole_words: bool):
    ids = np.stack([row(20 + i) for i in range(16)])
    starts, keys = some_starts(ids, whole_words), jax.random.split(jax.random.key(0), 16)
    whole = mask(jnp.asarray(ids), keys, starts, LAW)
    part = mask(jnp.asarray(ids[3:7]), keys[3:7], None if starts is None else starts[3:7], LAW)
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a[3:7], b)


def test_budget_larger_than_the_row():
    masked = draw(np.stack([row(8, total=8)] * 4), law=LAW._replace(max_predictions=20, mask_fraction=0.9))
    assert masked.positions.shape == (4, 8)
    assert (masked.weights.sum(axis=1) == 6).all()  # round(8 * .9) = 7, but six candidates
