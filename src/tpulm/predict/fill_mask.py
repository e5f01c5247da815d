"""The predictions of a masked language model for [MASK]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from tpulm.config import ModelConfig
from tpulm.convert.huggingface import LoadedModel
from tpulm.errors import ConfigError, DataError
from tpulm.models.bert import EncoderInput, MaskedModel, encode, masked_logits
from tpulm.models.classifier import SequenceClassifier, TextEncoder, TokenClassifier
from tpulm.models.decoder import Decoder
from tpulm.models.electra import Discriminator
from tpulm.predict.classify import check_strings
from tpulm.predict.shapes import EXECUTION, power_of_two, rounded
from tpulm.runtime.memory import naming_shortage
from tpulm.tokenization import Tokenization

BATCH_SIZE = 16  # texts at a time
SPACE_MARKS = ("Ġ", "▁")  # how tokens of byte-level BPE and of Unigram mark a space before them
# Thai, Lao, Burmese, Khmer, kana and Chinese characters.
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af]"
)
# What people habitually write for a mask.
_OTHER_MASKS = ("[mask]", "<mask>", "[MASK]", "<MASK>", "___")


class Prediction(NamedTuple):
    """One prediction: `text` is the given one with `token` for its mask number `mask` (from 0); other masks stay."""

    token: str  # readable; token_id is exact
    token_id: int
    score: float  # probability among all tokens
    text: str
    mask: int


class _Encoded(NamedTuple):
    text: str
    ids: np.ndarray  # int32 [L], with special tokens
    masks: np.ndarray  # positions of the masks in ids


@naming_shortage()
def fill_mask(model: LoadedModel, texts: str | Sequence[str], top: int = 5) -> list[list[Prediction]]:
    """For each text, the `top` most likely tokens of its first mask, best first, then those of its second, and so on.

    Raises DataError for a text without a mask or with more tokens than the model has positions, ConfigError for a model that
    does not fill masks.
    """
    if isinstance(model.params, Decoder):
        raise ConfigError("this is a causal language model: it has no masks to fill, it continues texts (tpulm generate)")
    texts = [texts] if isinstance(texts, str) else list(texts)
    most = model.tokenization.vocab_size
    if not 1 <= top <= most:
        raise ConfigError(f"top is {top}; it must lie between 1 and the size of the vocabulary, {most}")
    if isinstance(model.params, SequenceClassifier | TokenClassifier):
        raise ConfigError("this is a classifier: it has no masks to fill, it labels texts (tpulm classify)")
    if isinstance(model.params, TextEncoder):
        raise ConfigError("this is an encoder without a masked head, which fills no masks; it embeds texts (tpulm embed)")
    if isinstance(model.params, Discriminator):
        raise ConfigError("this is ELECTRA's discriminator, which judges words and fills no masks; name the generator's folder")
    check_strings(texts)
    params = jax.device_put(model.params)
    encoded = [_encode(model, text, number, len(texts)) for number, text in enumerate(texts, start=1)]
    batches = (encoded[start : start + BATCH_SIZE] for start in range(0, len(encoded), BATCH_SIZE))
    return [answers for batch in batches for answers in _answer(model, params, batch, top)]


def _encode(model: LoadedModel, text: str, number: int, count: int) -> _Encoded:
    tokenization = model.tokenization
    location = f"text {number} of {count}" if count > 1 else None
    ids = np.asarray(tokenization.encode_one(text), np.int32)
    masks = np.flatnonzero(ids == tokenization.special.mask)
    if not len(masks):
        mask = tokenization.token(tokenization.special.mask)
        other_mask = next((other for other in _OTHER_MASKS if other in text), None)
        hint = f"; write it for {other_mask!r}" if other_mask else f", such as {f'{mask} {text}'!r}"
        raise DataError(f"no {mask} in {text!r}: put one where a word is to be filled in{hint}", location=location)
    if len(ids) > model.config.max_positions:
        raise DataError(
            f"the text has {len(ids)} tokens, but the model reads at most {model.config.max_positions}; shorten it to the "
            f"surroundings of {tokenization.token(tokenization.special.mask)}",
            location=location,
        )
    return _Encoded(text, ids, masks)


def _answer(model: LoadedModel, params: MaskedModel, batch: Sequence[_Encoded], top: int) -> list[list[Prediction]]:
    tokenization = model.tokenization
    longest = max(len(row.ids) for row in batch)
    length = min(rounded(longest), model.config.max_positions)
    ids = np.full((1 if len(batch) == 1 else BATCH_SIZE, length), tokenization.special.pad, np.int32)
    segments = np.full(ids.shape, -1, np.int32)
    for row, one in enumerate(batch):
        ids[row, : len(one.ids)] = one.ids
        segments[row, : len(one.ids)] = 0
    rows = [row for row, one in enumerate(batch) for _ in one.masks]
    places = np.zeros((2, power_of_two(len(rows), least=4)), np.int32)
    places[:, : len(rows)] = rows, np.concatenate([one.masks for one in batch])
    best = _best_tokens(params, ids, segments, places, config=model.config, vocab_size=tokenization.vocab_size, top=top)
    scores, tokens = map(np.asarray, best)
    answers: list[list[Prediction]] = []
    place = 0
    for one in batch:
        answers.append([])
        for mask in range(len(one.masks)):
            for token_id, score in zip(tokens[place].tolist(), scores[place].tolist(), strict=True):
                text = fill(tokenization, one.text, mask, token_id)
                answers[-1].append(Prediction(readable(tokenization, token_id), token_id, score, text, mask))
            place += 1
    return answers


@partial(jax.jit, static_argnames=("config", "vocab_size", "top"))
def _best_tokens(
    params: MaskedModel,
    ids: Int[Array, "B L"],
    segments: Int[Array, "B L"],
    places: Int[Array, "2 P"],
    *,
    config: ModelConfig,
    vocab_size: int,
    top: int,
) -> tuple[Float[Array, "P top"], Int[Array, "P top"]]:
    """Probabilities and ids of the `top` tokens at each (row, position) of `places`."""
    tokens = EncoderInput(ids, segments, types=jnp.zeros_like(ids), positions=None)
    hidden = encode(params, tokens, config=config, execution=EXECUTION, randomness=None)
    logits = masked_logits(params, hidden[places[0], places[1]], config=config, execution=EXECUTION, vocab_size=vocab_size)
    scores, best = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), top)
    return scores, best


def fill(tokenization: Tokenization, text: str, mask: int, token_id: int) -> str:
    """The given text, with a token in the place of its mask number `mask`.

    A token that continues a word is joined to it; one that begins a word is separated by a space if the text has none.
    """
    token = tokenization.token(token_id)
    mask_token = tokenization.token(tokenization.special.mask)
    parts = text.split(mask_token)
    left, right = mask_token.join(parts[: mask + 1]), mask_token.join(parts[mask + 1 :])
    if token_id in tuple(tokenization.special):
        return left + token + right
    alone = tokenization.decode([token_id])
    after_another = tokenization.decode([token_id, token_id]).removeprefix(alone)
    if not after_another.startswith(" "):
        return left.rstrip(" ") + after_another + right
    word = after_another[1:]
    return left + (" " if _apart(left, word, written=token.startswith(SPACE_MARKS)) else "") + word + right


def readable(tokenization: Tokenization, token_id: int) -> str:
    """The token as people write it, including the "##" of a continuation; as in the vocabulary if it is not text."""
    text = tokenization.decode([token_id]).strip()
    return text if text and "\ufffd" not in text else tokenization.token(token_id)


def _apart(left: str, word: str, *, written: bool) -> bool:
    """Whether a space is missing between them: the token has it `written`, or two words of letters would run together."""
    if not left or left[-1].isspace():
        return False
    letters = left[-1].isalnum() and word[:1].isalnum()
    return written or (letters and not WITHOUT_SPACES.search(left[-1] + word[:1]))
