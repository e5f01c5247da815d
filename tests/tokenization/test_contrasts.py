"""The passages on which tokenizers differ."""

from __future__ import annotations

import pytest

from tpulm.tokenization import Tokenization
from tpulm.tokenization.contrasts import Contrast, Contrasts
from tpulm.tokenization.forms import forms
from tpulm.tokenization.tally import TextTally, TokenTally


def contrasts(tokenizations: list[Tokenization], texts: list[str], count: int) -> tuple[Contrast, ...]:
    found, text_tally, tallies = Contrasts(len(tokenizations)), TextTally(), [TokenTally(made) for made in tokenizations]
    encoded = [made.plain().encode_batch(texts, add_special_tokens=False) for made in tokenizations]
    for number, text in enumerate(texts):
        tokens = [tally.add(text, batch[number]) for tally, batch in zip(tallies, encoded, strict=True)]
        found.add(text, text_tally.add(text), tokens)
    return found.found(tokenizations, [forms(made) for made in tokenizations], count=count)


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
    three = list(trained.values())
    found = contrasts(three, [*texts[:500], SPREAD], 6)
    assert len(found) == 6
    assert len({(one.tokenizer, one.best) for one in found}) >= 3
    for one in found:
        assert list(one.costs) == pytest.approx([cost_by_hand(made, one.text) for made in three])
        others = [cost for number, cost in enumerate(one.costs) if number != one.tokenizer]
        assert one.costs[one.tokenizer] < min(others) if one.best else one.costs[one.tokenizer] > max(others)


def test_of_each_side_the_largest_margin_comes_first(trained: dict[str, Tokenization], texts: list[str]):
    two = [trained["wordpiece"], trained["bpe"]]
    given = [text for text in texts[:300] if len(text) <= 60 and len(set(text)) >= 10]
    found = contrasts(two, given, 2)
    margins = [cost_by_hand(two[1], text.strip()) - cost_by_hand(two[0], text.strip()) for text in given]
    assert [(one.tokenizer, one.best) for one in found] == [(0, True), (1, True)]
    assert found[0].costs[1] - found[0].costs[0] == pytest.approx(max(margins))
    assert found[1].costs[1] - found[1].costs[0] == pytest.approx(min(margins))


def test_an_unknown_text_is_not_thrifty(trained: dict[str, Tokenization]):
    found = contrasts([trained["wordpiece"], trained["bpe"]], ["the 龘龘 龘龘龘 漢字漢字 was a good bad thing"], 1)
    [one] = found
    assert one.costs[0] == pytest.approx(cost_by_hand(trained["wordpiece"], one.text))
    unknown = [piece for piece in one.pieces[0] if piece.unknown]
    assert {piece.text for piece in unknown} >= {"龘", "漢"} and all(piece.token == "[UNK]" for piece in unknown)
    assert not any(piece.unknown for piece in one.pieces[1])


def test_pieces_write_the_passage(trained: dict[str, Tokenization]):
    """Marked where words begin."""
    text = "the qzx was good, vkj"
    [one] = contrasts([trained["wordpiece"], trained["unigram"]], [text], 1)
    for pieces in one.pieces:
        assert "".join(piece.text for piece in pieces).replace("␣", "") == text.replace(" ", "")
        blanks = [piece.text for piece in pieces].count("␣")  # a piece of its own before a word that has none with it
        assert [piece.begins_word for piece in pieces].count(True) + blanks == 5


def test_repetitions_and_likenesses_are_left_out(trained: dict[str, Tokenization]):
    two = [trained["wordpiece"], trained["bpe"]]
    assert contrasts(two, ["zzzzzzzzzzzzzzzzzzzzzzzzz"], 3) == ()
    alike = [f"{SPREAD} {number}" for number in range(20)]
    assert len(contrasts(two, alike, 5)) == 1


def test_a_long_document_is_cut_into_passages(trained: dict[str, Tokenization]):
    long = " ".join([COMMON] * 20) + " " + SPREAD
    found = contrasts([trained["wordpiece"], trained["bpe"]], [long, "無" * 30 + "".join(map(chr, range(0x4E00, 0x4E80)))], 4)
    assert found and all(len(one.text) <= 60 for one in found)


def test_none_are_asked_for(trained: dict[str, Tokenization]):
    assert contrasts(list(trained.values()), [SPREAD], 0) == ()
