"""Tokenizers of causal models that are not ours: which token ends a text, what a prompt begins with, what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from made_up import of_transformers, write_vocabulary
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tpulm import tokenization
from tpulm.errors import DataError, StorageError
from tpulm.tokenization import CausalTokenization, dropped_characters, load_causal

VOCABULARY = {"l": 0, "o": 1, "w": 2, "Ġ": 3, "Ġl": 4, "lo": 5, "<|endoftext|>": 6, "<s>": 7, "<|stop|>": 8}
MERGES = "#version: 0.2\nĠ l\nl o\n"


def write(folder: Path, **files: Any) -> None:
    """Files of these names: bytes, text, or what becomes JSON; merges is a txt."""
    folder.mkdir(exist_ok=True)
    for name, values in files.items():
        content = values if isinstance(values, (str, bytes)) else json.dumps(values)
        path = folder / f"{name}.{'txt' if name == 'merges' else 'json'}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    write(tmp_path / "model", vocab=VOCABULARY, merges=MERGES, config={"eos_token_id": 6, "bos_token_id": 6})
    return tmp_path / "model"


@pytest.fixture
def one_file(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE(VOCABULARY, [("Ġ", "l"), ("l", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "<|endoftext|>", "<|stop|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 7)])
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    write(tmp_path / "model", config={"eos_token_id": [6, 8], "bos_token_id": 7})
    return tmp_path / "model"


def test_gpt2_puts_nothing_before_a_prompt_and_begins_an_empty_one(two_files: Path):
    made = load_causal(two_files)
    assert isinstance(made, CausalTokenization)
    assert (made.encode_one("low lo"), made.encode_one("")) == ([5, 2, 4, 1], [6])
    assert made.encode_one("", special_tokens=False) == []
    assert made.encode_one("lo<|endoftext|>w") == [5, 6, 2]
    assert made.encode_one("lo<|endoftext|>w", special_tokens=False)[0] == 5 and 6 not in made.encode(["<|endoftext|>"]).ids
    assert (made.ends, set(made.special), made.causal()) == ({6}, {6}, made)
    assert made.decode([6, 5, 2]) == "low"


def test_llama_s_file_begins_every_prompt(one_file: Path):
    made = load_causal(one_file)
    assert (made.encode_one("low"), made.encode_one("")) == ([7, 5, 2], [7])
    assert (made.ends, made.special.sep) == ({6, 8}, 6)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.ends, copy.encode_one(""), copy.fingerprint) == (made.ends, [7], made.fingerprint)


@pytest.mark.parametrize(
    ("files", "adds", "begins"), [("one_file", False, True), ("two_files", False, False), ("two_files", True, True)]
)
def test_add_bos_token_counts_beside_vocab_json_alone_as_in_transformers(
    request: pytest.FixtureRequest, files: str, adds: bool, begins: bool
):
    folder = request.getfixturevalue(files)
    write(folder, config={"model_type": "gpt2", "eos_token_id": 6, "bos_token_id": 7})
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<|stop|>"}
    write(folder, tokenizer_config=settings | {"add_bos_token": adds})
    ids = load_causal(folder).encode_one("low")
    assert ids == ([7, 5, 2] if begins else [5, 2])
    assert ids == of_transformers(folder)("low").input_ids


def test_which_tokens_end_a_text(one_file: Path):
    write(one_file, generation_config={"eos_token_id": 8})
    assert load_causal(one_file).ends == {8}
    write(one_file, generation_config={"bos_token_id": 7})
    assert load_causal(one_file).ends == {6, 8}
    write(one_file, config={}, special_tokens_map={"eos_token": {"content": "<|stop|>"}})
    assert load_causal(one_file).ends == {8}
    (one_file / "special_tokens_map.json").unlink()
    with pytest.raises(DataError, match=r"config\.json"):
        load_causal(one_file)
    write(one_file, config={"eos_token_id": 50256})
    with pytest.raises(DataError, match="eos_token_id"):
        load_causal(one_file)


def test_characters_that_a_vocabulary_drops(two_files: Path):
    known = {**{character: index for index, character in enumerate("loweĠ")}, "<|endoftext|>": 5}  # of GPT-2's for the bytes
    write(two_files, vocab=known, merges="", config={"eos_token_id": 5})
    made = load_causal(two_files)
    assert made.dropped(["the low 한", "wolé"]) == [{0, 1, 8}, {3}]
    tokenizer = Tokenizer(models.BPE({c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|end|>"])
    whole = CausalTokenization(tokenizer, begin=256, ends=[256])
    assert dropped_characters(whole, two_files) == [] and whole.dropped(["the 한"]) == [set()]


def test_our_own_stays_our_own(tmp_path: Path):
    own = tokenization.load(write_vocabulary(tmp_path, "the", "cat"))
    folder = tmp_path / "export"
    write(folder, tokenizer=own.causal().canonical_json, config={"eos_token_id": 3, "bos_token_id": 3})
    made = load_causal(folder)
    assert not isinstance(made, CausalTokenization)
    assert (made.special, made.ends) == (own.special, {3})
    write(folder, config={"eos_token_id": 1, "bos_token_id": 3})
    assert isinstance(load_causal(folder), CausalTokenization), "a model that ends its texts otherwise is not ours"


def test_tokens_behind_the_vocabulary(two_files: Path):
    write(two_files, tokenizer_config={"added_tokens_decoder": {"9": {"content": "<pad>", "special": True}}})
    made = load_causal(two_files)
    assert (made.vocab_size, made.encode_one("lo<pad>")) == (10, [5, 9])


def test_files_that_do_not_fit_are_refused(two_files: Path):
    for name, content, message in (
        *(("vocab", "[]", "vocab.json"), ("vocab", '{"a": "b"}', "'b'"), ("vocab", '{"a": 0, "b": 0}', "share an id")),
        *(("merges", "l o w\n", "merges.txt:1: .*'l o w'"), ("merges", "x y\n", "merges.txt .*vocab.json")),
        *(("merges", b"\xff y\n", "merges.txt: .*byte 0"), ("vocab", r'{"\ud800": 0}', "vocab.json: .*surrogate")),
        ("added_tokens", '{"x": null}', "added_tokens.json: .* 'x' is None"),
        ("tokenizer_config", '{"added_tokens_decoder": {"19": 0}}', "tokenizer_config.json: added_tokens_decoder.19: "),
        ("tokenizer_config", '{"added_tokens_decoder": {"x": "a"}}', "tokenizer_config.json: .* 'x' is no id"),
        ("tokenizer_config", '{"eos_token": 5}', "tokenizer_config.json: eos_token: "),
        ("config", '{"eos_token_id": 18446744073709551616}', "eos_token_id is 18446744073709551616"),
    ):
        write(two_files, vocab=VOCABULARY, merges=MERGES, config={"eos_token_id": 6}, added_tokens={}, tokenizer_config={})
        write(two_files, **{name: content})
        with pytest.raises(DataError, match=message):
            load_causal(two_files)


def test_one_of_two_files_is_not_enough(two_files: Path):
    (two_files / "merges.txt").unlink()
    with pytest.raises(DataError, match=r"merges\.txt .*vocab\.json"):
        load_causal(two_files)
    (two_files / "vocab.json").unlink()
    with pytest.raises(StorageError, match="no tokenizer"):
        load_causal(two_files)
