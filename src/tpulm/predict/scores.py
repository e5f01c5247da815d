"""How likely a language model finds sentences: log-likelihoods, or pseudo-log-likelihoods of a masked one.

A masked model's is the sum, over a sentence's tokens, of the log-probability of each where it and the later pieces of its
word are masked (Kauf and Ivanova 2023, arXiv 2305.10588: `within_word_l2r`); or where it alone is (`plain`: Salazar et al.
2020, arXiv 1910.14659), which overrates rare words whose first pieces give the rest away. In scripts without spaces between
words, where no analyser found any, each token is a word.

Sentences are short and their masked copies many, so that several share a row, apart by attention's segments: hardly a position
is padding, and one program is compiled for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from tpulm.config import ModelConfig
from tpulm.convert.huggingface import LoadedModel
from tpulm.errors import ConfigError, DataError, shorten
from tpulm.models import bert, decoder
from tpulm.models.decoder import Decoder
from tpulm.predict.classify import check_strings
from tpulm.predict.fill_mask import WITHOUT_SPACES
from tpulm.predict.shapes import EXECUTION, power_of_two, rounded
from tpulm.progress import SILENT, Progress
from tpulm.runtime.memory import naming_shortage
from tpulm.tokenization import Tokenization

ROW_TOKENS = 128  # of a row, or as many as the longest sentence has
BATCH_TOKENS = 4_096


class SentenceScore(NamedTuple):
    """`log_likelihood` is in nats, summed over `tokens`, which special tokens are not among."""

    log_likelihood: float
    tokens: int


class _Encoded(NamedTuple):
    """Without special tokens; and the number of the word that each token belongs to."""

    ids: tuple[int, ...]
    words: tuple[int, ...]


class _Copy(NamedTuple):
    """A sentence as the model reads it once: the log-probabilities of `targets` at the positions `places` are added up."""

    number: int  # of the sentence
    ids: Sequence[int]
    places: Sequence[int]
    targets: Sequence[int]


@naming_shortage()
def sentence_scores(
    model: LoadedModel,
    sentences: str | Sequence[str],
    *,
    plain: bool = False,
    progress: Progress = SILENT,
    places: Sequence[str] = (),
) -> list[SentenceScore]:
    """The score of each sentence; of a causal model its log-likelihood, after the token that begins a text. `places`, such as
    a file and line for each sentence, are where errors point.

    Raises ConfigError for a model without a head for tokens, and for `plain` of a causal one; DataError for a sentence without
    tokens or with more than the model has positions.
    """
    sentences = [sentences] if isinstance(sentences, str) else list(sentences)
    if not isinstance(model.params, Decoder) and not hasattr(model.params, "masked_head"):
        raise ConfigError(f"a model with the head '{model.head}' scores no sentences; name a causal or a masked one")
    if plain and isinstance(model.params, Decoder):
        raise ConfigError("a causal model hides no token, so there is no plain score of it; leave 'plain' out")
    check_strings(sentences)
    of_each = _encode(model, sentences)
    begin = _beginning(model.tokenization) if isinstance(model.params, Decoder) else None
    around = 2 if begin is None else len(begin) - 1  # a causal model need not read the last token
    _check_lengths(sentences, of_each, around, model.config.max_positions, places)
    encoded = list(dict.fromkeys(of_each))  # sentences that read alike are as likely, to the last bit
    copies = _masked_copies(model, encoded, plain=plain) if begin is None else _causal_copies(begin, encoded)
    order = sorted(copies, key=lambda copy: -len(copy.ids))  # long ones first: rows are filled best so
    longest = len(order[0].ids) if order else 0
    length = min(max(ROW_TOKENS, rounded(longest)), model.config.max_positions)
    params, totals = jax.device_put(model.params), np.zeros(len(encoded))
    progress.start("Scoring", total=len(order), unit="reading")
    rows = iter(_rows(order, length))
    while batch := list(islice(rows, max(1, BATCH_TOKENS // length))):
        _add_scores(model, params, batch, length, totals)
        progress.advance(sum(len(row) for row in batch))
    log_likelihoods = dict(zip(encoded, totals.tolist(), strict=True))
    return [SentenceScore(log_likelihoods[one], len(one.ids)) for one in of_each]


def _encode(model: LoadedModel, sentences: list[str]) -> list[_Encoded]:
    tokenization = model.tokenization
    if _cuts_words(tokenization):
        encodings = tokenization.plain().encode_batch(sentences, add_special_tokens=False)
        return [
            _Encoded(tuple(one.ids), _words(zip(one.word_ids, one.offsets, strict=True), text))
            for text, one in zip(sentences, encodings, strict=True)
        ]
    starts, ids = tokenization.word_starts(), tokenization.encode(sentences).split()
    encoded = [_Encoded(tuple(one.tolist()), tuple(np.cumsum(starts[one]).tolist())) for one in ids]
    if tokenization.segmenter is None:
        encoded = [_Encoded(one.ids, _words(*_spelled(tokenization, one))) for one in encoded]
    return encoded


def _check_lengths(
    sentences: Sequence[str], encoded: Sequence[_Encoded], around: int, most: int, places: Sequence[str]
) -> None:
    """Raise DataError for a sentence that has no tokens, or with `around` others more than `most`."""
    too_long = sum(len(ids) + around > most for ids, _ in encoded)
    for number, (sentence, (ids, _)) in enumerate(zip(sentences, encoded, strict=True), start=1):
        location = places[number - 1] if places else f"sentence {number} of {len(sentences)}"
        if not ids:
            raise DataError(f"no tokens in {sentence!r}", location=location)
        if len(ids) + around > most:
            others = f" {too_long:,} are too long." if too_long > 1 else ""
            raise DataError(
                f"{len(ids) + around} tokens, but the model reads at most {most}: {shorten(sentence)}.{others} Leave out what "
                "is too long, or take a model with more model.max_positions",
                location=location,
            )


def _cuts_words(tokenization: Tokenization) -> bool:
    """Whether the stock tokenizer cuts texts into words: not if an analyser did before, nor with the pieces of Gemma, Llama and
    SentencePiece's split_by_whitespace=false, which may hold spaces."""
    if tokenization.segmenter is not None:
        return False
    rules = tokenization.plain().pre_tokenizer
    return rules is not None and len(rules.pre_tokenize_str(tokenization.normalized("a a"))) > 1


def _words(tokens: Iterable[tuple[int | None, tuple[int, int]]], text: str) -> tuple[int, ...]:
    """The number of the word that each token belongs to, from the tokenizer's own number and the token's place in the text.

    Of a script without spaces each token is a word, but not each of several tokens of one character.
    """
    numbers, before, was_alone, end = list[int](), None, False, 0
    for word, (first, last) in tokens:
        alone = first < last and WITHOUT_SPACES.search(text, first, last) is not None
        begins = (word or 0) != before or ((alone or was_alone) and first >= end)
        numbers.append((numbers[-1] if numbers else -1) + begins)
        before, was_alone, end = word or 0, alone, max(end, last)
    return tuple(numbers)


def _spelled(tokenization: Tokenization, encoded: _Encoded) -> tuple[Iterable[tuple[int, tuple[int, int]]], str]:
    """The words and places of tokens whose places in the text are not known, in the text that their names make."""
    names = [tokenization.token(one) for one in encoded.ids]
    places = pairwise(accumulate(map(len, names), initial=0))
    return zip(encoded.words, places, strict=True), "".join(names)


def _beginning(tokenization: Tokenization) -> list[int]:
    """What stands before every text of a causal model: not the end of the text, which some tokenizers add as well."""
    framed = tokenization.causal().encode_one("")
    return framed[:-1] if len(framed) > 1 and framed[-1] == tokenization.special.sep else framed


def _causal_copies(begin: Sequence[int], encoded: Sequence[_Encoded]) -> list[_Copy]:
    first = len(begin) - 1
    return [_Copy(number, [*begin, *ids[:-1]], range(first, first + len(ids)), ids) for number, (ids, _) in enumerate(encoded)]


def _masked_copies(model: LoadedModel, encoded: Sequence[_Encoded], *, plain: bool) -> list[_Copy]:
    special = model.tokenization.special
    copies = []
    for number, (ids, words) in enumerate(encoded):
        for place, target in enumerate(ids):
            masked = list(ids)
            end = place + 1
            while not plain and end < len(ids) and words[end] == words[place]:
                end += 1
            masked[place:end] = [special.mask] * (end - place)
            copies.append(_Copy(number, [special.cls, *masked, special.sep], [place + 1], [target]))
    return copies


def _rows(copies: Sequence[_Copy], length: int) -> Iterator[list[_Copy]]:
    """Copies that fill rows of `length` tokens; `copies` go from long to short."""
    first, last = 0, len(copies) - 1
    while first <= last:  # the longest that are left, and what room is then left to the shortest
        row, room = [], length
        while first <= last and len(copies[first].ids) <= room:
            row.append(copies[first])
            room -= len(copies[first].ids)
            first += 1
        while first <= last and len(copies[last].ids) <= room:
            row.append(copies[last])
            room -= len(copies[last].ids)
            last -= 1
        yield row


def _add_scores(model: LoadedModel, params: object, batch: Sequence[list[_Copy]], length: int, totals: np.ndarray) -> None:
    shape = (max(1, BATCH_TOKENS // length), length)
    ids, segments, positions = (np.zeros(shape, np.int32) for _ in range(3))
    ids[:], segments[:] = model.tokenization.special.pad, -1
    asked: list[tuple[int, int, int, int]] = []  # row, position, token, sentence
    for row, copies in enumerate(batch):
        begin = 0
        for segment, copy in enumerate(copies):
            end = begin + len(copy.ids)
            ids[row, begin:end], segments[row, begin:end], positions[row, begin:end] = copy.ids, segment, range(end - begin)
            asked += [
                (row, begin + place, target, copy.number) for place, target in zip(copy.places, copy.targets, strict=True)
            ]
            begin = end
    places = np.zeros((3, power_of_two(len(asked), least=64)), np.int32)
    rows, columns, targets, numbers = zip(*asked, strict=True)
    places[:, : len(asked)] = rows, columns, targets
    found = _log_probabilities(params, ids, segments, positions, places, config=model.config, vocab_size=model.vocab_size)
    np.add.at(totals, list(numbers), np.asarray(found, np.float64)[: len(asked)])


@partial(jax.jit, static_argnames=("config", "vocab_size"))
def _log_probabilities(
    params: bert.MaskedModel | Decoder,
    ids: Int[Array, "B L"],
    segments: Int[Array, "B L"],
    positions: Int[Array, "B L"],
    places: Int[Array, "3 P"],
    *,
    config: ModelConfig,
    vocab_size: int,
) -> Float[Array, " P"]:
    """Log-probabilities of the third row's tokens, at the rows and positions that the others name."""
    rows, columns, targets = places
    tokens = bert.EncoderInput(ids, segments, types=jnp.zeros_like(ids), positions=positions)
    hidden = bert.encode(params, tokens, config=config, execution=EXECUTION, randomness=None)[rows, columns]
    if isinstance(params, Decoder):
        logits = decoder.next_token_logits(params, hidden, execution=EXECUTION, vocab_size=vocab_size)
    else:
        logits = bert.masked_logits(params, hidden, config=config, execution=EXECUTION, vocab_size=vocab_size)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)
