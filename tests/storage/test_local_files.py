"""Atomic replacement, create-if-absent, exclusive folders, and operating-system errors that say what to do."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tpulm import storage
from tpulm.errors import ConfigError, DataError, StorageError


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(storage.TEMPORARY_SUFFIX)]


class TestWriteAtomic:
    def test_it_writes_text_and_bytes_and_makes_folders(self, tmp_path: Path):
        storage.write_atomic(tmp_path / "a" / "b" / "text", "한국어\n")
        storage.write_atomic(tmp_path / "bytes", b"\x00\xff")
        assert storage.read_text(tmp_path / "a" / "b" / "text") == "한국어\n"
        assert storage.read_bytes(tmp_path / "bytes") == b"\x00\xff"
        assert leftovers(tmp_path) == []

    def test_a_reader_never_sees_a_mixture(self, tmp_path: Path):
        path, contents = tmp_path / "x", [bytes([65 + i]) * 200_000 for i in range(4)]
        storage.write_atomic(path, contents[0])
        stop, seen = threading.Event(), set()

        def read() -> None:
            while not stop.is_set():
                seen.add(path.read_bytes())

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            for i in range(40):
                storage.write_atomic(path, contents[i % 4])
            stop.set()
            reading.result()
        assert seen <= set(contents)

    def test_a_failed_write_leaves_the_old_content_and_nothing_else(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = tmp_path / "x"
        storage.write_atomic(path, "old")

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match=r"cannot write .*/x: the disk is full; free some space"):
            storage.write_atomic(path, "new")
        assert path.read_text() == "old"
        assert leftovers(tmp_path) == []

    def test_a_real_limit_on_file_size(self, tmp_path: Path, user_environment: dict[str, str]):
        script = """
import resource, sys
from tpulm import storage
from tpulm.errors import StorageError
storage.write_atomic(sys.argv[1], b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    storage.write_atomic(sys.argv[1], bytes(100_000))
except StorageError as error:
    print(error)
"""
        path = tmp_path / "x"
        result = subprocess.run(
            [sys.executable, "-c", script, str(path)], env=user_environment, capture_output=True, text=True, check=True
        )
        assert "size limit (ulimit -f)" in result.stdout
        assert path.read_bytes() == b"old"
        assert leftovers(tmp_path) == []

    def test_a_kill_in_between_leaves_the_old_content(self, tmp_path: Path, user_environment: dict[str, str]):
        script = """
import os, signal, sys
from tpulm import storage
storage.write_atomic(sys.argv[1], "old")
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
storage.write_atomic(sys.argv[1], "new")
"""
        path = tmp_path / "x"
        result = subprocess.run([sys.executable, "-c", script, str(path)], env=user_environment, check=False)
        assert result.returncode == -signal.SIGKILL
        assert path.read_text() == "old"


class TestCreateIfAbsent:
    def test_the_first_wins(self, tmp_path: Path):
        assert storage.create_if_absent(tmp_path / "new" / "x", "first") is True
        assert storage.create_if_absent(tmp_path / "new" / "x", "second") is False
        assert storage.read_text(tmp_path / "new" / "x") == "first"
        assert leftovers(tmp_path) == []

    def test_one_of_many_threads_wins(self, tmp_path: Path):
        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(lambda i: storage.create_if_absent(tmp_path / "x", str(i)), range(16)))
        assert won.count(True) == 1
        assert storage.read_text(tmp_path / "x") == str(won.index(True))
        assert leftovers(tmp_path) == []


class TestPublish:
    def test_a_folder_replaces_a_folder(self, tmp_path: Path):
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "stale").write_text("x")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "fresh").write_text("y")
        storage.publish(tmp_path / "new", tmp_path / "old")
        assert [path.name for path in (tmp_path / "old").iterdir()] == ["fresh"]
        assert [path.name for path in tmp_path.iterdir()] == ["old"]

    def test_a_file_to_a_folder_that_is_not_there_yet(self, tmp_path: Path):
        (tmp_path / "new").write_text("y")
        storage.publish(tmp_path / "new", tmp_path / "a" / "b" / "x")
        assert storage.read_text(tmp_path / "a" / "b" / "x") == "y"

    def test_nothing_to_publish_keeps_what_was_there(self, tmp_path: Path):
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "kept").write_text("x")
        with pytest.raises(StorageError, match="no such file"):
            storage.publish(tmp_path / "missing", tmp_path / "old")
        assert [path.name for path in (tmp_path / "old").iterdir()] == ["kept"]
        assert leftovers(tmp_path) == []


class TestJson:
    def test_it_is_canonical(self, tmp_path: Path):
        storage.write_json(tmp_path / "x.json", {"b": 1, "a": "한"})
        assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "a": "한",\n  "b": 1\n}\n'
        assert storage.read_json(tmp_path / "x.json") == {"a": "한", "b": 1}

    def test_no_nan_is_written(self, tmp_path: Path):
        with pytest.raises(ValueError, match="JSON"):
            storage.write_json(tmp_path / "x.json", {"loss": float("nan")})
        assert not (tmp_path / "x.json").exists()

    @pytest.mark.parametrize("content", [b'{"a": ', b"\xff\xfe", b""])
    def test_what_is_no_json_is_named(self, tmp_path: Path, content: bytes):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(StorageError, match=r"x\.json: not valid JSON"):
            storage.read_json(tmp_path / "x.json")


class TestReading:
    def test_a_missing_file_is_named(self, tmp_path: Path):
        for read in (storage.read_bytes, storage.read_text, storage.open_read, storage.sha256):
            with pytest.raises(StorageError, match=r"cannot read .*missing: no such file or folder"):
                read(tmp_path / "missing")

    def test_a_folder_is_not_a_file(self, tmp_path: Path):
        with pytest.raises(StorageError, match="it is a folder, not a file"):
            storage.read_bytes(tmp_path)

    def test_text_in_another_encoding(self, tmp_path: Path):
        (tmp_path / "x").write_bytes(b"abc\xb0\xa1")
        with pytest.raises(DataError, match=r"x.*: not UTF-8 text .byte 3"):
            storage.read_text(tmp_path / "x")

    def test_sha256(self, tmp_path: Path):
        (tmp_path / "x").write_bytes(b"abc")
        assert storage.sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


class TestFolders:
    def test_check_writable_makes_the_folder_and_leaves_no_trace(self, tmp_path: Path):
        folder = storage.check_writable(tmp_path / "a" / "b")
        assert list(Path(folder).iterdir()) == []

    def test_a_file_in_the_way(self, tmp_path: Path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageError, match="a part of the path is a file"):
            storage.check_writable(tmp_path / "file" / "w")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_without_permission(self, tmp_path: Path):
        tmp_path.chmod(0o500)
        with pytest.raises(StorageError, match="permission denied"):
            storage.check_writable(tmp_path)

    def test_a_read_only_file_system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        def read_only(*_: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "write_bytes", read_only)
        with pytest.raises(StorageError, match="the file system is read-only; choose another folder with --workdir"):
            storage.check_writable(tmp_path)

    def test_remove_takes_files_folders_links_and_nothing(self, tmp_path: Path):
        (tmp_path / "folder" / "inner").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "folder")
        storage.remove(tmp_path / "link")
        assert (tmp_path / "folder" / "inner").is_dir()
        storage.remove(tmp_path / "folder")
        storage.remove(tmp_path / "folder")
        assert list(tmp_path.iterdir()) == []

    def test_other_schemes_are_refused_with_a_way_out(self):
        with pytest.raises(ConfigError, match="paths are local or gs://bucket/"):
            storage.as_path("s3://bucket/x")
        with pytest.raises(ConfigError, match="with two slashes"):
            storage.as_path("gs:/bucket/x")
        with pytest.raises(ConfigError, match="name the bucket"):
            storage.as_path("gs:///x")

    def test_exists(self, tmp_path: Path):
        assert storage.exists(tmp_path)
        assert not storage.exists(tmp_path / "x")


class TestHeld:
    HOLDER = """
import sys, time
from tpulm import storage
with storage.held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""

    def test_a_second_process_is_told_about_the_first(self, tmp_path: Path, user_environment: dict[str, str]):
        holder = subprocess.Popen(
            [sys.executable, "-c", self.HOLDER, str(tmp_path)], env=user_environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(StorageError, match=rf"in use by another tpulm process \(process {holder.pid}\)"), \
                    storage.held(tmp_path):  # fmt: skip
                pass
        finally:
            holder.kill()
            holder.communicate()
        with storage.held(tmp_path):  # the lock went with its killed owner
            assert (tmp_path / ".lock").read_text() == str(os.getpid())

    def test_it_can_be_held_again(self, tmp_path: Path):
        for _ in range(2):
            with storage.held(tmp_path / "w"):
                pass
