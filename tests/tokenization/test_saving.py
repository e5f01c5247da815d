"""The folder: transformers gives the same ids, and the manifest comes last."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest
from made_up import as_lists, make_texts

from tpulm import storage, tokenization
from tpulm.config import TokenizerConfig
from tpulm.convert.huggingface import vocabulary_settings
from tpulm.errors import StorageError
from tpulm.tokenization import Tokenization, load_manifest, save
from tpulm.tokenization.special import TOKENS

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(made: Tokenization, tmp_path: Path) -> Path:
    save(made, tmp_path / "tokenizer", inputs={"corpus": "abc", "sizes": [1, 2]}, model_max_length=64)
    return tmp_path / "tokenizer"


@pytest.fixture(params=[False, True], ids=["alone", "beside a model"])
def theirs(request: pytest.FixtureRequest, folder: Path):
    if request.param:
        storage.write_json(folder / "config.json", {"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_transformers_gives_the_same_ids(made: Tokenization, theirs):
    texts = ["", " ", *make_texts(100, seed=4), "Ünïcode 龘 👍🏽 　x"]
    expected = theirs(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    assert as_lists(made.encode(texts)) == expected
    for text in (texts[2], "the [MASK] cat", "영화[MASK]", "[MASK]"):
        assert theirs(text)["input_ids"] == made.encode_one(text)


def test_transformers_frames_pairs_pads_and_cuts(made: Tokenization, theirs):
    cls, sep, pad = made.special.cls, made.special.sep, made.special.pad
    first, second = as_lists(made.encode(["the cat", "영화는"]))
    pair, padded = theirs("the cat", "영화는"), theirs(["the cat", ""], padding=True)
    assert pair["input_ids"] == [cls, *first, sep, *second, sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert padded["input_ids"][1] == [cls, sep, *[pad] * len(first)]
    assert padded["attention_mask"][1] == [1, 1, *[0] * len(first)]
    assert theirs.model_max_length == 64
    assert len(theirs("the cat was good " * 50, truncation=True)["input_ids"]) == 64


def test_transformers_knows_the_special_tokens_and_decodes_alike(made: Tokenization, theirs):
    assert len(theirs) == made.vocab_size
    assert [theirs.pad_token, theirs.unk_token, theirs.cls_token, theirs.sep_token, theirs.mask_token] == list(TOKENS)
    assert theirs.all_special_ids and set(theirs.all_special_ids) == set(made.special)
    for ids in map(made.encode_one, (*make_texts(50, seed=6), "the [MASK] cat , isn't . it")):
        assert theirs.decode(ids, skip_special_tokens=True) == made.decode(ids)


def test_what_is_in_the_folder(made: Tokenization, folder: Path):
    names = {path.name for path in folder.iterdir()}
    expected = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "manifest.json"}
    assert names == expected | ({"vocab.txt"} if made.algorithm == "WordPiece" else set())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["padding_side"], settings["tokenizer_class"]) == ("right", "PreTrainedTokenizerFast")
    assert ("do_lower_case" in settings) == (made.algorithm == "WordPiece"), "of BERT's normalizer"
    if made.algorithm == "WordPiece":
        assert storage.read_text(folder / "vocab.txt").split("\n")[:-1] == list(made.vocabulary())
    found = storage.read_json(folder / "manifest.json")
    assert found.pop("files").keys() == names - {"manifest.json", "tokenizer.json"}
    described = {"algorithm": made.algorithm, "fingerprint": made.fingerprint, "vocab_size": made.vocab_size}
    inputs = {"corpus": "abc", "sizes": [1, 2]}
    assert found == {**described, "format_version": 1, "inputs": inputs, "special": asdict(made.special)}


def test_the_same_tokenizer_gives_the_same_bytes(made: Tokenization, folder: Path, tmp_path: Path):
    save(tokenization.load(folder), tmp_path / "again", inputs={"corpus": "abc", "sizes": [1, 2]}, model_max_length=64)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_the_manifest_is_written_last_and_removed_first(made: Tokenization, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage, "write_json", Mock(side_effect=StorageError("disk full")))
    with pytest.raises(StorageError, match="disk full"):
        save(made, folder)
    assert load_manifest(folder) is None


def test_a_folder_taken_over_by_another_algorithm_keeps_no_vocabulary(trained: dict[str, Tokenization], tmp_path: Path):
    save(trained["wordpiece"], tmp_path)
    save(trained["bpe"], tmp_path)
    assert not (tmp_path / "vocab.txt").exists()
    assert tokenization.load(tmp_path).fingerprint == trained["bpe"].fingerprint


def test_no_manifest_and_one_of_another_version(tmp_path: Path):
    assert load_manifest(tmp_path) is load_manifest(tmp_path / "nowhere") is None
    storage.write_json(tmp_path / "manifest.json", {"format_version": 99})
    with pytest.raises(StorageError, match="format version 99"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("changed", [*itertools.product([False, True], repeat=3)])
def test_of_a_vocabulary_alone_the_settings_say_how_it_reads_text(trained: dict, tmp_path: Path, changed: tuple[bool, ...]):
    """BERT's defaults would make Hangul letters of its syllables, which are unknown."""
    save(trained["wordpiece"], tmp_path / "vocabulary")
    lowercase, strip_accents, split_cjk = changed
    config = TokenizerConfig(lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk)
    made = tokenization.load(tmp_path / "vocabulary" / "vocab.txt", config)
    save(made, tmp_path / "saved")
    for name in ("tokenizer.json", "manifest.json"):
        (tmp_path / "saved" / name).unlink()
    assert vocabulary_settings(tmp_path / "saved") == config
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "saved")
    texts = [*make_texts(50, seed=4), "영화는 정말 재미있다", "Ünïcode The山川"]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == as_lists(made.encode(texts))
