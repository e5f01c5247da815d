"""A dataset of random tokens, to measure how fast rows are read."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np

from tpulm import storage
from tpulm.dataset.draws import Draws, Purpose
from tpulm.dataset.manifest import Counts, RowFormat, split_manifest
from tpulm.dataset.packing import lay_packed
from tpulm.dataset.part import Version, write_part
from tpulm.dataset.rows import Tokens, reorder
from tpulm.special_tokens import SpecialTokens


def write_random_rows(folder: PurePath, num_rows: int, sequence_length: int, block_rows: int) -> None:
    """Two parts of full rows; ids spread as in text, commoner ones smaller."""
    special = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
    rows = RowFormat(
        kind="packed",
        sequence_length=sequence_length,
        dtype="uint16",
        block_rows=block_rows,
        columns=("tokens",),
        vocab_size=32_000,
        special=special,
    )
    records = []
    for number in range(2):
        draws = Draws(0, Purpose.LAYOUT, number)
        size = num_rows // 2 * (sequence_length - 2)
        ids = np.floor(5 + 31_995 ** draws.uniform(size)).astype(np.uint16)
        ends = np.arange(1, num_rows // 2 + 1) * (sequence_length - 2)
        layout = lay_packed(Tokens(ids, ends, ends), sequence_length=sequence_length)
        layout = reorder(layout, draws.permutation(layout.num_rows))
        counts = Counts(documents=ends.size, tokens=size, characters=size)
        records.append(write_part(folder, number=number, inputs="", versions=[Version(layout, ids)], counts=counts, rows=rows))
    storage.write_json(folder / "manifest.json", split_manifest("train", {}, rows, records).model_dump(mode="json"))
