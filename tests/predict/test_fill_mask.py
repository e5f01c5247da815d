"""Filling masks: the model's own probabilities, in texts that read as they were given."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import random_model, with_tokens

from tpulm import tokenization
from tpulm.config import CleaningConfig, TokenizerConfig
from tpulm.convert.huggingface import LoadedModel, save_loaded
from tpulm.errors import ConfigError, DataError
from tpulm.predict import fill_mask
from tpulm.predict.fill_mask import fill, readable


@pytest.fixture(scope="module")
def model(tokenizer) -> LoadedModel:
    return random_model(tokenizer, "masked", max_positions=40)


def test_scores_are_of_the_whole_vocabulary_and_in_order(model):
    """That they are the model's is tested against transformers below."""
    (answers,) = fill_mask(model, "the old [MASK] sees a tree.", top=model.vocab_size)
    assert sum(a.score for a in answers) == pytest.approx(1.0, abs=1e-5)
    assert [a.score for a in answers] == sorted((a.score for a in answers), reverse=True)
    assert all(a.token == model.tokenization.token(a.token_id) for a in answers)


def test_a_model_is_shown_in_a_line(model):
    assert repr(model).startswith("LoadedModel(bert, ") and len(repr(model)) < 200


def test_a_text_alone_and_among_others_gets_the_same_answers(model):
    texts = ["a [MASK]", "the [MASK] [MASK] sees a house, and the fox [MASK] seen by it.", "[MASK]"] * 6
    together = fill_mask(model, texts, top=3)
    assert len(together) == len(texts)
    for text, answers in zip(texts[:2], together[:2], strict=True):
        alone = fill_mask(model, text, top=3)[0]
        assert [a[:2] + a[3:] for a in alone] == [a[:2] + a[3:] for a in answers]
        np.testing.assert_allclose([a.score for a in alone], [a.score for a in answers], rtol=1e-4)
    assert together[:3] == together[9:12]


def test_several_masks_are_answered_one_by_one(model):
    answers = fill_mask(model, "the [MASK] sees [MASK].", top=2)[0]
    assert [a.mask for a in answers] == [0, 0, 1, 1]
    assert answers[0].text == fill(model.tokenization, "the [MASK] sees [MASK].", 0, answers[0].token_id)
    assert answers[0].text.endswith(" sees [MASK].")
    assert answers[2].text.startswith("the [MASK] sees")


def test_what_cannot_be_filled(model):
    assert fill_mask(model, []) == []
    for text, message in (
        ("the old cat", r"'\[MASK\] the old cat'"),
        ("the old <mask>", "'<mask>'"),
        ("the [mask] cat", r"'\[mask\]'"),
        ("", r"\[MASK\]"),
    ):
        with pytest.raises(DataError, match=message):
            fill_mask(model, text)
    for top in (0, model.vocab_size + 1):
        with pytest.raises(ConfigError, match=f"top is {top}"):
            fill_mask(model, "[MASK]", top=top)


def test_a_text_too_long_is_refused_and_numbered(model):
    long = "the " * 38 + "[MASK]"
    with pytest.raises(DataError, match=r"text 2 of 2: .*41 .*40"):
        fill_mask(model, ["[MASK]", long])
    assert len(fill_mask(model, long.removeprefix("the "))[0]) == 5  # just fits


# -- the filled text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("The old [MASK] sees  a TREE.", "cat", "The old cat sees  a TREE."),
        ("[MASK] sees.", "cat", "cat sees."),
        ("the cat [MASK] here", "##s", "the cats here"),
        ("the cat[MASK] here", "##s", "the cats here"),
        ("the cat [MASK]", ".", "the cat."),
        ("the[MASK] sees", "cat", "the cat sees"),
        ('"[MASK]"', "cat", '"cat"'),
        ("the [MASK] [MASK]", "[SEP]", "the [SEP] [MASK]"),
        ("我[MASK]你", "爱", "我爱你"),
    ],
)
def test_wordpiece(tokenizer, text, token, expected):
    token_id = tokenizer.vocabulary()[token]
    assert (fill(tokenizer, text, 0, token_id), readable(tokenizer, token_id)) == (expected, token)


@pytest.mark.parametrize(("kind", "space"), [("bpe", "Ġ"), ("unigram", "▁")])
def test_tokens_that_bring_their_space(tmp_path, kind, space):
    tokenizer = with_tokens([*(mark + word for word in ("the", "old", "cat") for mark in (space, "")), "s"], kind, tmp_path)
    cat, s = (tokenizer.vocabulary()[token] for token in (f"{space}cat", "s"))
    assert readable(tokenizer, cat) == "cat"
    for text in ("The old [MASK] sees.", "The old[MASK] sees."):
        assert fill(tokenizer, text, 0, cat) == "The old cat sees."
    assert fill(tokenizer, "[MASK] sees.", 0, cat) == "cat sees."
    assert fill(tokenizer, "The old cat [MASK]", 0, s) == "The old cats"


FORMS = {  # the same sentence composed, decomposed, in full width, between odd blanks, with a long repeat, with controls
    "NFC": "한국 영화 [MASK] 재미있다 ABC ガス zzz",
    "NFD": unicodedata.normalize("NFD", "한국 영화 [MASK] 재미있다 ABC ガス zzz"),
    "full width": "한국 영화 [MASK] 재미있다 ＡＢＣ ｶﾞｽ ｚｚｚ",
    "blanks": "한국\u3000영화 [MASK]\xa0 재미있다\tABC\u2003ガス  zzz",
    "repeats": "한국 영화 [MASK] 재미있다 ABC ガス zzzzzzzzz",
    "controls": "한\u200b국 \x08영화 [MASK] 재미\ufeff있다 ABC ガス zz\x9bz",
}
OF_MECAB = ("NFC", "NFD", "full width", "blanks")  # what transformers' BertJapaneseTokenizer reads alike


def model_of_forms(settings: dict[str, Any], folder: Path) -> LoadedModel:
    """A random model in a folder. Its corpus was normalized to NFKC, its blanks collapsed, its repeats cut."""
    if "morphemes" in settings:
        pytest.importorskip("fugashi")
    size = {"bpe": 300, "unigram": 345}.get(settings.get("algorithm", ""), 220)
    config = TokenizerConfig(vocab_size=size, **settings)
    learnt = [unicodedata.normalize("NFKC", text.replace("[MASK]", "정말")) for text in FORMS.values()]
    learnt += [f"{first}{last} {first}r{last}" for first in "abcdefghijklmnop" for last in "aeiou" for _ in range(3)]
    made = tokenization.train([learnt * 2], config, cleaning=CleaningConfig(unicode_form="NFKC", max_repeats=3))
    model = random_model(made, "masked", max_positions=128)
    save_loaded(folder / "m", model)
    return model


@pytest.mark.parametrize(
    "settings",
    [{}, {"lowercase": True, "strip_accents": True}, {"algorithm": "bpe"}, {"algorithm": "unigram"}, {"morphemes": "mecab"}],
    ids=str,
)
def test_texts_in_other_forms_are_read_as_in_pretraining(torch: Any, settings: dict[str, Any], tmp_path: Path):
    """Every later text is normalized as the corpus was, by the tokenizer: ids and scores are those of transformers."""
    transformers = pytest.importorskip("transformers")
    model = model_of_forms(settings, tmp_path)
    made = model.tokenization
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    stock = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m").eval()
    expected = made.encode_one(FORMS["NFC"])
    assert made.special.unknown not in expected
    theirs = OF_MECAB if "morphemes" in settings else tuple(FORMS)
    for form, text in FORMS.items():
        assert made.encode_one(text) == expected and (form not in theirs or read(text)["input_ids"] == expected), form
    ours = [[(answer.token_id, answer.score) for answer in answers] for answers in fill_mask(model, list(FORMS.values()))]
    with torch.no_grad():
        logits = stock(**read(FORMS["NFD"], return_tensors="pt")).logits[0, expected.index(made.special.mask)]
    scores = torch.softmax(logits, -1).numpy()
    for answers in ours:
        assert [index for index, _ in answers] == [index for index, _ in ours[0]]
        np.testing.assert_allclose([score for _, score in answers], scores[[index for index, _ in answers]], rtol=1e-3)
