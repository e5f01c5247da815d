"""A model with another vocabulary: which rows each of its tokens begins with, by hand, and a run that goes on with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from toy_runs import Notes
from tpulm import config, pipeline, tokenization
from tpulm.config import RunConfig
from tpulm.convert.continuing import new_vocabulary, starting_point
from tpulm.convert.huggingface import load_model
from tpulm.errors import ConfigError
from tpulm.nn.params import named_leaves
from tpulm.tokenization import Tokenization
from tpulm.tokenization.pipelines import BYTE_CHARACTERS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(folder: Path, name: str, *tokens: str, special: list[str] = SPECIAL) -> Tokenization:
    path = folder / name
    path.write_text("\n".join([*special, *tokens]) + "\n", encoding="utf-8")
    return tokenization.load(path)


def test_tokens_begin_with_what_they_are_in_the_old_vocabulary(tmp_path: Path) -> None:
    old = vocabulary(tmp_path, "old.txt", "film", "##s", "a", "##b", "b", "##film")  # 5 to 10
    roles = ["[UNK]", "[PAD]", "[SEP]", "[CLS]", "[MASK]"]  # in other places than there
    new = vocabulary(tmp_path, "new.txt", "##s", "films", "##filmb", "漢", "film", special=roles)
    found = new_vocabulary(old, new)
    assert found.sources == [(1,), (0,), (3,), (2,), (4,), (6,), (5, 6), (10, 8), (), (5,)]
    assert (found.kept, found.composed) == (7, 2)
    assert re.findall(r"\d+", str(found)) == ["7", "10", "2", "1"]
    weights = np.arange(32, dtype=np.float32).reshape(16, 2)  # its rows 11 to 15 stand for no token
    rows = found.rows(weights, 12)
    np.testing.assert_array_equal(rows[5], weights[6])
    np.testing.assert_array_equal(rows[6], (weights[5] + weights[6]) / 2)
    np.testing.assert_array_equal(rows[8], weights[5:11].mean(axis=0))
    assert not rows[10:].any() and rows.shape == (12, 2)
    biases = found.rows(weights[:, 0], 12)
    assert biases.shape == (12,) and biases[0] == weights[1, 0]


def bpe(prefix_space: bool) -> Tokenizer:
    merges = [("w", "a"), ("l", "k"), ("wa", "lk"), ("Ġ", "walk"), ("i", "n"), ("in", "g"), ("Ġ", "w")]
    tokens = [*SPECIAL, *BYTE_CHARACTERS, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    made.decoder = decoders.ByteLevel()
    return made


def unigram() -> Tokenizer:
    pieces = ["▁", "wal", "king", "▁w", "▁walk", "ing", *"walking,漢"]
    scores = [(token, -5.0 if len(token) == 1 and token != "▁" else -2.0) for token in pieces]
    made = Tokenizer(models.Unigram([*((token, 0.0) for token in SPECIAL), *scores], unk_id=1))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    made.decoder = decoders.Metaspace()
    return made


def wordpiece() -> Tokenizer:
    pieces = ["w", "walk", "walking", "##wa", "##ing", "##walk", "##alk", "##lking", ",", "漢"]
    made = Tokenizer(models.WordPiece({token: number for number, token in enumerate([*SPECIAL, *pieces])}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made


@pytest.mark.parametrize(
    "theirs", [bpe(False), bpe(True), unigram(), wordpiece()], ids=["bytes", "bytes after a space", "unigram", "wordpiece"]
)
def test_the_pieces_of_a_new_token_are_those_of_its_context(tmp_path: Path, theirs: Tokenizer) -> None:
    """As the old tokenizer's library reads it in a text: after a space, within a word, and a mark or an ideogram alone."""
    theirs.add_special_tokens(SPECIAL)
    theirs.save(str(tmp_path / "tokenizer.json"))
    contexts = {"walking": "w walking", "##walking": "wwalking", "wing": "w wing", "##lking": "wlking", ",": "w,", "漢": "w漢"}
    new = vocabulary(tmp_path, "new.txt", "w", *contexts)
    found = new_vocabulary(tokenization.load(tmp_path / "tokenizer.json"), new)
    for token, text in contexts.items():
        head, *pieces = theirs.encode(text).ids
        assert [head] == theirs.encode("w").ids and 1 not in pieces
        assert found.sources[new.vocabulary()[token]] == tuple(pieces), token


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--init"):
        new_vocabulary(vocabulary(tmp_path, "old.txt", "a"), vocabulary(tmp_path, "new.txt", "b"))


@pytest.mark.slow
def test_a_run_goes_on_with_another_vocabulary(toy_run: tuple[RunConfig, Path, Any], tmp_path: Path) -> None:
    """In two steps its embeddings hardly move from those of the model, each of which has another place there."""
    source, old = toy_run[0].corpus.sources[0].path, load_model(toy_run[1])
    words = [token for token in old.tokenization.vocabulary() if token not in SPECIAL]
    new = vocabulary(tmp_path, "new.txt", *reversed(words), "catdog")
    (tmp_path / "run.toml").write_text(
        f'[corpus]\nsources = ["{source}"]\nholdout_fraction = 0.1\n[data]\nsequence_length = 32\nrows = "packed"\n'
    )
    settings = [f"tokenizer.path={tmp_path / 'new.txt'}", "train.steps=2", "train.batch_size=8", "train.log_every_steps=1"]
    progress, run = Notes(), config.load(tmp_path / "run.toml", settings, start=starting_point(toy_run[1]))
    pipeline.run(run, tmp_path / "w", progress=progress)
    assert any("another vocabulary: " in note for note in progress.notes)
    before, after = (named_leaves(load_model(folder).params)["embeddings/tokens"] for folder in (toy_run[1], tmp_path / "w"))
    there = [old.tokenization.vocabulary()[word] for word in words]
    np.testing.assert_allclose(after[[new.vocabulary()[word] for word in words]], before[there], atol=1e-3, rtol=0)
    assert np.abs(after[there] - before[there]).max() > 0.02
