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
from unittest.mock import patch

import pytest

from tpulm import storage
from tpulm.errors import StorageError


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(storage.TEMPORARY_SUFFIX)]


class TestWriteAtomic:
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

    def test_a_failed_write_leaves_the_old_content_and_nothing_else(self, tmp_path: Path):
        path = tmp_path / "x"
        storage.write_atomic(path, "old")

        full = OSError(errno.ENOSPC, "No space left on device")
        with patch.object(os, "replace", side_effect=full), pytest.raises(StorageError, match="disk is full"):
            storage.write_atomic(path, "new")
        assert path.read_text() == "old"
        assert leftovers(tmp_path) == []

    @pytest.mark.parametrize(("limit", "most", "cause"), [("NOFILE", 40, "open files"), ("FSIZE", 1000, "size limit")])
    def test_a_real_limit_as_a_library_reports_it(self, tmp_path: Path, limit: str, most: int, cause: str):
        """TensorStore's words for it are the operating system's."""
        script = f"""
import resource, sys, tensorstore
from tpulm import storage
store = tensorstore.KvStore.open({{"driver": "file", "path": sys.argv[1]}}).result()
resource.setrlimit(resource.RLIMIT_{limit}, ({most}, {most}))
kept = []
try:
    while {limit == "NOFILE"}:
        kept.append(open("/dev/null"))
except OSError:
    pass
try:
    store.write("x", b"x" * 4000).result()
except Exception as error:
    print(storage.cause_in(str(error)))
"""
        done = subprocess.run([sys.executable, "-c", script, f"{tmp_path}/"], capture_output=True, text=True)
        assert cause in done.stdout, done

    def test_a_cause_within_another_error(self):
        assert "disk is full" in (storage.cause_in(str(ValueError(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))) or "")
        assert storage.cause_in("no File exists here") is None

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


class TestFolders:
    def test_a_file_in_the_way(self, tmp_path: Path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageError, match="file/w"):
            storage.check_writable(tmp_path / "file" / "w")
        with pytest.raises(StorageError, match="a folder"):
            storage.read_bytes(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_without_permission(self, tmp_path: Path):
        tmp_path.chmod(0o500)
        with pytest.raises(StorageError, match="permission denied"):
            storage.check_writable(tmp_path)

    def test_a_read_only_file_system(self, tmp_path: Path):
        read_only = OSError(errno.EROFS, "Read-only file system")
        with patch.object(Path, "write_bytes", side_effect=read_only), pytest.raises(StorageError, match="--workdir"):
            storage.check_writable(tmp_path)

    def test_remove_takes_a_link_and_leaves_what_it_leads_to(self, tmp_path: Path):
        (tmp_path / "folder" / "inner").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "folder")
        storage.remove(tmp_path / "link")
        assert list(tmp_path.rglob("*")) == [tmp_path / "folder", tmp_path / "folder" / "inner"]

    def test_a_folder_of_another_disk_is_copied(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        storage.write_atomic(tmp_path / "disk" / "60" / "array", "numbers")
        replace = os.replace

        def within_a_disk(source: Path, target: Path) -> None:
            if Path(source).parent != Path(target).parent:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            replace(source, target)

        monkeypatch.setattr(os, "replace", within_a_disk)
        storage.move_folder(tmp_path / "disk" / "60", tmp_path / "damaged" / "60")
        assert list(storage.walk(tmp_path)) == ["damaged/60/array"]
        assert list((tmp_path / "disk").iterdir()) == leftovers(tmp_path) == []
