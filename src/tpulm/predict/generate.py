"""Continue texts with a causal language model, token by token, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from tpulm import storage
from tpulm.config import ModelConfig
from tpulm.convert.huggingface import LoadedModel
from tpulm.errors import ConfigError, DataError
from tpulm.models.decoder import Cache, Decoder, Unstacked, empty_cache, extend, next_token_logits
from tpulm.predict.classify import check_strings
from tpulm.predict.shapes import EXECUTION, rounded
from tpulm.runtime.memory import naming_shortage
from tpulm.tokenization import Tokenization


class Sampling(NamedTuple):
    """How tokens are sampled: logits are divided by the temperature; the `top_k` most likely tokens are kept, and of those the
    fewest with a total probability of at least `top_p`; one of them is drawn. At temperature 0 it is the most likely token."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = 0.95
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken: at lower temperatures logits would grow beyond what a float32 holds."""
        return self.temperature < 1e-6

    def check(self, vocab_size: int) -> None:
        """Raise ConfigError for values that leave nothing to choose from, or mean nothing."""
        if not 0.0 <= self.temperature <= 100.0:
            raise ConfigError(f"temperature is {self.temperature}; it must lie between 0 (the likeliest token) and 100")
        if self.top_k is not None and not 1 <= self.top_k <= vocab_size:
            raise ConfigError(
                f"top_k is {self.top_k}; it must lie between 1 and the size of the vocabulary, {vocab_size}. Leave it out to "
                "keep all tokens"
            )
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}; it must be more than 0 and at most 1. 1 keeps all tokens")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; it must have at most 63 bits")


# Settings of generation_config.json that change which token is the likeliest and are not applied here; and where they do not.
_CHANGES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "num_beams", "guidance_scale"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens", "penalty_alpha"), 0),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "watermarking_config")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "stop_strings")),
}


def settings_not_applied(folder: PurePath) -> dict[str, Any]:
    """What a model's generation_config.json asks of `generate` in transformers, and is not done here."""
    file = folder / "generation_config.json"
    asked = storage.read_given_object(file) if storage.exists(file) else {}
    return {name: asked[name] for name, usual in _CHANGES.items() if asked.get(name) not in (None, usual)}


def row_keys(base: Array, rows: Int[Array, " B"], number: Int[Array, ""]) -> Array:
    """One key per row, from a text's index among all texts and the token's index in it, whatever else is computed."""
    return jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(base, row), number))(rows)


def choose(
    logits: Float[Array, "B V"],
    keys: Array,
    *,
    temperature: Float[Array, ""],
    top_p: Float[Array, ""],
    top_k: int | None,
    greedy: bool,
) -> Int[Array, " B"]:
    """The next token of each row; logits of tokens that do not exist are -1e9."""
    if greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if top_k is None:
        return draw(jax.nn.softmax(logits / temperature, axis=-1), keys, top_p=top_p)
    scores, tokens = jax.lax.top_k(logits / temperature, top_k)
    drawn = draw(jax.nn.softmax(scores, axis=-1), keys, top_p=top_p)
    return jnp.take_along_axis(tokens, drawn[:, None], axis=1)[:, 0].astype(jnp.int32)


BLOCK = 256  # tokens whose probabilities are summed first


def draw(probabilities: Float[Array, "B V"], keys: Array, *, top_p: Float[Array, ""]) -> Int[Array, " B"]:
    """A token of each row, drawn from the fewest most likely ones with a total probability of at least `top_p`.

    Nothing is sorted, which would take most of a token's time on a CPU. A token is drawn from all; if those before it, by
    probability and then index, already reach `top_p`, it is rejected with all behind it, and the next is drawn from the rest.
    """
    rows, size = probabilities.shape
    blocks = -(-size // BLOCK)
    padded = jnp.pad(probabilities, ((0, 0), (0, blocks * BLOCK - size)))
    numbers = jnp.arange(blocks * BLOCK, dtype=jnp.int32)[None, :]

    def by_mass(masses: Float[Array, "B N"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
        sums = jnp.cumsum(masses, axis=-1)
        return jnp.sum(sums <= (uniform * sums[:, -1])[:, None], axis=-1, dtype=jnp.int32)

    def before(token: Int[Array, " B"], probability: Float[Array, " B"]) -> Bool[Array, "B N"]:
        """Which tokens come before this one."""
        bound = probability[:, None]
        return (padded > bound) | ((padded == bound) & (numbers < token[:, None]))

    def again(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        attempt, token, probability, refused = carry
        remaining = jnp.where(before(token, probability), padded, 0.0).reshape(rows, blocks, BLOCK)
        uniforms = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, attempt), (2,)))(keys)
        block = by_mass(jnp.sum(remaining, axis=-1), uniforms[:, 0])
        inside = jnp.take_along_axis(remaining, block[:, None, None], axis=1)[:, 0]
        place = by_mass(inside, uniforms[:, 1])
        token = jnp.where(refused, block * BLOCK + place, token)
        drawn = jnp.take_along_axis(inside, place[:, None], axis=1)[:, 0]
        probability = jnp.where(refused, drawn, probability)
        likelier = jnp.sum(jnp.where(before(token, probability), padded, 0.0), axis=-1)
        return attempt + 1, token, probability, likelier >= top_p

    behind_all = (jnp.int32(0), jnp.full(rows, size, jnp.int32), jnp.zeros(rows), jnp.ones(rows, bool))
    return jax.lax.while_loop(lambda carry: carry[-1].any(), again, behind_all)[1]


_TORN = "\ufffd"  # what bytes decode to that are not, or not yet, a character


class Writer:
    """The text after a prompt. The pieces that `add` and `end` return make it up."""

    def __init__(self, tokenization: Tokenization, prompt: Sequence[int]):
        self._tokenization = tokenization
        self._ids = list(prompt)
        self._written = tokenization.decode(self._ids)

    def add(self, token_id: int) -> str:
        """What can be written now: nothing if the token ends within a character."""
        self._ids.append(token_id)
        text = self._tokenization.decode(self._ids).rstrip(_TORN)
        return "" if self._written.startswith(text) else self._write(text)

    def end(self) -> str:
        """What was held back, once no token follows."""
        return self._write(self._tokenization.decode(self._ids))

    def _write(self, text: str) -> str:
        """What is new in a text. A run of bytes is decoded as a whole: a stray one makes all of them U+FFFD, those of the
        characters that were written, too."""
        same = len(list(takewhile(lambda both: both[0] == both[1], zip(text, self._written, strict=False))))
        new, torn = text[same:], self._written[same:]
        self._written = text
        shown_before = min(len(torn.encode()), len(new) - len(new.lstrip(_TORN)))  # a U+FFFD for each byte
        return new[shown_before:]


BATCH_SIZE = 16  # prompts at a time

Ending = Literal["end of text", "max_tokens", "max_positions"]


class GenerationChunk(NamedTuple):
    """The next piece of one text, in whole characters."""

    prompt: int  # its index
    text: str
    token_id: int | None  # None: the end of the text
    ending: Ending | None  # None: more may follow


class Generation(NamedTuple):
    prompt: str
    text: str  # what follows the prompt, without it
    token_ids: tuple[int, ...]  # of `text`, without the end of the text
    ending: Ending  # why nothing follows


def generate(
    model: LoadedModel,
    prompts: str | Sequence[str],
    *,
    max_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    seed: int = 0,
) -> list[Generation]:
    """Continue each prompt; `Sampling` explains how tokens are chosen. An empty prompt begins a text.

    A prompt's text depends only on the seed and its index among the prompts. Raises DataError for a prompt that fills the
    model's positions, ConfigError for a model that is not causal and for invalid settings.
    """
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    return collect(prompts, stream(model, prompts, max_tokens=max_tokens, sampling=Sampling(temperature, top_k, top_p, seed)))


def collect(prompts: Sequence[str], pieces: Iterable[GenerationChunk]) -> list[Generation]:
    """The texts that a whole stream of pieces makes up."""
    texts, token_ids, endings = [""] * len(prompts), [[] for _ in prompts], dict[int, Ending]()
    for number, text, token_id, ending in pieces:
        texts[number] += text
        token_ids[number] += [] if token_id is None else [token_id]
        if ending is not None:
            endings[number] = ending
    return [Generation(prompt, texts[i], tuple(token_ids[i]), endings[i]) for i, prompt in enumerate(prompts)]


def stream(
    model: LoadedModel, prompts: Sequence[str], *, max_tokens: int = 100, sampling: Sampling | None = None
) -> Iterator[GenerationChunk]:
    """Like `generate`, piece by piece as they come; up to `BATCH_SIZE` prompts take turns."""
    sampling = sampling or Sampling()
    if not isinstance(model.params, Decoder):
        raise ConfigError("this is not a causal language model: it cannot continue texts (tpulm fill-mask uses a masked one)")
    if max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens}; it must be at least 1")
    sampling.check(model.tokenization.vocab_size)
    encoded = _encode(model, prompts)
    with naming_shortage():
        params = jax.device_put(Unstacked.of(model.params))
        for start in range(0, len(encoded), BATCH_SIZE):
            yield from _continue(model, params, start, encoded[start : start + BATCH_SIZE], max_tokens, sampling)


def _encode(model: LoadedModel, prompts: Sequence[str]) -> list[list[int]]:
    tokenization, most = model.tokenization.causal(), model.config.max_positions
    check_strings(prompts)
    encoded = []
    for number, prompt in enumerate(prompts):
        ids = tokenization.encode_one(prompt)
        if len(ids) >= most:
            raise DataError(
                f"the prompt has {len(ids)} tokens, those put before it included, but the model reads at most {most}, and what "
                "follows needs room; shorten the prompt to its end",
                location=f"prompt {number + 1} of {len(prompts)}" if len(prompts) > 1 else None,
            )
        encoded.append(ids)
    return encoded


def _continue(
    model: LoadedModel, params: Unstacked, number: int, prompts: Sequence[list[int]], max_tokens: int, sampling: Sampling
) -> Iterator[GenerationChunk]:
    """The texts of some prompts, of which the first has this number."""
    lengths = np.array(list(map(len, prompts)), np.int32)
    most, ends = model.config.max_positions, model.tokenization.ends
    places = min(rounded(int(lengths.max()) + max_tokens), most)
    ids = np.full((len(prompts), min(rounded(int(lengths.max())), places)), model.tokenization.special.pad, np.int32)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    cache = empty_cache(model.config, rows=len(prompts), places=places, execution=EXECUTION)
    writers = [Writer(model.tokenization, prompt) for prompt in prompts]
    numbers = np.arange(number, number + len(prompts), dtype=np.int32)
    base = jax.random.key(sampling.seed, impl="threefry2x32")  # an argument: another seed is the same program
    going_on = set(range(len(prompts)))
    first, last = np.zeros_like(lengths), lengths - 1
    for step in range(max_tokens):
        chosen, cache = _advance(
            params,
            ids,
            first,
            last,
            cache,
            base,
            np.int32(step),
            numbers,
            np.float32(sampling.temperature),
            np.float32(sampling.top_p or 1.0),
            config=model.config,
            vocab_size=model.vocab_size,
            top_k=sampling.top_k,
            greedy=sampling.greedy,
        )
        chosen = np.asarray(chosen)
        for row in sorted(going_on):
            ended = int(chosen[row]) in ends
            ending: Ending | None = "end of text" if ended else "max_tokens" if step + 1 == max_tokens else None
            if ending is None and lengths[row] + step + 1 == most:
                ending = "max_positions"
            text = "" if ended else writers[row].add(int(chosen[row]))
            text += "" if ending is None else writers[row].end()
            if ending is not None:
                going_on.remove(row)
            yield GenerationChunk(number + row, text, None if ended else int(chosen[row]), ending)
        if not going_on:
            return
        first, last = lengths + np.int32(step), np.zeros_like(lengths)
        ids = chosen[:, None]


@partial(jax.jit, static_argnames=("config", "vocab_size", "top_k", "greedy"), donate_argnames="cache")
def _advance(
    params: Unstacked,
    ids: Int[Array, "B L"],
    first: Int[Array, " B"],
    last: Int[Array, " B"],
    cache: Cache,
    base: Array,
    step: Int[Array, ""],
    numbers: Int[Array, " B"],
    temperature: Float[Array, ""],
    top_p: Float[Array, ""],
    *,
    config: ModelConfig,
    vocab_size: int,
    top_k: int | None,
    greedy: bool,
) -> tuple[Int[Array, " B"], Cache]:
    """Read `ids`, at positions `first`, `first` + 1, …, and choose the token that follows the one at index `last`."""
    positions = first[:, None] + jnp.arange(ids.shape[1], dtype=jnp.int32)[None, :]
    hidden, cache = extend(params, ids, positions, cache, config=config, execution=EXECUTION)
    chosen = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
    logits = next_token_logits(params.decoder, chosen, execution=EXECUTION, vocab_size=vocab_size)
    keys = row_keys(base, numbers, step)
    return choose(logits, keys, temperature=temperature, top_p=top_p, top_k=top_k, greedy=greedy), cache
