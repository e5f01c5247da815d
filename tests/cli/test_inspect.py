"""`tpulm dataset inspect` shows the masks of the run's own law; with whole words, in a run from text to model."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toy_runs import toy_config
from tpulm import dataset, pipeline, tokenization
from tpulm.cli.dataset import _masked
from tpulm.config import RunConfig
from tpulm.errors import WorkFolderMismatch

SYLLABLES = ["ba", "ko", "tun", "mi", "re", "so", "lan", "de", "vi", "gor"]


def toy(folder: Path, lines: list[str], **changes: Any) -> RunConfig:
    text = folder / "text.txt"
    text.write_text("\n".join(lines))
    model = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 48}
    train = {"steps": 3, "batch_size": 8, "objective": {"whole_words": True, "mask_fraction": 0.3}}
    data = {"sequence_length": 48, "rows": "packed"}
    return toy_config(text, **{"tokenizer": {"vocab_size": 70}, "data": data, "model": model, "train": train, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """Of words of one to four syllables, with a vocabulary of not many more than syllables."""
    folder, rng = tmp_path_factory.mktemp("words"), random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(80)]
    config = toy(folder, [" ".join(rng.choices(words, k=rng.randint(4, 12))) + "." for _ in range(200)])
    assert pipeline.run(config, folder / "w").steps == 3
    return config, folder / "w"


def halves(made: tokenization.Tokenization, rows: list[dataset.SampledRow], places: list[set[int]]) -> int:
    """How many words are masked in part; after a mark a word begins, since a row may begin and end inside of one."""
    cut = 0
    for row, masked in zip(rows, places, strict=True):
        ids = row.tokens.tolist()
        marks = np.isin(ids, list(set(made.special)))
        begins = np.flatnonzero(marks | [True, *marks[:-1]] | [not made.is_continuation(index) for index in ids]).tolist()
        for first, last in zip(begins, [*begins[1:], len(ids)], strict=True):
            cut += 0 < len(masked & set(range(first, last))) < last - first
    return cut


@pytest.mark.slow
def test_whole_words_are_shown_where_whole_words_are_masked(finished: tuple[RunConfig, Path]) -> None:
    config, workdir = finished
    made = tokenization.load(workdir / "tokenizer")
    rows = dataset.sample_rows(workdir, "train", count=16)
    shown = _masked(config, made, rows, 0)
    assert sum(map(len, shown)) > 100
    assert halves(made, rows, shown) == 0
    objective = config.train.objective.model_copy(update={"whole_words": False})
    tokens = config.model_copy(update={"train": config.train.model_copy(update={"objective": objective})})
    assert halves(made, rows, _masked(tokens, made, rows, 0)) > 20


def test_morphemes_are_shown_and_trained_on(tmp_path: Path) -> None:
    """Each character is a word to the tokenizer, which knows nothing of others; MeCab does."""
    pytest.importorskip("fugashi")
    sentences = ["吾輩は猫である。", "名前はまだ無い。", "どこで生れたか見当がつかぬ。", "猫は名前が無い。", "吾輩はまだ見た。"]
    rng = random.Random(0)
    config = toy(
        tmp_path,
        ["".join(rng.choices(sentences, k=rng.randint(1, 4))) for _ in range(120)],
        tokenizer={"vocab_size": 51, "split_cjk": True},
        data={"sequence_length": 48, "rows": "segments", "word_boundaries": "mecab"},
    )
    workdir = tmp_path / "w"
    done = pipeline.run(config, workdir)
    assert done.steps == 3
    made = tokenization.load(workdir / "tokenizer")
    rows = dataset.sample_rows(workdir, "train", count=12)
    together = apart = 0
    for row, masked in zip(rows, _masked(config, made, rows, 0), strict=True):
        text_of = [made.token(index) for index in row.tokens.tolist()]
        for place, pair in enumerate(itertools.pairwise(text_of)):
            if pair == ("吾", "輩"):
                together += {place, place + 1} <= masked
                apart += len({place, place + 1} & masked) == 1
    assert together > 0 and apart == 0
    with pytest.raises(WorkFolderMismatch, match=r"data\.word_boundaries"):
        pipeline.run(config.model_copy(update={"data": config.data.model_copy(update={"word_boundaries": "none"})}), workdir)
