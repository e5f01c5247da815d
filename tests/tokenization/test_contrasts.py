"""The passages on which tokenizers differ."""

from __future__ import annotations

import pytest

from tpulm.tokenization import Tokenization
from tpulm.tokenization.contrasts import Contrast, Contrasts
from tpulm.tokenization.report import TokenTally


def contrasts(made: dict[str, Tokenization], texts: list[str], count: int) -> tuple[Contrast, ...]:
    found = Contrasts(made)
    for text, *tokens in zip(texts, *(TokenTally(one).add(texts) for one in made.values()), strict=True):
        found.add(text, tokens)
    return found.found(count)


@pytest.fixture
def two(trained: dict[str, Tokenization]) -> dict[str, Tokenization]:
    return {name: trained[name] for name in ("wordpiece", "bpe")}


SPREAD = "qzxj vkqw jxzq wvkj qxzv"  # in bytes or letters everywhere
COMMON = "the movie was good because it's well-made"


def cost_by_hand(made: Tokenization, text: str) -> float:
    """Tokens per character; an unknown token counts for every character that it hides."""
    encoding = made.plain().encode(text, add_special_tokens=False)
    tokens = 0
    for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        tokens += stop - start if index == made.special.unknown else 1
    return tokens / len("".join(text.split()))


def test_sides_take_turns_and_costs_are_told(trained: dict[str, Tokenization], texts: list[str]):
    found = contrasts(trained, [*texts[:500], SPREAD], 6)
    assert len(found) == 6
    assert len({(one.tokenizer, one.best) for one in found}) >= 3
    for one in found:
        assert one.cost == {name: pytest.approx(cost_by_hand(made, one.text)) for name, made in trained.items()}
        others = [cost for name, cost in one.cost.items() if name != one.tokenizer]
        assert one.cost[one.tokenizer] < min(others) if one.best else one.cost[one.tokenizer] > max(others)


def test_of_each_side_the_largest_margin_comes_first(two: dict[str, Tokenization], texts: list[str]):
    given = [text for text in texts[:300] if len(text) <= 60 and len(set(text)) >= 10]
    found = contrasts(two, given, 2)
    margins = [cost_by_hand(two["bpe"], text.strip()) - cost_by_hand(two["wordpiece"], text.strip()) for text in given]
    assert [(one.tokenizer, one.best) for one in found] == [("wordpiece", True), ("bpe", True)]
    assert found[0].cost["bpe"] - found[0].cost["wordpiece"] == pytest.approx(max(margins))
    assert found[1].cost["bpe"] - found[1].cost["wordpiece"] == pytest.approx(min(margins))


def test_an_unknown_text_is_not_thrifty(two: dict[str, Tokenization]):
    [one] = contrasts(two, ["the 龘龘 龘龘龘 漢字漢字 was a good bad thing"], 1)
    assert one.cost["wordpiece"] == pytest.approx(cost_by_hand(two["wordpiece"], one.text))
    unknown = [piece for piece in one.pieces["wordpiece"] if piece.unknown]
    assert {piece.text for piece in unknown} >= {"龘", "漢"} and all(piece.token == "[UNK]" for piece in unknown)
    assert not any(piece.unknown for piece in one.pieces["bpe"])


def test_pieces_write_the_passage(trained: dict[str, Tokenization]):
    """Marked where words begin."""
    text = "the qzx was good, vkj"
    [one] = contrasts({name: trained[name] for name in ("wordpiece", "unigram")}, [text], 1)
    for pieces in one.pieces.values():
        assert "".join(piece.text for piece in pieces).replace("␣", "") == text.replace(" ", "")
        blanks = [piece.text for piece in pieces].count("␣")  # a piece of its own before a word that has none with it
        assert [piece.begins_word for piece in pieces].count(True) + blanks == 5


def test_blanks_are_shown_whatever_they_are(trained: dict[str, Tokenization]):
    [one] = contrasts({name: trained[name] for name in ("bpe", "unigram")}, ["the\u3000\u3000was  good, qzx"], 1)
    texts = [piece.text for pieces in one.pieces.values() for piece in pieces if piece.text[0] != "⟨"]
    assert texts and not any(text.split() != [text] for text in texts)


def test_repetitions_and_likenesses_are_left_out(two: dict[str, Tokenization]):
    assert contrasts(two, ["zzzzzzzzzzzzzzzzzzzzzzzzz"], 3) == ()
    alike = [f"{SPREAD} {number}" for number in range(20)]
    assert len(contrasts(two, alike, 5)) == 1


def test_a_long_document_is_cut_into_passages(two: dict[str, Tokenization]):
    long = " ".join([COMMON] * 20) + " " + SPREAD
    found = contrasts(two, [long, "無" * 30 + "".join(map(chr, range(0x4E00, 0x4E80)))], 4)
    assert found and all(len(one.text) <= 60 for one in found)


def test_none_are_asked_for(trained: dict[str, Tokenization]):
    assert contrasts(trained, [SPREAD], 0) == ()
