"""Which tokens a masked language model must predict, and what it sees in their place.

These are the rules of Google's BERT (`create_pretraining_data.py`; Devlin et al. 2019, section 3.1 and appendix A.1):

- A row of `length` tokens (without padding, with [CLS] and [SEP]) has min(P, max(1, round(length * mask_fraction)))
  predictions, rounded half to even; fewer only if it has fewer candidates.
- Candidates are all tokens but [PAD], [CLS] and [SEP]; every set of that many candidates is equally likely (drawn without
  replacement).
- Each chosen token is independently replaced by [MASK] (80 %), by a token drawn uniformly from the vocabulary without its
  special tokens (10 %; Google's code includes them), or kept (10 %); the model must predict the original in all three cases.

Google's masks are drawn when the data is made, up to ten times a row (`dupe_factor`); here they are drawn again each time a row
is seen. For whole-word masking, `draw_words` chooses words instead of single tokens.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
from functools import partial
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
    max_predictions: int  # P, per row
    mask_token_fraction: float
    random_token_fraction: float
    vocab_size: int
    special: SpecialTokens
    whole_words: bool = False  # needs "word_start" in the batch


class MaskedRows(NamedTuple):
    """`weights` are 1 for a prediction and 0 for an unused entry, whose position and label are 0."""

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
    """The masking of a run, with BERT's shares (80 % [MASK], 10 % random) or ELECTRA's (85 %, none).

    Evaluations mask single tokens, so that runs with and without whole words are comparable.
    """
    mask_fraction = settings.evaluation_mask_fraction if evaluation else settings.mask_fraction
    mask_token, random_token = (0.85, 0.0) if architecture == "electra" else (0.8, 0.1)
    return MaskingConfig(
        mask_fraction=mask_fraction,
        max_predictions=max(1, round(sequence_length * mask_fraction)),
        mask_token_fraction=mask_token,
        random_token_fraction=random_token,
        vocab_size=vocab_size,
        special=special,
        whole_words=settings.whole_words and not evaluation,
    )


def mask_rows(
    ids: Int[Array, "B L"], keys: Array, config: MaskingConfig, *, word_start: Int[Array, "B L"] | None = None
) -> MaskedRows:
    """Mask each row with its own key (typed threefry keys [B]), independently of the other rows.

    With `word_start`, nonzero where a word begins, whole words are masked.
    """
    with jax.named_scope("mask"):
        return jax.vmap(partial(_mask_row, config=config))(ids, word_start, keys)


def _mask_row(ids: Int[Array, " L"], word_start: Array | None, key: Array, config: MaskingConfig) -> MaskedRows:
    special = config.special
    length = ids.shape[0]
    budget = min(config.max_predictions, length)
    choice_key, kind_key, token_key = jax.random.split(key, 3)

    candidate = (ids != special.pad) & (ids != special.cls) & (ids != special.sep)
    counts = np.array([min(budget, max(1, round(n * config.mask_fraction))) for n in range(length + 1)], np.int32)
    tokens = jnp.sum((ids != special.pad).astype(jnp.int32))
    number = jnp.minimum(jnp.asarray(counts)[tokens], jnp.sum(candidate.astype(jnp.int32)))

    lottery = (jax.random.bits(choice_key, (length,), jnp.uint32) >> jnp.uint32(1)).astype(jnp.int32)
    if word_start is not None:
        starts = word_start.astype(bool)
        candidate, number = draw_words(starts, candidate, number, lottery, budget=budget)  # all of these are drawn
    lottery = jnp.where(candidate, lottery, -1)
    _, drawn = jax.lax.top_k(lottery, budget)
    used = jnp.arange(budget) < number
    positions = jnp.where(used, drawn, 0)
    labels = jnp.where(used, ids[positions], 0)

    kind = jax.random.uniform(kind_key, (budget,), jnp.float32)
    random_tokens = _ordinary_tokens(token_key, budget, config)
    replaced = jnp.where(kind < config.mask_token_fraction + config.random_token_fraction, random_tokens, labels)
    replaced = jnp.where(kind < config.mask_token_fraction, jnp.int32(special.mask), replaced)
    masked = ids.at[jnp.where(used, drawn, length)].set(replaced, mode="drop")
    return MaskedRows(masked, positions, labels, used.astype(jnp.float32))


def _ordinary_tokens(key: Array, number: int, config: MaskingConfig) -> Int[Array, " P"]:
    """Tokens drawn uniformly from the vocabulary without its special tokens and padding."""
    specials = sorted(set(config.special))
    tokens = jax.random.randint(key, (number,), 0, config.vocab_size - len(specials), jnp.int32)
    for special in specials:  # ascending: each shifts ids at or above it up by one
        tokens = tokens + (tokens >= special).astype(jnp.int32)
    return tokens


def draw_words(
    word_start: Bool[Array, " L"],
    candidate: Bool[Array, " L"],
    number: Int[Array, ""],
    lottery: Int[Array, " L"],
    *,
    budget: int,
) -> tuple[Bool[Array, " L"], Int[Array, ""]]:
    """Draw whole words of at most `number` tokens in total: which tokens, and how many. `number` is at most `budget`.

    Words are visited in descending order of the `lottery` at their first token; its entries are not negative.

    This is Google's whole-word masking (google-research/bert, README, "New May 31st, 2019: Whole Word Masking Models", and
    create_pretraining_data.py, do_whole_word_mask): the words of a row are visited in random order; each is taken with all of
    its tokens if they fit in what remains of `number`, and skipped otherwise. So a row may have fewer predictions, where no
    remaining word is short enough. Departures:

    - Google's code never predicts a word of more than `number` tokens. Here it is cut from its beginning into pieces of that
      many tokens, which count as words: every token can be drawn, and a short row always has predictions.
    - Words are those of any tokenizer: a word begins where `word_start` says, and after [CLS] and [SEP].

    The greedy walk takes few rounds of array operations: a word that does not fit now never will, so each round drops these and
    takes all words up to the next that does not fit. The worst rows need about sqrt(2 L) rounds (14 for 128 tokens, 30 for
    512); all rows get as many, so that step time is constant.
    """
    length = candidate.shape[0]
    place = jnp.arange(length, dtype=jnp.int32)
    first = _first_of_word(word_start, candidate, jnp.maximum(number, 1))
    begins = candidate & (first == place)

    following = jnp.where(begins | ~candidate, place, length)
    following = jnp.append(jax.lax.cummin(following, reverse=True)[1:], jnp.int32(length))
    size = jnp.where(begins, following - place, 0)

    ticket = jnp.where(begins, -lottery, jnp.int32(1))  # tokens that begin no word come last
    _, sizes, order = jax.lax.sort((ticket, size, place), num_keys=1)
    taken = _take_what_fits(sizes, number, budget)
    taken = jnp.zeros_like(taken).at[order].set(taken, unique_indices=True)
    return candidate & taken[first], jnp.sum(jnp.where(taken, size, 0))


def _first_of_word(word_start: Array, candidate: Array, longest: Array) -> Int[Array, " L"]:
    """For each token, the position of the first token of its word (or piece of a word)."""
    place = jnp.arange(candidate.shape[0], dtype=jnp.int32)
    after_mark = jnp.append(jnp.ones((1,), bool), ~candidate[:-1])
    start = jax.lax.cummax(jnp.where(word_start | after_mark | ~candidate, place, 0))
    return place - (place - start) % longest


def _take_what_fits(sizes: Int[Array, " W"], room: Int[Array, ""], most_room: int) -> Bool[Array, " W"]:
    """Which words of these sizes, in order, the greedy walk takes; a size of 0 is not a word. `room` is at most `most_room`."""

    def one_round(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        remaining, taken, room = state
        remaining = remaining & (sizes <= room)
        now = remaining & (jnp.cumsum(jnp.where(remaining, sizes, 0), dtype=jnp.int32) <= room)
        return remaining & ~now, taken | now, room - jnp.sum(jnp.where(now, sizes, 0))

    begin = (sizes > 0, jnp.zeros(sizes.shape, bool), room)
    return jax.lax.fori_loop(0, most_rounds(sizes.shape[0], most_room), one_round, begin)[1]


def most_rounds(length: int, room: int) -> int:
    """The most rounds that words of `length` tokens in total can need.

    Each takes at least one token, so the last has room for 1 or more, the one before for 2 or more, and so on; and each but the
    last ends at a word longer than the next one's room. So n rounds need (n - 1) (n + 2) / 2 tokens in such words, and n more.
    """
    fitting = (rounds for rounds in range(2, room + 1) if (rounds - 1) * (rounds + 2) // 2 + rounds <= length)
    return max(fitting, default=1)
