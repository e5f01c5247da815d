"""What is missing or damaged in a checkpoint is known from its seal, on this machine and in Cloud Storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from tpulm import storage
from tpulm.errors import StorageError
from tpulm.train import checkpoint

ARRAYS = {"['params']['w']": 7, "['step']": 2**32 - 1}


@pytest.fixture(params=["disk", "cloud"])
def sealed(request: pytest.FixtureRequest, tmp_path: Path) -> PurePath:
    folder: PurePath = tmp_path / "12"
    if request.param == "cloud":
        request.getfixturevalue("gcs")
        folder = storage.as_path("gs://runs/w/checkpoints/12")
    for name, size in (("state/d/0", 1000), ("state/manifest.ocdbt", 10), ("metadata/x", 0), ("_CHECKPOINT_METADATA", 5)):
        storage.write_atomic(folder / name, bytes(range(256)) * 4 if size == 1000 else b"x" * size)
    storage.seal(folder, arrays=ARRAYS)
    storage.write_atomic(folder / "_CHECKPOINT_METADATA", "written again, later")
    storage.write_atomic(folder / "commit_success.txt", "")
    return folder


def test_a_checkpoint_that_is_whole(sealed: PurePath):
    storage.write_atomic(sealed / "state" / "descriptor", "a name more is no damage")
    assert storage.find_damage(sealed) is None
    assert checkpoint.array_checksums(sealed) == ARRAYS
    objects = storage.read_json(sealed / storage.SEAL)["objects"]
    assert list(objects) == ["metadata/x", "state/d/0", "state/manifest.ocdbt"]
    assert objects["state/manifest.ocdbt"] == {"bytes": 10, "crc32c": "IHuXmg=="}, "on disk as in Cloud Storage"


def flip(path: PurePath) -> None:
    content = bytearray(storage.read_bytes(path))
    content[len(content) // 2] ^= 1
    storage.write_atomic(path, bytes(content))


def reseal(value: object) -> Callable[[PurePath], object]:
    return lambda folder: storage.write_json(folder / storage.SEAL, value)


DAMAGES: dict[str, tuple[Callable[[PurePath], object], str]] = {
    "missing": (lambda folder: storage.remove(folder / "state/d/0"), "state/d/0 is missing"),
    "cut": (lambda folder: storage.write_atomic(folder / "state/d/0", b"123"), "state/d/0 has 3 bytes, not 1024"),
    "flipped": (lambda folder: flip(folder / "state/d/0"), "state/d/0 has another checksum"),
    "nothing": (storage.remove, "objects.json is missing"),
    "torn seal": (lambda folder: storage.write_atomic(folder / storage.SEAL, b'{"objects": {\xff'), "objects.json"),
    "odd seal": (reseal({"objects": ["x"]}), "objects.json"),
    "bare seal": (reseal({"objects": {"metadata/x": {}}}), "objects.json"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named(sealed: PurePath, kind: str):
    damaging, message = DAMAGES[kind]
    damaging(sealed)
    assert (storage.find_damage(sealed) or "").startswith(message)


def test_an_outage_is_no_damage(gcs, monkeypatch: pytest.MonkeyPatch):
    folder = storage.as_path("gs://runs/12")
    storage.write_atomic(folder / "x", "x")
    storage.seal(folder)
    monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.1)
    gcs.faults.set(error_rate=1, match=r"objects\.json")
    with pytest.raises(StorageError, match="did not answer"):
        storage.find_damage(folder)
