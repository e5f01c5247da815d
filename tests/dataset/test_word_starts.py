"""Where an analyser's words begin among the tokens, and what becomes of it in a dataset."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from test_prepare import CONFIG, WORDS, Scattered, digests, scattered_at

from tpulm import tokenization
from tpulm.config import DataConfig, RunConfig, TokenizerConfig
from tpulm.dataset import Batches, DatasetManifest, encode, evaluation_batches, load_split, prepare, sample_rows
from tpulm.dataset.encode import WordEncoder, first_of_words
from tpulm.errors import MissingExtra, WorkFolderMismatch
from tpulm.tokenization import Tokenization, analysers
from tpulm.tokenization.analysers import TextSpan

ALGORITHMS = {"wordpiece": 120, "bpe": 330, "unigram": 340}
TEXT = ["吾輩は猫である。名前はまだ無い。", "どこで生れたかとんと見当がつかぬ。", "the cats sat; 영화를 봤다 👍🏽 ﾊﾞｲｸ", "cat's"]
TROUBLE = [
    *["猫", "は", "ﾊﾞ", "か\u3099", "가", "\u1100\u1161\u11a8", "👍🏽", "𠮷", "Ａ", "cats", "e\u0301", "\x01", "\0", "\ud800"],
    *[" ", "  ", "\n", "\t", ".", "\u3000", "\xa0", "[MASK]", "<s>", "▁", "Ġ"],
]


@pytest.fixture(scope="module", params=ALGORITHMS)
def made(request: pytest.FixtureRequest) -> Tokenization:
    config = TokenizerConfig(algorithm=request.param, vocab_size=ALGORITHMS[request.param], split_cjk=False)
    more = [" ".join(map("".join, itertools.permutations("猫名前生見", size))) for size in (2, 3, 4)]
    return tokenization.train([TEXT * 6 + more * 2], config)


class Every:
    """A word begins at every `step`-th character."""

    def __init__(self, step: int):
        self.step = step

    def morphemes(self, texts: Sequence[str]) -> Iterator[list[TextSpan]]:
        for text in texts:
            yield [TextSpan(place, text[place : place + self.step]) for place in range(0, len(text), self.step)]


def encoder(made: Tokenization, step: int = 2) -> WordEncoder:
    """With an analyser that needs no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysers, "load", lambda name: Every(step))
        return WordEncoder(made, "mecab")


@given(st.lists(st.integers(0, 30), max_size=12).map(sorted), st.sets(st.integers(1, 30)).map(lambda some: [0, *sorted(some)]))
def test_the_law(places: list[int], starts: list[int]) -> None:
    before = [-1, *places]
    expected = [any(before[index] < start <= place for start in starts) for index, place in enumerate(places)]
    found = first_of_words(np.array(places, np.int64), np.array(starts))
    assert found.dtype == np.int8 and found.astype(bool).tolist() == expected
    assert expected[:1] != [False], "the first token begins a word"


@given(st.lists(st.sampled_from([*TROUBLE, *TEXT]), max_size=10).map("".join), st.integers(1, 4))
def test_ids_are_those_of_the_tokenizer(made: Tokenization, text: str, step: int) -> None:
    texts = [text, "猫", "", text]
    found, expected = encoder(made, step).encode(texts), made.encode(texts)
    np.testing.assert_array_equal(found.encoded.ids, expected.ids)
    np.testing.assert_array_equal(found.encoded.lengths, expected.lengths)
    assert found.starts.shape == expected.ids.shape
    firsts = (np.cumsum(expected.lengths) - expected.lengths)[expected.lengths > 0]
    assert found.starts[firsts].all()


def pieces(made: Tokenization, text: str, step: int) -> list[str]:
    """The text's tokens, decoded, those of one word together."""
    found = encoder(made, step).encode([text])
    begins = [*np.flatnonzero(found.starts).tolist(), len(found.starts)]
    ids = found.encoded.ids
    return [made.decode(ids[first:last]).strip() for first, last in itertools.pairwise(begins)]


def test_words_are_those_of_the_analyser(made: Tokenization) -> None:
    """Characters of which each has tokens of its own: of a byte-level vocabulary several, of which one begins the word."""
    if made.algorithm == "BPE":
        assert pieces(made, "無犬吾", 1) == ["無", "犬", "吾"]
    elif made.algorithm == "WordPiece":
        config = TokenizerConfig(vocab_size=21, split_cjk=False)
        letters = tokenization.train([["猫無名前生見当" * 2, "無", "名", "猫"] * 2], config)
        assert pieces(letters, "無名猫", 1) == ["無", "##名", "##猫"]


def test_a_blank_before_a_word_is_no_word(made: Tokenization) -> None:
    """ " sat" begins at the blank for some tokenizers; the word at its fifth character begins with it all the same."""
    found = encoder(made, 4).encode(["cats sat;"])
    assert found.starts[0] == 1
    words_of = pieces(made, "cat sat", 4)
    assert words_of[0].replace(" ", "") == "cat" and words_of[1:] == ["sat"]


def test_a_token_over_a_boundary_belongs_where_it_begins(made: Tokenization) -> None:
    ids = made.encode(["cats"]).ids
    found = encoder(made, 3).encode(["cats"])
    longest = max(len(made.decode([index]).strip()) for index in ids.tolist())
    assert found.starts.sum() == (1 if longest == 4 else 2)


def here(function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
    """In this process, where what a test has replaced is replaced."""
    return (function(*task) for task in tasks)


def prepared(scattered: Scattered, config: DataConfig, runner: Any = here) -> DatasetManifest:
    path, text = scattered.workdir / "tokenizer", scattered.manifest
    given = {"tokenizer": tokenization.load(path), "tokenization_path": path, "corpus_manifest": text}
    return prepare(config, scattered.workdir, **given, runner=runner)


def written(ids: np.ndarray, starts: np.ndarray) -> str:
    return "".join(f" {index}{'*' if start else ''} " for index, start in zip(ids.tolist(), starts.tolist(), strict=True))


@pytest.mark.parametrize("rows", ["segments", "packed"])
def test_a_dataset_says_where_words_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str) -> None:
    monkeypatch.setattr(analysers, "load", lambda name: Every(5))
    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "fugashi": "1", "unidic-lite": "2"})
    rng = random.Random(1)
    documents = [" ".join(rng.choices(WORDS, k=rng.randint(3, 30))) + "." for _ in range(150)]
    scattered = scattered_at(tmp_path / "w", documents)
    config = CONFIG.model_copy(update={"rows": rows, "word_boundaries": "mecab"})
    manifest = prepared(scattered, config)
    assert manifest.inputs["analyser"] == {"name": "mecab", "fugashi": "1", "unidic-lite": "2"}
    folder = scattered.workdir / "dataset"
    assert manifest.train.rows.columns == ("tokens", "word_start")

    made = tokenization.load(scattered.workdir / "tokenizer")
    table = np.zeros(made.vocab_size, bool)
    given: dict[str, Any] = {"columns": ["word_start"], "of_tokens": {"word_start": table}}
    batch = Batches(load_split(folder / "train"), batch_size=16, seed=0, **given).batch(0)
    assert batch["word_start"].dtype == np.int8 and batch["word_start"].shape == (16, 32), "the column, not the table"
    special = np.isin(batch["tokens"], list(set(made.special) - {made.special.unknown}))
    assert not batch["word_start"][special].any() and 0.1 < batch["word_start"][~special].mean() < 0.9

    # Every run of tokens in a row lies in one of the documents, with the same beginnings of words.
    encoded = WordEncoder(made, "mecab").encode(documents)
    ends = np.cumsum(encoded.encoded.lengths)[:-1]
    split = zip(np.split(encoded.encoded.ids, ends), np.split(encoded.starts, ends), strict=True)
    texts = [written(*document) for document in split]
    found = 0
    for tokens, starts in zip(batch["tokens"], batch["word_start"], strict=True):
        marks = np.flatnonzero(np.isin(tokens, [made.special.cls, made.special.sep])).tolist()
        runs = [slice(first + 1, last) for first, last in itertools.pairwise(marks) if last > first + 1]
        assert all(any(written(tokens[run], starts[run]) in text for text in texts) for run in runs)
        found += len(runs)
    assert found >= 16

    held_out = load_split(folder / "holdout")
    for names in ((), ("next_sentence",), ("word_start",)):  # only those that are asked for, and there
        read = next(iter(evaluation_batches(held_out, batch_size=4, columns=names)))
        assert set(read) == set(Batches(held_out, batch_size=4, seed=0, columns=names).batch(0))
        assert set(read) == {"tokens", *names} - {"next_sentence"}
    row = sample_rows(scattered.workdir, "train", count=1)[0]
    assert row.word_start is not None and row.word_start.shape == (32,)

    monkeypatch.setattr(encode, "_WORD_CHARACTERS_AT_ONCE", 50)
    again = scattered_at(tmp_path / "again", documents)
    prepared(again, config)
    assert digests(again.workdir / "dataset") == digests(folder)

    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "fugashi": "1", "unidic-lite": "3"})
    with pytest.raises(WorkFolderMismatch, match=r"analyser\.unidic-lite: .2. -> .3"):
        prepared(scattered, config)


def test_a_dataset_needs_one_version_of_the_analyser_and_a_complete_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "kiwipiepy": "2"})
        return here(function, tasks)

    scattered = scattered_at(tmp_path / "w", ["the cat sat on a mat.", "dogs ran far.", "old red barns."] * 9 + ["rain fell."])
    config = DataConfig(sequence_length=32, part_bytes=10_000, word_boundaries="kiwi")
    missing = Mock(side_effect=MissingExtra("no"))
    monkeypatch.setattr(analysers, "versions", missing)
    with pytest.raises(MissingExtra):
        prepared(scattered, config)
    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "kiwipiepy": "1"})
    monkeypatch.setattr(analysers, "load", lambda name: Every(5))
    with pytest.raises(WorkFolderMismatch, match="'2'"):
        prepared(scattered, config, elsewhere)  # another version builds nothing
    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "kiwipiepy": "1"})
    made = prepared(scattered, config)
    monkeypatch.setattr(analysers, "versions", missing)
    assert prepared(scattered, config) == made


CAUSAL = {"data": {"word_boundaries": "kiwi", "rows": "causal"}, "model": {"architecture": "decoder", "norm_position": "pre"}}


def test_boundaries_without_a_use_are_refused() -> None:
    for settings, said in (({"data": {"word_boundaries": "kiwi"}}, r"objective\.whole_words"), (CAUSAL, r"data\.word_bound")):
        with pytest.raises(ValueError, match=said):
            RunConfig.model_validate(settings)
    RunConfig.model_validate({"data": {"word_boundaries": "kiwi"}, "train": {"objective": {"whole_words": True}}})
