"""The passages of a text that best show how tokenizers differ: those that suit one of them best, or worst.

A tokenizer's cost of a passage is its tokens per character. An unknown token counts once for each character it hides, or a
vocabulary would look efficient by knowing nothing. A side is one tokenizer that wins, or loses, against all others; its margin
is the difference in cost to the next best (or next worst) one. The sides take turns, so that a tokenizer that is bad throughout
does not fill the list.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpulm.readable import visible
from tpulm.tokenization.pipelines import CONTINUATION, SPACE, from_byte_characters
from tpulm.tokenization.report import CountedTokens, TokenTally
from tpulm.tokenization.special import is_slot
from tpulm.tokenization.tokenization import Tokenization

_LEAST_DISTINCT = 10  # distinct characters of a passage: "ㅋㅋㅋㅋㅋㅋ…" would fill every list
_KEPT_CHARACTERS = 2_000  # per document
_KEPT_DOCUMENTS = 50  # per side, from which the best passages are taken
_MOST_ALIKE = 0.4  # fraction of words or letter trigrams that two passages shown may have in common
_PASSAGE = re.compile(r"(?:\S(?:.{0,58}\S)?(?!\S)|\S{60})\s*", re.DOTALL)  # consecutive words, or a part of a long one


class ShownToken(NamedTuple):
    """A token of a passage. `text` is its displayable text, or the passage's text for an unknown token."""

    token: str
    text: str
    begins_word: bool
    unknown: bool


@dataclass(frozen=True)
class Contrast:
    """A text that costs `tokenizer` less than all others (`best`), or more. Tokenizers are named by their labels."""

    tokenizer: str
    best: bool
    text: str
    cost: Mapping[str, float]
    pieces: Mapping[str, Sequence[ShownToken]]


class _Side(NamedTuple):
    tokenizer: str
    best: bool

    def margin(self, cost: Mapping[str, float]) -> float:
        others = [one for label, one in cost.items() if label != self.tokenizer]
        return min(others) - cost[self.tokenizer] if self.best else cost[self.tokenizer] - max(others)


class Contrasts:
    """Keeps the documents of a stream with the largest margins of each side."""

    def __init__(self, tokenizations: Mapping[str, Tokenization]):
        ways = (True, False) if len(tokenizations) > 2 else (True,)  # with two, one wins what the other loses
        self._tokenizations = tokenizations
        self._number = 0
        self._kept: dict[_Side, list[tuple[float, int, str]]] = {_Side(one, way): [] for way in ways for one in tokenizations}

    def add(self, text: str, tokens: Iterable[CountedTokens]) -> None:
        self._number -= 1  # of equal margins the first is kept
        cost = self._cost(text, tokens)
        for side, kept in self._kept.items():
            margin = side.margin(cost)
            if margin > 0 and (len(kept) < _KEPT_DOCUMENTS or margin > kept[0][0]) and _is_varied(text):
                heapq.heappush(kept, (margin, self._number, text[:_KEPT_CHARACTERS]))
                if len(kept) > _KEPT_DOCUMENTS:
                    heapq.heappop(kept)

    def found(self, count: int) -> tuple[Contrast, ...]:
        """Up to `count` of the best passages in the kept documents, no two of them alike."""
        kept = {text for documents in self._kept.values() for _, _, text in documents}
        passages = sorted({passage.strip() for text in kept for passage in _PASSAGE.findall(text) if _is_varied(passage)})
        counted = [TokenTally(made).add(passages) for made in self._tokenizations.values()]
        costs = {text: self._cost(text, tokens) for text, *tokens in zip(passages, *counted, strict=True)}
        chosen = _in_turns(self._kept, costs, count)
        pieces = {label: _pieces([text for _, text in chosen], made) for label, made in self._tokenizations.items()}
        return tuple(
            Contrast(*side, text, costs[text], {label: found[number] for label, found in pieces.items()})
            for number, (side, text) in enumerate(chosen)
        )

    def _cost(self, text: str, tokens: Iterable[CountedTokens]) -> dict[str, float]:
        characters = len("".join(text.split()))
        return {label: one.cost / characters for label, one in zip(self._tokenizations, tokens, strict=True)}


def _in_turns(sides: Iterable[_Side], costs: Mapping[str, Mapping[str, float]], count: int) -> list[tuple[_Side, str]]:
    """Every side's best passage, then every side's next best, and so on, without near-duplicates."""
    waiting: deque[tuple[_Side, Iterator[str]]] = deque()
    for side in sides:
        margins = {passage: margin for passage, one in costs.items() if (margin := side.margin(one)) > 0}
        waiting.append((side, iter(sorted(margins, key=margins.__getitem__, reverse=True))))
    chosen: list[tuple[_Side, str]] = []
    while waiting and len(chosen) < count:
        side, best = waiting.popleft()
        passage = next((one for one in best if all(_alike(one, other) <= _MOST_ALIKE for _, other in chosen)), None)
        if passage is not None:
            chosen.append((side, passage))
            waiting.append((side, best))
    return chosen


def _is_varied(text: str) -> bool:
    return len(set(text)) >= _LEAST_DISTINCT


def _alike(one: str, other: str) -> float:
    """The larger of the fractions of words and of letter trigrams in common."""
    words = [set(text.split()) for text in (one, other)]
    groups = [{text[start : start + 3] for start in range(len(text) - 2)} for text in (one, other)]
    return max(len(mine & theirs) / max(1, min(len(mine), len(theirs))) for mine, theirs in (words, groups))


def _pieces(texts: list[str], made: Tokenization) -> list[list[ShownToken]]:
    known, encodings = forms(made), made.plain().encode_batch(texts, add_special_tokens=False)
    return [
        [_piece(text, *offsets, index, made, known) for index, offsets in zip(one.ids, one.offsets, strict=True)]
        for text, one in zip(texts, encodings, strict=True)
    ]


def _piece(text: str, start: int, stop: int, index: int, made: Tokenization, known: dict[int, Form]) -> ShownToken:
    form, token = known.get(index), made.token(index)
    if index == made.special.unknown or form is None:
        begins = start == 0 or text[start - 1].isspace() or text[start : start + 1].isspace()
        return ShownToken(token, visible(text[start:stop].strip()), begins, index == made.special.unknown)
    written = visible(form.text)  # bytes as "⟨E3 81⟩"
    return ShownToken(token, written if isinstance(form.text, bytes) else written.replace(" ", "␣"), form.begins_word, False)


# -- tokens as text --

# WordPiece marks the continuation of a word ("##ing"); SentencePiece ("▁the") and byte-level BPE ("Ġthe") mark the space before
# a word. A token's form is free of these marks, so that the tokens of different vocabularies can be compared.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character that is not in the vocabulary


class Form(NamedTuple):
    """A token's text without marks; bytes if the token is a named byte, or a part of a character."""

    text: str | bytes
    begins_word: bool


def forms(tokenization: Tokenization) -> dict[int, Form]:
    """Id -> form, for all tokens except special tokens and unused slots."""
    specification = json.loads(tokenization.canonical_json)
    special = {token["id"] for token in specification["added_tokens"] if token["special"]} | set(tokenization.special)
    byte_level = _is_byte_level(specification)
    sign = specification["model"].get("continuing_subword_prefix") or CONTINUATION
    wordpiece = tokenization.algorithm == "WordPiece"
    found: dict[int, Form] = {}
    for token, index in tokenization.vocabulary().items():
        if index in special or is_slot(token):
            continue
        if byte_level:
            found[index] = _of_bytes(token)
        elif wordpiece:
            goes_on = token.startswith(sign) and token != sign
            found[index] = Form(token[len(sign) :] if goes_on else token, not goes_on)
        else:
            found[index] = _of_pieces(token)
    return found


def _is_byte_level(specification: dict) -> bool:
    return '"ByteLevel"' in json.dumps([specification.get("pre_tokenizer"), specification.get("decoder")])


def _of_bytes(token: str) -> Form:
    data = from_byte_characters(token)
    if data is None:
        return Form(token, False)
    begins = data.startswith(b" ") and data != b" "
    data = data[1:] if begins else data
    try:
        return Form(data.decode(), begins)
    except UnicodeDecodeError:
        return Form(data, begins)


def _of_pieces(token: str) -> Form:
    if match := _BYTE.fullmatch(token):
        return Form(bytes.fromhex(match[1]), False)
    begins = token.startswith(SPACE) and token != SPACE
    return Form((token[1:] if begins else token).replace(SPACE, " "), begins)
