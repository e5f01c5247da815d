"""Checkpoints of TF1: whatever can be wrong with their files is found, and said."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bundles
from tpulm.convert.tensorbundle import Bundle, find_checkpoint
from tpulm.errors import ConfigError, DataError

TENSORS = {
    "a/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a/kernel/adam_m": np.ones((3, 4), np.float32),
    "b": np.arange(5, dtype=np.int32),
    "empty": np.zeros((0, 3), np.float32),
    "half": np.arange(4).astype(np.float16),
    "short": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
    "step": np.array(7, np.int64),
    "wide": np.linspace(0, 1, 9),
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return bundles.write(tmp_path / "model.ckpt-7", TENSORS)


@pytest.fixture
def index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")


@pytest.fixture
def data(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".data-00000-of-00001")


def each_byte_changed(path: Path, start: int, stop: int | None = None) -> Iterator[None]:
    """One after another, until the file is whole again."""
    whole = path.read_bytes()
    for byte in range(len(whole))[start:stop]:
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 0x10]) + whole[byte + 1 :])
        yield
    path.write_bytes(whole)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("restart_every", [1, 2, 16])
def test_what_was_written_is_read(tmp_path: Path, shards: int, restart_every: int):
    many = {f"encoder/layer_{index}/kernel": np.float32(index).reshape(1) for index in range(300)}
    for tensors, block_entries in ((TENSORS, 1), (TENSORS, 100), (many, 50)):
        prefix = bundles.write(tmp_path / "x", tensors, shards=shards, restart_every=restart_every, block_entries=block_entries)
        bundle = Bundle(prefix)
        assert list(bundle) == sorted(tensors) and len(bundle) == len(tensors)
        for name, array in tensors.items():
            assert bundle[name].shape == array.shape and bundle[name].dtype == array.dtype
            np.testing.assert_array_equal(bundle[name].read(), array)


def test_nothing_is_read_before_it_is_asked_for(prefix: Path, data: Path):
    data.unlink()
    bundle = Bundle(prefix)
    assert bundle["a/kernel"].shape == (3, 4)
    with pytest.raises(DataError, match=r"tensor a/kernel \(byte 0\): .*model.ckpt-7.data-00000"):
        bundle["a/kernel"].read()


def test_every_changed_byte_is_found(prefix: Path, index: Path, data: Path):
    """A change of the index's last 48 bytes, the footer, may be one of its padding."""
    for _ in each_byte_changed(data, 0):
        bundle = Bundle(prefix)
        with pytest.raises(DataError, match=r"\.data-00000-of-00001, tensor \S+ \(byte \d+\): .*checksum"):
            for stored in bundle.values():
                stored.read()
    for _ in each_byte_changed(index, 0, -48):
        with pytest.raises(DataError, match=r"\.index, byte [\d,]+: .*damaged"):
            Bundle(prefix)
    for _ in each_byte_changed(index, -48):
        with contextlib.suppress(DataError):
            assert list(Bundle(prefix)) == sorted(TENSORS)


def test_every_cut_is_found(prefix: Path, index: Path, data: Path):
    whole = index.read_bytes()
    for size in range(0, len(whole), 7):
        index.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"\.index, byte \d+: "):
            Bundle(prefix)
    index.write_bytes(whole)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"tensor wide \(byte \d+\): .*72 bytes"):
        Bundle(prefix)["wide"].read()


def single(path: Path, entry: bytes, *, header: bytes | None = None, kind: int = 0) -> Bundle:
    entries = {b"": bundles.header(1) if header is None else header, b"x": entry}
    path.with_name(path.name + ".index").write_bytes(bundles.table(entries, kind=kind))
    path.with_name(path.name + ".data-00000-of-00001").write_bytes(b"\0" * 16)
    return Bundle(path)


def test_what_is_not_supported_is_refused_by_name(tmp_path: Path):
    path, data = tmp_path / "x", b"\0" * 16
    whole, partitioned = bundles.entry(1, (4,), 0, 0, data), bundles.entry(1, (4,), 0, 0, data, more=bundles.message(7, b""))
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (whole, {"kind": 1}, "snappy"),
        (partitioned, {}, "tensor x .*partitioned"),
        (bundles.entry(7, (4,), 0, 0, data), {}, "tensor x .*strings"),
        (whole, {"header": bundles.header(1, endianness=1)}, "big-endian"),
        (whole, {"header": bundles.header(1)[:-1]}, "header"),
        (bundles.entry(1, (5,), 0, 0, data), {}, r"16 bytes.*\[5\] .*20"),
        (bundles.entry(1, (4,), 3, 0, data), {}, "tensor x: .*file 3"),
        (whole[:-2], {}, "tensor x: .*damaged"),
    ]
    for entry, layout, message in cases:
        with pytest.raises(DataError, match=message):
            single(path, entry, **layout)["x"].read()


# -- which checkpoint a path means ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["model.ckpt-7", "model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001", ""])
def test_a_checkpoint_is_found_by(prefix: Path, given: str):
    assert find_checkpoint(prefix.parent / given) == prefix


def test_of_several_the_newest_as_noted(prefix: Path):
    for step in (8, 9):
        bundles.write(prefix.with_name(f"model.ckpt-{step}"), TENSORS)
    with pytest.raises(ConfigError, match=r"3 checkpoints: model\.ckpt-7, .*model\.ckpt-9"):
        find_checkpoint(prefix.parent)
    noted = 'model_checkpoint_path: "/old/place/model.ckpt-8"\nall_model_checkpoint_paths: "x"\n'
    (prefix.parent / "checkpoint").write_text(noted)
    assert find_checkpoint(prefix.parent) == prefix.with_name("model.ckpt-8")


def test_an_older_one_does_not_stand_in_for_the_newest(prefix: Path):
    """TensorFlow's `latest_checkpoint` gives none either."""
    (prefix.parent / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-8"\n')
    prefix.with_name("model.ckpt-8.data-00000-of-00001").write_bytes(b"x")
    with pytest.raises(DataError, match=r"names 'model\.ckpt-8', and there is no model\.ckpt-8\.index.*model\.ckpt-7"):
        find_checkpoint(prefix.parent)
    assert find_checkpoint(prefix) == prefix
    (prefix.parent / "checkpoint").write_text("")  # it names none
    assert find_checkpoint(prefix.parent) == prefix


def test_wrong_paths_are_told_what_is_there(prefix: Path, index: Path):
    with pytest.raises(ConfigError, match=r"model\.ckpt-9\.index.*'model\.ckpt-7'"):
        find_checkpoint(prefix.with_name("model.ckpt-9"))
    elsewhere = index.rename(prefix.with_name("elsewhere"))  # one of version 1 is a table, too
    for path, message in ((prefix, r"model\.ckpt-7\.index"), (prefix.parent, r"no \.index"), (elsewhere, "version 1")):
        with pytest.raises(DataError, match=message):
            find_checkpoint(path)
    (prefix.parent / "empty").mkdir()
    assert find_checkpoint(prefix.parent / "empty") is None
