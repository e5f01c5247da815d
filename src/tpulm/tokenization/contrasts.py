"""The passages of a text that show best how tokenizers differ: those that suit one best, or worst.

A tokenizer's cost of a passage is its tokens per character, where an unknown token counts for all characters it hides: else a
vocabulary would seem thrifty for knowing nothing. A side is one tokenizer that wins, or loses, against all others; its margin
is how much it costs less than the next best one (more than the next worst one). The sides take turns, so that one tokenizer
which is bad throughout does not fill the list.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tokenizers import Encoding

from tpulm.tokenization.forms import Form, visible
from tpulm.tokenization.tally import CountedText, CountedTokens
from tpulm.tokenization.tokenization import Tokenization

_PASSAGE_CHARACTERS = 60
_LEAST_DISTINCT = 10  # characters of a passage: "ㅋㅋㅋㅋㅋㅋ…" would fill every list
_KEPT_CHARACTERS = 2_000  # of a document
_KEPT_DOCUMENTS = 50  # of each side, of which the best passages are taken
_MOST_ALIKE = 0.4  # of the words, or groups of three letters, that two of the passages shown have
_BLANK = "␣"
_WORD_OR_PART = re.compile(rf"\S{{1,{_PASSAGE_CHARACTERS}}}\s*")


class Piece(NamedTuple):
    """A token of a passage. `text` is what it writes, fit to be shown; of an unknown one what stands in the passage."""

    token: str
    text: str
    begins_word: bool
    unknown: bool


class Contrast(NamedTuple):
    """This text costs `tokenizer` less than any other (`best`), or more."""

    text: str
    tokenizer: int
    best: bool
    costs: tuple[float, ...]  # of each tokenizer
    pieces: tuple[tuple[Piece, ...], ...]


class _Side(NamedTuple):
    tokenizer: int
    best: bool

    def margin(self, costs: Sequence[float]) -> float:
        others = [cost for number, cost in enumerate(costs) if number != self.tokenizer]
        return min(others) - costs[self.tokenizer] if self.best else costs[self.tokenizer] - max(others)


class Contrasts:
    """Keeps the documents of a stream with the largest margins of each side."""

    def __init__(self, tokenizers: int):
        ways = (True, False) if tokenizers > 2 else (True,)  # of two, one wins what the other loses
        self._number = 0
        self._kept: dict[_Side, list[tuple[float, int, str]]] = {
            _Side(tokenizer, best): [] for best in ways for tokenizer in range(tokenizers)
        }

    def add(self, text: str, counted: CountedText, tokens: Sequence[CountedTokens]) -> None:
        self._number -= 1  # of equals the first is kept
        costs = [_cost(one, counted.characters) for one in tokens]
        for side, kept in self._kept.items():
            margin = side.margin(costs)
            if margin <= 0 or (len(kept) == _KEPT_DOCUMENTS and margin <= kept[0][0]) or not _is_varied(text):
                continue
            put = heapq.heappush if len(kept) < _KEPT_DOCUMENTS else heapq.heappushpop
            put(kept, (margin, self._number, text[:_KEPT_CHARACTERS]))

    def found(
        self, tokenizations: Sequence[Tokenization], forms: Sequence[dict[int, Form]], *, count: int
    ) -> tuple[Contrast, ...]:
        """The best passages of these documents, no two of them alike."""
        kept = {text for documents in self._kept.values() for _, _, text in documents}
        passages = sorted({passage for text in kept for passage in _passages(text)})
        encoded = [made.plain().encode_batch(passages, add_special_tokens=False) for made in tokenizations]
        unknown = [made.special.unknown for made in tokenizations]
        costs = [
            tuple(
                _cost(_counted(encoding, index), len("".join(passage.split())))
                for encoding, index in zip(encodings, unknown, strict=True)
            )
            for passage, encodings in zip(passages, zip(*encoded, strict=True), strict=True)
        ]
        chosen: list[Contrast] = []
        for side, number in _in_turns(self._kept, passages, costs, count):
            pieces = tuple(
                tuple(_pieces(passages[number], batch[number], made, known))
                for batch, made, known in zip(encoded, tokenizations, forms, strict=True)
            )
            chosen.append(Contrast(passages[number], *side, costs[number], pieces))
        return tuple(chosen)


def _in_turns(
    sides: Iterable[_Side], passages: Sequence[str], costs: Sequence[Sequence[float]], count: int
) -> list[tuple[_Side, int]]:
    """Every side's best passage, then every side's next best, and so on; none that is like one before."""
    waiting: list[tuple[_Side, Iterator[int]]] = []
    for side in sides:
        margins = [side.margin(one) for one in costs]
        found = [number for number in range(len(costs)) if margins[number] > 0]
        waiting.append((side, iter(sorted(found, key=lambda number, margins=margins: -margins[number]))))
    chosen: list[tuple[_Side, int]] = []
    while waiting and len(chosen) < count:
        side, best = waiting.pop(0)
        for number in best:
            if all(_alike(passages[number], passages[other]) <= _MOST_ALIKE for _, other in chosen):
                chosen.append((side, number))
                waiting.append((side, best))
                break
    return chosen


def _passages(text: str) -> Iterator[str]:
    """Words side by side; a word as long as a passage is cut."""
    passage = ""
    for part in [*_WORD_OR_PART.findall(text), ""]:
        if not part or len(passage) + len(part.rstrip()) > _PASSAGE_CHARACTERS:
            if _is_varied(passage):
                yield passage.strip()
            passage = ""
        passage += part


def _counted(encoding: Encoding, unknown_id: int) -> CountedTokens:
    ids = encoding.ids
    hidden = [stop - start for index, (start, stop) in zip(ids, encoding.offsets, strict=True) if index == unknown_id]
    return CountedTokens(len(ids), len(hidden), sum(hidden))


def _cost(tokens: CountedTokens, characters: int) -> float:
    return (tokens.tokens - tokens.unknown_tokens + tokens.hidden_characters) / characters


def _is_varied(text: str) -> bool:
    return len(set(text)) >= _LEAST_DISTINCT


def _alike(one: str, other: str) -> float:
    """The larger of the shares of words and of groups of three letters that both have."""
    return max(
        len(mine & theirs) / max(1, min(len(mine), len(theirs)))
        for mine, theirs in ((set(one.split()), set(other.split())), (_groups(one), _groups(other)))
    )


def _groups(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}


def _without_blanks(text: str | bytes) -> str:
    return visible(text) if isinstance(text, bytes) else visible(text).replace(" ", _BLANK)


def _pieces(text: str, encoding: Encoding, made: Tokenization, known: dict[int, Form]) -> Iterator[Piece]:
    for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        form = known.get(index)
        if index == made.special.unknown or form is None:
            begins = start == 0 or text[start - 1].isspace() or text[start : start + 1].isspace()
            yield Piece(made.token(index), visible(text[start:stop].strip()), begins, index == made.special.unknown)
        else:
            yield Piece(made.token(index), _without_blanks(form.text), form.begins_word, False)
