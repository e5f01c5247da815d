"""Checkpoints on this machine and in Cloud Storage: due, kept, copied from place to place, and passed over when damaged."""

from __future__ import annotations

import gc
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np
import pytest
import toy

from cloud_emulator import Emulator
from toy_runs import Notes
from tpulm import storage
from tpulm.config import CheckpointConfig, RunConfig
from tpulm.errors import CheckpointError, StorageError
from tpulm.train.checkpoint import Checkpoints, array_checksums, checksums, is_due, is_due_by_time

# gcsfs leaves event loops and connections to the garbage collector, and so does a read by orbax that fails.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIG = CheckpointConfig(every_steps=1, every_minutes=None)
IDENTITY = {"dataset_fingerprint": "toy"}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> PurePath:
    """On this machine; with the parameter "cloud" in a bucket."""
    if getattr(request, "param", "disk") == "disk":
        return tmp_path / "w" / "checkpoints"
    request.getfixturevalue("gcs")
    return storage.as_path("gs://runs/w/checkpoints")


def state(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    numbers = rng.standard_normal((64, 33), dtype=np.float32)
    numbers[0, :3] = [np.nan, -0.0, np.inf]  # bits, not numbers, must come back
    return {"w": jax.numpy.asarray(numbers), "step": jax.numpy.asarray(step, "int32")}


def save(folder: PurePath, *steps: int, config: CheckpointConfig = CONFIG) -> None:
    with Checkpoints(folder, config) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), {**IDENTITY, "step": step})


def abstract() -> dict[str, Any]:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state(0))


def restored_step(folder: PurePath, notes: Notes | None = None) -> int:
    """The step of the newest good checkpoint, whose bits are those that were saved."""
    with Checkpoints(folder, CONFIG, progress=notes or Notes()) as checkpoints:
        restored = checkpoints.restore_latest(abstract(), IDENTITY)
    assert restored is not None
    saved = state(restored.metadata["step"])
    assert {name: np.asarray(value).tobytes() for name, value in restored.state.items()} == {
        name: np.asarray(value).tobytes() for name, value in saved.items()
    }
    return restored.metadata["step"]


def corrupt(path: PurePath) -> None:
    content = bytearray(storage.read_bytes(path))
    content[len(content) // 2] ^= 0xFF
    storage.write_atomic(path, bytes(content))


def largest(folder: PurePath) -> PurePath:
    found = storage.walk(folder / "state")
    return folder / "state" / max(found, key=lambda name: found[name].size)


def test_when_one_is_due():
    assert [step for step in range(1, 10) if is_due(CheckpointConfig(every_steps=3), step=step)] == [3, 6, 9]
    assert not is_due(CheckpointConfig(every_steps=None), step=3)
    kept = CheckpointConfig(every_steps=4, keep_every_steps=3)
    assert [step for step in range(1, 10) if is_due(kept, step=step)] == [3, 4, 6, 8, 9]
    config = CheckpointConfig(every_minutes=0.5)
    due = [seconds for seconds in (0.0, 29.9, 30.0, 1e6) if is_due_by_time(config, seconds_since_last=seconds)]
    assert due == [30.0, 1e6]
    assert not is_due_by_time(CheckpointConfig(every_minutes=None, every_steps=1), seconds_since_last=1e9)


@pytest.mark.parametrize("name", ["a [x]%20#?*\t", "\udcbf", "a.__lock", "../link/../w", "gs://runs/a {x}%20#?*\\\t"])
def test_a_folder_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, name: str):
    """Where the files lie is the operating system's to say: below `os.path.realpath`."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "below")
    monkeypatch.chdir(tmp_path / "here")
    if storage.is_remote(name):
        request.getfixturevalue("gcs")
    folder = storage.as_path(name) / "checkpoints"
    save(folder, 1)
    real = folder if storage.is_remote(folder) else Path(os.path.realpath(folder))
    assert storage.exists(real / "1" / "objects.json")
    assert restored_step(real) == 1


@pytest.mark.parametrize("kind", ["masked", "replaced", "causal"])
def test_the_arrays_are_those_of_the_release_before(kind: str):
    """golden/checkpoints_0.2.0.json was written by that version; runs that it began go on only while nothing here changes."""
    golden = Path(__file__).parents[1] / "golden" / "checkpoints_0.2.0.json"
    arrays = jax.tree_util.tree_leaves_with_path(toy.program(toy.config(kind)).abstract_state)
    found = {jax.tree_util.keystr(path): f"{array.dtype}{list(array.shape)}" for path, array in arrays}
    assert found == json.loads(golden.read_text())[kind]


def test_an_older_version_did_not_have_a_field_that_is_empty(tmp_path: Path):
    """As ELECTRA's `difference`, which 0.2.0 did not have: all arrays are there, and no checkpoint is called damaged."""
    with Checkpoints(tmp_path / "checkpoints", CONFIG) as checkpoints:
        checkpoints.save(1, {**state(1), "gone": None}, {**IDENTITY, "step": 1})
    with Checkpoints(tmp_path / "checkpoints", CONFIG) as checkpoints:
        restored = checkpoints.restore_latest({**abstract(), "difference": None}, IDENTITY)
        assert restored is not None and restored.state["difference"] is None
        assert checksums(restored.state) == checksums(state(1)) and restored.state["w"].sharding == abstract()["w"].sharding
        with pytest.raises(CheckpointError, match="1 checkpoints"):
            checkpoints.restore_latest({**abstract(), "difference": abstract()["w"]}, IDENTITY)


def test_the_last_ones_and_every_kth_are_kept(folder: PurePath):
    save(folder, *range(1, 7), config=CheckpointConfig(every_steps=1, keep=2, keep_every_steps=3))
    with Checkpoints(folder, CONFIG) as checkpoints:
        assert checkpoints.steps() == [3, 5, 6]
    assert sorted({name.split("/")[0] for name in storage.walk(folder)}) == ["3", "5", "6"]


@pytest.mark.parametrize(("folder", "torn"), [("disk", "state"), ("disk", "seal"), ("cloud", "state")], indirect=["folder"])
def test_a_damaged_one_is_set_aside_aloud_and_the_one_before_is_taken(folder: PurePath, torn: str):
    save(folder, 1, 2)
    corrupt(largest(folder / "2") if torn == "state" else folder / "2" / storage.SEAL)
    notes = Notes()
    assert restored_step(folder, notes) == 1
    (note,) = notes.notes
    assert "checkpoint 2" in note and "/damaged/2-" in note
    (aside,) = storage.list_folder(folder.parent / "damaged")
    assert aside.name.startswith("2-") and storage.walk(aside)
    save(folder, 2)
    assert restored_step(folder) == 2


def test_one_of_another_format_is_refused_and_left_alone(folder: PurePath):
    """One that another version of tpulm wrote."""
    save(folder, 1, 2)
    sealed = storage.read_json(folder / "2" / "objects.json")
    del sealed["format_version"]
    storage.write_json(folder / "2" / "objects.json", sealed)
    with pytest.raises(CheckpointError, match="format None"):
        restored_step(folder)
    assert storage.walk(folder / "2") and not storage.exists(folder.parent / "damaged")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_reads_back_as_other_numbers_is_damaged(folder: PurePath):
    """As if memory had failed while it was written: the objects are as they were, and the arrays are not."""
    save(folder, 1, 2)
    sealed = storage.read_json(folder / "2" / "objects.json")
    sealed["arrays"]["['w']"] ^= 1
    storage.write_json(folder / "2" / "objects.json", sealed)
    notes = Notes()
    assert restored_step(folder, notes) == 1
    assert "['w']" in notes.notes[0]
    gc.collect()


def test_none_that_is_whole(folder: PurePath):
    save(folder, 1, 2)
    for step in ("1", "2"):
        corrupt(largest(folder / step))
    notes = Notes()
    with pytest.raises(CheckpointError, match="the 2 checkpoints"):
        Checkpoints(folder, CONFIG, progress=notes)
    with Checkpoints(folder, CONFIG) as checkpoints:
        assert checkpoints.steps() == []
    assert len(notes.notes) == 2 and len(storage.list_folder(folder.parent / "damaged")) == 2


@pytest.mark.parametrize("folder", ["disk", "cloud"], indirect=True)
def test_one_without_its_commit_does_not_exist(folder: PurePath):
    save(folder, 1, 2)
    if storage.is_remote(folder):
        storage.remove(folder / "2" / "commit_success.txt")
    else:
        storage.move_folder(folder / "2", folder / "2.orbax-checkpoint-tmp")
    assert restored_step(folder) == 1


def test_a_run_with_other_settings_of_training_is_refused_by_name_and_a_longer_one_is_not(tmp_path: Path):
    """A longer run at a constant learning rate is as if it had been planned so (docs); a checkpoint of an older version, which
    does not have the settings, goes on."""

    def config(**changes: Any) -> dict[str, Any]:
        optimizer = {"schedule": "constant", "warmup_steps": 2, **changes.pop("optimizer", {})}
        run = RunConfig.model_validate({"train": {"steps": 4, "optimizer": optimizer, **changes}})
        return {"config": run.model_dump(mode="json")}

    with Checkpoints(tmp_path / "w", CONFIG) as checkpoints:
        checkpoints.save(1, state(1), IDENTITY)
        assert checkpoints.restore_latest(state(0), IDENTITY | config()) is not None
        checkpoints.save(2, state(2), IDENTITY | config())
        for same in (config(), config(steps=9), config(log_every_steps=3)):
            assert checkpoints.restore_latest(state(0), IDENTITY | same) is not None
        with pytest.raises(CheckpointError, match="dataset_fingerprint"):
            checkpoints.restore_latest(state(0), {"dataset_fingerprint": "other"})
        for name, other in {
            "train.optimizer.learning_rate": config(optimizer={"learning_rate": 0.5}),
            "train.batch_size": config(batch_size=7),
            "train.steps": config(steps=1, optimizer={"warmup_steps": 1}),
        }.items():
            with pytest.raises(CheckpointError, match=name):
                checkpoints.restore_latest(state(0), IDENTITY | other)


def test_a_wall_clock_that_jumps_ends_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By an hour at each look: https://docs.python.org/3/library/time.html#time.monotonic says what may be counted by."""
    jumps = itertools.count(0, 3600)
    monkeypatch.setattr("time.time", lambda now=time.time: now() + next(jumps))
    save(tmp_path / "checkpoints", 1, 2)
    assert restored_step(tmp_path / "checkpoints") == 2 and next(jumps)


def test_what_a_seal_promises_is_on_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A power loss empties or removes what was not synced (fsync(2)): first at a seal, then when the last save has ended."""
    synced, at_seals = set[tuple[int, int]](), list[list[str]]()

    def not_synced() -> list[Path]:
        files = [path for path in (tmp_path / "w").rglob("*") if not path.name.endswith(storage.TEMPORARY_SUFFIX)]
        return [path for path in files if (path.stat().st_ino, path.stat().st_size) not in synced]

    def fsync(descriptor: int, sync: Any = os.fsync) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name.startswith(".objects.json."):
            at_seals.append([one.name for one in not_synced() if one.is_relative_to(path.parent) and one.is_file()])
        sync(descriptor)
        synced.add((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    save(tmp_path / "w" / "checkpoints", 1, 2)
    assert len(at_seals) == 2 and not {*at_seals[0], *at_seals[1]} - {"_CHECKPOINT_METADATA", "commit_success.txt"}
    assert not [path for path in not_synced() if path.is_file() or path.is_relative_to(tmp_path / "w" / "checkpoints" / "2")]


def test_copied_by_whatever_tool_it_is_as_good_as_the_original(gcs: Emulator, tmp_path: Path):
    here, there, back = tmp_path / "w" / "checkpoints", storage.as_path("gs://runs/w/checkpoints"), tmp_path / "back"
    save(here, 1)
    for source, target, step in ((here, there, 2), (there, back, 3)):
        storage.copy_files(source, target)
        storage.remove(source)
        assert restored_step(target) == step - 1
        save(target, step)
        assert restored_step(target) == step


def test_a_bucket_that_may_not_be_written_to(gcs: Emulator):
    folder = storage.as_path("gs://runs/w/checkpoints")
    save(folder, 1)
    with pytest.raises(StorageError, match="gs://runs/w/checkpoints"), \
            Checkpoints(folder, CONFIG) as checkpoints:  # fmt: skip
        gcs.faults.set(read_only=True)
        checkpoints.save(2, state(2), IDENTITY)
    gcs.faults.clear()
    assert restored_step(folder) == 1


ARRAYS = {"['params']['w']": 7, "['step']": 2**32 - 1}
FILES = {"state/d/0": bytes(range(256)) * 4, "state/manifest.ocdbt": b"x" * 10, "metadata/x": b"", "_CHECKPOINT_METADATA": b"x"}


def sealed(folder: PurePath) -> PurePath:
    for name, content in FILES.items():
        storage.write_atomic(folder / name, content)
    storage.seal(folder, arrays=ARRAYS)
    storage.write_atomic(folder / "_CHECKPOINT_METADATA", "written again, later")
    storage.write_atomic(folder / "commit_success.txt", "")
    return folder


DAMAGES: list[tuple[str, Callable[[PurePath], object]]] = [
    ("state/d/0 is missing", lambda folder: storage.remove(folder / "state/d/0")),
    ("state/d/0 has 3 bytes, not 1024", lambda folder: storage.write_atomic(folder / "state/d/0", b"123")),
    ("state/d/0 has another checksum", lambda folder: corrupt(folder / "state/d/0")),
    ("objects.json is missing", storage.remove),
    ("objects.json", lambda folder: storage.write_atomic(folder / storage.SEAL, b'{"objects": {\xff')),
    ("objects.json", lambda folder: storage.write_json(folder / storage.SEAL, {"objects": ["x"]})),
    ("objects.json", lambda folder: storage.write_json(folder / storage.SEAL, {"objects": {"metadata/x": {}}})),
]


@pytest.mark.parametrize("folder", ["disk", "cloud"], indirect=True)
def test_what_is_missing_or_damaged_is_known_from_the_seal(folder: PurePath):
    storage.write_atomic(sealed(folder) / "state" / "descriptor", "a name more is no damage")
    assert storage.find_damage(folder) is None and array_checksums(folder) == ARRAYS
    objects = storage.read_json(folder / storage.SEAL)["objects"]
    assert list(objects) == ["metadata/x", "state/d/0", "state/manifest.ocdbt"]
    assert objects["state/manifest.ocdbt"] == {"bytes": 10, "crc32c": "IHuXmg=="}, "on disk as in Cloud Storage"
    for message, damaging in DAMAGES:
        damaging(sealed(folder))
        assert (storage.find_damage(folder) or "").startswith(message), message


def test_an_outage_is_no_damage(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    folder = sealed(storage.as_path("gs://runs/12"))
    monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.1)
    gcs.faults.set(error_rate=1, match=r"objects\.json")
    with pytest.raises(StorageError, match="did not answer"):
        storage.find_damage(folder)
