"""The passages on which tokenizers differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tpulm.tokenization import Tokenization, load
from tpulm.tokenization.comparison import Overlap, overlap
from tpulm.tokenization.contrasts import Contrast, Contrasts, Form, forms
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


# -- tokens as text --


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]


def loaded(tokenizer: Tokenizer, path: Path) -> Tokenization:
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL[:5]])
    tokenizer.save(str(path))
    return load(path)


def signed(word: str) -> str:
    """As byte-level vocabularies write it: by the library itself."""
    return "".join(part for part, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(word))


@pytest.fixture
def three(tmp_path: Path) -> dict[str, dict[int, Form]]:
    """The same vocabulary in three spellings: "the" and "영화" begin words, "ing" and "는" go on."""
    words, parts = ["the", "영화"], ["ing", "는"]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words, *(f"##{part}" for part in parts), "##"]), "utf-8")
    byte_level = [*SPECIAL, *(signed(f" {word}") for word in words), *map(signed, parts), signed("영")[:2], signed(" ")]
    bpe = Tokenizer(models.BPE({word: index for index, word in enumerate(byte_level)}, []))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    pieces = [*SPECIAL, *(f"▁{word}" for word in words), *parts, "▁", "<0xEC>"]
    unigram = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 1, False))
    return {
        "wordpiece": forms(load(tmp_path / "vocab.txt")),
        "bpe": forms(loaded(bpe, tmp_path / "bpe.json")),
        "unigram": forms(loaded(unigram, tmp_path / "unigram.json")),
    }


COMMON_WORDS = {Form("the", True), Form("영화", True), Form("ing", False), Form("는", False)}


def test_signs_are_gone_and_places_stay(three: dict[str, dict[int, Form]]):
    assert set(three["wordpiece"].values()) == COMMON_WORDS | {Form("##", True)}  # two signs of a number are a word
    assert set(three["bpe"].values()) == COMMON_WORDS | {Form("영".encode()[:2], False), Form(" ", False)}
    assert set(three["unigram"].values()) == COMMON_WORDS | {Form(" ", False), Form(b"\xec", False)}


def test_special_tokens_and_slots_have_none(three: dict[str, dict[int, Form]]):
    assert all(min(found) == len(SPECIAL) for found in three.values())


def test_overlap_by_hand(three: dict[str, dict[int, Form]]):
    wordpiece, bpe = (frozenset(three[name].values()) for name in ("wordpiece", "bpe"))
    assert overlap(wordpiece, bpe) == Overlap(4, 4 / 5, 4 / 7)
    assert overlap(bpe, wordpiece) == Overlap(4, 4 / 6, 4 / 7)
    assert overlap(bpe, bpe) == Overlap(6, 1.0, 1.0)
    assert overlap(frozenset(), bpe).share == 0.0


def test_place_matters():
    assert overlap({Form("a", True)}, {Form("a", False)}).both == 0


def test_forms_of_trained_ones_write_the_text_again(trained: dict[str, Tokenization]):
    for name in ("bpe", "unigram"):
        made = trained[name]
        known = forms(made)
        found = b""
        for index in made.encode(["a was 영화는 good"]).ids.tolist():
            form = known[index]
            found += b" " * form.begins_word + (form.text if isinstance(form.text, bytes) else form.text.encode())
        assert found.decode().strip() == "a was 영화는 good"
