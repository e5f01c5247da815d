"""Small datasets written without a corpus or a tokenizer: token ids are counted up from `FIRST_ID`, so that each is unique."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpulm.dataset.layouts import TokenizedDocuments, lay_packed
from tpulm.dataset.manifest import Counts, RowFormat, split_manifest
from tpulm.dataset.parts import SplitRows, Version, write_part
from tpulm.special_tokens import SpecialTokens

FIRST_ID = 10


@pytest.fixture
def write_split(tmp_path: Path) -> Callable[..., Path]:
    """write_split([rows of part 0, rows of part 1, …], …) -> the folder of a split whose rows are full of unique tokens."""

    def write(part_rows: list[int], *, sequence_length: int = 8, block_rows: int = 4, name: str = "dataset/train") -> Path:
        sizes: dict[str, Any] = {"sequence_length": sequence_length, "block_rows": block_rows, "vocab_size": 1_000_000}
        special = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
        rows = RowFormat(kind="packed", dtype="uint32", columns=("tokens",), special=special, **sizes)
        folder = tmp_path / name
        parts, next_id = [], FIRST_ID
        for number, count in enumerate(part_rows):
            size = count * (sequence_length - 2)
            ids = np.arange(next_id, next_id + size, dtype=np.uint32)
            next_id += size
            ends = np.arange(1, count + 1) * (sequence_length - 2)
            layout = lay_packed(TokenizedDocuments(ids, ends, ends), sequence_length=sequence_length)
            assert layout.num_rows == count
            counts = Counts(documents=count, tokens=size, characters=size)
            parts.append(write_part(folder, number, "x", SplitRows("train", [Version(layout, ids)], counts), rows))
        split_manifest(folder, "train", {}, rows, parts).write(folder / "manifest.json")
        return folder

    return write
