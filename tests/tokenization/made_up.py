"""Made-up text in three languages, and strings on which tokenizers disagree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tpulm.tokenization import Encoded
from tpulm.tokenization.special import TOKENS

ALGORITHMS = ("wordpiece", "bpe", "unigram")
VOCAB_SIZES = {"wordpiece": 700, "bpe": 800, "unigram": 900}  # what the fixture `trained` has

_ENGLISH = ["the", "a", "was", "good", "bad", "Because", "it's", "don't", "3", "1999", "well-made"]
_KOREAN = ["영화", "영화는", "정말", "재미있다", "ㅋㅋㅋ", "최고", "2시간"]
_JAPANESE = ["私は", "映画を", "見た。", "とても、", "「はい」", "ビール"]
_SYLLABLES = (
    [first + vowel + last for first in "bcdmnrst" for vowel in "aeio" for last in ("", "n", "r")],
    [chr(0xAC00 + 588 * first + 28 * vowel) for first in range(0, 18, 2) for vowel in (0, 4, 8, 13, 20)],
    [chr(0x3041 + 2 * number) for number in range(40)] + list("山川田中日本人大"),
)


def _make_words(common: list[str], syllables: list[str], rng: random.Random) -> list[str]:
    return common + ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Sentences of made-up words, the same ones for every seed, frequent and rare; the Japanese ones without spaces."""
    rng = random.Random(0)
    words = [
        _make_words(common, syllables, rng)
        for common, syllables in zip((_ENGLISH, _KOREAN, _JAPANESE), _SYLLABLES, strict=True)
    ]
    weights = [[1 / (rank + 3) for rank in range(len(language))] for language in words]
    rng.seed(seed)
    texts = []
    for _ in range(count):
        language = rng.randrange(3)
        joint = "" if language == 2 else " "
        chosen = rng.choices(words[language], weights[language], k=rng.randint(1, 14))
        texts.append(joint.join(chosen) + rng.choice(["", ".", "!", "...", " ?"]))
    return texts


def batches(texts: list[str], size: int = 100) -> list[list[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


_TROUBLE = [
    *["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "<0x41>", "<0xE3>", "<unk>", "<s>", "[mask]"],
    *["\x00", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\x7f", "\x85", "\xa0", "\xad"],
    *["\u1680", "\u180e", "\u2000", "\u200a", "\u200b", "\u200d", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000"],
    *["\ufeff", "\ufffd", "\ufffe", "\U0010fffd", "\U0010fffc", "\ue000", "\U000f0000", "\u0378"],
    *["e\u0301", "\u0301", "\u0338", "=\u0338", "<\u0338", "日\u0301", "´", "\u1fef", "\u0344", "\u0600", "\u09c7\u09be"],
    *["가", "\u1100\u1161\u11a8", "\u1161", "\u11a8", "ㄱ", "が", "か\u3099", "\u3099", "ﾊﾞ", "ｶ"],
    *["Ａ", "①", "㎏", "豈", "\U0002f800"],
    *["İ", "ı", "ß", "Σ", "ς", "ŉ", "ﬁ", "Ǆ", "K", "Å"],
    *["👍🏽", "👨\u200d👩\u200d👧", "❤\ufe0f", "🇰🇷", "#\ufe0f\u20e3"],
    *[" ", "  ", "   ", "\t", "\n", "\r\n", " \n", "\n ", "▁", "▁▁", " ▁", "▁ "],
    *["Ġ", "##", "##가", "'s", " 's", "'", "’s", "''"],
    *["、", "。", "「", "」", "…", "...", "·", "￥", "$", "+", "|", "~", "-", "—"],
    *["the", " cat", "영화", " 재미있다", "映画を", "見た", "ビール", "1999", "٣", "½", "x" * 120],
]

troublesome_text = st.lists(st.one_of(st.sampled_from(_TROUBLE), st.text(max_size=4)), max_size=12).map("".join)
"""Any string, with more than its share of what tokenizers disagree about."""


def write_vocabulary(folder: Path, *words: str) -> Path:
    """vocab.txt of BERT's special tokens and these words."""
    (folder / "vocab.txt").write_text("\n".join([*TOKENS, *words]), encoding="utf-8")
    return folder / "vocab.txt"


def of_transformers(folder: Path) -> Any:
    """The tokenizer of a folder as transformers loads it."""
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


def as_lists(encoded: Encoded) -> list[list[int]]:
    """The ids of each text."""
    assert encoded.ids.dtype == np.uint32 and encoded.lengths.dtype == np.int32
    assert encoded.ids.size == encoded.lengths.sum()
    return [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])] if encoded.lengths.size else []


def in_order(tokenizer: Tokenizer) -> list[str]:
    """The tokens by rising id."""
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=lambda token: vocabulary[token])
