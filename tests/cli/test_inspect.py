"""`tpulm dataset inspect` shows the masks of the run's own law: whole words, as MeCab parts them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from toy_runs import toy_config
from tpulm import dataset, tokenization, workfolder
from tpulm.cli.dataset import _masked
from tpulm.config import RunConfig
from tpulm.errors import WorkFolderMismatch
from tpulm.pipeline import preparation


def toy(folder: Path, lines: list[str], **changes: Any) -> RunConfig:
    text = folder / "text.txt"
    text.write_text("\n".join(lines))
    model = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 48}
    train = {"steps": 3, "batch_size": 8, "objective": {"whole_words": True, "mask_fraction": 0.3}}
    data = {"sequence_length": 48, "rows": "packed"}
    return toy_config(text, **{"tokenizer": {"vocab_size": 70}, "data": data, "model": model, "train": train, **changes})


def test_morphemes_are_shown(tmp_path: Path) -> None:
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
    with workfolder.working_in(config, tmp_path / "w") as folder:
        preparation.prepare_data(config, folder.path)
    made = tokenization.load(tmp_path / "w" / "tokenizer")
    rows = dataset.sample_rows(tmp_path / "w", "train", count=12)
    together = apart = 0
    for row, masked in zip(rows, _masked(config, made, rows, 0), strict=True):
        text_of = [made.token(index) for index in row.tokens.tolist()]
        for place, pair in enumerate(itertools.pairwise(text_of)):
            if pair == ("吾", "輩"):
                together += {place, place + 1} <= masked
                apart += len({place, place + 1} & masked) == 1
    assert together > 0 and apart == 0
    other = config.model_copy(update={"data": config.data.model_copy(update={"word_boundaries": "none"})})
    with pytest.raises(WorkFolderMismatch, match=r"data\.word_boundaries"), workfolder.working_in(other, tmp_path / "w"):
        pass
