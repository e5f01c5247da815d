import unicodedata

import numpy as np
from hypothesis import given, strategies as st
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from tpulm.corpus.identity import RANGE, HashPurpose, draw, holdout_threshold, keys_of, keys_of_texts, letters

KEYS = keys_of([b"document %d" % number for number in range(100_000)])


def test_a_key_is_the_digest_of_the_text():
    keys = keys_of(["한국어".encode(), b""])
    whole = [int(high) << 64 | int(low) for high, low in zip(keys.high, keys.low, strict=True)]
    assert whole == [xxh3_128_intdigest("한국어".encode()), 0x99AA06D3014798D86001C324468D497F]


def letters_one_by_one(text: str) -> str:
    kept = []
    for character in text:
        category = unicodedata.category(character)
        if category[0] in "LN" or (category in ("Mn", "Mc") and "VARIATION SELECTOR" not in unicodedata.name(character)):
            folded = character.casefold()
            kept.append(folded if len(folded) == 1 else character)
    return "".join(kept)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\0"), max_size=8), min_size=1))
def test_letters_are_what_remains_without_marks_spaces_and_capitals(texts: list[str]):
    assert [text.decode() for text in letters("\0".join(texts))] == list(map(letters_one_by_one, texts))


def test_letters_of_several_scripts():
    texts = ["나는 좋아요!!❤️", "Ab-C, 1²\n", "हिन्दी।", "𠀀が󠄀", "..."]
    assert [text.decode() for text in letters("\0".join(texts))] == ["나는좋아요", "abc1²", "हिन्दी", "𠀀が", ""]
    assert letters("A b,\nC\0!!\0Z") == [b"abc", b"", b"z"]


def test_near_copies_share_the_half_that_decides_and_no_other():
    texts = ("Wow! 좋다", "wow 좋다.", "ㅋ", "!!", "?!")
    keys = keys_of_texts([text.encode() for text in texts], "\0".join(texts))
    assert keys.low[0] == keys.low[1] == xxh3_64_intdigest("wow좋다".encode())
    assert keys.high[0] != keys.high[1] and len(set(keys.low.tolist())) == 4
    assert keys.low[3] == xxh3_64_intdigest(b"!!")


def test_draws_are_uniform_and_independent_of_each_other_and_of_the_part():
    uniforms = [draw(KEYS, purpose) / RANGE for purpose in HashPurpose] + [KEYS.high / RANGE, KEYS.low / RANGE]
    for uniform in uniforms:
        assert abs(float(uniform.mean()) - 0.5) < 0.005
        counts = np.histogram(uniform, 10, (0, 1))[0]
        assert np.abs(counts - 10_000).max() < 400
    assert np.abs(np.corrcoef(uniforms) - np.eye(len(uniforms))).max() < 0.02


def test_both_sides_of_a_tiny_corpus_have_a_document():
    several = [RANGE // 4, RANGE // 3, RANGE - 1]
    for draws, fraction, held in (([7], 0.9, 0), ([3, 9], 1e-9, 1), ([3, 9], 0.999, 1), (several, 0.5, 2)):
        threshold = holdout_threshold(fraction, min(draws), max(draws))
        assert sum(number < threshold for number in draws) == held
