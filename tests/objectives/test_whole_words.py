"""The law of whole words: against a walk over them in plain Python, and by its statistics."""

from __future__ import annotations

import itertools
from functools import partial

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from test_masking import CLS, DRAWS, LAW, MASK, PAD, SEP, assert_shares, draw, row

from tpulm.config import ObjectiveConfig, RunConfig
from tpulm.objectives.masking import draw_words, most_rounds

L = 40
WORDS = (1, 2, 3, 1, 2, 4, 1, 2, 1, 3)  # 20 tokens


def row_of_words(sizes: tuple[int, ...] = WORDS) -> tuple[np.ndarray, np.ndarray]:
    """`[CLS] words [SEP]` and padding, and where words begin (which says nothing of marks and padding)."""
    starts = np.zeros(L, np.int8)
    starts[1 + np.cumsum([0, *sizes[:-1]])] = 1
    return row(sum(sizes) + 2), starts


def words_of(ids: np.ndarray, starts: np.ndarray, longest: int) -> list[list[int]]:
    """The places of the tokens of each word; longer ones in pieces."""
    words: list[list[int]] = []
    for place, token in enumerate(ids.tolist()):
        if token in (PAD, CLS, SEP):
            words.append([])
        elif starts[place] or not words[-1] or len(words[-1]) == longest:
            words.append([place])
        else:
            words[-1].append(place)
    return [word for word in words if word]


def walk(sizes: list[int], room: int) -> list[int]:
    """create_pretraining_data.py: the numbers of the words that are taken, in their order."""
    taken = []
    for number, size in enumerate(sizes):
        if size <= room:
            taken.append(number)
            room -= size
    return taken


@partial(jax.jit, static_argnames="budget")
def drawn(starts: jax.Array, candidate: jax.Array, number: jax.Array, lottery: jax.Array, budget: int) -> jax.Array:
    return draw_words(starts, candidate, number, lottery, budget=budget)[0]


@given(data=st.data(), marks=st.sets(st.integers(0, L - 1), max_size=8), number=st.integers(0, 9))
def test_the_walk_is_googles(data: st.DataObject, marks: set[int], number: int):
    """Over any row, with words of all lengths, and marks anywhere."""
    starts = np.array(data.draw(st.lists(st.sampled_from([True, False, False]), min_size=L, max_size=L)))
    lottery = np.array(data.draw(st.permutations(range(L))), np.int32)
    ids = np.array([SEP if place in marks else 20 for place in range(L)])
    starts_before = starts.copy()
    starts_before[0] = True
    words = words_of(ids, starts_before, max(1, number))
    words.sort(key=lambda word: -lottery[word[0]])
    taken = {place for index in walk([len(word) for word in words], number) for place in words[index]}
    chosen = drawn(jnp.asarray(starts), jnp.asarray(ids != SEP), jnp.int32(number), jnp.asarray(lottery), 9)
    assert set(np.flatnonzero(chosen).tolist()) == taken


@pytest.mark.parametrize(("length", "room", "rounds"), [(40, 6, 6), (128, 19, 14), (512, 77, 30), (512, 1, 1)])
def test_the_rounds_are_enough_for_the_worst_row(length: int, room: int, rounds: int):
    """One token, a word as long as the room was, one token, a word as long as it is now, …: each round takes one token."""
    assert most_rounds(length, room) == rounds
    sizes = [*itertools.chain.from_iterable((1, size) for size in range(rounds, 1, -1)), 1]
    assert sum(sizes) <= length and walk(sizes, rounds) == list(range(0, len(sizes), 2))
    starts = np.zeros(length, bool)
    starts[np.cumsum([0, *sizes[:-1]])] = True
    ends = np.arange(length) < sum(sizes)
    lottery = np.arange(length, 0, -1, dtype=np.int32)
    chosen = drawn(jnp.asarray(starts), jnp.asarray(ends), jnp.int32(rounds), jnp.asarray(lottery), room)
    assert int(chosen.sum()) == rounds


def test_every_word_is_drawn_as_often_as_in_googles_walk():
    """Against their loop over shuffled words, by how often each word of ten is taken; 22 tokens, 3 predictions."""
    ids, starts = row_of_words()
    words = words_of(ids, starts, 3)
    assert [len(word) for word in words] == [1, 2, 3, 1, 2, 3, 1, 1, 2, 1, 3], "the word of four has two pieces"
    masked = draw(np.broadcast_to(ids, (DRAWS, L)), np.broadcast_to(starts, (DRAWS, L)), seed=3)
    places = np.bincount(masked.positions[masked.weights > 0], minlength=L)
    counts = np.array([places[word[0]] for word in words])
    assert [places[word].tolist() for word in words] == [[count] * len(word) for word, count in zip(words, counts, strict=True)]

    rng, simulated, rounds = np.random.default_rng(0), np.zeros(len(words)), 10 * DRAWS
    sizes = np.array([len(word) for word in words])
    for _ in range(rounds // 10):
        order = rng.permutation(len(words))
        simulated[order[walk(sizes[order].tolist(), 3)]] += 10
    share = simulated / rounds
    deviation = (counts - DRAWS * share) / np.sqrt(2 * DRAWS * share * (1 - share))  # both are samples of DRAWS walks
    assert np.abs(deviation).max() < 4.5, deviation


def test_each_token_of_a_word_is_replaced_by_itself():
    """80/10/10 independently: both tokens of a pair become [MASK] in 64 % of the cases."""
    ids, starts = row_of_words((2,) * 10)
    masked = draw(np.broadcast_to(ids, (DRAWS, L)), np.broadcast_to(starts, (DRAWS, L)), law=LAW._replace(mask_fraction=0.09))
    assert (masked.weights.sum(axis=1) == 2).all()
    seen = np.take_along_axis(np.asarray(masked.ids), np.asarray(masked.positions)[:, :2], axis=1) == MASK
    counts = np.bincount(seen.sum(axis=1), minlength=3)
    assert_shares(counts, DRAWS * np.array([0.04, 0.32, 0.64]))


def test_the_objective_reads_where_words_begin():
    """Here ELECTRA's, which masks by the code of BERT's. An evaluation does without: its masks are of single tokens."""
    data = cases.batch()
    starts = {"word_start": jnp.zeros((8, cases.L), jnp.int8).at[:, ::4].set(1)}

    def predicted(data: dict[str, jax.Array], *, whole_words: bool = True, evaluation: bool = False) -> np.ndarray:
        settings = ObjectiveConfig(whole_words=whole_words, mask_fraction=0.3)
        objective = cases.make(objective=settings, evaluation=evaluation, architecture="electra", embedding_size=16)
        return np.sort(cases.compiled(objective)[0](data)[0].masked.predicted, axis=1)

    words = predicted(data | starts)
    assert not np.array_equal(predicted(data | starts, whole_words=False), words)
    assert words[0].tolist() == [0, 0, 1, 2, 3] or any(b - a == 1 for a, b in itertools.pairwise(words[0].tolist()))
    predicted(data, evaluation=True)


def test_a_decoder_has_no_words_to_draw():
    causal = {"data": {"rows": "causal"}, "model": {"architecture": "decoder", "norm_position": "pre"}}
    RunConfig.model_validate(causal)
    with pytest.raises(ValueError, match="whole_words"):
        RunConfig.model_validate({**causal, "train": {"objective": {"whole_words": True}}})
