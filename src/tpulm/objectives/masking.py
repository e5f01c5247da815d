"""Which tokens a masked language model must predict, and what it sees in their place.

These are the rules of Google's BERT (`create_pretraining_data.py`; Devlin et al. 2019, section 3.1 and appendix A.1):

- A row of `length` tokens (padding not counted, [CLS] and [SEP] counted) has min(P, max(1, round(length * mask_fraction)))
  predictions, rounded half to even; fewer only if it has fewer candidates.
- Candidates are all tokens but [PAD], [CLS] and [SEP]; every set of that many candidates is equally likely (drawn without
  replacement).
- Each chosen token is independently replaced by [MASK] (80 %), by a token drawn uniformly from the vocabulary without its
  special tokens (10 %; theirs includes them), or stays (10 %); the model must predict the original in all three cases.

Theirs is drawn when the data is made, up to ten times a row (`dupe_factor`); here it is drawn anew each time a row is seen.
Where whole words are wanted, `draw_words` chooses them instead of single tokens.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from tpulm.config import ObjectiveConfig
from tpulm.special_tokens import SpecialTokens


class MaskingConfig(NamedTuple):
    mask_fraction: float
    max_predictions: int  # P, the fixed budget of a row
    mask_token_fraction: float
    random_token_fraction: float
    vocab_size: int
    special: SpecialTokens
    whole_words: bool = False  # the batch says where words begin


class MaskedRows(NamedTuple):
    """Entries of `weights` are 1 for a prediction and 0 for an unused place (whose position, label are 0)."""

    ids: Int[Array, "B L"]  # what the model sees
    positions: Int[Array, "B P"]
    labels: Int[Array, "B P"]
    weights: Float[Array, "B P"]


def masking_config(
    architecture: str,
    settings: ObjectiveConfig,
    *,
    sequence_length: int,
    vocab_size: int,
    special: SpecialTokens,
    evaluation: bool = False,
) -> MaskingConfig:
    """The law of a run; what is not set is as BERT's (80 % [MASK], 10 % random) or ELECTRA's authors have it (85 %, none).

    In an evaluation tokens are drawn one by one, so that runs with and without whole words compare.
    """
    mask_fraction = settings.evaluation_mask_fraction if evaluation else settings.mask_fraction
    mask_token, random_token = (0.85, 0.0) if architecture == "electra" else (0.8, 0.1)
    return MaskingConfig(
        mask_fraction=mask_fraction,
        max_predictions=min(sequence_length, settings.max_predictions or default_budget(sequence_length, mask_fraction)),
        mask_token_fraction=mask_token if settings.mask_token_fraction is None else settings.mask_token_fraction,
        random_token_fraction=random_token if settings.random_token_fraction is None else settings.random_token_fraction,
        vocab_size=vocab_size,
        special=special,
        whole_words=settings.whole_words and not evaluation,
    )


def default_budget(sequence_length: int, mask_fraction: float) -> int:
    """The predictions a full row needs."""
    return max(1, round(sequence_length * mask_fraction))


def mask_rows(
    ids: Int[Array, "B L"], keys: Array, config: MaskingConfig, *, word_start: Int[Array, "B L"] | None = None
) -> MaskedRows:
    """Draws the predictions of each row from its own key (typed threefry keys [B]), whatever rows it is computed with.

    With `word_start`, which is not 0 where a word begins, whole words are drawn.
    """
    with jax.named_scope("mask"):
        if word_start is None:
            return jax.vmap(lambda row, key: _mask_row(row, None, key, config))(ids, keys)
        return jax.vmap(lambda row, start, key: _mask_row(row, start, key, config))(ids, word_start.astype(bool), keys)


def _mask_row(ids: Int[Array, " L"], word_start: Array | None, key: Array, config: MaskingConfig) -> MaskedRows:
    special = config.special
    length = ids.shape[0]
    budget = min(config.max_predictions, length)
    choice_key, kind_key, token_key = jax.random.split(key, 3)

    candidate = (ids != special.pad) & (ids != special.cls) & (ids != special.sep)
    wanted = np.array([min(budget, max(1, round(n * config.mask_fraction))) for n in range(length + 1)], np.int32)
    tokens = jnp.sum((ids != special.pad).astype(jnp.int32))
    number = jnp.minimum(jnp.asarray(wanted)[tokens], jnp.sum(candidate.astype(jnp.int32)))

    lottery = (jax.random.bits(choice_key, (length,), jnp.uint32) >> jnp.uint32(1)).astype(jnp.int32)
    if word_start is not None:
        words = draw_words(word_start, candidate, number, lottery, budget=budget)
        number, candidate = words.number, words.chosen  # all that are left are drawn
    lottery = jnp.where(candidate, lottery, -1)
    _, drawn = jax.lax.top_k(lottery, budget)
    used = jnp.arange(budget) < number
    positions = jnp.where(used, drawn, 0)
    labels = jnp.where(used, ids[positions], 0)

    kind = jax.random.uniform(kind_key, (budget,), jnp.float32)
    random_tokens = _ordinary_tokens(token_key, budget, config)
    seen = jnp.where(kind < config.mask_token_fraction + config.random_token_fraction, random_tokens, labels)
    seen = jnp.where(kind < config.mask_token_fraction, jnp.int32(special.mask), seen)
    masked = ids.at[jnp.where(used, drawn, length)].set(seen, mode="drop")
    return MaskedRows(masked, positions, labels, used.astype(jnp.float32))


def _ordinary_tokens(key: Array, number: int, config: MaskingConfig) -> Int[Array, " P"]:
    """Uniform over the vocabulary without its special tokens (and without its padding)."""
    specials = sorted(set(config.special))
    tokens = jax.random.randint(key, (number,), 0, config.vocab_size - len(specials), jnp.int32)
    for special in specials:  # ascending: each moves what lies at or above it up by one
        tokens = tokens + (tokens >= special).astype(jnp.int32)
    return tokens


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

    This is Google's whole-word masking (google-research/bert, README, "New May 31st, 2019: Whole Word Masking Models", and
    create_pretraining_data.py, do_whole_word_mask): the words of a row are visited in random order; each is taken with all of
    its tokens if they still fit in what remains of `number`, and skipped otherwise. So a row may have fewer predictions, where
    no remaining word is short enough. Departures:

    - Theirs never predicts a word of more tokens than `number`. Here such a word is cut from its beginning into pieces of that
      many tokens, and pieces count as words: every token can be drawn, and a short row always has predictions.
    - Words are those of any tokenizer: a word begins where `word_start` says, and after [CLS] and [SEP].

    The greedy walk takes few rounds of work on arrays: a word that does not fit now never will, so each round drops these and
    takes all words up to the next that does not fit. The worst rows need about the square root of 2 L rounds (14 for 128
    tokens, 30 for 512); all rows get as many, so that the time of a step is known.
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
    """Which words the greedy walk takes, in their order; a size of 0 is no word. `room` is at most `most_room`."""

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
