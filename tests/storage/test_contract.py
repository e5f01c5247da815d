"""What the functions of storage promise, on this machine and in Cloud Storage alike."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from unittest.mock import patch

import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.errors import ConfigError, DataError, StorageError
from tpulm.storage.causes import client

# google-cloud-storage leaves the connection of a refused download to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

WRITERS = 16
NAMES = ("plain", "with space", "100%25 %41", "한국어 ñ", "a+b&c=d#e?f", "semi;colon,'quote'", "[1]*{x}", "~tilde", "trailing.")


def fill(folder: PurePath, *names: str) -> None:
    for name in names:
        storage.write_atomic(folder / name, name)


def names(paths: list[PurePath]) -> list[str]:
    return [path.name for path in paths]


def test_any_name_is_found_again(place: PurePath):
    for name in NAMES:
        fill(place, f"{name}/{name}", f"{name}/x")
        assert names(storage.list_folder(place)) == [name]
        assert names(storage.list_folder(place / name)) == sorted([name, "x"])
        assert sorted(storage.walk(place)) == sorted([f"{name}/{name}", f"{name}/x"])
        assert storage.read_text(storage.list_folder(place)[0] / name) == f"{name}/{name}"
        storage.move_folder(place / name, place / f"{name}2")
        assert storage.read_text(place / f"{name}2" / name) == f"{name}/{name}"
        storage.remove(place / f"{name}2")
        assert not storage.exists(place / f"{name}2")


def test_what_is_missing_is_named(place: PurePath):
    for read in (storage.read_bytes, storage.read_text, storage.open_read, storage.sha256, storage.read_json):
        with pytest.raises(StorageError, match="place/missing"):
            read(place / "missing")
    assert storage.read_versioned(place / "missing") is None
    assert storage.info(place / "missing") is None
    assert not storage.exists(place / "missing") and not storage.is_folder(place / "missing")
    assert storage.list_folder(place / "missing") == [] and storage.walk(place / "missing") == {}
    storage.remove(place / "missing")


def test_json_is_canonical_and_what_is_none_is_named(place: PurePath):
    storage.write_json(place / "x.json", {"b": 1, "a": "한"})
    assert storage.read_text(place / "x.json") == '{\n  "a": "한",\n  "b": 1\n}\n'
    assert storage.read_json(place / "x.json") == {"a": "한", "b": 1}
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json(place / "nan.json", {"loss": float("nan")})
    assert not storage.exists(place / "nan.json")
    for content in (b'{"a": ', b"\xff\xfe", b""):
        storage.write_atomic(place / "x.json", content)
        with pytest.raises(StorageError, match=r"x\.json: .*JSON"):
            storage.read_json(place / "x.json")
    storage.write_atomic(place / "x.txt", b"abc\xb0\xa1")
    with pytest.raises(DataError, match=r"x\.txt: .*byte 3"):
        storage.read_text(place / "x.txt")


class TestCreateIfAbsent:
    def test_the_first_wins(self, place: PurePath):
        assert storage.create_if_absent(place / "new" / "x", "first") is True
        assert storage.create_if_absent(place / "new" / "x", "second") is False
        assert storage.read_text(place / "new" / "x") == "first"

    def test_one_of_many_threads_wins(self, place: PurePath):
        with ThreadPoolExecutor(WRITERS) as pool:
            won = list(pool.map(lambda i: storage.create_if_absent(place / "x", str(i)), range(WRITERS)))
        assert won.count(True) == 1
        assert storage.read_text(place / "x") == str(won.index(True))

    @pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
    def test_without_hard_links(self, tmp_path: Path, number: int):
        """Google Drive in Colab gives ENOSYS (treeverse/dvc#6962), Linux for FAT EPERM."""
        with patch.object(os, "link", side_effect=OSError(number, os.strerror(number))):
            self.test_the_first_wins(tmp_path)
            self.test_one_of_many_threads_wins(tmp_path)
        assert not list(tmp_path.rglob(f"*{storage.TEMPORARY_SUFFIX}"))


class TestVersions:
    def test_only_what_was_seen_is_replaced(self, place: PurePath):
        storage.write_atomic(place / "x", "one")
        first = storage.read_versioned(place / "x")
        assert first is not None and first[0] == b"one"
        second = storage.replace_version(place / "x", "two", first[1])
        assert second is not None and storage.read_versioned(place / "x") == (b"two", second)
        assert storage.replace_version(place / "x", "three", first[1]) is None
        assert storage.read_versioned(place / "x") == (b"two", second)
        assert storage.replace_version(place / "x", "three", second) is not None

    def test_what_was_written_again_or_is_gone_is_not_replaced(self, place: PurePath):
        for change in (lambda: storage.write_atomic(place / "x", "one"), lambda: storage.remove(place / "x")):
            storage.write_atomic(place / "x", "one")
            seen = storage.read_versioned(place / "x")
            change()
            assert seen is not None and storage.replace_version(place / "x", "two", seen[1]) is None
        assert not storage.exists(place / "x")

    def test_one_of_many_threads_wins(self, place: PurePath):
        storage.write_atomic(place / "x", "before")
        seen = storage.read_versioned(place / "x")
        assert seen is not None
        with ThreadPoolExecutor(WRITERS) as pool:
            new = list(pool.map(lambda i: storage.replace_version(place / "x", str(i), seen[1]), range(WRITERS)))
        (won,) = [i for i, version in enumerate(new) if version is not None]
        assert storage.read_versioned(place / "x") == (str(won).encode(), new[won])


class TestFolders:
    def test_what_is_where(self, place: PurePath):
        fill(place, "b.txt", "a/x", "a/deep/y", "a-b/z")
        assert names(storage.list_folder(place)) == ["a", "a-b", "b.txt"]
        assert names(storage.list_folder(place / "a")) == ["deep", "x"]
        assert storage.list_folder(place / "b.txt") == []
        sizes = {name: found.size for name, found in storage.walk(place).items()}
        assert sizes == {"a-b/z": 5, "a/deep/y": 8, "a/x": 3, "b.txt": 5}
        assert storage.is_folder(place / "a") and not storage.is_folder(place / "b.txt")
        assert storage.exists(place / "a") and storage.exists(place / "b.txt")
        assert not storage.exists(place / "a/x/y") and not storage.is_folder(place / "a-")

    def test_facts_of_files(self, place: PurePath):
        fill(place, "a/x")
        found = storage.info(place / "a" / "x")
        assert found is not None and found.modified_ns > 1_600_000_000 * 10**9 and found == storage.walk(place)["a/x"]
        assert storage.info(place / "a") is None

    def test_a_folder_is_removed_with_all_below_and_nothing_beside(self, place: PurePath):
        fill(place, "a/x", "a/deep/y", "a-b/z", "ab")
        storage.remove(place / "a")
        storage.remove(place / "ab")
        assert list(storage.walk(place)) == ["a-b/z"]

    def test_some_files_are_removed(self, place: PurePath):
        fill(place, "a", "b/c", "b/d")
        told: list[str] = []
        storage.remove_files(place, ["a", "b/c", "absent"], done=told.append)
        assert sorted(told) == ["a", "absent", "b/c"] and list(storage.walk(place)) == ["b/d"]

    def test_a_folder_moves(self, place: PurePath):
        storage.check_writable(place)
        assert storage.list_folder(place) == [], "which leaves no trace"
        fill(place, "old/commit", "old/a/x", "old-2/y")
        storage.move_folder(place / "old", place / "deep" / "new", first="commit")
        assert sorted(storage.walk(place)) == ["deep/new/a/x", "deep/new/commit", "old-2/y"]
        assert storage.read_text(place / "deep" / "new" / "a" / "x") == "old/a/x"

    def test_orbax_finds_no_checkpoints_below_brackets_in_cloud_storage(self):
        with pytest.raises(ConfigError, match=r"gs://runs/\[x\]"):
            storage.check_writable("gs://runs/[x]")


class TestPublish:
    def test_a_folder_replaces_a_folder(self, place: PurePath, tmp_path: Path):
        fill(place, "target/stale", "target/deep/stale", "target/same", "target-2/kept")
        fill(tmp_path / "made", "fresh", "deep/fresh", "same")
        storage.publish(tmp_path / "made", place / "target")
        assert sorted(storage.walk(place)) == ["target-2/kept", "target/deep/fresh", "target/fresh", "target/same"]
        assert storage.read_text(place / "target" / "same") == "same"
        assert not (tmp_path / "made").exists()

    def test_nothing_to_publish_keeps_what_was_there(self, place: PurePath, tmp_path: Path):
        fill(place, "target/kept")
        with pytest.raises(StorageError, match="no such file"):
            storage.publish(tmp_path / "missing", place / "target")
        assert list(storage.walk(place)) == ["target/kept"]

    def test_the_last_file_comes_last_and_the_first_moves_first(self, gcs: Emulator, tmp_path: Path):
        fill(tmp_path / "made", *(f"part-{i}" for i in range(12)), "manifest.json", "z/last")
        storage.publish(tmp_path / "made", "gs://runs/target", last="manifest.json")
        published = storage.walk("gs://runs/target")
        storage.move_folder("gs://runs/target", "gs://runs/new", first="part-5")
        moved = storage.walk("gs://runs/new")
        assert len(published) == len(moved) == 14
        assert max(published, key=lambda name: published[name].modified_ns) == "manifest.json"
        assert min(moved, key=lambda name: moved[name].modified_ns) == "part-5"

    def test_a_folder_made_by_hand_is_removed_whole(self, gcs: Emulator):
        """The console makes an object "x/" for a new folder."""
        from google.cloud.storage import Client

        with Client() as client:
            client.bucket("runs").blob("x/").upload_from_string(b"")
        fill(storage.as_path("gs://runs/x"), "a")
        assert list(storage.walk("gs://runs/x")) == ["a"] and names(storage.list_folder("gs://runs/x")) == ["a"]
        storage.remove("gs://runs/x")
        assert not storage.exists("gs://runs/x")


class TestReading:
    CONTENT = hashlib.shake_256(b"tpulm").digest(300_000)

    @pytest.fixture
    def path(self, place: PurePath, monkeypatch: pytest.MonkeyPatch) -> PurePath:
        monkeypatch.setattr("tpulm.storage.cloud._READ_CHUNK_BYTES", 1 << 16)
        storage.write_atomic(place / "x", self.CONTENT)
        return place / "x"

    def test_streams_read_and_seek(self, path: PurePath):
        storage.write_atomic(path.with_name("lines"), "a\n\nbc\nd")
        with storage.open_read(path.with_name("lines")) as stream:
            assert list(stream) == [b"a\n", b"\n", b"bc\n", b"d"]
        with storage.open_read(path) as stream:
            assert stream.seekable()
            assert stream.read(10) == self.CONTENT[:10]
            assert stream.seek(200_000) == 200_000 and stream.read(5) == self.CONTENT[200_000:200_005]
            assert stream.seek(-3, io.SEEK_END) == len(self.CONTENT) - 3 and stream.read() == self.CONTENT[-3:]
            assert stream.read(1) == b""
            assert stream.seek(1) == 1 and stream.read() == self.CONTENT[1:]

    def test_a_stream_never_goes_over_to_another_version(self, path: PurePath):
        with storage.open_read(path) as stream:
            assert stream.read(10) == self.CONTENT[:10]
            storage.write_atomic(path, bytes(len(self.CONTENT)))
            if storage.is_remote(path):
                with pytest.raises(StorageError, match="no such object"), storage.explain("read", path):
                    stream.read()
            else:
                assert stream.read() == self.CONTENT[10:]

    def test_ranges(self, path: PurePath, gcs: Emulator):
        ranges = storage.Ranges(path)
        for count, (start, stop) in enumerate(((0, 10), (299_990, 300_000), (0, 300_000)), 1):
            assert bytes(ranges.read(start, stop)) == self.CONTENT[start:stop]
            assert gcs.requests.get("GET media", 0) == (count if storage.is_remote(path) else 0), "only the range is read"
        assert bytes(ranges.read(7, 7)) == b""
        storage.write_atomic(path, b"")
        assert bytes(storage.Ranges(path).read(0, 0)) == storage.read_bytes(path) == b""

    def test_the_whole_and_its_digest(self, path: PurePath):
        assert storage.read_bytes(path) == self.CONTENT
        assert storage.sha256(path) == hashlib.sha256(self.CONTENT).hexdigest()


def test_what_is_stored_as_gzip_is_read_as_stored(gcs: Emulator):
    """As `gcloud storage cp --gzip-local` stores text; the client decompresses it, and then it is of another size."""
    stored = gzip.compress(b"text\n" * 1000)
    blob = client().bucket("runs").blob("text.txt.gz")
    blob.content_encoding = "gzip"
    blob.upload_from_string(stored)
    with storage.open_read("gs://runs/text.txt.gz") as stream:
        assert stream.read() == stored
