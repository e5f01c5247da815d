"""Naming the tokenizers of a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tpulm.errors import ConfigError, StorageError
from tpulm.progress import Silent
from tpulm.tokenization import Tokenization, load_candidates, save

CASED = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\ncafe\ncafé\n"


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def folder(tmp_path: Path, trained: dict[str, Tokenization]) -> Path:
    """Tokenizers x/ko and x/ja, an export, work folders of runs, two vocabularies."""
    save(trained["wordpiece"], tmp_path / "x" / "ko" / "tokenizer")
    save(trained["bpe"], tmp_path / "x" / "ja" / "tokenizer")
    save(trained["unigram"], tmp_path / "y" / "ja" / "export")
    save(trained["unigram"], tmp_path / "x" / "tokenizer")
    save(trained["bpe"], tmp_path / "x" / "export")
    for workdir, name, algorithm in (("z", "korean-bert", "unigram"), ("unnamed", "run", "bpe")):
        save(trained[algorithm], tmp_path / workdir / "tokenizer")
        save(trained[algorithm], tmp_path / workdir / "export" / "discriminator")
        (tmp_path / workdir / "run.json").write_text(json.dumps({"name": name}))
    for name, text in (("one", CASED), ("two", CASED + "two\n"), ("z/one", CASED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text(text, encoding="utf-8")
    return tmp_path


def labels(folder: Path, *given: str) -> list[str]:
    prefix = [text if "=" in text else f"{folder}/{text}" for text in given]
    return [candidate.label for candidate in load_candidates([text.replace("@", f"{folder}/") for text in prefix])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("x/ko", "x/ja"), ["ko", "ja"]),
        (("x/ko", "x/ja", "y/ja/export"), ["ko", "@x/ja", "@y/ja/export"]),
        (("z", "z/one/vocab.txt"), ["korean-bert", "one"]),
        (("z/tokenizer/tokenizer.json", "two"), ["korean-bert", "two"]),
        (("unnamed", "z/export/discriminator"), ["unnamed", "korean-bert"]),
        (("x/ko/tokenizer/tokenizer.json", "two/vocab.txt"), ["ko", "two"]),
        (("one/vocab.txt", "two/vocab.txt", "x/ja"), ["one", "two", "ja"]),
        (("one", "one:uncased", "two/vocab.txt:whole_cjk"), ["@one", "@one:uncased", "two"]),
        (("x", "x/export"), ["@x", "@x/export"]),
        (("mine=@x/ko", "x/ja"), ["mine", "ja"]),
        (("ja=@x/ko", "x/ja"), ["ja", "@x/ja"]),
    ],
)
def test_labels_are_short_and_unique(folder: Path, given: tuple[str, ...], expected: list[str]):
    assert labels(folder, *given) == [name.replace("@", f"{folder}/") for name in expected]


def test_settings_are_those_of_the_text(folder: Path):
    cased, uncased, lower = load_candidates([f"{folder}/one{settings}" for settings in ("", ":uncased", ":lowercase")])
    words = [
        [one.tokenization.token(index) for index in one.tokenization.encode(["The Café"]).ids]
        for one in (cased, uncased, lower)
    ]
    assert words == [["The", "[UNK]"], ["the", "cafe"], ["the", "café"]]


def test_a_path_may_have_the_signs(tmp_path: Path):
    for name in ("a=b", "c:uncased"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text(CASED + name, encoding="utf-8")
    one, other = load_candidates([f"{tmp_path}/a=b", f"{tmp_path}/c:uncased"])
    assert (one.label, other.label) == ("a=b", "c:uncased")
    assert [one.tokenization.token(index) for index in other.tokenization.encode(["The"]).ids] == ["The"]


def test_gpt2_files(folder: Path, tmp_path: Path):
    words = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    (gpt2 / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}), "utf-8")
    (gpt2 / "merges.txt").write_text("#version: 0.2\n")
    (gpt2 / "config.json").write_text('{"eos_token_id": 0}')
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate([*words, "two"])}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    other = tmp_path / "other"
    other.mkdir()
    tokenizer.save(str(other / "tokenizer.json"))
    (other / "config.json").write_text('{"eos_token_id": 0}')
    found = load_candidates([str(gpt2), str(other), f"{folder}/one"])
    assert [one.tokenization.encode(["ab"]).lengths.tolist() for one in found[:2]] == [[2], [2]]


def test_an_uncased_one_without_the_setting_is_pointed_out(tmp_path: Path, folder: Path):
    (tmp_path / "low.txt").write_text(CASED.replace("The\n", ""), encoding="utf-8")
    notes = Notes()
    load_candidates([f"{tmp_path}/low.txt", f"{folder}/one"], progress=notes)
    assert len(notes.said) == 1 and f"{tmp_path}/low.txt:uncased" in notes.said[0]
    notes = Notes()
    load_candidates([f"{tmp_path}/low.txt:uncased", f"{folder}/one"], progress=notes)
    assert not notes.said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "needs two tokenizers"),
        (("@one",), "needs two tokenizers"),
        (("@one", "@one"), "are the same tokenizer"),
        (("@one", "a=@one"), "are the same tokenizer"),
        (("@one", "@one/vocab.txt"), "are the same tokenizer"),
        (("@one", "@one:uncasd"), "no setting 'uncasd'.*Did you mean 'uncased'"),
        (("@one", "@x/ko:uncased"), "only a vocab.txt takes settings"),
        (("a=@one", "a=@two"), "two tokenizers are named 'a'"),
        (("@one", "@tow"), "no file or folder .*/tow"),
        (("@one", "@x/kko"), "Did you mean 'ko'"),
        (("@one", ""), "names no tokenizer"),
        (("@one", "s3://bucket/x"), "local or gs://"),
    ],
)
def test_mistakes(folder: Path, given: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        load_candidates([text.replace("@", f"{folder}/") for text in given])


def test_a_folder_without_a_tokenizer(folder: Path):
    with pytest.raises(StorageError, match="holds no tokenizer"):
        load_candidates([f"{folder}/one", f"{folder}/y"])
