"""Which words a masked language model must predict, where whole words are drawn instead of tokens.

The law is google's whole-word masking (google-research/bert, README, "New May 31st, 2019: Whole Word Masking Models", and
create_pretraining_data.py, do_whole_word_mask): the words of a row are gone through in random order; each is taken with all of
its tokens if they still fit in what remains of the row's number of predictions, else it is passed over. So a row has that
number of predictions, or fewer where no word left is short enough. What the model sees in their place is drawn for each token
by itself, as without whole words.

Departures:
- Theirs never predicts a word of more tokens than the row's number. Here such a word is cut, from its beginning, into pieces of
  that number of tokens (the last is what remains), and pieces count as words. So every token can be drawn, and a short row or
  one that is a single word is not left without predictions. Shorter words are never cut.
- Words are those of any tokenizer: a word begins where `word_start` says, and after [CLS] and [SEP].

The greedy walk over the words takes few rounds of work on arrays: a word that does not fit now never will, so each round drops
these, and takes all words up to the next that will not fit. The worst rows need about the square root of 2 L rounds (14 for 128
tokens, 30 for 512), and all rows get as many, so that a step's time is known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int


class DrawnWords(NamedTuple):
    chosen: Bool[Array, " L"]
    number: Int[Array, ""]  # how many tokens are chosen


def draw_words(
    word_start: Bool[Array, " L"],
    candidate: Bool[Array, " L"],
    number: Int[Array, ""],
    lottery: Int[Array, " L"],
    *,
    budget: int,
) -> DrawnWords:
    """The tokens of the words drawn: at most `number`, which is at most `budget`.

    Words go in the order of the tickets at their beginnings in the `lottery`, which are not negative; the highest goes first.
    """
    length = candidate.shape[0]
    place = jnp.arange(length, dtype=jnp.int32)
    first = _first_of_word(word_start, candidate, jnp.maximum(number, 1))
    begins = candidate & (first == place)

    following = jnp.where(begins | ~candidate, place, length)
    following = jnp.append(jax.lax.cummin(following, reverse=True)[1:], jnp.int32(length))
    size = jnp.where(begins, following - place, 0)

    ticket = jnp.where(begins, -lottery, jnp.int32(1))  # what begins no word comes last
    _, sizes, order = jax.lax.sort((ticket, size, place), num_keys=1)
    taken = _take_what_fits(sizes, number, budget)
    taken = jnp.zeros_like(taken).at[order].set(taken, unique_indices=True)
    return DrawnWords(candidate & taken[first], jnp.sum(jnp.where(taken, size, 0)))


def _first_of_word(word_start: Array, candidate: Array, longest: Array) -> Int[Array, " L"]:
    """The place of the first token of the word, or piece of one, that each token belongs to."""
    place = jnp.arange(candidate.shape[0], dtype=jnp.int32)
    after_mark = jnp.append(jnp.ones((1,), bool), ~candidate[:-1])
    start = jax.lax.cummax(jnp.where(word_start | after_mark | ~candidate, place, 0))
    return place - (place - start) % longest


def _take_what_fits(sizes: Int[Array, " W"], room: Int[Array, ""], most_room: int) -> Bool[Array, " W"]:
    """Of words in their order those that the greedy walk takes; a size of 0 is no word. `room` is at most `most_room`."""

    def one_round(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, taken, room = state
        left = left & (sizes <= room)
        now = left & (jnp.cumsum(jnp.where(left, sizes, 0), dtype=jnp.int32) <= room)
        return left & ~now, taken | now, room - jnp.sum(jnp.where(now, sizes, 0))

    begin = (sizes > 0, jnp.zeros(sizes.shape, bool), room)
    return jax.lax.fori_loop(0, most_rounds(sizes.shape[0], most_room), one_round, begin)[1]


def most_rounds(length: int, room: int) -> int:
    """The rounds that words of `length` tokens in all can need.

    Each takes a token at least, so the room of the last is 1 or more, of the one before 2 or more, and so on; and each but the
    last ends at a word longer than the room of the next. So n rounds need (n - 1) (n + 2) / 2 tokens in such words, and n more.
    """
    fitting = (rounds for rounds in range(2, room + 1) if (rounds - 1) * (rounds + 2) // 2 + rounds <= length)
    return max(fitting, default=1)
