"""Identity: ids in bulk are the stock tokenizer's, however the texts come; and no string stops it."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from made_up import ALGORITHMS, VOCAB_SIZES, as_lists, batches, make_texts, of_transformers, troublesome_text
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tpulm import tokenization
from tpulm.config import CleaningConfig, TokenizerConfig
from tpulm.corpus.cleaning import Cleaner
from tpulm.corpus.documents import DocumentBatch
from tpulm.tokenization import Tokenization, encode, pipelines, special
from tpulm.tokenization.pipelines import unigram_words


def stock_ids(made: Tokenization, texts: list[str]) -> list[list[int]]:
    """What the library gives when it is told that special tokens are text."""
    tokenizer = Tokenizer.from_str(made.canonical_json)
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def test_any_string_has_the_stock_tokenizers_ids(made: Tokenization):
    @settings(max_examples=40)
    @given(st.lists(troublesome_text, max_size=4))
    def check(texts: list[str]):
        assert as_lists(made.encode(texts)) == stock_ids(made, texts)

    check()
    assert as_lists(made.encode([])) == [] and as_lists(made.encode([""])) == [[]]
    assert as_lists(made.encode(["the \ud800cat", "dog\udfff"])) == stock_ids(made, ["the \ufffdcat", "dog\ufffd"])


def test_natural_text_however_it_is_cut_into_calls_and_without_the_engine(made: Tokenization, monkeypatch: pytest.MonkeyPatch):
    texts = make_texts(200, seed=1)
    expected = stock_ids(made, texts)
    assert as_lists(made.encode(texts)) == expected
    fresh, rng = pickle.loads(pickle.dumps(made)), random.Random(0)
    ends = sorted({0, *rng.sample(range(200), 8), 200})
    assert [ids for ends in itertools.pairwise(ends) for ids in as_lists(fresh.encode(texts[slice(*ends)]))] == expected
    monkeypatch.setattr(encode, "tokie", None)
    fresh = pickle.loads(pickle.dumps(made))
    assert fresh.encoder.engine is None and as_lists(fresh.encode(texts)) == expected


def test_a_vocabulary_with_gaps_is_encoded_by_its_own_ids():
    tokenizer = pipelines.wordpiece(TokenizerConfig(lowercase=True))
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "cat": 5, "##s": 7}
    tokenizer.model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="##")
    made = Tokenization(tokenizer, special.locate(vocabulary, "here"))
    assert as_lists(made.encode(["Cats", "cat CATS"])) == stock_ids(made, ["Cats", "cat CATS"]) == [[5, 7], [5, 5, 7]]


# -- the engine ---------------------------------------------------------------------------------------------------------


needs_engine = pytest.mark.skipif(encode.tokie is None, reason="no wheel of tokie for this platform")
DISAGREE = ["\u0378", "\U00020000\U000e0100", "\u1c8a", "a\u0897b"]  # unassigned, or newer than one of the two tables
MARKED = ["हिन्दी में लिखा हुआ, कि", "கி கீ", "می\u200cخواهم", "e\u0301a"]  # one word for our BPE, several for GPT-2's


@needs_engine
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("changes", "has_engine"),
    [
        ({}, {"wordpiece", "bpe", "unigram"}),
        ({"lowercase": True}, {"wordpiece", "bpe", "unigram"}),
        ({"lowercase": True, "strip_accents": True}, {"wordpiece"}),
        ({"strip_accents": True}, set()),
        ({"split_cjk": False}, {"bpe", "unigram"}),
    ],
)
def test_what_the_engine_is_asked_has_the_librarys_ids(trained: dict, algorithm: str, changes: dict, has_engine: set[str]):
    """Letters of all of Unicode, blanks, controls, accents and names, in texts of up to a few hundred characters."""
    made = with_pipeline(trained[algorithm], TokenizerConfig.model_validate({"algorithm": algorithm, **changes}))
    texts = [*random_texts(60, seed=4), *DISAGREE, *MARKED]
    assert as_lists(made.encode(texts)) == stock_ids(made, texts)
    assert (made.encoder.engine is not None) == (algorithm in has_engine)


@needs_engine
def test_a_text_that_grows_when_it_becomes_lower_case_is_cut_first(trained: dict[str, Tokenization]):
    made = with_pipeline(trained["bpe"], TokenizerConfig(algorithm="bpe", lowercase=True))
    texts = [("İ" * 5_000 + " the cat ") * 4, "İ"]
    assert as_lists(made.encode(texts)) == stock_ids(made, texts)


@needs_engine
def test_from_the_first_difference_on_the_library_encodes(trained: dict[str, Tokenization]):
    made = pickle.loads(pickle.dumps(trained["wordpiece"]))
    engine = made.encoder.engine
    assert engine is not None

    class Wrong:
        """About one word, whose characters it knows."""

        def encode_batch_flat(self, texts: list[str], **options: bool) -> Any:
            return engine.tokenizer.encode_batch_flat([text.replace("the", "th") for text in texts], **options)

    made.encoder.engine = engine._replace(tokenizer=Wrong())
    texts = make_texts(50)
    with pytest.warns(UserWarning, match="different ids"):
        assert as_lists(made.encode(texts)) == stock_ids(made, texts)
    assert made.encoder.engine is None


@needs_engine
def test_monotonous_text(made: Tokenization):
    long = ["a" * 70_000, " " * 20_000, "\uac00" * 22_000, "\n" * 20_000, "ab " * 10_000, "あ、\nい" * 5_000]
    for text in (*long, "x" * 100, "x" * 101):
        assert as_lists(made.encode([text])) == stock_ids(made, [text])


def test_the_engine_is_the_version_that_was_tried():
    assert encode.tokie is None or f"tokie {metadata.version('tokie')}" == encode.ENGINE


def with_pipeline(made: Tokenization, config: TokenizerConfig) -> Tokenization:
    """The same vocabulary under another normalizer."""
    tokenizer = getattr(pipelines, config.algorithm)(config)
    tokenizer.model = Tokenizer.from_str(made.canonical_json).model
    pipelines.add_special_tokens(tokenizer, made.special)
    return Tokenization(tokenizer, made.special)


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    alphabets = [
        [code for code in range(0x110000) if not 0xD800 <= code < 0xE000],
        *(range(0x20, 0x7F), range(0x300, 0x370), range(0xAC00, 0xD7A4), range(0x1100, 0x1200), range(0x4E00, 0x9FFF)),
        *(range(0x3040, 0x3100), range(0x3000), range(0xE000, 0xE100), list(map(ord, "abc 's't're.,!?0123\nΣσÉ"))),
        [0x20, 0x0A, 0x09, 0x0D, 0xA0, 0x3000, 0x2028, 0x85, 0x200B, 0x0B, 0x0C, 0x1F, 0x00, 0x7F],
    ]
    names = ["[SEP]", "[MASK]", "[UNK]", "[unused1]", "<s>", "<|endoftext|>", "##a", "▁", "Ġ"]

    def text() -> str:
        parts = ["".join(map(chr, rng.choices(rng.choice(alphabets), k=rng.choice([1, 2, 3, 8, 20, 110])))) for _ in range(3)]
        return "".join(part + (rng.choice(names) if rng.random() < 0.1 else "") for part in parts[: rng.randint(1, 3)])

    return [text() for _ in range(count)]


# -- the corpus's normalization -----------------------------------------------------------------------------------------


CLEANINGS = {
    "defaults": CleaningConfig(),
    "NFKC": CleaningConfig(unicode_form="NFKC", max_repeats=3),
    "NFD": CleaningConfig(unicode_form="NFD", max_repeats=2),
    "repeats": CleaningConfig(unicode_form="none", whitespace="keep", max_repeats=12),
}
UNCLEAN = [
    *("e\u0301", "\u0301", unicodedata.normalize("NFD", "한글 영화"), "か\u3099", "\u0327\u0301", "\u212a", "\u1161", "İ"),
    *("ＡＢＣ１２", "ｶﾞｷ", "①", "㎏", "\u3000", "\xa0", "\t", "\r\n", "\r", "  ", " \n ", "\n", "\u2028", "\x85", "\x0b"),
    *("ㅋㅋㅋㅋㅋ", "!!!!!!", "1000000", "a" * 20, "\n\n\n\n", "\x1b", "\u200b", "\ufeff", "ก\u200b", "[MASK]", "the cat"),
    *("영화는", "映画を", "．．．．．"),
]
# Older than the tables of Python and of the tokenizers library, which differ in their newest characters.
OLD = st.characters(min_codepoint=1, max_codepoint=0x7F0)
unclean_text = st.lists(st.one_of(st.sampled_from(UNCLEAN), st.text(OLD, max_size=4)), max_size=9).map("".join)


def normalizing(made: Tokenization, cleaning: CleaningConfig) -> Tokenization:
    """The same vocabulary as `train` would give it out for a corpus that was cleaned so."""
    tokenizer = Tokenizer.from_str(made.canonical_json)
    own = pipelines.steps(json.loads(made.canonical_json)["normalizer"], "normalizers")
    tokenizer.normalizer = pipelines.normalizer([*pipelines.normalization(cleaning), *own])
    return Tokenization(tokenizer, made.special)


@pytest.mark.parametrize("name", CLEANINGS)
def test_a_text_has_the_ids_of_its_cleaned_form_here_and_in_transformers(made: Tokenization, name: str, tmp_path: Path):
    """Judged by the cleaning of corpora and by transformers' AutoTokenizer; blanks at the edges of a text stay."""
    one, cleaner = normalizing(made, CLEANINGS[name]), Cleaner(CLEANINGS[name])
    tokenization.save(one, tmp_path)
    theirs, texts = of_transformers(tmp_path), list[str]()

    @settings(max_examples=15)
    @given(st.lists(unclean_text, min_size=1, max_size=4))
    def check(drawn: list[str]):
        some = [f"b{text}d" for text in drawn]
        cleaned = [cleaner.clean(DocumentBatch(text, "\0"), Counter()).text for text in some]
        assert as_lists(one.encode(some)) == as_lists(made.encode(cleaned)) == stock_ids(one, some)
        texts.extend(some)

    check()
    texts = [text for text in texts if "[MASK]" not in text]
    assert theirs(texts, add_special_tokens=False, verbose=False)["input_ids"] == as_lists(one.encode(texts))
    assert encode.tokie is None or one.encoder.engine is not None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_trained_tokenizer_normalizes_and_its_file_keeps_it(trained: dict, texts: list[str], tmp_path: Path, algorithm: Any):
    config, plain = TokenizerConfig(algorithm=algorithm, vocab_size=VOCAB_SIZES[algorithm]), trained[algorithm]
    one = tokenization.train(batches(texts), config, cleaning=CleaningConfig(max_repeats=3))
    assert one.canonical_json == normalizing(plain, CleaningConfig(max_repeats=3)).canonical_json, "training is the same"
    for steps in map(pipelines.normalization, CLEANINGS.values()):
        assert pipelines.normalization_before(steps)[1] == steps
        assert pipelines.normalization_before(steps[1:])[1] == steps[1:], "as older versions wrote them"
    tokenization.save(one, tmp_path / "a")
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "tokenizer.json", tmp_path / "b")
    loaded = tokenization.load(tmp_path / "b" / "tokenizer.json")
    decomposed = unicodedata.normalize("NFD", "영화\u3000영화")
    assert loaded.canonical_json == one.canonical_json
    assert loaded.encode([decomposed]).ids.tolist() == plain.encode(["영화 영화"]).ids.tolist()
    assert encode.tokie is None or (loaded.encoder.engine is not None and one.encoder.engine is not None)
    settings = json.loads((tmp_path / "a" / "tokenizer_config.json").read_text())
    assert settings.get("tokenize_chinese_chars") == (True if algorithm == "wordpiece" else None)


# -- tokenizers from elsewhere ------------------------------------------------------------------------------------------


SPECIALS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
BYTES = pipelines.BYTE_CHARACTERS
AS_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


def elsewhere(model: models.Model, pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenization:
    """A tokenizer of another maker, whose vocabulary begins with the five."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    return Tokenization(tokenizer, special.locate(tokenizer.get_vocab(), "here"))


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def as_bytes(text: str) -> str:
    return "".join(BYTES[byte] for byte in text.encode())


def test_a_name_that_merges_make_is_text():
    vocabulary = numbered([*SPECIALS, "<", "s", ">", "<s", "[unused0]", "[unused0", "]"])
    merges = [("<", "s"), ("<s", ">"), ("[unused0", "]"), ("<s>", "s")]
    made = elsewhere(models.BPE(vocabulary | {"<s>s": 12}, merges, unk_token="<unk>"), pre_tokenizers.WhitespaceSplit())
    assert as_lists(made.encode(["<s> s", "<s>s"])) == [[8, 7, 6], [8, 7, 6]]
    vocabulary = numbered([*SPECIALS, "a", "##<", "##s>", "a<s>", "##<s>", "##s", "##>"])
    merges = [("##s", "##>"), ("##<", "##s>"), ("a", "##<s>")]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", continuing_subword_prefix="##")
    made = elsewhere(model, pre_tokenizers.WhitespaceSplit())
    assert as_lists(made.encode(["a<s>"])) == stock_ids(made, ["a<s>"]) == [[8]]


@pytest.mark.parametrize(
    ("model", "pre_tokenizer"),
    [
        (models.BPE(numbered([*SPECIALS, *BYTES, as_bytes("日本")]), [], ignore_merges=True), AS_BYTES),
        (models.BPE(numbered([*SPECIALS, *BYTES]), [], unk_token="<unk>", fuse_unk=True), unigram_words()),
        (
            models.Unigram([*((name, -1.0) for name in (*SPECIALS, *BYTES, "日", "本")), (as_bytes("日本"), -2.0)], unk_id=1),
            AS_BYTES,
        ),
    ],
)
def test_words_that_no_merge_makes_and_bytes_and_characters_are_told_apart(model: models.Model, pre_tokenizer: Any):
    made, texts = elsewhere(model, pre_tokenizer), ["日本語", "日本", "日 日本 語", "日本 語!"]
    assert as_lists(made.encode(texts)) == stock_ids(made, texts)


def test_names_that_the_model_knows_as_words_are_text_and_added_words_keep_their_ids():
    words = models.WordLevel(numbered([*SPECIALS, "[unused0]", "a", "b"]), unk_token="<unk>")
    made = elsewhere(words, pre_tokenizers.WhitespaceSplit())
    unknown = made.special.unknown
    assert made.encode(["a <mask> b", "<s> <pad>", "[unused0] <unk>"]).ids.tolist() == [6, unknown, 7, *[unknown] * 4]
    assert made.encode_one("a <mask> b").count(made.special.mask) == 1
    tokenizer = Tokenizer.from_str(made.canonical_json)
    tokenizer.add_tokens(["New York"])
    tokenizer.add_special_tokens(["<late>"])
    tokenizer.add_tokens(["Rio"])
    made = Tokenization(tokenizer, special.locate(tokenizer.get_vocab(), "words"))
    assert [tokenizer.token_to_id(token) for token in ("New York", "<late>", "Rio")] == [8, 9, 10]
    assert made.encode(["a New York Rio b <late>"]).ids.tolist() == [6, 8, 10, 7, unknown]


def test_no_text_has_a_hidden_name():
    pieces = [(name, -1.0) for name in (*SPECIALS, "▁", "a", "▁a")]
    made = elsewhere(models.Unigram(pieces, unk_id=1), pre_tokenizers.Metaspace())
    assert made.special.mask not in made.encode(["a \U0010fffc<mask>\U0010fffc a", "<mask>"]).ids


def test_a_byte_that_is_also_a_special_token_is_not_lost():
    tokenizer = Tokenizer.from_str(elsewhere(models.BPE(numbered([*SPECIALS, *BYTES]), []), AS_BYTES).canonical_json)
    tokenizer.add_special_tokens(["!"])
    made = Tokenization(tokenizer, special.locate(tokenizer.get_vocab(), "here"))
    assert as_lists(made.encode(["a!b"])) == stock_ids(made, ["a!b"])


def test_bytes_of_a_numeral_and_a_word_are_not_merged() -> None:
    """The last byte of U+217B and the first two of カ are a token here, learnt within words."""
    made = tokenization.train([["任カ 医カ 廻カ 伻カ カ"] * 10], TokenizerConfig(algorithm="bpe", vocab_size=270))
    for text in ("ⅻカ", "ロⅻカタ"):
        assert made.encode([text]).ids.tolist() == made.encode_with_offsets([text]).ids.tolist()


def test_no_texts_have_no_ids():
    assert encode.NOTHING.split() == []
