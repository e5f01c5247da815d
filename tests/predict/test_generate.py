"""Generation: each prompt for itself, in whole characters; that its tokens are transformers' is in test_foreign_models.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest
from small_models import random_model, with_tokens
from tokenizers import pre_tokenizers

from encoders import built
from tpulm import tokenization
from tpulm.convert.huggingface import LoadedModel, load_model
from tpulm.errors import ConfigError, DataError
from tpulm.predict import Sampling, generate, stream
from tpulm.predict.generate import Writer, collect
from tpulm.tokenization.pipelines import from_byte_characters

PROMPTS = ["the old cat", "", "a cat sees the film and was very good, the old old cat", "film"]


@pytest.fixture(scope="module")
def model(tokenizer: tokenization.Tokenization) -> LoadedModel:
    return random_model(tokenizer, "causal", architecture="decoder", norm_position="pre", max_positions=64)


def token_ids(model: LoadedModel, prompts: list[str], **settings: Any) -> list[tuple[int, ...]]:
    return [one.token_ids for one in generate(model, prompts, **settings)]


# -- the tokens -------------------------------------------------------------------------------------------------------------


def test_a_batch_is_as_each_prompt_alone(model: LoadedModel):
    together = generate(model, PROMPTS, max_tokens=10, temperature=0.0)
    assert together == [generate(model, prompt, max_tokens=10, temperature=0.0)[0] for prompt in PROMPTS]


def test_the_seed_decides_and_each_prompt_draws_for_itself(model: LoadedModel, caplog: pytest.LogCaptureFixture):
    first = token_ids(model, PROMPTS, max_tokens=10, seed=1)
    with jax.log_compiles():
        assert first != token_ids(model, PROMPTS, max_tokens=10, seed=2)
    assert "_advance" not in caplog.text, "another seed is the same program"
    many = token_ids(model, PROMPTS * 5, max_tokens=10, seed=1)  # more than a batch
    assert many[:4] == first, "whatever comes after it"
    assert len(many) == 20 and len({*many[::4]}) == 5


def test_top_1_is_greedy_at_any_temperature(model: LoadedModel):
    greedy = token_ids(model, PROMPTS, max_tokens=10, temperature=0.0)
    assert token_ids(model, PROMPTS, max_tokens=10, temperature=5.0, top_k=1, top_p=None) == greedy
    assert token_ids(model, PROMPTS, max_tokens=10, temperature=1.0, top_p=1e-6) == greedy
    for least in (1e-45, 1e-38, 1e-6):
        assert token_ids(model, PROMPTS, max_tokens=10, temperature=least, top_p=None) == greedy


# -- where it stops ---------------------------------------------------------------------------------------------------------


def test_it_stops_at_the_end_of_a_text_and_each_row_for_itself(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    """The end is here a token that one of the texts has, and another has not."""
    whole = token_ids(model, PROMPTS, max_tokens=10, temperature=0.0)
    end = next(token_id for token_id in whole[0] if any(token_id not in ids for ids in whole))
    monkeypatch.setattr(tokenization.Tokenization, "ends", frozenset({end}))
    found = generate(model, PROMPTS, max_tokens=10, temperature=0.0)
    assert {one.ending for one in found} == {"end of text", "max_tokens"}
    for one, ids in zip(found, whole, strict=True):
        length, ending = (ids.index(end), "end of text") if end in ids else (len(ids), "max_tokens")
        assert (one.token_ids, one.ending) == (ids[:length], ending)


def test_it_stops_at_the_last_position(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenization.Tokenization, "ends", frozenset())
    (found,) = generate(model, "the " * 58, max_tokens=50)
    assert (len(found.token_ids), found.ending) == (64 - 59, "max_positions")
    (full,) = generate(model, "the " * 62, max_tokens=50)
    assert (len(full.token_ids), full.ending) == (1, "max_positions")


# -- text as it comes -------------------------------------------------------------------------------------------------------


def test_a_stream_makes_up_the_texts(model: LoadedModel):
    pieces = list(stream(model, PROMPTS, max_tokens=10, sampling=Sampling(seed=1)))
    assert collect(PROMPTS, pieces) == generate(model, PROMPTS, max_tokens=10, seed=1)
    assert len(pieces) > 20
    for number in range(len(PROMPTS)):
        own = [piece for piece in pieces if piece.prompt == number]
        assert [piece.ending is None for piece in own] == [True] * (len(own) - 1) + [False]


def of_bytes(kind: str, folder: Path) -> tokenization.Tokenization:
    """A vocabulary of single bytes, as byte-level BPE and as Unigram fall back to."""
    if kind == "bpe":
        return with_tokens(sorted(pre_tokenizers.ByteLevel.alphabet()), kind, folder)
    return with_tokens([*(f"<0x{value:02X}>" for value in range(256)), "▁", "▁ab"], kind, folder)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_characters_of_several_bytes_are_never_torn(tmp_path: Path, kind: str):
    made = of_bytes(kind, tmp_path)
    for text in ("吾輩は猫である", "ab 漢字 ab🙂한국어", "é"):
        writer = Writer(made, [])
        pieces = [writer.add(token_id) for token_id in made.encode_one(text, special_tokens=False)]
        assert "\ufffd" not in "".join(pieces) and "".join(pieces) + writer.end() == text
        assert len([piece for piece in pieces if piece]) > len(text) // 3, "it does not wait for the end"
    writer = Writer(made, [])
    pieces = [writer.add(token_id) for token_id in made.encode_one("漢字", special_tokens=False)[:-1]]
    assert "".join(pieces).endswith("漢") and set(writer.end()) == {"\ufffd"}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    ("stray", "written"),
    [(b"\xff", "\ufffd"), (b"\xea\xb0", "\ufffd{1,2}"), (b"\xff\xed\x95\x9c", "\ufffd(한|\ufffd{3})")],
)
def test_no_text_is_lost_after_a_stray_byte(tmp_path: Path, kind: str, stray: bytes, written: str):
    """Python's own decoder, with errors="replace", writes the stray bytes alone as U+FFFD."""
    made = of_bytes(kind, tmp_path)
    tokens = made.vocabulary()
    of_byte = {from_byte_characters(token): token for token in tokens} if kind == "bpe" else {}
    run = [tokens[of_byte.get(bytes([value]), f"<0x{value:02X}>")] for value in "ab 가".encode() + stray]
    for later in ("", " ab 漢字 ab"):
        writer = Writer(made, [])
        text = "".join(map(writer.add, [*run, *made.encode_one(later, special_tokens=False)]))
        assert re.fullmatch(f"ab 가{written}{later}", text + writer.end())
        assert text.endswith(later)


def test_spaces_between_prompt_and_text_are_those_of_one_text(tokenizer: tokenization.Tokenization):
    ids = tokenizer.encode_one("the old cats", special_tokens=False)
    writer = Writer(tokenizer, ids[:2])
    assert [writer.add(token_id) for token_id in ids[2:]] == [" cat", "s"]


# -- what is refused --------------------------------------------------------------------------------------------------------


def test_what_is_refused(model: LoadedModel):
    refused: dict[str, Any] = {"top_k": (0, 61), "top_p": (0.0, 1.5), "temperature": (-1.0, float("nan")), "max_tokens": (0,)}
    for name, value in ((name, value) for name, values in refused.items() for value in values):
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            generate(model, "the", **{name: value})
    with pytest.raises(DataError, match=r"prompt 2 of 2: .*64"):
        generate(model, ["the", "the " * 63])
    with pytest.raises(ConfigError, match="tpulm fill-mask"):
        generate(load_model(built("bert")), "the")
