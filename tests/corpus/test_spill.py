from pathlib import Path

import numpy as np
import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.corpus.identity import RANGE, Keys, keys_of
from tpulm.corpus.spill import SpillReader, new_spill
from tpulm.errors import StorageError
from tpulm.storage import cloud


def test_a_damaged_spill_is_an_error_with_the_fix(tmp_path: Path):
    path, documents = tmp_path / "a.spill", [b"one", b"two"]
    with new_spill(path) as writer:
        writer.add(documents, keys_of(documents))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"damaged.*manifest\.json"):
        SpillReader(path, writer.runs)


@pytest.mark.parametrize("shape", ["uniform", "repeated", "small"])
def test_a_range_is_found_by_few_small_reads_in_cloud_storage(gcs: Emulator, monkeypatch: pytest.MonkeyPatch, shape: str):
    rng = np.random.default_rng(1)
    high = rng.integers(0, RANGE, 200_000, dtype=np.uint64)
    if shape == "repeated":
        high = rng.choice(high[:10], len(high))
    elif shape == "small":  # the worst there is: no key is where uniform ones would be
        high >>= np.uint64(32)
    path = storage.as_path("gs://runs/a.spill")
    with new_spill(path) as writer:
        writer.add([b"a"] * len(high), Keys(high, np.arange(len(high), dtype=np.uint64)))
    reader, high = SpillReader(path, writer.runs), np.sort(high)
    sizes, whole = list[int](), cloud.read_range
    monkeypatch.setattr(cloud, "read_range", lambda *given: sizes.append(given[2] - given[1]) or whole(*given))
    for low in (RANGE // 3, int(high[1000]), int(high[-1000]) + 1, RANGE):
        found = [item.keys.high for item in reader.slices(low, min(low + (1 << 20), RANGE))]
        assert np.array_equal(np.concatenate([high[:0], *found]), high[(high >= low) & (high < low + (1 << 20))])
    most = {"uniform": 300_000, "small": 20_000_000, "repeated": 40_000_000}  # bytes, of 4,800,000 that the keys have
    assert len(sizes) <= 40 and sum(sizes) < most[shape]
