"""Offsets into the original text: what stands there is what the token says, whatever normalizer or analyser is in front."""

from __future__ import annotations

import tempfile
import unicodedata
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from made_up import batches, make_texts
from test_segmenter import PACKAGES, TROUBLE
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tpulm import tokenization
from tpulm.config import CleaningConfig, TokenizerConfig
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Tokenization
from tpulm.tokenization.pipelines import BYTE_CHARACTERS

WORDS = [
    *("the Café", "naïve", "İstanbul", "ΟΔΟΣ", "½", "ﬁne", "e\u0301\u0327", "it's", "[MASK]", "1,000", "x\u200dy"),
    *("영화를", "재미있었어요ㅋㅋㅋ", "각각", "\u1112\u1161\u11ab\u1100\u1173\u11af", "봤다.", "ﾡￂ", "㈜가"),
    *("吾輩は猫である。", "ｶﾞｷﾞ", "か\u3099く", "ビール", "㌔", "㍿", "Ｔｏｋｙｏ", "日本語", "ﾊﾟ"),
    *(" ", "  ", "\t", "\n", "\u3000", "\xa0", "\x85", "\0", "\ufeff", "😀👍🏽", "\ud83d\ude00", "\udc00", "🇰🇷", "𝒳"),
]
texts = st.lists(st.one_of(st.sampled_from([*WORDS, *TROUBLE]), st.characters()), max_size=12).map("".join)
CONFIGS: dict[str, dict[str, Any]] = {
    "wordpiece": {},
    "uncased": {"lowercase": True, "strip_accents": True},
    "bpe": {"algorithm": "bpe"},
    "unigram": {"algorithm": "unigram", "lowercase": True},
    "mecab": {"morphemes": "mecab", "lowercase": True},
    "kiwi": {"morphemes": "kiwi"},
}
OTHERS = ("google", "nfkc", "sentencepiece", "wordpiece after cleaning", "unigram after cleaning")
BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
BLANKS = [chr(point).encode() for point in range(0x3001) if chr(point).isspace()]


@cache
def made(name: str) -> Tokenization:
    learnt = [*make_texts(400), *(word for word in WORDS if max(word) < "\ud800")] * 2
    kind, cleaned, _ = name.partition(" after cleaning")
    if kind in CONFIGS:
        if analyser := CONFIGS[kind].get("morphemes"):
            pytest.importorskip(PACKAGES[analyser])
        config, cleaning = TokenizerConfig(vocab_size=1_000, **CONFIGS[kind]), CleaningConfig(unicode_form="NFKC")
        return tokenization.train(batches(learnt), config, cleaning=cleaning if cleaned else None)
    if name == "sentencepiece":
        spm: Any = pytest.importorskip("sentencepiece")
        settings: dict[str, Any] = {"vocab_size": 700, "hard_vocab_limit": False, "minloglevel": 2, "byte_fallback": True}
        sentences = iter([text.replace("\n", " ") for text in learnt])
        with tempfile.TemporaryDirectory() as folder:
            spm.SentencePieceTrainer.train(sentence_iterator=sentences, model_prefix=f"{folder}/m", **settings)
            return tokenization.load(f"{folder}/m.model")
    base = tokenization.train(batches(learnt), TokenizerConfig(vocab_size=1_000))
    library = Tokenizer.from_str(base.canonical_json)
    bert = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    library.normalizer = bert if name == "google" else normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return Tokenization(library, base.special)


@pytest.fixture(scope="module", params=[*CONFIGS, *OTHERS])
def tokenizer(request: pytest.FixtureRequest) -> Tokenization:
    return made(request.param)


def folded(text: str) -> str:
    """Without what normalizers change: case, accents, widths, composition, blanks."""
    text = "".join(c.lower() for c in unicodedata.normalize("NFKD", text.lower()))
    text = unicodedata.normalize("NFKD", text.replace("ς", "σ"))
    return "".join(c for c in text if unicodedata.category(c)[0] not in "MC" and not c.isspace() and c != "\ufffd")


def misaligned(tokenizer: Tokenization, text: str, ids: np.ndarray, spans: np.ndarray) -> str | None:
    """What is wrong with the offsets of a text, judged by the tokens' own letters."""
    covered = np.zeros(len(text), bool)
    if np.any(np.diff(spans, axis=0) < 0):
        return "they go back"
    for index, (begin, end) in zip(ids.tolist(), spans.tolist(), strict=True):
        if not 0 <= begin <= end <= len(text):
            return f"{begin}-{end} is outside"
        covered[begin:end] = True
        token, there = tokenizer.token(index), text[begin:end]
        if index == tokenizer.special.unknown or (token.startswith("<0x") and len(token) == 6):
            continue
        if tokenizer.algorithm == "BPE":
            said = bytes(BYTE_OF[c] for c in token)
            whole = there.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
            is_blank = not there and (not said.strip() or any(said in blank or said.startswith(b" ") for blank in BLANKS))
            if said.strip() not in whole and whole not in said and not is_blank:
                return f"{said!r} is not in {there!r}"
            continue
        said = folded(token.removeprefix("##").replace("▁", ""))
        if any(unicodedata.category(c) == "Cn" for c in there):
            continue  # newer than Python's tables
        there = there.replace("▁", "")
        alone = np.count_nonzero((spans[:, 0] < end) & (spans[:, 1] > begin)) == 1
        if said not in folded(there) or (alone and said != folded(there)):
            return f"{token!r} is not {there!r}"
    lost = [c for c, seen in zip(text, covered, strict=True) if not seen and folded(c)]
    return f"no token has {lost}" if lost else None


@settings(max_examples=25)
@given(st.lists(texts, max_size=3))
def test_what_stands_there_is_what_the_token_says(tokenizer: Tokenization, some: list[str]) -> None:
    found, expected = tokenizer.encode_with_offsets(some), tokenizer.encode(some)
    assert found.ids.tolist() == expected.ids.tolist() and found.lengths.tolist() == expected.lengths.tolist()
    at = 0
    for text, length in zip(some, found.lengths.tolist(), strict=True):
        wrong = misaligned(tokenizer, text, found.ids[at : at + length], found.spans[at : at + length])
        assert wrong is None, (text, wrong)
        at += length


@pytest.mark.parametrize(
    ("name", "text"), [("uncased", "Café cafe\u0301"), ("nfkc", "ｶﾞ か\u3099"), ("google", "각 \u1112\u1161\u11ab")]
)
def test_marks_belong_to_their_letters(name: str, text: str) -> None:
    spans = made(name).encode_with_offsets([text]).spans.tolist()
    assert text.index(" ") not in {place for begin, end in spans for place in range(begin, end)}
    assert spans[0][0] == 0 and spans[-1][1] == len(text)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_what_the_corpus_normalization_changes_has_its_place_in_the_text_as_given(algorithm: str):
    config = TokenizerConfig(algorithm=algorithm, vocab_size=700)  # pyright: ignore
    cleaning = CleaningConfig(unicode_form="NFKC", max_repeats=3)
    one = tokenization.train(batches([*make_texts(400) * 2, *["ABC 한국 ガス zzz!"] * 50]), config, cleaning=cleaning)
    parts = ["ＡＢＣ", unicodedata.normalize("NFD", "한국"), "ｶﾞｽ", "zzzzzzz", "!"]
    text = f"{parts[0]}\u3000{parts[1]}\xa0 {parts[2]}\t{parts[3]}{parts[4]}"
    found = one.encode_with_offsets([text])
    assert found.ids.tolist() == one.encode(["ABC 한국 ガス zzz!"]).ids.tolist() == one.encode([text]).ids.tolist()
    for part in parts:
        begin, end = text.index(part), text.index(part) + len(part)
        inside = [span for span in found.spans.tolist() if span[0] < end and span[1] > begin]
        assert inside and inside[0][0] in (begin, begin + 4 * (part == "zzzzzzz")), part  # the last three of them stay
        assert all(begin <= a and b <= end for a, b in inside), part
        assert inside[-1][1] == end, part


@pytest.mark.parametrize("normalizer", [None, normalizers.NFKC()])
def test_characters_that_a_vocabulary_lacks_keep_the_places_of_the_others(normalizer: Any) -> None:
    """Without an unknown token the library drops them, and its own offsets count what is left."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", "ab", "é"]
    library = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, [("a", "b")]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer is not None:
        library.normalizer = normalizer
    made = Tokenization(library, SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4))
    texts = ["??ab c", "a?b c", "ab ?", "?e\u0301b" if normalizer else "?éb"]
    found = made.encode_with_offsets(texts)
    spans = [[tuple(span) for span in some] for some in np.split(found.spans.tolist(), np.cumsum(found.lengths)[:-1])]
    last = [(1, 3), (3, 4)] if normalizer else [(1, 2), (2, 3)]
    assert spans == [[(2, 4), (5, 6)], [(0, 3), (4, 5)], [(0, 2)], last]
